"""One row of CASES in a process of its own: images and teacher first, then, when told, the GPU and the record."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch._inductor.config

from bench.cases import CASES, COMPILERS, LEANS, MEMORY, Case, rehearsed
from bench.epochs import NEVER, WARM, measure
from bench.processes import work
from bench.synthetic import known, noise, untaught
from lcrbnn.runs.record import write_record
from lcrbnn.train import lean
from lcrbnn.train.options import Options


@dataclass(frozen=True)
class Job:
    """What one process is to do."""

    name: str  # of a row of CASES
    scratch: str  # folder
    epochs: int  # that count; 0: only fill the compiler's cache
    images: int | None = None  # instead of the data set's own number
    device: str = "auto"
    rehearsal: bool = False
    profile: bool = False
    record: str | None = None  # file

    def stored(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @property
    def case(self) -> Case:
        """The row."""
        return rehearsed(CASES[self.name]) if self.rehearsal else CASES[self.name]


def prepare(stored: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """All that needs no GPU."""
    job = Job(**stored)
    held, compiler = ExitStack(), cast(Any, torch._inductor.config)
    held.enter_context(compiler.patch(COMPILERS[job.case.compiler]))
    lean.CHOSEN = LEANS.get(job.case.compiler, lean.CHOSEN)
    train = noise(job.case.data, job.images)
    held.enter_context(known(job.case.data, train))
    size = train.images.nbytes + train.labels.nbytes
    teacher = str(untaught(job.case.spec(), Path(job.scratch) / "teacher")) if job.case.taught else ""

    def do(told: Any) -> dict[str, Any]:
        with held:
            return _fill(job, teacher) if job.epochs == 0 else _measure(job, teacher, size, told)

    return do


def _fill(job: Job, teacher: str) -> dict[str, Any]:
    """Compile, among others that do: what is timed meanwhile to choose between kernels is not kept."""
    compiler: Any = torch._inductor.config
    compiler.autotune_local_cache = False
    runs = {Path(job.scratch) / "fill": job.case.spec(teacher)}
    return measure(runs, Options(device=job.device, step="fast"), 0)


def _measure(job: Job, teacher: str, size: int, told: dict[str, Any]) -> dict[str, Any]:
    case, scratch = job.case, Path(job.scratch)
    runs = {scratch / f"seed-{seed}": case.spec(teacher, seed) for seed in range(case.seeds)}
    options = Options(device=job.device, step="fast", save_seconds=NEVER)
    figures = measure(runs, options, job.epochs, job.profile)
    figures |= {"first_step_cold_s": told["cold"], "data_mb": size / 1e6} | _memory(size, case.seeds)
    figures |= _compared(case, figures, told["base"])
    if job.record is not None:
        settings = {
            **case.spec().stored(),
            "side_by_side": case.seeds,
            "compiler": case.compiler,
            "warm_up_epochs": WARM,
            "epochs_timed": job.epochs,
        }
        write_record(Path(job.record), "gpu-steps", settings, figures)
    return figures


def _memory(size: int, seeds: int) -> dict[str, float]:
    """Of the device, in MB; what is not images is shared out between the runs."""
    if not torch.cuda.is_available():
        return {}
    peak = torch.cuda.max_memory_allocated()
    return {
        "peak_memory_mb": peak / 1e6,
        "peak_reserved_mb": torch.cuda.max_memory_reserved() / 1e6,
        "memory_of_a_run_mb": (peak - size) / 1e6 / seeds,
    }


def _compared(case: Case, figures: dict[str, Any], base: dict[str, Any] | None) -> dict[str, Any]:
    """Ratios to the base, where it is known, and which targets are met."""
    ratios = {
        name: figures[figure] / base[figure]
        for name, figure in RATIOS.items()
        if base is not None and figure in figures and figure in base
    }
    targets = {
        "images_per_second": (case.rate, True),
        "time_ratio": (case.slower, False),
        "memory_ratio": (MEMORY if case.slower else None, False),
    }
    seen = {**figures, **ratios}
    checked = {
        name: {("at_least" if least else "at_most"): bound, "met": _met(seen.get(name), bound, least)}
        for name, (bound, least) in targets.items()
        if bound is not None
    }
    return {**ratios, **({"base": case.base} if ratios else {}), "targets": checked}


def _met(value: float | None, bound: float, least: bool) -> bool | None:
    if value is None:
        return None
    return value >= bound if least else value <= bound


RATIOS = {
    "time_ratio": "ms_per_step",
    "memory_ratio": "memory_of_a_run_mb",
    "peak_memory_ratio": "peak_memory_mb",
    "reserved_ratio": "peak_reserved_mb",
}


if __name__ == "__main__":
    work(prepare)
