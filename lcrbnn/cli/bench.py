"""`lcrbnn bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lcrbnn.cli._shipped import MODEL, find_model
from lcrbnn.errors import number

OURS = "this network, one bit a binary weight"
TWIN = (
    "every line is of this binary network; 8 bits of it are not its full-precision twin in 8 bits, which "
    "docs/engine.md has"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A model, and how often it runs."""
    parser.add_argument("model", type=Path, metavar="MODEL", help=MODEL)
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of each runtime, 1 to 256")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="images a call")
    parser.add_argument("--calls", type=int, default=200, metavar="N", help="of each runtime, in turns")


def execute(args: argparse.Namespace) -> int:
    """Time the engine and every other runtime that is installed on the same network, and print the ratios."""
    from functools import partial

    import numpy as np

    from lcrbnn.engine.lib import Engine
    from lcrbnn.peers import PEERS
    from lcrbnn.peers.timing import in_turns

    number(args.threads, "--threads", low=1, high=256, whole=True)
    number(args.batch, "--batch", low=1, high=4096, whole=True)
    number(args.calls, "--calls", low=1, whole=True)
    model, source = find_model(args.model)
    engine = Engine(source)
    images = np.random.default_rng(0).standard_normal((args.batch, *model.shape), np.float32)
    calls = {"lcrbnn": lambda: engine.run(images, threads=args.threads)}
    for name, peer in PEERS.items():
        lacks = peer.missing()
        if lacks is not None:
            print(f"{name}: not installed ({lacks})")
            continue
        try:
            call = peer.make(model, args.threads, args.batch)
            call(images)
        except Exception as error:  # a runtime that cannot take this network is no reason to end
            print(f"{name}: does not run this network ({str(error).strip().splitlines()[-1][:120]})")
            continue
        calls[name] = partial(call, images)
    found = in_turns(calls, args.calls)
    ours = found["lcrbnn"].median
    print(f"{model.name}, {args.batch} images a call, {args.threads} threads, median of {args.calls} calls in turns")
    for name, timed in found.items():
        about = PEERS[name].about if name in PEERS else OURS
        print(
            f"{name:18} {about:{len(OURS)}} {timed.median:9.3f} ms  best {timed.best:9.3f}  "
            f"{timed.median / ours:6.2f} x lcrbnn's"
        )
    if any(node.op == "bconv" for node in model.nodes):
        print(TWIN)
    return 0
