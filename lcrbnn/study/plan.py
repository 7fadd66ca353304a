"""A study: arms that differ in a few settings, trained with the same seeds, and what they show against a control."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lcrbnn.errors import Failed, InputError, refuse_unknown
from lcrbnn.outputs import check_output_file
from lcrbnn.runs.files import write_whole
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.record import read_record
from lcrbnn.study.arms import changes_of, check_named, read_toml, split_name, with_seed
from lcrbnn.study.paired import Paired, paired
from lcrbnn.study.sound import check_run
from lcrbnn.study.turns import compiled_for, side_by_side
from lcrbnn.train import Spec
from lcrbnn.train.ahead import compiled_ahead
from lcrbnn.train.build import STUDY, check_others, check_spec, refuse_unused
from lcrbnn.train.opening import check_places
from lcrbnn.train.options import Options
from lcrbnn.train.recipes import find_recipe
from lcrbnn.train.run import train_together

NEEDED = ("recipe", "seeds", "control", "arms")
KEYS = (*NEEDED, "settings")


class Part(NamedTuple):
    """A part of a study, for a process of several or a day of several: every total-th arm, and some of the seeds."""

    number: int
    total: int
    seeds: tuple[int, ...] | None = None  # all if None

    @classmethod
    def of(cls, text: str, seeds: Iterable[int] | None = None) -> Part:
        """Part(2, 4) from "2/4"."""
        match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(f"a part is written number/total, such as 1/4; got {text!r}")
        return cls(int(match[1]), int(match[2]), None if seeds is None else tuple(seeds))

    def of_seeds(self, seeds: Iterable[int]) -> list[int]:
        """Those of the seeds that belong to this part, in order."""
        return [seed for seed in seeds if self.seeds is None or seed in self.seeds]

    def check(self, seeds: Iterable[int]) -> None:
        """Raise if it wants a seed that none of these is."""
        known = sorted(set(seeds))
        for seed in self.seeds or ():
            if seed not in known:
                raise InputError(f"there is no run of seed {seed}: the seeds are {', '.join(map(str, known))}")


WHOLE = Part(1, 1)


class Job(NamedTuple):
    """One run of a study."""

    arm: str
    seed: int
    spec: Spec
    study: str = ""  # where runs of several lie beside each other
    unused: str = ""  # a sentence about a setting that nothing would use, if its arm says one

    @property
    def place(self) -> str:
        """Its folder under that of the study, or of all studies."""
        return f"{self.study}/{self.arm}/seed-{self.seed}".removeprefix("/")


@dataclass(frozen=True)
class Plan:
    """The arms in the order in which they are run, all seeds of one before the next: they share a compiled step."""

    path: Path
    about: str  # the comment lines at its top
    seeds: tuple[int, ...]
    control: str  # an arm, or PLAN/ARM of another plan beside this one
    arms: dict[str, Spec]
    waiting: tuple[str, ...] = ()  # arms that are like one of another plan, which is not there yet
    unused: dict[str, str] = field(default_factory=dict)  # a sentence for each arm that says what nothing uses

    @property
    def name(self) -> str:
        """That of its file."""
        return self.path.stem

    def jobs(self, part: Part = WHOLE) -> list[Job]:
        """Every run of a part, in order."""
        seeds = part.of_seeds(self.seeds)
        return [job for arm in list(self.arms)[part.number - 1 :: part.total] for job in self.jobs_of(arm, seeds)]

    def jobs_of(self, arm: str, seeds: Iterable[int]) -> list[Job]:
        """The runs of one arm."""
        unused = self.unused.get(arm, "")
        return [Job(arm, seed, with_seed(self.arms[arm], seed), unused=unused) for seed in seeds]


def read_plan(path: Path) -> Plan:
    """Read a TOML file: recipe, seeds, control, [settings] for all arms if there are some, [arms.NAME] for each."""
    text, given = read_toml(path, "plan")
    try:
        return _plan(path, text, given)
    except InputError as error:
        raise InputError(f"the plan {path}: {error}") from None


def _plan(path: Path, text: str, given: dict[str, Any]) -> Plan:
    refuse_unknown(given, KEYS, "part of a plan")
    for key in NEEDED:
        if key not in given:
            raise InputError(f"it lacks {key}")
    seeds, arms, settings = given["seeds"], given["arms"], given.get("settings", {})
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise InputError(f"seeds are a list of whole numbers; got {seeds!r}")
    if len(set(seeds)) != len(seeds):
        raise InputError(f"seeds name a seed twice; got {seeds!r}")
    if not isinstance(arms, dict) or not isinstance(settings, dict) or not isinstance(given["recipe"], str):
        raise InputError("recipe is a name, settings and arms are tables")
    base = find_recipe(given["recipe"]).spec.but(**settings)
    made, waiting, unused = {}, [], {}
    for arm, table in arms.items():
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", arm) or not isinstance(table, dict):
            raise InputError(f"an arm is a table with a name of small letters, digits, dots and dashes; got {arm!r}")
        if "seed" in table or "seed" in settings:
            raise InputError("seeds are the plan's, not an arm's")
        try:
            changes = changes_of(table, path.parent)
            if changes is None:
                waiting.append(arm)
            else:
                made[arm] = base.but(**changes)
                check_named(made[arm])
                check_spec(made[arm])
                if sentence := _unused(made[arm], table):
                    unused[arm] = f"the plan {path}: arm {arm}: {sentence}"
        except InputError as error:
            raise InputError(f"arm {arm}: {error}") from None
    control = given["control"]
    if isinstance(control, str) and "/" in control:
        split_name(control, "the control of another plan")
    elif not isinstance(control, str) or control not in made:
        raise InputError(f"the control {control!r} is none of its arms: {', '.join(made)}")
    about = [line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")]
    return Plan(path, " ".join(about), tuple(seeds), control, made, tuple(waiting), unused)


def _unused(spec: Spec, table: Iterable[str]) -> str:
    """What is said of a setting that an arm says itself and that nothing would use; empty if there is none.

    Records that an older version made of such an arm can be read: the sentence is for runs that are to begin.
    """
    try:
        refuse_unused(spec, table)
    except InputError as error:
        return str(error)
    return ""


def run_plan(plan: Plan, folder: Path, records: Path, options: Options, width: int, part: Part = WHOLE) -> None:
    """Train what is not finished, `width` runs side by side; each run's record is copied the moment it ends."""
    part.check(plan.seeds)
    _check_own(plan, folder, options.runs)
    run_jobs(plan.jobs(part), folder, records, options, width)


