"""`lcrbnn inspect`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lcrbnn.cli._shipped import MODEL, find_model

RUNS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A model."""
    parser.add_argument("model", type=Path, metavar="MODEL", help=MODEL)
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of the engine, 1 to 256")


def execute(args: argparse.Namespace) -> int:
    """Print what is in a file, a line a node, with the kernel that computes it and the time it takes."""
    import numpy as np

    from lcrbnn.engine import Bits
    from lcrbnn.engine.check import shapes
    from lcrbnn.engine.lib import Engine
    from lcrbnn.errors import InputError, number

    number(args.threads, "--threads", low=1, high=256, whole=True)
    model, source = find_model(args.model)
    made = shapes(model)
    try:
        engine = Engine(source)
        images = np.random.default_rng(0).standard_normal((1, *model.shape), np.float32)
        for _ in range(RUNS):
            engine.run(images, threads=args.threads)
        kernels, times = engine.kernels, engine.times()
    except InputError as error:
        print(f"without times: {error}")
        kernels, times = ("",) * len(model.nodes), np.zeros(len(model.nodes))
    tensors = [value for node in model.nodes for value in node.keys.values()]
    bits = sum(len(t.packed) * t.n for t in tensors if isinstance(t, Bits))
    real = sum(t.nbytes for t in tensors if isinstance(t, np.ndarray))
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    print(f"{args.model}: {model.name}, written by {model.writer}")
    print(f"{size:,} bytes: {bits:,} weights of one bit, {real:,} bytes of real numbers")
    print(f"input {' x '.join(map(str, model.shape))} (height, width, channels), {len(model.classes)} classes")
    for index, (node, kernel, seconds) in enumerate(zip(model.nodes, kernels, times, strict=True)):
        shape = " x ".join(map(str, made[index + 1]))
        took = f"{1e6 * seconds:9.1f} us" if seconds > 0 else " " * 12
        sources = ",".join(map(str, node.inputs))
        print(f"{index + 1:4}  {node.op:9} of {sources:8} {shape:16} {kernel:8} {took}  {node.name}")
    if times.any():
        print(f"{1e3 * times.sum():.3f} ms an image, {args.threads} threads, mean of {RUNS} runs")
    return 0
