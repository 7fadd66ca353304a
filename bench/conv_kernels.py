"""Convolutions of few channels: the kernels of lcrbnn/kernels/conv_triton.py against torch's own, by shape.

    python -m bench.conv_kernels [--shapes 16x16@32 16x32@32/2 ...] [--tune] [--streams 1] [--record FILE]

Microseconds of a launch replayed in a captured graph, bfloat16, batch 128: torch's (cuDNN's choice), the kernel as it
is set, and the best of a few block sizes. The ratio is torch's time over the kernel's. With several streams, as runs
side by side have them, so many graphs are replayed at once, and a launch has its share of the time that all take.

Several processes may compile at once, for a shape each; they take turns to measure.
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
BATCH = 128
ROUNDS = 10  # replays of a graph that are timed together
LOCK = Path(tempfile.gettempdir()) / "lcrbnn-bench-kernels.lock"


class Operands(NamedTuple):
    """Of the three products: maps before and after, stored channels last, and a weight."""

    x: Tensor
    g: Tensor
    w: Tensor

    @property
    def shown(self) -> tuple[Tensor, ...]:
        """As torch's convolutions take them."""
        return tuple(t.permute(0, 3, 1, 2) for t in self)


Product = Callable[[Operands], Any]


def measure(shape: str, tune: bool, streams: int) -> dict[str, Any]:
    """All three products of one shape."""
    from lcrbnn.kernels import conv_triton as kernels

    channels, at = shape.split("@")
    side, stride = (int(n) for n in (at if "/" in at else f"{at}/1").split("/"))
    cin, cout = (int(c) for c in channels.split("x"))
    widest = max(cin, cout)
    given = [_operands(cin, cout, side, stride) for _ in range(streams)]
    jobs: dict[str, tuple[Product, Product, dict[int, Any], list[Any]]] = {
        "forward": (
            lambda o: F.conv2d(o.shown[0], o.shown[2], padding=1, stride=stride),
            lambda o: kernels.convolve(o.x, o.w, stride, back=False),
            kernels.BLOCKS,
            list(itertools.product((32, 64, 128, 256, 512), (2, 4, 8))),
        ),
        "weight": (
            lambda o: _backward(o, stride, [False, True]),
            lambda o: kernels.correlate(o.x, o.g, stride).sum(0),
            kernels.RUNS,
            list(itertools.product((32, 64, 128, 256), (2, 4, 8, 16), (2, 4, 8))),
        ),
    }
    if cin > 3:
        jobs["input"] = (
            lambda o: _backward(o, stride, [True, False]),
            lambda o: kernels.convolve(o.g, o.w, stride, back=True),
            kernels.BLOCKS,
            jobs["forward"][3],
        )
    if tune:
        for _, ours, table, choices in jobs.values():
            _each(choices, partial(ours, given[0]), table, widest)  # compiled, before it is anybody's turn
    figures: dict[str, Any] = {}
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name, (theirs, ours, table, choices) in jobs.items():
            row: dict[str, Any] = {"torch_us": _microseconds(theirs, given), "kernel_us": _microseconds(ours, given)}
            row["ratio"] = row["torch_us"] / row["kernel_us"]
            if tune:
                tried = _each(choices, partial(_microseconds, ours, given), table, widest)
                best = min(tried, key=lambda choice: tried[choice])
                row |= {"set": str(table[widest]), "best": best, "best_us": tried[best], "tried": tried}
            figures[name] = row
    return figures


def _each(choices: list[Any], work: Callable[[], Any], table: dict[int, Any], widest: int) -> dict[str, Any]:
    """What the work gives with each choice that fits the device, put in its place; the table then is as it was."""
    from triton.runtime.errors import OutOfResources

    kept, found = table[widest], {}
    for choice in choices:
        table[widest] = choice
        with suppress(OutOfResources):
            found[str(choice)] = work()
    table[widest] = kept
    return found


def _operands(cin: int, cout: int, side: int, stride: int) -> Operands:
    x, g = (torch.randn(BATCH, n, n, c, device="cuda") for c, n in ((cin, side), (cout, side // stride)))
    w = torch.randn(cout, 3, 3, cin, device="cuda")
    return Operands(x.sign().bfloat16(), g.bfloat16(), w.sign().bfloat16())


def _backward(o: Operands, stride: int, wanted: list[bool]) -> Any:
    x, g, w = o.shown
    one, none, far = [1, 1], [0, 0], [stride, stride]
    return torch.ops.aten.convolution_backward(g, x, w, None, far, one, one, False, none, 1, [*wanted, False])


def _microseconds(work: Product, given: list[Operands], launches: int = 20) -> float:
    """Of a launch, where each of these operands has a stream of its own."""
    graphs = []
    for operands in given:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            work(operands)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            for _ in range(launches):
                work(operands)
        graphs.append((graph, side))
    times = []
    for _ in range(7):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for graph, side in graphs:
            with torch.cuda.stream(side):
                for _ in range(ROUNDS):
                    graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e6 / (launches * ROUNDS * len(given)))
    return round(sorted(times)[3], 2)


def main() -> None:
    """Measure the shapes and print a line for each product."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--tune", action="store_true", help="try other block sizes too")
    parser.add_argument("--streams", type=int, default=1, help="graphs at once")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    figures = {}
    for shape in args.shapes:
        figures[shape] = measure(shape, args.tune, args.streams)
        for name, row in figures[shape].items():
            shown = "  ".join(f"{k} {v}" for k, v in row.items() if k != "tried")
            print(f"{shape:10} {name:8} {shown}", flush=True)
    if args.record:
        write_record(
            args.record, "conv-kernels", {"batch": BATCH, "precision": "bfloat16", "streams": args.streams}, figures
        )


if __name__ == "__main__":
    main()
