"""Convolutions of few channels: the kernels of lcrbnn/kernels/conv_triton.py against torch's own, by shape.

    python -m bench.conv_kernels [--shapes 16x16@32 16x32@32/2 ...] [--record FILE]

Microseconds of a launch replayed in a captured graph, bfloat16, batch 128: torch's (cuDNN's choice), the kernel as it
is set, and the best of a few block sizes. The ratio is torch's time over the kernel's.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.runs.record import write_record

SHAPES = ("3x16@32", "16x16@32", "16x32@32/2", "32x32@16", "32x64@16/2", "64x64@8", "64x64@32")
BATCH = 128


def measure(shape: str, tune: bool) -> dict[str, Any]:
    """All three products of one shape."""
    from lcrbnn.kernels import conv_triton as kernels

    channels, at = shape.split("@")
    side, stride = (int(n) for n in (at if "/" in at else f"{at}/1").split("/"))
    cin, cout = (int(c) for c in channels.split("x"))
    widest = max(cin, cout)
    x, g = _map(cin, side).sign(), _map(cout, side // stride)
    w = torch.randn(cout, 3, 3, cin, device="cuda").bfloat16().sign()
    maps, signs, gradient = (t.permute(0, 3, 1, 2) for t in (x, w, g))
    jobs: dict[str, tuple[Callable[[], Any], Callable[[], Any], dict[int, Any], list[Any]]] = {
        "forward": (
            lambda: F.conv2d(maps, signs, padding=1, stride=stride),
            lambda: kernels.convolve(x, w, stride, back=False),
            kernels.BLOCKS,
            list(itertools.product((32, 64, 128, 256), (4, 8))),
        ),
        "weight": (
            lambda: _backward(gradient, maps, signs, stride, [False, True]),
            lambda: kernels.correlate(x, g, stride).sum(0),
            kernels.RUNS,
            list(itertools.product((64, 128), (2, 4, 8), (4, 8))),
        ),
    }
    if cin > 3:
        jobs["input"] = (
            lambda: _backward(gradient, maps, signs, stride, [True, False]),
            lambda: kernels.convolve(g, w, stride, back=True),
            kernels.BLOCKS,
            jobs["forward"][3],
        )
    figures: dict[str, Any] = {}
    for name, (theirs, ours, table, choices) in jobs.items():
        row: dict[str, Any] = {"torch_us": _microseconds(theirs), "kernel_us": _microseconds(ours)}
        row["ratio"] = row["torch_us"] / row["kernel_us"]
        if tune:
            kept, tried = table[widest], {}
            for choice in choices:
                table[widest] = choice
                tried[str(choice)] = _microseconds(ours)
            table[widest] = kept
            best = min(tried, key=lambda c: tried[c])
            row |= {"set": str(kept), "best": best, "best_us": tried[best], "tried": tried}
        figures[name] = row
    return figures


def _map(channels: int, side: int) -> Tensor:
    return torch.randn(BATCH, side, side, channels, device="cuda").bfloat16()


def _backward(g: Tensor, x: Tensor, w: Tensor, stride: int, wanted: list[bool]) -> Any:
    one, none = [1, 1], [0, 0]
    far = [stride, stride]
    return torch.ops.aten.convolution_backward(g, x, w, None, far, one, one, False, none, 1, [*wanted, False])


def _microseconds(work: Callable[[], Any], launches: int = 20) -> float:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            work()
    times = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / launches)
    return round(sorted(times)[3], 2)


def main() -> None:
    """Measure the shapes and print a line for each product."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--tune", action="store_true", help="try other block sizes too")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    figures = {}
    for shape in args.shapes:
        figures[shape] = measure(shape, args.tune)
        for name, row in figures[shape].items():
            shown = "  ".join(f"{k} {v}" for k, v in row.items() if k != "tried")
            print(f"{shape:10} {name:8} {shown}", flush=True)
    if args.record:
        write_record(args.record, "conv-kernels", {"batch": BATCH, "precision": "bfloat16"}, figures)


if __name__ == "__main__":
    main()
