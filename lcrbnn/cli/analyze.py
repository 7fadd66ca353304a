"""`lcrbnn analyze` measures norms, sensitivity, sign flips and σ ratios of trained networks."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lcrbnn.cli.model_arguments import IMAGE_SELECTION_HELP, add_group_arguments, find_groups, load_evaluated_model
from lcrbnn.cli.run_options import add_data_folder_option, add_device_option
from lcrbnn.errors import check_number

EXAMPLES = (
    "lcrbnn analyze runs/digits",
    "lcrbnn analyze none=runs/none lcr=runs/lcr --per-layer -o records/analyze",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs, the record folder and the options of the analysis."""
    add_group_arguments(parser)
    parser.add_argument(
        "--num-images", type=int, default=256, metavar="N", help=f"number of training images: {IMAGE_SELECTION_HELP}"
    )
    parser.add_argument("--per-layer", action="store_true", help="also print tables with one row per layer")
    add_device_option(parser)
    add_data_folder_option(parser)


def execute(args: argparse.Namespace) -> int:
    """Measure each network, write its record and print the comparison."""
    from lcrbnn.evaluation.analysis.analyze import NUM_PARTS, SUMMARY_TITLES, analyze_model, build_analysis_settings
    from lcrbnn.evaluation.seed_groups import measure_groups, render_group_comparison
    from lcrbnn.train.setup.options import RunOptions

    check_number(args.num_images, "--num-images", low=2, high=10_000, integer=True)
    options = RunOptions(args.device, args.data_folder)

    def measure(run: Path, settings: dict[str, Any], report_progress: Callable[[str], None]) -> dict[str, Any]:
        evaluated_model = load_evaluated_model(run)
        return analyze_model(evaluated_model.model, evaluated_model.dataset, options, args.num_images, report_progress)

    figures_by_group = measure_groups(
        args.out,
        find_groups(args.runs),
        "analyze",
        lambda run: build_analysis_settings(load_evaluated_model(run).record_settings, args.num_images),
        measure,
        NUM_PARTS,
        is_complete=lambda figures: "summary" in figures,
    )
    summaries = {
        group: {seed: figures["summary"] for seed, figures in runs.items()} for group, runs in figures_by_group.items()
    }
    print(render_group_comparison(summaries, SUMMARY_TITLES))
    if args.per_layer:
        tables = _build_layer_tables(figures_by_group)
        for title, (row_titles, values_by_group) in tables.items():
            print(f"\n{title}\n{render_group_comparison(values_by_group, row_titles)}")
    return 0


def _build_layer_tables(figures_by_group: dict[str, dict[int, Any]]) -> dict[str, Any]:
    """Return a dictionary from the title of each table per layer to its rows (title, values), without empty tables."""

    def build_table(select_values: Any) -> tuple[dict[str, str], dict[str, dict[int, dict[str, float]]]]:
        values_by_group = {
            group: {seed: select_values(figures) for seed, figures in runs.items()}
            for group, runs in figures_by_group.items()
        }
        layers = next((list(values) for runs in values_by_group.values() for values in runs.values() if values), [])
        return {name: name for name in layers}, values_by_group

    tables = {
        "operator norms with folded batch norm, lower bounds": build_table(
            lambda figures: {n: v["low"] for n, v in figures["norms"].items()}
        ),
        "sign flips, percent, noise 0.08": build_table(
            lambda figures: {n: 100 * v for n, v in figures["flips"].get("0.08", {}).items()}
        ),
        "sigma_B / sigma_F, Eq. 8, l2-normalized activations": build_table(
            lambda figures: {n: v["eq8-unit"] for n, v in (figures["ratios"] or {}).items()}
        ),
        "off-diagonal |cosine| of the binary activations": build_table(
            lambda figures: {
                n: v["binary"]["cosine"] for n, v in figures["activation_correlation"].items() if "binary" in v
            }
        ),
    }
    return {title: (layers, values_by_group) for title, (layers, values_by_group) in tables.items() if layers}
