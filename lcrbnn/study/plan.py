"""A study plan lists variants of one recipe, which are trained with the same seeds and compared with a baseline."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lcrbnn.errors import InputError, RunFailed, check_known_names, check_output_file
from lcrbnn.evaluation.paired_difference import PairedDifference, compare_paired
from lcrbnn.lcr.sigma_ratios import NOT_AVAILABLE, mean_ratio_gap
from lcrbnn.recipes.recipe import find_recipe
from lcrbnn.runs.atomic_files import write_atomic
from lcrbnn.runs.record import read_record
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.study.run_scheduler import compilation_key, schedule_runs
from lcrbnn.study.study_variants import (
    check_referenced_names,
    read_changes,
    read_plan_file,
    set_seed,
    split_variant_name,
)
from lcrbnn.study.validate_record import validate_record
from lcrbnn.train.fast.precompile import precompile_steps
from lcrbnn.train.setup.build_network import build_lcr_variant
from lcrbnn.train.setup.load import STUDY_PREFIX
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.setup.validate import check_referenced_runs, check_run_folders, reject_unused_settings, validate_spec
from lcrbnn.train.train import train_parallel

REQUIRED_KEYS = ("recipe", "seeds", "baseline", "variants")
PLAN_KEYS = (*REQUIRED_KEYS, "settings")


class StudyPart(NamedTuple):
    """The part of a study that one process trains: some seeds of every `total`-th variant from number `number` on."""

    number: int
    total: int
    seeds: tuple[int, ...] | None = None  # seeds that this process trains; None = all seeds of the plan

    @classmethod
    def parse(cls, text: str, seeds: Iterable[int] | None = None) -> StudyPart:
        """Return StudyPart(2, 4) for the text "2/4"."""
        match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(f"a shard must be I/N with I from 1 to N, such as 1/4; got {text!r}")
        return cls(int(match[1]), int(match[2]), None if seeds is None else tuple(seeds))

    def select_seeds(self, seeds: Iterable[int]) -> list[int]:
        """Return those seeds that belong to this part, in the same order."""
        return [seed for seed in seeds if self.seeds is None or seed in self.seeds]

    def check_seeds(self, seeds: Iterable[int]) -> None:
        """Raise InputError if this part has a seed that is not in the study."""
        known_seeds = sorted(set(seeds))
        for seed in self.seeds or ():
            if seed not in known_seeds:
                raise InputError(f"there is no run of seed {seed}: the seeds are {', '.join(map(str, known_seeds))}")


WHOLE_STUDY = StudyPart(1, 1)


class StudyRun(NamedTuple):
    """One run of a study."""

    variant: str
    seed: int
    spec: TrainSpec
    study: str = ""  # name of the study; empty unless the folder contains runs of several studies
    unused_setting: str = ""  # error message if the variant changes a setting that has no effect, else ""

    @property
    def relative_path(self) -> str:
        """Return the folder of the run, relative to the folder of the study (or of all studies)."""
        return f"{self.study}/{self.variant}/seed-{self.seed}".removeprefix("/")


@dataclass(frozen=True)
class StudyPlan:
    """The variants of a study, in training order.

    All seeds of a variant are trained together, because they share a step.
    """

    path: Path
    description: str  # text of the comment lines at the top of the plan file
    seeds: tuple[int, ...]
    baseline: str  # variant that the others are compared with, or PLAN/VARIANT of another plan in the same folder
    variants: dict[str, TrainSpec]
    # Names of variants whose settings are not decided yet, because they extend a variant that is not in its plan
    undecided: tuple[str, ...] = ()
    # dictionary: variant -> error message, see StudyRun.unused_setting
    unused_settings: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name of the plan, which is the name of the plan file without .toml."""
        return self.path.stem

    def list_runs(self, part: StudyPart = WHOLE_STUDY) -> list[StudyRun]:
        """Return all runs of a part, in order."""
        seeds = part.select_seeds(self.seeds)
        variants = list(self.variants)[part.number - 1 :: part.total]
        return [run for variant in variants for run in self.list_variant_runs(variant, seeds)]

    def list_variant_runs(self, variant: str, seeds: Iterable[int]) -> list[StudyRun]:
        """Return the runs of one variant, one per seed."""
        unused = self.unused_settings.get(variant, "")
        return [
            StudyRun(variant, seed, set_seed(self.variants[variant], seed), unused_setting=unused) for seed in seeds
        ]