def _check_own(plan: Plan, folder: Path, runs: Path) -> None:
    """Raise if an arm names another of its plan and would find it in another folder than the one that is made now."""
    own = f"{STUDY}{plan.name}/"
    for job in plan.jobs():
        named = next((name for name in (job.spec.start, job.spec.teacher) if name.startswith(own)), "")
        if named and (runs / plan.name).absolute() != folder.absolute():
            raise InputError(
                f"arm {job.arm} of {plan.path} names {named}, which lies in {runs / plan.name}: run the plan into a "
                f"folder called {plan.name}, not {folder}"
            )


def run_jobs(
    jobs: Sequence[Job],
    folder: Path,
    records: Path,
    options: Options,
    width: int,
    ended: Callable[[Job, Path], None] = lambda job, path: None,
) -> None:
    """The same for some runs; `ended` may look into the folder of each finished run before others begin.

    What runs start from or learn from is looked for before any begins. A run that fails leaves the others alone, but
    for those that need it: they are made, and its failure is raised at the end.
    """

    def keep(path: Path) -> None:
        copy_record(path, records / path.relative_to(folder).with_suffix(".json"))

    places = {folder / job.place: job for job in jobs}
    for job in jobs:
        check_output_file(records / f"{job.place}.json", "a record")
    specs = {path: job.spec for path, job in places.items()}
    check_places(specs, resume=True)
    finished = list(filter(_has_record, places))
    todo = {path: spec for path, spec in specs.items() if path not in finished}
    for path in todo:
        if places[path].unused and not RunFolder(path).exists():
            raise InputError(places[path].unused)
    made = {path.absolute() for path in places}
    for spec in todo.values():
        check_others(spec, options.runs, made)
    groups = side_by_side(todo, width, options.runs)
    failures: list[Failed] = []

    def settle(runs: Iterable[Path]) -> None:
        for path in filter(_has_record, runs):
            if not (records / f"{places[path].place}.json").exists():  # it was lost
                keep(path)
            ended(places[path], path)

    settle(finished)
    with compiled_ahead([compiled_for(spec) for group in groups for spec in group.values()], options):
        for group in groups:
            stuck = {path: why for path, spec in group.items() if (why := _lacks(spec, options.runs))}
            failures += [Failed(f"{places[path].place}: {why}") for path, why in stuck.items()]
            try:
                able = {path: spec for path, spec in group.items() if path not in stuck}
                train_together(able, options, resume=True, finished=keep, named=folder)
            except Failed as failure:
                failures.append(failure)
            settle(group)
    if failures:
        raise Failed("; ".join(map(str, failures)))


