"""`lcrbnn attack` measures the accuracy of trained networks under adversarial attacks."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lcrbnn.cli.model_arguments import IMAGE_SELECTION_HELP, add_group_arguments, find_groups, load_evaluated_model
from lcrbnn.cli.run_options import add_data_folder_option, add_device_option
from lcrbnn.errors import InputError, check_number

EXAMPLES = (
    "lcrbnn attack zoo:digits-resnet8-irnet --num-images 100",
    "lcrbnn attack none=runs/none lcr=runs/lcr --eps 2/255 -o records/attack",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs, the record folder and the options of the attacks."""
    from lcrbnn.evaluation.attacks.attack_registry import ATTACKS

    add_group_arguments(parser)
    parser.add_argument(
        "--num-images", type=int, default=1000, metavar="N", help=f"number of test images: {IMAGE_SELECTION_HELP}"
    )
    parser.add_argument(
        "--eps",
        nargs="+",
        default=["2/255", "8/255"],
        metavar="EPS",
        help="largest allowed change of a pixel, as a fraction of the pixel range",
    )
    names = ", ".join(ATTACKS)
    parser.add_argument(
        "--attacks", nargs="+", default=[], metavar="NAME", help=f"names of the attacks, out of {names} (default: all)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="number of steps of the gradient attacks (default: the usual number of each attack)",
    )
    parser.add_argument(
        "--restarts", type=int, metavar="N", help="number of random restarts of the attack pgd (default: 5)"
    )
    parser.add_argument(
        "--queries", type=int, metavar="N", help="number of queries per image of the Square attack (default: 5000)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed of the attacks")
    parser.add_argument("--batch-size", type=int, default=1000, metavar="N", help="number of images per batch")
    add_device_option(parser)
    add_data_folder_option(parser)


def execute(args: argparse.Namespace) -> int:
    """Attack each network, write its record, print the comparison and report masked gradients."""
    from lcrbnn.evaluation.attacks.run_attacks import (
        attack_model,
        build_attack_settings,
        parse_eps,
        select_attacks,
        summarize_attacks,
    )
    from lcrbnn.evaluation.seed_groups import measure_groups, render_group_comparison
    from lcrbnn.train.setup.options import RunOptions

    for name, low in (("num_images", 1), ("batch_size", 1), ("steps", 1), ("restarts", 1), ("queries", 2), ("seed", 0)):
        if (value := getattr(args, name)) is not None:
            check_number(value, f"--{name.replace('_', '-')}", low=low, high=10**6, integer=True)
    if len(set(args.eps)) < len(args.eps):
        raise InputError(f"--eps contains a value twice; got {' '.join(args.eps)}")
    for text in args.eps:
        parse_eps(text)
    attack_options = {name: getattr(args, name) for name in ("steps", "restarts", "queries")}
    attacks = select_attacks(args.attacks, attack_options)
    options = RunOptions(args.device, args.data_folder)

    def measure(run: Path, settings: dict[str, Any], report_progress: Callable[[str], None]) -> dict[str, Any]:
        evaluated_model = load_evaluated_model(run, require_finished=True)
        return attack_model(
            evaluated_model.model, evaluated_model.dataset, settings, attacks, options, args.batch_size, report_progress
        )

    figures_by_group = measure_groups(
        args.out,
        find_groups(args.runs),
        "attack",
        lambda run: build_attack_settings(
            load_evaluated_model(run, require_finished=True).record_settings,
            attacks,
            args.eps,
            args.num_images,
            args.seed,
        ),
        measure,
        len(attacks) * len(args.eps),
        is_complete=lambda figures: all("clean" in figures.get(eps, ()) for eps in args.eps),
    )
    accuracies = {
        group: {seed: summarize_attacks(figures) for seed, figures in runs.items()}
        for group, runs in figures_by_group.items()
    }
    row_titles = {title: title for runs in accuracies.values() for summary in runs.values() for title in summary}
    print(f"robust accuracy in percent, {args.num_images:,} test images")
    print(render_group_comparison(accuracies, row_titles))
    _print_gradient_masking(figures_by_group)
    return 0


def _print_gradient_masking(figures_by_group: dict[str, dict[int, Any]]) -> None:
    """Print a warning for each run and eps at which an attack without gradients is the strongest."""
    from lcrbnn.evaluation.attacks.attack_suite import MASKED_GRADIENTS_WARNING

    verdicts = {
        f"{group}, seed {seed}, {eps}": (eps, verdict)
        for group, runs in figures_by_group.items()
        for seed, figures in runs.items()
        for eps, verdict in figures.items()
    }
    for name, (eps, verdict) in verdicts.items():
        if verdict["masked"]:
            warning = MASKED_GRADIENTS_WARNING.format(
                eps=eps, black=verdict["best_black_box"], white=verdict["best_gradient"]
            )
            print(f"!!! {name}: {warning}")
        elif verdict["black_box_only"]:
            print(
                f"{name}: {verdict['black_box_only']} images are misclassified only under an attack without gradients"
            )
    has_both_kinds = all(
        v["best_black_box"] is not None and v["best_gradient"] is not None for _, v in verdicts.values()
    )
    if has_both_kinds and not any(v["masked"] for _, v in verdicts.values()):
        print("no attack without gradients is stronger than all gradient attacks")
