"""Compile the steps of later runs in other processes while the first runs train.

Compiling a step takes about a minute, and all runs of the process wait for it. The worker processes here fill the
compiler's cache on disk. So the run itself compiles in a fraction of that time. Workers never change a result: if one
of them fails or is late, the run compiles its step itself.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config

from lcrbnn.device import deterministic_run, find_device
from lcrbnn.errors import check_number
from lcrbnn.runs.progress import ProgressBar
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.fast.compiled_step import CompiledStep
from lcrbnn.train.loop import TrainingLoop
from lcrbnn.train.run_context import RunContext, RunState
from lcrbnn.train.setup.build import build_training_parts
from lcrbnn.train.setup.dataset import find_dataset, open_splits
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec

_WORKER_CODE = "import json, sys; job = json.load(sys.stdin); sys.path[:] = job['path']; "
_WORKER_CODE += "from lcrbnn.train.fast.precompile import run_precompile_worker; run_precompile_worker(job)"
_TERMINATE_TIMEOUT_S = 5.0  # seconds that a worker has to end after a request before it is killed


@contextmanager
def precompile_steps(specs: Sequence[TrainSpec], options: RunOptions) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Inside this context, worker processes compile the steps of all different specs except the first, in order.

    The caller trains the first spec meanwhile. If steps are compiled at all, there are `options.compile_workers`
    workers. Runs whose images are read from files are left out, because they start processes of their own.
    """
    check_number(options.compile_workers, "compile_workers", low=0, integer=True)
    candidates = specs if options.compile_workers and options.is_compiled else []
    later_specs = list(dict.fromkeys(spec for spec in candidates if find_dataset(spec).find_image_folder is None))[1:]
    num_workers = min(options.compile_workers, len(later_specs))
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for i in range(num_workers):
            workers.append(_start_worker(later_specs[i :: options.compile_workers], options))
        yield workers
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            _wait_or_kill(worker)


def _start_worker(specs: Sequence[TrainSpec], options: RunOptions) -> subprocess.Popen[bytes]:
    job = {
        "path": [str(Path(p).absolute()) for p in sys.path],
        "parent": os.getpid(),
        # number of threads of this process, because compiled code for a CPU contains the number of threads
        "threads": torch.get_num_threads(),
        "specs": [spec.to_dict() for spec in specs],
        "device": options.device,
        "data_folder": str(options.data_folder.absolute()),
        "runs_folder": str(options.runs_folder.absolute()),
    }
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER_CODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert worker.stdin is not None
    with suppress(OSError), worker.stdin as pipe:  # writing fails if the worker has already ended
        pipe.write(json.dumps(job).encode())
    return worker


def _wait_or_kill(worker: subprocess.Popen[bytes]) -> None:
    try:
        worker.wait(_TERMINATE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


def run_precompile_worker(job: dict[str, Any]) -> None:
    """Compile the steps of a job in this worker process. Skip steps that fail. If the parent has ended, end early."""
    torch.set_num_threads(job["threads"])
    compiler: Any = torch._inductor.config
    # The compiler times kernels to choose between them. These timings are wrong while other work runs. So they must not
    # enter the cache.
    compiler.autotune_local_cache = False
    options = RunOptions(job["device"], Path(job["data_folder"]), runs_folder=Path(job["runs_folder"]))
    for stored_spec in job["specs"]:
        if os.getppid() != job["parent"]:
            return
        try:
            compile_step(TrainSpec.from_dict(stored_spec), options)
        except Exception:  # ignore the error here, because the run itself will report it
            continue


def compile_step(spec: TrainSpec, options: RunOptions) -> None:
    """Compile the step of a run as in its first epoch, then discard it. Only the cache of the compiler changes."""
    device = find_device(options.device)
    with ExitStack() as stack:
        parts = build_training_parts(spec, device, fused=device.type == "cuda", runs_folder=options.runs_folder)
        (splits,) = open_splits([spec], options.data_access, device, stack)
        stack.enter_context(deterministic_run(spec.deterministic, spec.precision))
        step = CompiledStep(spec, parts, splits.train)
        context = RunContext(spec, options, RunFolder(Path(os.devnull)), parts, splits, step)
        TrainingLoop(context, RunState(spec.lcr_weight), ProgressBar(0, io.StringIO())).begin_epoch(0, 0)
    torch._dynamo.reset()
