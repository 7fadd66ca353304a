"""`lcrbnn attack`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lcrbnn.cli._given import SPACED, find_groups, find_subject
from lcrbnn.cli.analyze import add_groups
from lcrbnn.cli.train import add_options
from lcrbnn.errors import InputError, number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Runs in groups, the attacks, and how much of them."""
    from lcrbnn.attack.table import ATTACKS

    add_groups(parser)
    parser.add_argument("--images", type=int, default=1000, help=f"test images: {SPACED}")
    parser.add_argument(
        "--eps", nargs="+", default=["2/255", "8/255"], metavar="EPS", help="how far a pixel may move, of its range"
    )
    names = ", ".join(ATTACKS)
    parser.add_argument("--attacks", nargs="+", default=[], metavar="NAME", help=f"some of {names}; all if not said")
    parser.add_argument("--steps", type=int, help="of the gradient attacks, in place of their own")
    parser.add_argument("--restarts", type=int, help="of PGD, in place of its own")
    parser.add_argument("--queries", type=int, help="of the square attack, in place of its own")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--batch", type=int, default=1000, help="images at a time")
    add_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Attack each network, write its record, print the comparison, and say loudly where gradients are masked."""
    from lcrbnn.attack.run import attack_some, chosen_attacks, parse_eps, settings_of, summary
    from lcrbnn.study.groups import compare, measured
    from lcrbnn.train.options import Options

    for name, low in (("images", 1), ("batch", 1), ("steps", 1), ("restarts", 1), ("queries", 2), ("seed", 0)):
        if (value := getattr(args, name)) is not None:
            number(value, f"--{name}", low=low, high=10**6, whole=True)
    if len(set(args.eps)) < len(args.eps):
        raise InputError(f"--eps names one twice; got {' '.join(args.eps)}")
    for text in args.eps:
        parse_eps(text)
    changes = {name: getattr(args, name) for name in ("steps", "restarts", "queries")}
    attacks = chosen_attacks(args.attacks, changes)
    options = Options(args.device, args.data_folder)

    def measure(run: Path, settings: dict[str, Any], tick: Callable[[str], None]) -> dict[str, Any]:
        subject = find_subject(run, finished=True)
        return attack_some(subject.model, subject.row, settings, attacks, options, args.batch, tick)

    found = measured(
        args.out,
        find_groups(args.runs),
        "attack",
        lambda run: settings_of(find_subject(run, finished=True).said, attacks, args.eps, args.images, args.seed),
        measure,
        len(attacks) * len(args.eps),
        holds=lambda found: all("clean" in found.get(eps, ()) for eps in args.eps),
    )
    figures = {group: {seed: summary(one) for seed, one in runs.items()} for group, runs in found.items()}
    rows = {name: name for runs in figures.values() for one in runs.values() for name in one}
    print(f"percent of the first {args.images:,} test images that stay right")
    print(compare(figures, rows))
    _flags(found)
    return 0


def _flags(found: dict[str, dict[int, Any]]) -> None:
    """A loud sentence for each run and eps at which an attack without gradients wins; a quiet one otherwise."""
    from lcrbnn.attack.suite import LOUD

    verdicts = {
        f"{group}, seed {seed}, {eps}": (eps, verdict)
        for group, runs in found.items()
        for seed, one in runs.items()
        for eps, verdict in one.items()
    }
    for name, (eps, verdict) in verdicts.items():
        if verdict["masked"]:
            words = LOUD.format(eps=eps, black=verdict["best_black_box"], white=verdict["best_gradient"])
            print(f"!!! {name}: {words}")
        elif verdict["black_box_only"]:
            print(f"{name}: {verdict['black_box_only']} images fell to an attack without gradients alone")
    both = all(v["best_black_box"] is not None and v["best_gradient"] is not None for _, v in verdicts.values())
    if both and not any(v["masked"] for _, v in verdicts.values()):
        print("no attack without gradients beats those with them")
