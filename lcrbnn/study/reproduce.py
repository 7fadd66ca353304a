"""Running a table: what has no record yet is trained, its test images are read once, its record is kept.

A run counts once its record lies under the records with a reading of the test images. Until then its folder tells how
far it is: not begun, interrupted, finished, read. Each step leaves a whole file, so that the next call goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError
from lcrbnn.outputs import check_output_file
from lcrbnn.runs.files import write_whole
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.record import add_to_record, read_record
from lcrbnn.study.plan import WHOLE, Job, Part, copy_record, run_jobs
from lcrbnn.study.promise import Arm, Promise, Table
from lcrbnn.study.weights import write_weights
from lcrbnn.train.options import Options
from lcrbnn.train.reading import evaluate

WEIGHTS = "weights"  # the folder, beside the records, of weights that are kept
LAYERS = "layers"  # the part of a record that says how each layer ended

Look = Callable[[Path, Options], dict[str, Any]]  # what to measure in a finished run


def weights_file(records: Path, arm: Arm, seed: int) -> Path:
    """Where the weights of a run are kept."""
    return records / WEIGHTS / f"{arm.study}-{arm.name}-seed-{seed}.safetensors"


def run_tables(
    promise: Promise,
    tables: Sequence[Table],
    folder: Path,
    options: Options,
    width: int,
    part: Part = WHOLE,
    look: Look | None = None,
) -> list[str]:
    """Make what tables lack, `width` runs side by side; return a sentence for each arm that cannot be run yet.

    Runs lie in `folder`, a folder a plan; `look` says what their records hold of each layer.
    """
    wanted: dict[Arm, int] = {}
    for table in tables:
        for arm, seeds in promise.arms(table).items():
            wanted[arm] = max(seeds, wanted.get(arm, 0))
    part.check(seed for seeds in wanted.values() for seed in range(seeds))
    missing, jobs = [], []
    for arm, seeds in list(wanted.items())[part.number - 1 :: part.total]:
        if arm.name in promise.plan(arm.study).arms:
            jobs += _lacking(promise, arm, part.of_seeds(range(seeds)), folder, look)
        else:
            missing.append(f"{arm} is not decided yet: its plan lacks the arm, or the one that it is like")

    for job in jobs:
        if job.seed in promise.kept().get(Arm(job.study, job.arm), ()):
            check_output_file(weights_file(promise.records, Arm(job.study, job.arm), job.seed), "weights")

    def finish(job: Job, run: Path) -> None:
        _finish(promise, job, run, options, look)

    run_jobs(jobs, folder, promise.records, options, width, finish)
    return missing


def _lacking(promise: Promise, arm: Arm, seeds: Sequence[int], folder: Path, look: Look | None) -> list[Job]:
    """The runs of an arm that have no figure yet, or lack something else that their folder could still give."""
    there, keep = promise.runs(arm, max(seeds, default=-1) + 1), promise.kept().get(arm, ())
    jobs = []
    for plain in promise.plan(arm.study).jobs_of(arm.name, seeds):
        job = plain._replace(study=arm.study)
        wanted = {LAYERS} if look is not None else set()
        wanted |= {WEIGHTS} if job.seed in keep else set()
        if job.seed in there and wanted <= set(there[job.seed]):
            continue
        record, run = promise.records / f"{job.place}.json", RunFolder(folder / job.place)
        gone = record.exists() and not _same_run(record, run.record)
        if gone and job.seed not in there:
            raise InputError(
                f"{record} is of a run whose test images were not read, and that run is not in {run.path}: "
                "bring it there, or remove the record to train it again"
            )
        if not gone:
            jobs.append(job)
    return jobs


def _same_run(record: Path, other: Path) -> bool:
    if not other.exists():
        return False
    one, two = (read_record(path)["figures"].get("checkpoint_sha256") for path in (record, other))
    return one == two


def _finish(promise: Promise, job: Job, run: Path, options: Options, look: Look | None) -> None:
    """Read the test images unless they were read, look at the layers, keep weights and record."""
    arm, record, kept = Arm(job.study, job.arm), run / "record.json", promise.records / f"{job.place}.json"
    if not read_record(record).get("readings"):
        if kept.exists() and read_record(kept).get("readings"):  # of this run, read elsewhere
            write_whole(record, [kept.read_bytes()])
        else:
            evaluate(run, options, final=True)
    with RunFolder(run).locked():
        if look is not None and LAYERS not in read_record(record):
            add_to_record(record, LAYERS, look(run, options))
        if job.seed in promise.kept().get(arm, ()):
            path = weights_file(promise.records, arm, job.seed)
            add_to_record(record, WEIGHTS, {"file": path.name, "sha256": write_weights(run, path)})
        copy_record(run, kept)