def _lacks(spec: Spec, runs: Path) -> str:
    """Why a run cannot begin now, though it could if all before it had ended well; empty if it can."""
    try:
        check_others(spec, runs)
    except InputError as error:
        return str(error)
    return ""


def _has_record(run: Path) -> bool:
    return (run / "record.json").exists()


def copy_record(run: Path, target: Path) -> None:
    """The record of a run, as another file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, [(run / "record.json").read_bytes()])


def table(plan: Plan, records: Path) -> str:
    """A line an arm, from the records that are there: accuracy, paired difference, share of the gradient, ratios.

    Accuracy twice, each with the difference: of the validation images, and the mean under noise.
    """
    found = {arm: runs_of(plan, arm, plan.seeds, records) for arm in plan.arms}
    control = control_runs(plan, plan.seeds, records)
    width = max(map(len, (*plan.arms, *plan.waiting)))
    against = f"difference to {plan.control}, 95 %"
    titles = f"{'valid %':<14}  {against:<30}  visible  {'noisy %':<14}  {'difference, 95 %':<24}  share   |ratio - 1|"
    lines = [f"{'arm':<{width}}  runs  {titles}"]
    for arm, runs in found.items():
        lines.append(f"{arm:<{width}}  {_row(runs, {} if arm == plan.control else control)}")
    return "\n".join([*lines, *(f"{arm:<{width}}  not decided" for arm in plan.waiting)])


Runs = dict[int, dict[str, Any]]  # records by seed


def runs_of(plan: Plan, arm: str, seeds: Iterable[int], records: Path) -> Runs:
    """The records of an arm that are there; none if the plan has no such arm yet."""
    found = {}
    for job in plan.jobs_of(arm, seeds) if arm in plan.arms else []:
        path = records / f"{job.place}.json"
        if path.exists():
            found[job.seed] = check_run(_own(read_record(path), job, path), path)
    return found


def control_runs(plan: Plan, seeds: Iterable[int], records: Path) -> Runs:
    """The records of the control; those of another plan lie beside this plan's."""
    study, _, arm = plan.control.rpartition("/")
    if not study:
        return runs_of(plan, arm, seeds, records)
    return runs_of(read_plan(plan.path.with_name(f"{study}.toml")), arm, seeds, records.parent / study)


def _own(record: dict[str, Any], job: Job, path: Path) -> dict[str, Any]:
    """The record, if the plan still says what it was made with."""
    differs = Spec.of(record["settings"]).difference(job.spec)
    if differs is not None:
        name, made, wanted = differs
        raise InputError(
            f"{path} was made with {name} {made} and the plan says {wanted}: give the changed plan a name of its own"
        )
    return record


def _row(runs: Runs, control: Runs) -> str:
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
    gaps = [statistics.fmean(abs(r - 1) for r in line["ratios"]) for line in last if line["ratios"]]
    gap = _mean(list(filter(math.isfinite, gaps)), 3)
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
