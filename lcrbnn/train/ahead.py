"""Steps of later runs are compiled while others train: by other processes, into the compiler's cache on disk.

A step takes a minute or so to compile, in which the other runs of a process wait. With what the cache has then it takes
a fraction of that. Nothing here decides an outcome: a process that fails or is late leaves the work to the run itself.
"""

from __future__ import annotations

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

from lcrbnn.errors import number
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train.build import build
from lcrbnn.train.dataset import data_row
from lcrbnn.train.loop import Loop
from lcrbnn.train.numerics import find_device, numerics
from lcrbnn.train.options import Options
from lcrbnn.train.sources import open_splits
from lcrbnn.train.spec import Spec
from lcrbnn.train.step_fast import FastStep

_START = "import json, sys; told = json.load(sys.stdin); sys.path[:] = told['path']; "
_START += "from lcrbnn.train.ahead import work; work(told)"
_GOES = 5.0  # seconds that a process has to go when it is asked to


@contextmanager
def compiled_ahead(specs: Sequence[Spec], options: Options) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Inside, processes compile the steps of these specs, each once, in order; the first is left to whoever trains now.

    There are `options.ahead` of them, where steps are compiled at all. Runs whose images are read from files, by
    processes too, are left out.
    """
    number(options.ahead, "ahead", low=0, whole=True)
    wanted = specs if options.ahead and options.fast else []
    later = list(dict.fromkeys(spec for spec in wanted if data_row(spec).tree is None))[1:]
    shares = [later[i :: options.ahead] for i in range(min(options.ahead, len(later)))]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for share in shares:
            started.append(_started(share, options))
        yield started
    finally:
        for process in started:
            process.terminate()
        for process in started:
            _gone(process)


def _started(specs: Sequence[Spec], options: Options) -> subprocess.Popen[bytes]:
    told = {
        "path": [str(Path(p).absolute()) for p in sys.path],
        "parent": os.getpid(),
        "threads": torch.get_num_threads(),  # compiled code for a CPU has their number in it
        "specs": [spec.stored() for spec in specs],
        "device": options.device,
        "data_folder": str(options.data_folder.absolute()),
        "runs": str(options.runs.absolute()),
    }
    silent: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-c", _START], stdin=subprocess.PIPE, **silent)
    assert process.stdin is not None
    with suppress(OSError), process.stdin as pipe:  # it may have ended already
        pipe.write(json.dumps(told).encode())
    return process


def _gone(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_GOES)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def work(told: dict[str, Any]) -> None:
    """What such a process does; it ends early with the process that started it. What cannot be made is left out."""
    torch.set_num_threads(told["threads"])
    compiler: Any = torch._inductor.config
    compiler.autotune_local_cache = False  # what is timed beside other work, to choose between kernels, is not kept
    options = Options(told["device"], Path(told["data_folder"]), runs=Path(told["runs"]))
    for stored in told["specs"]:
        if os.getppid() != told["parent"]:
            return
        try:
            prepare(Spec.of(stored), options)
        except Exception:  # the run itself will say what is wrong
            continue


def prepare(spec: Spec, options: Options) -> None:
    """Compile the step of a run as its first epoch does, and forget it; nothing is written but the compiler's cache."""
    device = find_device(options.device)
    with ExitStack() as held:
        parts = build(spec, device, fused=device.type == "cuda", runs=options.runs)
        (found,) = open_splits([spec], options.files, device, held)
        held.enter_context(numerics(spec))
        step = FastStep(spec, parts, found.train)
        nowhere = RunFolder(Path(os.devnull))
        loop = Loop(spec, parts, step, found.train, found.valid, nowhere, save_seconds=0)
        loop.enter(0, 0)
    torch._dynamo.reset()
