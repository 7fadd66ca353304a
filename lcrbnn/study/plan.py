"""A study: arms that differ in a few settings, trained with the same seeds, and what they show against a control."""

from __future__ import annotations

import re
import statistics
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lcrbnn.errors import InputError, refuse_unknown
from lcrbnn.runs.files import write_whole
from lcrbnn.runs.record import read_record
from lcrbnn.study.paired import Paired, paired
from lcrbnn.train import Spec
from lcrbnn.train.recipes import find_recipe
from lcrbnn.train.run import Options, check_places, train_together

KEYS = ("recipe", "seeds", "control", "settings", "arms")


class Part(NamedTuple):
    """One of several processes that share a study: each takes every total-th arm."""

    number: int
    total: int

    @classmethod
    def of(cls, text: str) -> Part:
        """Part(2, 4) from "2/4"."""
        match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(f"a part is written number/total, such as 1/4; got {text!r}")
        return cls(int(match[1]), int(match[2]))


WHOLE = Part(1, 1)


class Job(NamedTuple):
    """One run of a study."""

    arm: str
    seed: int
    spec: Spec

    @property
    def place(self) -> str:
        """Its folder under that of the study."""
        return f"{self.arm}/seed-{self.seed}"


@dataclass(frozen=True)
class Plan:
    """The arms in the order in which they are run, all seeds of one before the next: they share a compiled step."""

    name: str
    about: str  # the comment lines at its top
    seeds: tuple[int, ...]
    control: str
    arms: dict[str, Spec]

    def jobs(self, part: Part = WHOLE) -> list[Job]:
        """Every run of a part, in order."""
        arms = list(self.arms.items())[part.number - 1 :: part.total]
        return [Job(arm, seed, spec.but(seed=seed)) for arm, spec in arms for seed in self.seeds]