def read_plan(path: Path) -> StudyPlan:
    """Return the plan in a TOML file.

    The file has recipe, seeds, baseline, [settings] for all variants, [variants.NAME].
    """
    text, content = read_plan_file(path)
    try:
        return _build_plan(path, text, content)
    except InputError as error:
        raise InputError(f"the plan {path}: {error}") from None


def _build_plan(path: Path, text: str, content: dict[str, Any]) -> StudyPlan:
    check_known_names(content, PLAN_KEYS, "part of a plan", "docs/training.md")
    for key in REQUIRED_KEYS:
        if key not in content:
            raise InputError(f"{key} is missing")
    seeds, tables, settings = content["seeds"], content["variants"], content.get("settings", {})
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise InputError(f"seeds must be a list of whole numbers; got {seeds!r}")
    if len(set(seeds)) != len(seeds):
        raise InputError(f"seeds contains a seed twice; got {seeds!r}")
    if not isinstance(tables, dict) or not isinstance(settings, dict) or not isinstance(content["recipe"], str):
        raise InputError("recipe must be a name, settings and variants must be tables")
    base = find_recipe(content["recipe"]).spec.replace(**settings)
    specs, undecided, unused_settings = {}, [], {}
    for variant, table in tables.items():
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", variant) or not isinstance(table, dict):
            raise InputError(
                f"a variant must be a table whose name has small letters, digits, dots and dashes; got {variant!r}"
            )
        if "seed" in table or "seed" in settings:
            raise InputError("seeds are set for the whole plan, not for a variant")
        try:
            changes = read_changes(table, path.parent)
            if changes is None:
                undecided.append(variant)
            else:
                specs[variant] = base.replace(**changes)
                check_referenced_names(specs[variant])
                validate_spec(specs[variant])
                if message := _describe_unused_setting(specs[variant], table):
                    unused_settings[variant] = f"the plan {path}: variant {variant}: {message}"
        except InputError as error:
            raise InputError(f"variant {variant}: {error}") from None
    baseline = content["baseline"]
    if isinstance(baseline, str) and "/" in baseline:
        split_variant_name(baseline, "the baseline of another plan")
    elif not isinstance(baseline, str) or baseline not in specs:
        raise InputError(f"the baseline {baseline!r} must be one of the variants: {', '.join(specs)}")
    description = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    return StudyPlan(path, description, tuple(seeds), baseline, specs, tuple(undecided), unused_settings)


def _describe_unused_setting(spec: TrainSpec, table: Iterable[str]) -> str:
    """Return an error message if the variant changes a setting that has no effect or was removed. Otherwise return "".

    The error is only raised before a run starts. So existing records of such a variant stay readable.
    """
    try:
        reject_unused_settings(spec, table)
        build_lcr_variant(spec).reject_retired_choices()
    except InputError as error:
        return str(error)
    return ""


def run_plan(
    plan: StudyPlan,
    folder: Path,
    records: Path,
    options: RunOptions,
    parallel_runs: int,
    part: StudyPart = WHOLE_STUDY,
) -> None:
    """Train the unfinished runs of a part, `parallel_runs` at a time.

    Copy the record of each run as soon as it ends.
    """
    part.check_seeds(plan.seeds)
    _check_own_folder(plan, folder, options.runs_folder)
    run_study_runs(plan.list_runs(part), folder, records, options, parallel_runs)


def _check_own_folder(plan: StudyPlan, folder: Path, runs_folder: Path) -> None:
    """Raise InputError if a variant refers to a run of its own plan that would be searched outside of `folder`."""
    own_prefix = f"{STUDY_PREFIX}{plan.name}/"
    for run in plan.list_runs():
        own_references = [name for name in (run.spec.init_from, run.spec.teacher) if name.startswith(own_prefix)]
        if own_references and (runs_folder / plan.name).absolute() != folder.absolute():
            raise InputError(
                f"variant {run.variant} of {plan.path} references {own_references[0]} in {runs_folder / plan.name}: "
                f"run the plan into a folder called {plan.name}, not {folder}"
            )


