"""The command `lcrbnn reproduce` trains the runs that tables need, and prints, writes or draws the tables."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lcrbnn.cli.study import add_study_options, build_run_options, parse_part
from lcrbnn.errors import InputError, check_number, lookup

if TYPE_CHECKING:  # PaperTables is imported only for type checking, because the help text must not load torch
    from paper.tables.table_spec import PaperTables

TABLE_SPEC = Path("paper/tables.toml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `lcrbnn reproduce`."""
    parser.add_argument("tables", nargs="*", metavar="table", help="tables to reproduce (default: list all tables)")
    parser.add_argument(
        "--table-spec",
        type=Path,
        default=TABLE_SPEC,
        metavar="FILE",
        help="TOML file with the tables to reproduce (default: %(default)s)",
    )
    parser.add_argument(
        "--runs-folder",
        type=Path,
        default=Path("runs"),
        metavar="FOLDER",
        help="folder of all runs, with one folder PLAN/VARIANT/seed-N per run (default: %(default)s)",
    )
    parser.add_argument(
        "--records",
        type=Path,
        metavar="FOLDER",
        help="folder of the result records (default: the folder that the table spec names)",
    )
    parser.add_argument(
        "--from-records", action="store_true", help="print the tables from existing records, without training"
    )
    parser.add_argument(
        "--markdown",
        nargs="?",
        type=Path,
        const=Path("paper/docs/results.md"),
        metavar="FILE",
        help="write all tables to this Markdown file (if FILE is omitted: paper/docs/results.md)",
    )
    parser.add_argument(
        "--gains-figure",
        type=Path,
        metavar="FILE",
        help="draw the gain from LCR in every study into this .svg, .png or .pdf file",
    )
    add_study_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Train the missing runs of tables and print the tables. Other options write, draw or list all tables."""
    from paper.tables.render_tables import describe_table, render_document, render_table

    check_number(args.parallel_runs, "--parallel-runs", low=1, integer=True)
    part, options = parse_part(args), build_run_options(args, args.runs_folder)
    _check_output_files(args)
    paper_tables = _read_tables(args)
    tables = [lookup(paper_tables.tables, name, "table", "lcrbnn reproduce") for name in dict.fromkeys(args.tables)]
    if tables and not args.from_records:
        from paper.tables.layer_records import measure_run_layers
        from paper.tables.run_tables import run_tables

        undecided = run_tables(
            paper_tables, tables, args.runs_folder, options, args.parallel_runs, part, measure_run_layers
        )
        for sentence in undecided:
            print(f"lcrbnn: {sentence}", file=sys.stderr)
    elif not paper_tables.records.is_dir():
        raise InputError(f"there is no folder of records called {paper_tables.records}")
    for i, table in enumerate(tables):
        gap = "\n" if i else ""
        print(f"{gap}{table.title}\n{describe_table(table)}\n\n{render_table(paper_tables, table)}")
    if args.markdown is not None:
        from lcrbnn.runs.atomic_files import write_atomic

        args.markdown.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(args.markdown, [render_document(paper_tables).encode()])
        print(args.markdown)
    if args.gains_figure is not None:
        from paper.tables.gains import compute_all_gains
        from paper.tables.gains_figure import draw_gains

        draw_gains(compute_all_gains(paper_tables), args.gains_figure)
        print(args.gains_figure)
    if not tables and args.markdown is None and args.gains_figure is None:
        _print_table_list(paper_tables)
    return 0


def _check_output_files(args: argparse.Namespace) -> None:
    """Raise InputError, before anything is run or printed, if an output file cannot be written."""
    from lcrbnn.errors import check_output_file
    from lcrbnn.report.figures.figure import check_figure_path

    if args.gains_figure is not None:
        check_figure_path(args.gains_figure)
    if args.markdown is not None:
        check_output_file(args.markdown, "a document")


def _read_tables(args: argparse.Namespace) -> PaperTables:
    from paper.tables.table_spec import read_table_spec

    if args.table_spec == TABLE_SPEC and not TABLE_SPEC.exists():
        raise InputError(
            f"the table spec {TABLE_SPEC} is not in this folder: "
            "run the command in the root of the source tree, or use --table-spec FILE"
        )
    return read_table_spec(args.table_spec, args.records)


def _print_table_list(paper_tables: PaperTables) -> None:
    from paper.tables.render_tables import count_finished

    width = max(map(len, paper_tables.tables))
    for name, table in paper_tables.tables.items():
        progress = count_finished(paper_tables, table)
        counts = (
            f"{progress.finished_rows} of {progress.num_rows} rows, "
            f"{progress.finished_runs} of {progress.num_runs} runs"
        )
        print(f"{name:<{width}}  {counts:<28}  {table.title}")
