"""Train the missing runs of tables, evaluate each once on the test images, and store the records.

A run is finished when its record is in the folder of records and has a test result. Until then, its run folder shows
the progress: not started, interrupted, trained, or evaluated. Each step writes complete files. So the next call
continues where the last one ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError, check_output_file
from lcrbnn.evaluation.evaluate import evaluate
from lcrbnn.runs.atomic_files import write_atomic
from lcrbnn.runs.record import read_record, update_record
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.study.plan import WHOLE_STUDY, StudyPart, StudyRun, copy_record, run_study_runs
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.weights_file import write_weights
from paper.tables.table_spec import PaperTable, PaperTables, TableVariant

# folder of weights files inside the folder of records, and the key in a record that names its weights file
WEIGHTS = "weights"
LAYERS = "layers"  # key of the layer measurements in a record

LayerMeasurement = Callable[[Path, RunOptions], dict[str, Any]]  # function that measures the layers of a finished run


def get_weights_path(records: Path, variant: TableVariant, seed: int) -> Path:
    """Return the path of the stored weights of a run."""
    return records / WEIGHTS / f"{variant.study}-{variant.name}-seed-{seed}.safetensors"


def run_tables(
    paper_tables: PaperTables,
    tables: Sequence[PaperTable],
    runs_folder: Path,
    options: RunOptions,
    num_parallel: int,
    part: StudyPart = WHOLE_STUDY,
    measure_layers: LayerMeasurement | None = None,
) -> list[str]:
    """Train the missing runs of tables, `num_parallel` at a time.

    Return a sentence for each variant that cannot be run yet. Run folders are `runs_folder`/PLAN/VARIANT/seed-N.
    `measure_layers` returns the layer measurements for a record.
    """
    num_seeds: dict[TableVariant, int] = {}
    for table in tables:
        for variant, seeds in paper_tables.count_seeds(table).items():
            num_seeds[variant] = max(seeds, num_seeds.get(variant, 0))
    part.check_seeds(seed for seeds in num_seeds.values() for seed in range(seeds))
    undecided, runs = [], []
    for variant, seeds in list(num_seeds.items())[part.number - 1 :: part.total]:
        if variant.name in paper_tables.get_plan(variant.study).variants:
            selected_seeds = part.select_seeds(range(seeds))
            runs += _list_missing_runs(paper_tables, variant, selected_seeds, runs_folder, measure_layers)
        else:
            undecided.append(f"{variant} is not decided yet: its plan lacks the variant, or the one that it extends")

    seeds_with_weights = paper_tables.list_seeds_with_weights()
    for run in runs:  # check the runs now, because training takes hours
        variant = TableVariant(run.study, run.variant)
        if run.seed in seeds_with_weights.get(variant, ()):
            check_output_file(get_weights_path(paper_tables.records, variant, run.seed), "weights")

    def finish(run: StudyRun, folder: Path) -> None:
        _finish_run(paper_tables, run, folder, options, measure_layers)

    run_study_runs(runs, runs_folder, paper_tables.records, options, num_parallel, finish)
    return undecided


def _list_missing_runs(
    paper_tables: PaperTables,
    variant: TableVariant,
    seeds: Sequence[int],
    runs_folder: Path,
    measure_layers: LayerMeasurement | None,
) -> list[StudyRun]:
    """Return the unfinished runs of a variant, whose records lack a test result or another required part.

    Only parts that the run folder can still provide count.
    """
    records = paper_tables.read_runs(variant, max(seeds, default=-1) + 1)
    seeds_with_weights = paper_tables.list_seeds_with_weights().get(variant, ())
    runs = []
    for plan_run in paper_tables.get_plan(variant.study).list_variant_runs(variant.name, seeds):
        run = plan_run._replace(study=variant.study)
        parts = {LAYERS} if measure_layers is not None else set()
        parts |= {WEIGHTS} if run.seed in seeds_with_weights else set()
        if run.seed in records and parts <= set(records[run.seed]):
            continue
        record, folder = paper_tables.records / f"{run.relative_path}.json", RunFolder(runs_folder / run.relative_path)
        is_folder_missing = record.exists() and not _is_same_run(record, folder.record_file)
        if is_folder_missing and run.seed not in records:
            raise InputError(
                f"{record} belongs to a run without a test result, and that run is not in {folder.path}: "
                "copy the run there, or remove the record to train it again"
            )
        if not is_folder_missing:
            runs.append(run)
    return runs


def _is_same_run(record: Path, other: Path) -> bool:
    if not other.exists():
        return False
    digests = {read_record(path)["figures"].get("checkpoint_sha256") for path in (record, other)}
    return len(digests) == 1


def _finish_run(
    paper_tables: PaperTables,
    run: StudyRun,
    folder: Path,
    options: RunOptions,
    measure_layers: LayerMeasurement | None,
) -> None:
    """Evaluate a trained run on the test images unless this is done. Measure its layers, store weights and record."""
    variant, record = TableVariant(run.study, run.variant), folder / "record.json"
    stored_record = paper_tables.records / f"{run.relative_path}.json"
    if not read_record(record).get("test_results"):
        if stored_record.exists() and read_record(stored_record).get("test_results"):
            # the record is of the same run, which was evaluated on another machine
            write_atomic(record, [stored_record.read_bytes()])
        else:
            evaluate(folder, options, use_test_split=True)
    with RunFolder(folder).lock():
        if measure_layers is not None and LAYERS not in read_record(record):
            update_record(record, LAYERS, measure_layers(folder, options))
        if run.seed in paper_tables.list_seeds_with_weights().get(variant, ()):
            path = get_weights_path(paper_tables.records, variant, run.seed)
            update_record(record, WEIGHTS, {"file": path.name, "sha256": write_weights(folder, path)})
        copy_record(folder, stored_record)
