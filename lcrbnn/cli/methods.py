"""`lcrbnn methods` lists the binarization methods, or draws their curves."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLES = ("lcrbnn methods", "lcrbnn methods --curves curves.svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option for the curves."""
    parser.add_argument(
        "--curves",
        type=Path,
        metavar="FILE",
        help="draw the forward and gradient curves of all methods into this .svg, .png or .pdf file",
    )


def execute(args: argparse.Namespace) -> int:
    """Print one line per method, or draw the curves of all methods."""
    if args.curves is not None:
        from lcrbnn.report.figures.figure import check_figure_path
        from lcrbnn.report.figures.method_curves import draw_method_curves

        check_figure_path(args.curves)
        draw_method_curves(args.curves)
        print(args.curves)
        return 0
    from lcrbnn.nn.methods.method_registry import METHODS

    for row in METHODS.values():
        bits = " ".join(row.supported_bit_widths)
        print(f"{row.name:<9} {row.summary:<54} {row.paper:<36} {bits}")
    return 0
