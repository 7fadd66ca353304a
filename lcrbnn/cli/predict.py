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
    parser.description = (
        f"{parser.description}. Pictures that cannot be read (broken ones) are listed at the end, as errors, and the "
        "exit code is 1; the other pictures are classified."
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help=MODEL)
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="a picture, or a folder of pictures")
    parser.add_argument("--top", type=int, default=1, metavar="N", help="the N most probable labels of each")
    broken = parser.add_mutually_exclusive_group()
    broken.add_argument("--strict", action="store_true", help="stop at the first broken picture, with exit code 2")
    broken.add_argument(
        "--skip-broken",
        action="store_true",
        help="end with exit code 0 despite broken pictures, unless all are broken",
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
    broken: list[Unreadable] = []
    for paths, pixels in batches(pictures, model, BATCH, _refuse if args.strict else broken.append):
        logits = engine.run(np.ascontiguousarray(numbers(model, pixels)), threads=args.threads).astype(np.float64)
        odds = np.exp(logits - logits.max(1, keepdims=True))
        odds /= odds.sum(1, keepdims=True)
        for path, row in zip(paths, odds, strict=True):
            best = np.argsort(-row, kind="stable")[: args.top]
            print(f"{path}  " + "  ".join(f"{model.classes[i]} {100 * row[i]:.1f} %" for i in best))
    sys.stdout.flush()  # one file that takes both outputs holds the list at its end
    for error in broken:
        print(f"lcrbnn: left out: {error}", file=sys.stderr)
    if len(broken) == len(pictures):
        raise Failed(f"none of the {len(pictures):,} pictures can be read")
    if broken and not args.skip_broken:
        raise Failed(f"{len(broken):,} of the {len(pictures):,} pictures cannot be read")
    return 0


def _refuse(error: Unreadable) -> None:
    raise InputError(f"{error}; without --strict the other pictures are classified") from None
