"""`lcrbnn analyze`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lcrbnn.cli._given import SPACED, ZOO, find_groups, find_subject
from lcrbnn.cli.train import add_options
from lcrbnn.errors import number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Runs in groups, and where the records go."""
    add_groups(parser)
    parser.add_argument("--images", type=int, default=256, help=f"training images that are looked at: {SPACED}")
    parser.add_argument("--layers", action="store_true", help="a line a layer too")
    add_options(parser)


def add_groups(parser: argparse.ArgumentParser) -> None:
    """Runs, or networks of the zoo, that are compared seed by seed, and a folder of records."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help=f"folder of a run, or of its seed-N folders, or {ZOO}; GROUP=FOLDER or GROUP=zoo:NAME gives it another "
        "name; several groups are compared with the first, seed by seed",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FOLDER",
        help="of the records, FOLDER/GROUP/seed-N.json, of networks of the zoo too; none is written if not said; a run "
        "that has one there with the same settings is not measured again",
    )


def execute(args: argparse.Namespace) -> int:
    """Measure each network, write its record, print the comparison."""
    from lcrbnn.analyze.robust import PARTS, SUMMARY, analyze_some, settings_of
    from lcrbnn.study.groups import compare, measured
    from lcrbnn.train.options import Options

    number(args.images, "--images", low=2, high=10_000, whole=True)
    options = Options(args.device, args.data_folder)

    def measure(run: Path, settings: dict[str, Any], tick: Callable[[str], None]) -> dict[str, Any]:
        subject = find_subject(run)
        return analyze_some(subject.model, subject.row, options, args.images, tick)

    found = measured(
        args.out,
        find_groups(args.runs),
        "analyze",
        lambda run: settings_of(find_subject(run).said, args.images),
        measure,
        PARTS,
        holds=lambda found: "summary" in found,
    )
    print(compare({g: {s: one["summary"] for s, one in runs.items()} for g, runs in found.items()}, SUMMARY))
    if args.layers:
        rows = _layer_rows(found)
        for title, (names, figures) in rows.items():
            print(f"\n{title}\n{compare(figures, names)}")
    return 0


def _layer_rows(found: dict[str, dict[int, Any]]) -> dict[str, Any]:
    """Titles of tables, each with its lines and figures."""

    def table(pick: Any) -> tuple[dict[str, str], dict[str, dict[int, dict[str, float]]]]:
        figures = {g: {s: pick(one) for s, one in runs.items()} for g, runs in found.items()}
        names = next((list(one) for runs in figures.values() for one in runs.values() if one), [])
        return {name: name for name in names}, figures

    tables = {
        "operator norms, batch norm folded in, lower ends": table(
            lambda one: {n: v["low"] for n, v in one["norms"].items()}
        ),
        "sign flips, percent, noise 0.08": table(
            lambda one: {n: 100 * v for n, v in one["flips"].get("0.08", {}).items()}
        ),
        "sigma_B / sigma_F, Eq. 8, unit maps": table(
            lambda one: {n: v["eq8-unit"] for n, v in (one["ratios"] or {}).items()}
        ),
        "off-diagonal |cosine| of the maps as binarised": table(
            lambda one: {n: v["binary"]["cosine"] for n, v in one["likeness"].items() if "binary" in v}
        ),
    }
    return {title: one for title, one in tables.items() if one[0]}
