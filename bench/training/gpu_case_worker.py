"""Worker process that measures one case. It prepares data and teacher, measures on request and writes the record."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch._inductor.config

from bench.training.epoch_timer import NO_CHECKPOINT_INTERVAL_S, NUM_WARM_UP_EPOCHS, time_epochs
from bench.training.gpu_cases import CASES, COMPILER_SETTINGS, FUSION_OPTIONS, MAX_MEMORY_RATIO, Case, shrink_case
from bench.training.synthetic_data import make_noise_split, register_dataset, train_teacher_on_noise
from bench.worker_processes import serve_requests
from lcrbnn.runs.record import write_record
from lcrbnn.train.fast import fused_step as lean
from lcrbnn.train.setup.options import RunOptions


@dataclass(frozen=True)
class Job:
    """The task of one worker process."""

    name: str  # name of the case: a key of CASES
    scratch: str  # path of the folder of the run
    num_epochs: int  # number of timed epochs; 0 = only compile the step, to fill the cache of the compiler
    num_images: int | None = None  # number of training images; None = as many as the data set has
    device: str = "auto"
    is_rehearsal: bool = False
    should_profile: bool = False
    record_file: str | None = None  # path of the file of the record; None = write no record

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values that JSON can store."""
        return asdict(self)

    @property
    def case(self) -> Case:
        """Return the row of CASES that this job measures."""
        return shrink_case(CASES[self.name]) if self.is_rehearsal else CASES[self.name]


def prepare(arguments: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """Prepare everything that needs no GPU. Return the function that runs the job."""
    job = Job(**arguments)
    stack, compiler = ExitStack(), cast(Any, torch._inductor.config)
    stack.enter_context(compiler.patch(COMPILER_SETTINGS[job.case.compiler]))
    lean.GPU_FUSIONS = FUSION_OPTIONS.get(job.case.compiler, lean.GPU_FUSIONS)
    train = make_noise_split(job.case.dataset, job.num_images)
    stack.enter_context(register_dataset(job.case.dataset, train))
    data_bytes = train.images.nbytes + train.labels.nbytes
    teacher = (
        str(train_teacher_on_noise(job.case.make_spec(), Path(job.scratch) / "teacher"))
        if job.case.needs_teacher
        else ""
    )

    def run_job(message: Any) -> dict[str, Any]:
        with stack:
            return _compile(job, teacher) if job.num_epochs == 0 else _measure(job, teacher, data_bytes, message)

    return run_job


def _compile(job: Job, teacher: str) -> dict[str, Any]:
    """Compile the step. The kernel timings of a parallel compilation are unreliable, so they are not kept."""
    compiler: Any = torch._inductor.config
    compiler.autotune_local_cache = False
    runs = {Path(job.scratch) / "fill": job.case.make_spec(teacher)}
    return time_epochs(runs, RunOptions(device=job.device, step_mode="compiled"), 0)


def _measure(job: Job, teacher: str, data_bytes: int, message: dict[str, Any]) -> dict[str, Any]:
    case, scratch = job.case, Path(job.scratch)
    runs = {scratch / f"seed-{seed}": case.make_spec(teacher, seed) for seed in range(case.num_runs)}
    options = RunOptions(device=job.device, step_mode="compiled", checkpoint_interval_s=NO_CHECKPOINT_INTERVAL_S)
    figures = time_epochs(runs, options, job.num_epochs, job.should_profile)
    figures |= {"first_step_cold_s": message["cold"], "data_mb": data_bytes / 1e6} | _measure_memory(
        data_bytes, case.num_runs
    )
    figures |= _compare_with_targets(case, figures, message["base"])
    if job.record_file is not None:
        settings = {
            **case.make_spec().to_dict(),
            "side_by_side": case.num_runs,
            "compiler": case.compiler,
            "warm_up_epochs": NUM_WARM_UP_EPOCHS,
            "epochs_timed": job.num_epochs,
        }
        write_record(Path(job.record_file), "gpu-steps", settings, figures)
    return figures


def _measure_memory(data_bytes: int, num_runs: int) -> dict[str, float]:
    """Return the GPU memory in MB. The part that is not used for images is divided by the number of runs."""
    if not torch.cuda.is_available():
        return {}
    peak = torch.cuda.max_memory_allocated()
    return {
        "peak_memory_mb": peak / 1e6,
        "peak_reserved_mb": torch.cuda.max_memory_reserved() / 1e6,
        "memory_of_a_run_mb": (peak - data_bytes) / 1e6 / num_runs,
    }


def _compare_with_targets(case: Case, figures: dict[str, Any], baseline: dict[str, Any] | None) -> dict[str, Any]:
    """Return the ratios to the baseline (if measured) and whether the targets are met."""
    ratios = {
        name: figures[figure] / baseline[figure]
        for name, figure in COMPARED_FIGURES.items()
        if baseline is not None and figure in figures and figure in baseline
    }
    targets = {
        "images_per_second": (case.min_images_per_s, True),
        "time_ratio": (case.max_time_ratio, False),
        "memory_ratio": (MAX_MEMORY_RATIO if case.max_time_ratio else None, False),
    }
    measured = {**figures, **ratios}
    checked_targets = {
        name: {
            ("at_least" if is_minimum else "at_most"): bound,
            "met": _is_target_met(measured.get(name), bound, is_minimum),
        }
        for name, (bound, is_minimum) in targets.items()
        if bound is not None
    }
    return {**ratios, **({"base": case.baseline} if ratios else {}), "targets": checked_targets}


def _is_target_met(value: float | None, bound: float, is_minimum: bool) -> bool | None:
    if value is None:
        return None
    return value >= bound if is_minimum else value <= bound


COMPARED_FIGURES = {
    "time_ratio": "ms_per_step",
    "memory_ratio": "memory_of_a_run_mb",
    "peak_memory_ratio": "peak_memory_mb",
    "reserved_ratio": "peak_reserved_mb",
}


if __name__ == "__main__":
    serve_requests(prepare)
