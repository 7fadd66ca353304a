"""`lcrbnn inspect` prints graph, sizes, kernels and times of a .bnn file."""

from __future__ import annotations

import argparse
from pathlib import Path

from lcrbnn.cli.model_arguments import BNN_MODEL_HELP, load_bnn_model

EXAMPLES = ("lcrbnn inspect model.bnn", "lcrbnn inspect zoo:digits-resnet8-irnet --threads 2")
NUM_TIMED_RUNS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model and the number of threads."""
    parser.add_argument("model", type=Path, metavar="MODEL", help=BNN_MODEL_HELP)
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="number of threads of the engine, 1 to 256")


def execute(args: argparse.Namespace) -> int:
    """Print the sizes of a model, and one line per node with its shape, kernel and time."""
    import numpy as np

    from lcrbnn.deploy.engine.graph import PackedSigns
    from lcrbnn.deploy.engine.operators import infer_shapes
    from lcrbnn.deploy.engine.runtime import Engine
    from lcrbnn.errors import InputError, check_number

    check_number(args.threads, "--threads", low=1, high=256, integer=True)
    model, source = load_bnn_model(args.model)
    shapes = infer_shapes(model)
    try:
        engine = Engine(source)
        images = np.random.default_rng(0).standard_normal((1, *model.shape), np.float32)
        for _ in range(NUM_TIMED_RUNS):
            engine.run_outputs(images, threads=args.threads)
        kernels, times = engine.kernels, engine.times()
    except InputError as error:
        print(f"no times: {error}")
        kernels, times = ("",) * len(model.nodes), np.zeros(len(model.nodes))
    tensors = [value for node in model.nodes for value in node.attributes.values()]
    num_binary_weights = sum(len(t.packed) * t.n for t in tensors if isinstance(t, PackedSigns))
    num_real_bytes = sum(t.nbytes for t in tensors if isinstance(t, np.ndarray))
    file_bytes = len(source) if isinstance(source, bytes) else source.stat().st_size
    print(f"{args.model}: {model.name}, written by {model.writer}")
    print(f"{file_bytes:,} bytes: {num_binary_weights:,} weights of 1 bit, {num_real_bytes:,} bytes of real numbers")
    print(f"input {' x '.join(map(str, model.shape))} (height, width, channels), {len(model.classes)} classes")
    for name, value in model.outputs:
        print(f"output {' x '.join(map(str, shapes[value]))}, value {value}: {name}")
    op_width = max(9, *(len(node.op) for node in model.nodes))
    for index, (node, kernel, seconds) in enumerate(zip(model.nodes, kernels, times, strict=True)):
        shape = " x ".join(map(str, shapes[index + 1]))
        time_text = f"{1e6 * seconds:9.1f} us" if seconds > 0 else " " * 12
        inputs = ",".join(map(str, node.inputs))
        print(f"{index + 1:4}  {node.op:{op_width}} of {inputs:8} {shape:16} {kernel:8} {time_text}  {node.name}")
    if times.any():
        print(f"{1e3 * times.sum():.3f} ms per image, {args.threads} threads, mean of {NUM_TIMED_RUNS} runs")
    return 0
