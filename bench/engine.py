"""The engine against the runtimes that a user could pick instead: a Bi-Real ResNet-18 at 224 pixels.

    python -m bench.engine [--calls 200] [--record results/bench/engine.json]

One process, calls in turns, medians; one thread and two, batches of 1 and 8. The binary network runs in our engine and
as OpenVINO's BinaryConvolution, with the same weights and the answers compared. Its full-precision twin, an ordinary
ResNet-18, runs in PyTorch, ONNX Runtime and OpenVINO, the latter two also in 8 bits.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lcrbnn.engine import Model
from lcrbnn.engine.format import to_bytes
from lcrbnn.engine.lib import Engine
from lcrbnn.export import Input, export_model
from lcrbnn.models import Network, network
from lcrbnn.peers import PEERS
from lcrbnn.peers.timing import in_turns
from lcrbnn.runs.record import write_record

THREADS = (1, 2)
TWIN = ("onnxruntime", "onnxruntime int8", "openvino", "openvino int8")


def main() -> None:
    """Measure, print a table, write a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="images a call")
    parser.add_argument("--kernel", default=None, help="the engine's binary kernel; its own choice if not said")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    seen = Input((args.side, args.side, 3), tuple(map(str, range(1000))))
    nets = {
        "binary": _lively(network("bireal18-imagenet", "bireal")),
        "real": _lively(network("resnet18-relu-imagenet")),
    }
    models = {kind: export_model(net, seen, kind) for kind, net in nets.items()}
    engine = Engine(to_bytes(models["binary"]), kernel=args.kernel)
    figures: dict[str, Any] = {"kernels": sorted(set(engine.kernels)), "bytes": engine.bytes}
    figures |= _footprint(to_bytes(models["binary"]))
    print(f"loaded in {figures['load_ms']:.1f} ms, {figures['megabytes']:.1f} MB")
    for threads, batch in itertools.product(THREADS, args.batches):
        images = np.random.default_rng(0).standard_normal((batch, *seen.shape), np.float32)
        calls, agrees = _calls(engine, nets["real"], models, threads, batch, images)
        found = in_turns(calls, args.calls)
        ours = found["lcrbnn"].median
        figures[f"{threads} threads, {batch} images"] = {
            "answers_as_openvino_binary": agrees,
            **{name: {**t._asdict(), "ratio": t.median / ours} for name, t in found.items()},
        }
        print(f"{threads} threads, {batch} images a call; largest difference to OpenVINO binary {agrees:.2g}")
        for name, timed in found.items():
            print(
                f"  {name:18} {timed.median:9.3f} ms  best {timed.best:9.3f}  {timed.median / ours:6.2f} x", flush=True
            )
    if args.record:
        write_record(args.record, "engine", {"calls": args.calls, "side": args.side, "kernel": args.kernel}, figures)


# In a process of its own: memory above one that has imported NumPy, and the time from the file to a model ready to run.
_LOAD = """
import re, sys, time
import numpy as np
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
before = peak()
from lcrbnn.engine.lib import Engine, library
library()
began = time.perf_counter()
engine = Engine(sys.argv[1])
took = time.perf_counter() - began
engine.run(np.zeros((1, *engine.shape), np.float32))
print(1000 * took, peak() - before)
"""


def _footprint(data: bytes) -> dict[str, float]:
    """Milliseconds to load a file, and megabytes that it takes, loaded and run once; the median of nine processes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.bnn"
        path.write_bytes(data)
        made = [subprocess.check_output([sys.executable, "-c", _LOAD, str(path)], text=True).split() for _ in range(9)]
    loads, megabytes = (sorted(float(row[i]) for row in made) for i in (0, 1))
    return {"load_ms": loads[4], "megabytes": megabytes[4]}


def _calls(
    engine: Engine, real: Network, models: dict[str, Model], threads: int, batch: int, images: np.ndarray
) -> tuple[dict[str, Callable[[], Any]], float]:
    peer = PEERS["openvino binary"].make(models["binary"], threads, batch)
    apart = float(np.abs(peer(images) - engine.run(images, threads=threads)).max())
    tensor = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))

    def torch_real() -> None:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            real(tensor)

    calls: dict[str, Callable[[], Any]] = {
        "lcrbnn": lambda: engine.run(images, threads=threads),
        "openvino binary": lambda: peer(images),
        "torch": torch_real,
    }
    for name in TWIN:
        call = PEERS[name].make(models["real"], threads, batch)
        calls[name] = partial(call, images)
    return calls, apart


def _lively(net: Network) -> Network:
    """With batch-norm statistics as a trained network might have them."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_(0, 0.5, generator=draw)
                module.running_var.uniform_(0.5, 2, generator=draw)
                module.bias.normal_(0, 0.3, generator=draw)
    return net.eval()


if __name__ == "__main__":
    main()