def read_plan(path: Path) -> Plan:
    """Read a TOML file: recipe, seeds, control, [settings] for all arms, [arms.NAME] for each."""
    try:
        text = path.read_text(encoding="utf-8")
        given: dict[str, Any] = tomllib.loads(text)
    except OSError as error:
        raise InputError(f"the plan {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"the plan {path} is no TOML: {error}") from None
    try:
        return _plan(path.stem, text, given)
    except InputError as error:
        raise InputError(f"the plan {path}: {error}") from None


def _plan(name: str, text: str, given: dict[str, Any]) -> Plan:
    refuse_unknown(given, KEYS, "part of a plan")
    for key in KEYS:
        if key not in given:
            raise InputError(f"it lacks {key}")
    seeds, arms, settings = given["seeds"], given["arms"], given["settings"]
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise InputError(f"seeds are a list of whole numbers; got {seeds!r}")
    if len(set(seeds)) != len(seeds):
        raise InputError(f"seeds name a seed twice; got {seeds!r}")
    if not isinstance(arms, dict) or not isinstance(settings, dict) or not isinstance(given["recipe"], str):
        raise InputError("recipe is a name, settings and arms are tables")
    base = find_recipe(given["recipe"]).spec.but(**settings)
    made = {}
    for arm, changes in arms.items():
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", arm) or not isinstance(changes, dict):
            raise InputError(f"an arm is a table with a name of small letters, digits, dots and dashes; got {arm!r}")
        if "seed" in changes or "seed" in settings:
            raise InputError("seeds are the plan's, not an arm's")
        try:
            made[arm] = base.but(**changes)
        except InputError as error:
            raise InputError(f"arm {arm}: {error}") from None
    if given["control"] not in made:
        raise InputError(f"the control {given['control']!r} is none of its arms: {', '.join(made)}")
    about = [line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")]
    return Plan(name, " ".join(about), tuple(seeds), given["control"], made)


def run_plan(plan: Plan, folder: Path, records: Path, options: Options, width: int, part: Part = WHOLE) -> None:
    """Train what is not finished, `width` runs side by side; each run's record is copied the moment it ends."""

    def keep(path: Path) -> None:
        target = records / path.relative_to(folder).with_suffix(".json")
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, [(path / "record.json").read_bytes()])

    check_places({folder / job.place: job.spec for job in plan.jobs(part)}, resume=True)
    todo = [job for job in plan.jobs(part) if not (folder / job.place / "record.json").exists()]
    for group in _groups(todo, width):
        train_together({folder / job.place: job.spec for job in group}, options, resume=True, finished=keep, named=True)
    for job in plan.jobs(part):  # also those whose record was lost
        if not (records / f"{job.place}.json").exists():
            keep(folder / job.place)


def _groups(jobs: list[Job], width: int) -> Iterator[list[Job]]:
    for start in range(0, len(jobs), width):
        yield jobs[start : start + width]


def table(plan: Plan, records: Path) -> str:
    """A line an arm, from the records that are there: accuracy, paired difference, share of the gradient, ratios.

    Accuracy twice, each with the difference: of the validation images, and the mean under noise.
    """
    found: dict[str, dict[int, dict[str, Any]]] = {arm: {} for arm in plan.arms}
    for job in plan.jobs():
        path = records / f"{job.place}.json"
        if path.exists():
            found[job.arm][job.seed] = _own(read_record(path), job, path)
    width = max(map(len, plan.arms))
    against = f"difference to {plan.control}, 95 %"
    titles = f"{'valid %':<14}  {against:<30}  visible  {'noisy %':<14}  {'difference, 95 %':<24}  share   |ratio - 1|"
    lines = [f"{'arm':<{width}}  runs  {titles}"]
    for arm, runs in found.items():
        lines.append(f"{arm:<{width}}  {_row(runs, {} if arm == plan.control else found[plan.control])}")
    return "\n".join(lines)


def _own(record: dict[str, Any], job: Job, path: Path) -> dict[str, Any]:
    """The record, if the plan still says what it was made with."""
    differs = Spec.of(record["settings"]).difference(job.spec)
    if differs is not None:
        name, made, wanted = differs
        raise InputError(
            f"{path} was made with {name} {made} and the plan says {wanted}: give the changed plan a name of its own"
        )
    return record


def _row(runs: dict[int, dict[str, Any]], control: dict[int, dict[str, Any]]) -> str:
    if not runs:
        return "not run"
    cells = [f"{len(runs):>4}"]
    for measure, shows_visible in ((_valid, True), (_noisy, False)):
        values = {seed: measure(record) for seed, record in runs.items()}
        theirs = {seed: measure(record) for seed, record in control.items() if seed in runs}
        cells.append(f"{_mean([v for v in values.values() if v is not None], 2):<14}")
        difference = _difference(theirs, values)
        star = "" if difference is None else f"{difference}{' *' if difference.decided else ''}"
        cells.append(f"{star:<{30 if shows_visible else 24}}")
        if shows_visible:
            cells.append(f"{'' if difference is None else f'{difference.visible:.2f}':<7}")
    last = [record["figures"]["last"] for record in runs.values()]
    share = _mean([line["share"] for line in last if line.get("share") is not None], 3)
    gap = _mean([statistics.fmean(abs(r - 1) for r in line["ratios"]) for line in last if line["ratios"]], 3)
    return "  ".join([*cells, f"{share.split(' ')[0]:<6}", gap])


def _valid(record: dict[str, Any]) -> float | None:
    return record["figures"]["last"]["valid"]


def _noisy(record: dict[str, Any]) -> float | None:
    """The mean accuracy under noise; older records, and runs without validation images, have none."""
    found = record["figures"].get("noise")
    return statistics.fmean(found.values()) if found else None


def _difference(theirs: dict[int, float | None], ours: dict[int, float | None]) -> Paired | None:
    """What the seeds of both sides show, if there are two or more and all were measured."""
    pairs = [(a, ours[seed]) for seed, a in theirs.items()]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(known) < max(len(pairs), 2):
        return None
    return paired([a for a, _ in known], [b for _, b in known])


def _mean(values: list[float], digits: int) -> str:
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"
