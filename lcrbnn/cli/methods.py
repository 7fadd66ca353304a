"""`lcrbnn methods`."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the list."""
    parser.add_argument(
        "--curves", type=Path, metavar="FILE", help="draw forward and gradient curves into this .svg, .png or .pdf"
    )


def execute(args: argparse.Namespace) -> int:
    """Print a line a method, or draw them."""
    if args.curves is not None:
        from lcrbnn.study.curves import draw_curves

        draw_curves(args.curves)
        print(args.curves)
        return 0
    from lcrbnn.methods import METHODS

    for row in METHODS.values():
        bits = " ".join(row.bit_widths)
        print(f"{row.name:<9} {row.summary:<54} {row.paper:<36} {bits}")
    return 0
