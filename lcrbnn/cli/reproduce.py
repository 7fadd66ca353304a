"""`lcrbnn reproduce`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from lcrbnn.cli.study import add_running, options_of, part_of
from lcrbnn.errors import InputError, choose, number

TABLES = Path("results/plan.toml")  # of the source tree


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tables, and how their runs are carried out."""
    parser.add_argument("tables", nargs="*", metavar="table", help="tables of the plan; without one, they are listed")
    parser.add_argument("--plan", type=Path, default=TABLES, help="what is promised")
    parser.add_argument(
        "--run", type=Path, default=Path("runs"), metavar="FOLDER", help="of the runs, a folder a study"
    )
    parser.add_argument("--records", type=Path, metavar="FOLDER", help="of the records; that of the plan if not said")
    parser.add_argument(
        "--show", action="store_true", help="print the tables from the records that are there; run nothing"
    )
    parser.add_argument(
        "--write",
        nargs="?",
        type=Path,
        const=Path("docs/results.md"),
        metavar="FILE",
        help="write all tables as a document (docs/results.md if no file is said)",
    )
    parser.add_argument(
        "--gains", type=Path, metavar="FILE", help="draw what retention gains in all tables: an .svg, .png or .pdf file"
    )
    add_running(parser)


def execute(args: argparse.Namespace) -> int:
    """Make what the tables lack and print them; or list the tables; or write and draw them all."""
    from lcrbnn.study.results import describe, render, render_table

    number(args.side_by_side, "--side-by-side", low=1, whole=True)
    part, options = part_of(args), options_of(args, args.run)
    _check_files(args)
    promise = _promise(args)
    tables = [choose(promise.tables, name, "table") for name in dict.fromkeys(args.tables)]
    if tables and not args.show:
        _run(args, promise, tables, part, options)
    elif not promise.records.is_dir():
        raise InputError(f"there is no folder of records called {promise.records}")
    for i, table in enumerate(tables):
        gap = "\n" if i else ""
        print(f"{gap}{table.title}\n{describe(table)}\n\n{render_table(promise, table)}")
    if args.write is not None:
        from lcrbnn.runs.files import write_whole

        args.write.parent.mkdir(parents=True, exist_ok=True)
        write_whole(args.write, [render(promise).encode()])
        print(args.write)
    if args.gains is not None:
        from lcrbnn.study.gains import all_gains
        from lcrbnn.study.gains_figure import draw_gains

        draw_gains(all_gains(promise), args.gains)
        print(args.gains)
    if not tables and args.write is None and args.gains is None:
        print(_list(promise))
    return 0


def _check_files(args: argparse.Namespace) -> None:
    """Raise if what is to be written or drawn has no place, before anything is run or printed."""
    from lcrbnn.outputs import check_output_file
    from lcrbnn.study.figure import check_figure

    if args.gains is not None:
        check_figure(args.gains)
    if args.write is not None:
        check_output_file(args.write, "a document")


def _promise(args: argparse.Namespace) -> Any:
    from lcrbnn.study.promise import read_promise

    if args.plan == TABLES and not TABLES.exists():
        raise InputError(
            f"the list of tables, {TABLES}, belongs to the source tree and is not here: go there, or say --plan FILE"
        )
    return read_promise(args.plan, args.records)


def _run(args: argparse.Namespace, promise: Any, tables: list[Any], part: Any, options: Any) -> None:
    from lcrbnn.analyze.layers import look_at_run
    from lcrbnn.study.reproduce import run_tables

    for sentence in run_tables(promise, tables, args.run, options, args.side_by_side, part, look_at_run):
        print(f"lcrbnn: {sentence}", file=sys.stderr)


def _list(promise: Any) -> str:
    from lcrbnn.study.results import progress

    width = max(map(len, promise.tables))
    lines = []
    for name, table in promise.tables.items():
        found = progress(promise, table)
        counts = f"{found.rows} of {found.of_rows} rows, {found.runs} of {found.of_runs} runs"
        lines.append(f"{name:<{width}}  {counts:<28}  {table.title}")
    return "\n".join(lines)
