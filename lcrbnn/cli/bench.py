"""`lcrbnn bench` measures the times of the engine and of other runtimes on the same network."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from lcrbnn.cli.model_arguments import BNN_MODEL_HELP, load_bnn_model
from lcrbnn.errors import check_number

EXAMPLES = ("lcrbnn bench zoo:digits-resnet8-irnet", "lcrbnn bench model.bnn --threads 4 --calls 50")
ENGINE_DESCRIPTION = "this network, 1 bit per binary weight"
INT8_NOTE = (
    "All rows run this binary network. A row with 8 bits is not the full-precision network in 8 bits, which "
    "docs/engine.md compares"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model and the options of the timing."""
    parser.add_argument("model", type=Path, metavar="MODEL", help=BNN_MODEL_HELP)
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="number of threads of each runtime, 1 to 256"
    )
    parser.add_argument("--batch-size", type=int, default=1, metavar="N", help="number of images per call")
    parser.add_argument(
        "--calls",
        type=int,
        default=200,
        metavar="N",
        help="number of timed calls of each runtime; the runtimes are called in alternation",
    )


def execute(args: argparse.Namespace) -> int:
    """Time the engine and every other installed runtime on the same network, and print the ratios."""
    from functools import partial

    import numpy as np

    from lcrbnn.deploy.benchmark.runtimes import RUNTIMES, time_alternately
    from lcrbnn.deploy.engine.runtime import Engine

    check_number(args.threads, "--threads", low=1, high=256, integer=True)
    check_number(args.batch_size, "--batch-size", low=1, high=4096, integer=True)
    check_number(args.calls, "--calls", low=1, integer=True)
    model, source = load_bnn_model(args.model)
    engine = Engine(source)
    images = np.random.default_rng(0).standard_normal((args.batch_size, *model.shape), np.float32)
    run = engine.run_outputs if model.outputs else engine.run
    calls: dict[str, Callable[[], object]] = {"lcrbnn": lambda: run(images, threads=args.threads)}
    for name, runtime in RUNTIMES.items():
        missing_package = runtime.find_missing_package()
        if missing_package is not None:
            print(f"{name}: not installed ({missing_package})")
            continue
        try:
            call = runtime.make_call(model, args.threads, args.batch_size)
            call(images)
        except Exception as error:  # other runtimes raise many types if they do not support a network
            print(f"{name}: cannot run this network ({str(error).strip().splitlines()[-1][:120]})")
            continue
        calls[name] = partial(call, images)
    timings = time_alternately(calls, args.calls)
    engine_median = timings["lcrbnn"].median
    print(
        f"{model.name}, {args.batch_size} number of images per call, {args.threads} threads, "
        f"median of {args.calls} alternating calls"
    )
    for name, timing in timings.items():
        description = RUNTIMES[name].description if name in RUNTIMES else ENGINE_DESCRIPTION
        print(
            f"{name:18} {description:{len(ENGINE_DESCRIPTION)}} {timing.median:9.3f} ms  best {timing.best:9.3f}  "
            f"{timing.median / engine_median:6.2f} x lcrbnn's"
        )
    if any(node.op == "bconv" for node in model.nodes):
        print(INT8_NOTE)
    return 0