def run_study_runs(
    runs: Sequence[StudyRun],
    folder: Path,
    records: Path,
    options: RunOptions,
    parallel_runs: int,
    on_finished: Callable[[StudyRun, Path], None] = lambda run, path: None,
) -> None:
    """Train those runs that are not finished, and copy their records.

    All runs that are referred to are checked before any run starts. If a run fails, only the runs that refer to it are
    skipped, and the failure is raised at the end. `on_finished` is called for each finished run before the next group
    starts.
    """

    def copy_run_record(path: Path) -> None:
        copy_record(path, records / path.relative_to(folder).with_suffix(".json"))

    runs_by_path = {folder / run.relative_path: run for run in runs}
    for run in runs:
        check_output_file(records / f"{run.relative_path}.json", "a record")
    specs = {path: run.spec for path, run in runs_by_path.items()}
    check_run_folders(specs, resume=True)
    finished = list(filter(_has_record, runs_by_path))
    unfinished = {path: spec for path, spec in specs.items() if path not in finished}
    for path in unfinished:
        if runs_by_path[path].unused_setting and not RunFolder(path).exists():
            raise InputError(runs_by_path[path].unused_setting)
    own_paths = {path.absolute() for path in runs_by_path}
    for spec in unfinished.values():
        check_referenced_runs(spec, options.runs_folder, own_paths)
    groups = schedule_runs(unfinished, parallel_runs, options.runs_folder)
    failures: list[RunFailed] = []

    def handle_finished(paths: Iterable[Path]) -> None:
        for path in filter(_has_record, paths):
            # Here the run is finished, but the copy of its record was lost.
            if not (records / f"{runs_by_path[path].relative_path}.json").exists():
                copy_run_record(path)
            on_finished(runs_by_path[path], path)

    handle_finished(finished)
    with precompile_steps([compilation_key(spec) for group in groups for spec in group.values()], options):
        for group in groups:
            blocked = {
                path: reason
                for path, spec in group.items()
                if (reason := _describe_missing_run(spec, options.runs_folder))
            }
            failures += [RunFailed(f"{runs_by_path[path].relative_path}: {reason}") for path, reason in blocked.items()]
            try:
                startable = {path: spec for path, spec in group.items() if path not in blocked}
                train_parallel(startable, options, resume=True, on_finished=copy_run_record, label_root=folder)
            except RunFailed as failure:
                failures.append(failure)
            handle_finished(group)
    if failures:
        raise RunFailed("; ".join(map(str, failures)))


def _describe_missing_run(spec: TrainSpec, runs_folder: Path) -> str:
    """Return why a run cannot start, or "" if it can start. A run cannot start if a run in its settings has failed."""
    try:
        check_referenced_runs(spec, runs_folder)
    except InputError as error:
        return str(error)
    return ""


def _has_record(run: Path) -> bool:
    return (run / "record.json").exists()


def copy_record(run: Path, target: Path) -> None:
    """Copy the record of a run, byte for byte."""
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, [(run / "record.json").read_bytes()])


def render_study_table(plan: StudyPlan, records: Path) -> str:
    """Return a text table with one line per variant.

    A line has the validation accuracy and the mean accuracy under noise, each with its paired difference to the
    baseline. The LCR gradient ratio and the mean |σ_B/σ_F - 1| of the last epoch follow.
    """
    records_by_variant = {variant: read_records(plan, variant, plan.seeds, records) for variant in plan.variants}
    baseline_records = read_baseline_records(plan, plan.seeds, records)
    width = max(map(len, (*plan.variants, *plan.undecided)))
    against = f"difference to {plan.baseline}, 95 %"
    titles = (
        f"{'valid %':<14}  {against:<30}  detectable  {'noisy %':<14}  {'difference, 95 %':<24}  "
        "gradient ratio  |ratio - 1|"
    )
    lines = [f"{'variant':<{width}}  runs  {titles}"]
    for variant, runs in records_by_variant.items():
        lines.append(f"{variant:<{width}}  {_render_row(runs, {} if variant == plan.baseline else baseline_records)}")
    return "\n".join([*lines, *(f"{variant:<{width}}  not decided" for variant in plan.undecided)])


