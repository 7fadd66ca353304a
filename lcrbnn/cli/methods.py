"""`lcrbnn methods`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lcrbnn.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the list."""
    parser.add_argument(
        "--curves", type=Path, metavar="FILE", help="draw forward and gradient curves into this .svg, .png or .pdf"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="write what each method says of itself, as Markdown")


def execute(args: argparse.Namespace) -> int:
    """Print a line a method, or draw them, or write their page."""
    if args.curves is not None:
        from lcrbnn.study.figure import check_figure

        check_figure(args.curves)
    if args.page is not None:
        from lcrbnn.outputs import check_output_file

        check_output_file(args.page, "a page")
    if args.curves is not None:
        from lcrbnn.study.curves import draw_curves

        draw_curves(args.curves)
        print(args.curves)
    if args.page is not None:
        from lcrbnn.export.refusal import refusal
        from lcrbnn.runs.files import write_whole
        from lcrbnn.study.methods_page import methods_page

        try:
            args.page.parent.mkdir(parents=True, exist_ok=True)
            write_whole(args.page, [methods_page(refusal).encode()])
        except OSError as error:
            raise InputError(f"a page cannot be written to {args.page}: {error.strerror}") from None
        print(args.page)
    if args.curves is not None or args.page is not None:
        return 0
    from lcrbnn.methods import METHODS

    for row in METHODS.values():
        bits = " ".join(row.bit_widths)
        print(f"{row.name:<9} {row.summary:<54} {row.paper:<36} {bits}")
    return 0
