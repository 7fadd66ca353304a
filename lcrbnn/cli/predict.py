"""`lcrbnn predict`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lcrbnn.cli._shipped import MODEL, find_model
from lcrbnn.errors import Failed, InputError, number

if TYPE_CHECKING:
    from lcrbnn.data.pictures import Unreadable

BATCH = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A model and pictures."""
    parser.add_argument("model", type=Path, metavar="MODEL", help=MODEL)
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="a picture, or a folder of pictures")
    parser.add_argument("--top", type=int, default=1, metavar="N", help="the N most probable labels of each")
    parser.add_argument(
        "--skip-broken",
        action="store_true",
        help="go on without pictures that cannot be read, and name them as errors; exit code 1 if all are such",
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of the engine, 1 to 256")


def execute(args: argparse.Namespace) -> int:
    """Print a line a picture: its name, then labels with their probabilities."""
    import numpy as np

    from lcrbnn.data.pictures import batches, check_channels, find_pictures
    from lcrbnn.engine.lib import Engine
    from lcrbnn.engine.reference import numbers

    number(args.top, "--top", low=1, whole=True)
    number(args.threads, "--threads", low=1, high=256, whole=True)
    model, source = find_model(args.model)
    engine = Engine(source)
    check_channels(model)
    pictures = find_pictures(args.images)
    named = 0
    for paths, pixels in batches(pictures, model, BATCH, _left_out if args.skip_broken else _refuse):
        logits = engine.run(np.ascontiguousarray(numbers(model, pixels)), threads=args.threads).astype(np.float64)
        odds = np.exp(logits - logits.max(1, keepdims=True))
        odds /= odds.sum(1, keepdims=True)
        for path, row in zip(paths, odds, strict=True):
            best = np.argsort(-row, kind="stable")[: args.top]
            named += 1
            print(f"{path}  " + "  ".join(f"{model.classes[i]} {100 * row[i]:.1f} %" for i in best))
    if not named:
        raise Failed(f"none of the {len(pictures):,} pictures can be read")
    return 0


def _left_out(error: Unreadable) -> None:
    print(f"lcrbnn: left out: {error}", file=sys.stderr)


def _refuse(error: Unreadable) -> None:
    raise InputError(f"{error}; --skip-broken goes on without such") from None