RecordsBySeed = dict[int, dict[str, Any]]


def read_records(plan: StudyPlan, variant: str, seeds: Iterable[int], records: Path) -> RecordsBySeed:
    """Return the existing records of a variant. A variant whose settings are not decided yet has none."""
    records_by_seed = {}
    for run in plan.list_variant_runs(variant, seeds) if variant in plan.variants else []:
        path = records / f"{run.relative_path}.json"
        if path.exists():
            records_by_seed[run.seed] = validate_record(_check_settings(read_record(path), run, path), path)
    return records_by_seed


def read_baseline_records(plan: StudyPlan, seeds: Iterable[int], records: Path) -> RecordsBySeed:
    """Return the existing records of the baseline.

    If it belongs to another plan, they are in a folder next to `records`.
    """
    plan_name, _, variant = plan.baseline.rpartition("/")
    if not plan_name:
        return read_records(plan, variant, seeds, records)
    return read_records(read_plan(plan.path.with_name(f"{plan_name}.toml")), variant, seeds, records.parent / plan_name)


def _check_settings(record: dict[str, Any], run: StudyRun, path: Path) -> dict[str, Any]:
    """Return the record. If its settings differ from those in the plan, raise InputError."""
    difference = TrainSpec.from_dict(record["settings"]).difference(run.spec)
    if difference is not None:
        name, recorded_value, planned_value = difference
        raise InputError(
            f"{path} was made with {name} {recorded_value} and the plan has {planned_value}: give the changed plan a "
            "name of its own"
        )
    return record


def _render_row(runs: RecordsBySeed, baseline_runs: RecordsBySeed) -> str:
    if not runs:
        return "not run"
    cells = [f"{len(runs):>4}"]
    for read_top1, shows_detectable in ((_read_valid_top1, True), (_read_noise_top1, False)):
        top1 = {seed: read_top1(record) for seed, record in runs.items()}
        baseline_top1 = {seed: read_top1(record) for seed, record in baseline_runs.items() if seed in runs}
        cells.append(f"{_format_mean([v for v in top1.values() if v is not None], 2):<14}")
        difference = _compare_seeds(baseline_top1, top1)
        star = "" if difference is None else f"{difference}{' *' if difference.is_significant else ''}"
        cells.append(f"{star:<{30 if shows_detectable else 24}}")
        if shows_detectable:
            cells.append(f"{'' if difference is None else f'{difference.detectable:.2f}':<10}")
    last_epochs = [record["figures"]["last_epoch"] for record in runs.values()]
    known_ratios = [line["lcr_gradient_ratio"] for line in last_epochs if line.get("lcr_gradient_ratio") is not None]
    gradient_ratio = _format_mean(known_ratios, 3).split(" ")[0]
    gaps = [mean_ratio_gap(line["sigma_ratios"]) for line in last_epochs if line["sigma_ratios"]]
    has_only_nan = bool(gaps) and all(map(math.isnan, gaps))
    mean_gap = NOT_AVAILABLE if has_only_nan else _format_mean(list(filter(math.isfinite, gaps)), 3)
    return "  ".join([*cells, f"{gradient_ratio:<14}", mean_gap])


def _read_valid_top1(record: dict[str, Any]) -> float | None:
    return record["figures"]["last_epoch"]["valid_top1"]


def _read_noise_top1(record: dict[str, Any]) -> float | None:
    """Return the mean accuracy under noise, or None for older records and for runs without validation images."""
    noise_top1 = record["figures"].get("noise_top1")
    return statistics.fmean(noise_top1.values()) if noise_top1 else None


def _compare_seeds(baseline: dict[int, float | None], values: dict[int, float | None]) -> PairedDifference | None:
    """Return the paired difference, or None without two common seeds or if a common seed was not measured."""
    pairs = [(a, values[seed]) for seed, a in baseline.items()]
    complete_pairs = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(complete_pairs) < max(len(pairs), 2):
        return None
    return compare_paired([a for a, _ in complete_pairs], [b for _, b in complete_pairs])


def _format_mean(values: list[float], digits: int) -> str:
    if not values:
        return "-"
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{deviation}"
