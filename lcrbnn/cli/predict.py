"""`lcrbnn predict`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lcrbnn.errors import number

if TYPE_CHECKING:
    from lcrbnn.engine import Model

BATCH = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A model and pictures."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="a .bnn file, or zoo:NAME (lcrbnn zoo lists them)")
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="a picture, or a folder of pictures")
    parser.add_argument("--top", type=int, default=1, metavar="N", help="the N most probable labels of each")
    parser.add_argument("--threads", type=int, default=1, metavar="N")


def execute(args: argparse.Namespace) -> int:
    """Print a line a picture: its name, then labels with their probabilities."""
    import numpy as np

    from lcrbnn.engine.lib import Engine
    from lcrbnn.engine.pictures import batches, find_pictures
    from lcrbnn.engine.reference import numbers

    number(args.top, "--top", low=1, whole=True)
    number(args.threads, "--threads", low=1, high=1024, whole=True)
    model, source = _find(args.model)
    engine = Engine(source)
    for paths, pixels in batches(find_pictures(args.images), model, BATCH):
        logits = engine.run(np.ascontiguousarray(numbers(model, pixels)), threads=args.threads).astype(np.float64)
        odds = np.exp(logits - logits.max(1, keepdims=True))
        odds /= odds.sum(1, keepdims=True)
        for path, row in zip(paths, odds, strict=True):
            best = np.argsort(-row, kind="stable")[: args.top]
            print(f"{path}  " + "  ".join(f"{model.classes[i]} {100 * row[i]:.1f} %" for i in best))
    return 0


def _find(given: Path) -> tuple[Model, Path | bytes]:
    """The model, and what the engine reads it from. A network of the zoo is exported first, which needs torch."""
    from lcrbnn.engine.format import read_model, to_bytes
    from lcrbnn.zoo import named

    name = named(given)
    if name is None:
        return read_model(given), given
    from lcrbnn.export import export_model
    from lcrbnn.train.dataset import data_row
    from lcrbnn.zoo.file import read_member
    from lcrbnn.zoo.index import find

    small = read_member(find(name))
    model = export_model(small.model, data_row(small.spec), name)
    return model, to_bytes(model)
