"""Compare the convolution kernels of lcrbnn/nn/kernels/conv_triton.py with torch for shapes with few channels.

    python -m bench.kernels.conv_kernels [--shapes 16x16@32 16x32@32/2 ...] [--tune] [--streams 1] [--record FILE]

A result is the time of one launch in microseconds. Launches are replayed in a CUDA graph, in bfloat16 with batch size
128. The table has the time of torch (cuDNN chooses the algorithm), of the kernel with its configured block sizes, and
of the kernel with the best of several block sizes. The ratio is the time of torch divided by that of the kernel. With
several streams, as in parallel runs, each stream replays its own graph at the same time. The time of a launch is then
the total time divided by the number of launches.

Several processes may compile different shapes at the same time, but only one process measures at a time.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.runs.record import write_record

SHAPES = ("3x16@32", "16x16@32", "16x32@32/2", "32x32@16", "32x64@16/2", "64x64@8", "64x64@32")
BATCH_SIZE = 128
REPLAYS_PER_TIMING = 10
LOCK_FILE = Path(tempfile.gettempdir()) / "lcrbnn-bench-kernels.lock"


class Operands(NamedTuple):
    """The operands of the three products, which are input map x, output gradient g and weight w, all channels-last."""

    x: Tensor
    g: Tensor
    w: Tensor

    @property
    def channels_first(self) -> tuple[Tensor, ...]:
        """Return the same tensors in the layout of torch's convolutions."""
        return tuple(t.permute(0, 3, 1, 2) for t in self)


Product = Callable[[Operands], Any]


def measure(shape: str, should_tune: bool, num_streams: int) -> dict[str, Any]:
    """Time the forward pass, the weight gradient and the input gradient of a convolution of this shape."""
    from lcrbnn.nn.kernels import conv_triton as kernels

    channels, size_and_stride = shape.split("@")
    size, stride = (int(n) for n in (size_and_stride if "/" in size_and_stride else f"{size_and_stride}/1").split("/"))
    cin, cout = (int(c) for c in channels.split("x"))
    widest = max(cin, cout)
    operands = [_make_operands(cin, cout, size, stride) for _ in range(num_streams)]
    jobs: dict[str, tuple[Product, Product, dict[int, Any], list[Any]]] = {
        "forward": (
            lambda o: F.conv2d(o.channels_first[0], o.channels_first[2], padding=1, stride=stride),
            lambda o: kernels.launch_convolution(o.x, o.w, stride, is_backward=False),
            kernels.CONVOLUTION_TILES,
            list(itertools.product((32, 64, 128, 256, 512), (2, 4, 8))),
        ),
        "weight": (
            lambda o: _torch_backward(o, stride, [False, True]),
            lambda o: kernels.launch_weight_gradient(o.x, o.g, stride).sum(0),
            kernels.WEIGHT_GRADIENT_TILES,
            list(itertools.product((32, 64, 128, 256), (2, 4, 8, 16), (2, 4, 8))),
        ),
    }
    if cin > 3:
        jobs["input"] = (
            lambda o: _torch_backward(o, stride, [True, False]),
            lambda o: kernels.launch_convolution(o.g, o.w, stride, is_backward=True),
            kernels.CONVOLUTION_TILES,
            jobs["forward"][3],
        )
    if should_tune:
        for _, run_kernel, table, choices in jobs.values():
            # compile before taking the lock, because other processes may compile at the same time
            _try_choices(choices, partial(run_kernel, operands[0]), table, widest)
    figures: dict[str, Any] = {}
    with LOCK_FILE.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name, (run_torch, run_kernel, table, choices) in jobs.items():
            row: dict[str, Any] = {
                "torch_us": _time_launch_us(run_torch, operands),
                "kernel_us": _time_launch_us(run_kernel, operands),
            }
            row["ratio"] = row["torch_us"] / row["kernel_us"]
            if should_tune:
                times_by_choice = _try_choices(choices, partial(_time_launch_us, run_kernel, operands), table, widest)
                best = min(times_by_choice, key=lambda choice: times_by_choice[choice])
                row |= {
                    "set": str(table[widest]),
                    "best": best,
                    "best_us": times_by_choice[best],
                    "tried": times_by_choice,
                }
            figures[name] = row
    return figures


def _try_choices(choices: list[Any], work: Callable[[], Any], table: dict[int, Any], widest: int) -> dict[str, Any]:
    """Return the result of `work` for each choice of block sizes that fits the device.

    Afterwards restore the table of block sizes.
    """
    from triton.runtime.errors import OutOfResources

    original, results = table[widest], {}
    for choice in choices:
        table[widest] = choice
        with suppress(OutOfResources):
            results[str(choice)] = work()
    table[widest] = original
    return results


def _make_operands(cin: int, cout: int, size: int, stride: int) -> Operands:
    x, g = (torch.randn(BATCH_SIZE, n, n, c, device="cuda") for c, n in ((cin, size), (cout, size // stride)))
    w = torch.randn(cout, 3, 3, cin, device="cuda")
    return Operands(x.sign().bfloat16(), g.bfloat16(), w.sign().bfloat16())


def _torch_backward(o: Operands, stride: int, output_mask: list[bool]) -> Any:
    x, g, w = o.channels_first
    ones, zeros, strides = [1, 1], [0, 0], [stride, stride]
    return torch.ops.aten.convolution_backward(
        g, x, w, None, strides, ones, ones, False, zeros, 1, [*output_mask, False]
    )


def _time_launch_us(work: Product, operands_per_stream: list[Operands], launches: int = 20) -> float:
    """Return the time per launch in microseconds, with one stream per set of operands."""
    graphs = []
    for operands in operands_per_stream:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            work(operands)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(launches):
                work(operands)
        graphs.append((graph, stream))
    times = []
    for _ in range(7):
        torch.cuda.synchronize()
        start_s = time.perf_counter()
        for graph, stream in graphs:
            with torch.cuda.stream(stream):
                for _ in range(REPLAYS_PER_TIMING):
                    graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start_s) * 1e6 / (launches * REPLAYS_PER_TIMING * len(operands_per_stream)))
    return round(sorted(times)[3], 2)


def main() -> None:
    """Measure the shapes and print one line per product."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--tune", action="store_true", help="also measure other block sizes")
    parser.add_argument(
        "--streams", type=int, default=1, help="number of CUDA graphs that are replayed at the same time"
    )
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    figures = {}
    for shape in args.shapes:
        figures[shape] = measure(shape, args.tune, args.streams)
        for name, row in figures[shape].items():
            cells = "  ".join(f"{k} {v}" for k, v in row.items() if k != "tried")
            print(f"{shape:10} {name:8} {cells}", flush=True)
    if args.record:
        write_record(
            args.record,
            "conv-kernels",
            {"batch": BATCH_SIZE, "precision": "bfloat16", "streams": args.streams},
            figures,
        )


if __name__ == "__main__":
    main()
