"""`lcrbnn models` lists the networks."""

from __future__ import annotations

import argparse

EXAMPLES = ("lcrbnn models",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments, because the command has no options."""


def execute(args: argparse.Namespace) -> int:
    """Print one line per network, counted at its default image size with the method irnet and bits 1/1."""
    from lcrbnn.evaluation.analysis.cost import count_cost
    from lcrbnn.nn.models.model_registry import MODELS, create_model

    print(f"{'network':<34} {'image':>5} {'parameters':>11} {'binary MACs':>14} {'real MACs':>12}  description")
    for row in MODELS.values():
        cost = count_cost(create_model(row.name, "irnet"), (3, row.image_size, row.image_size))
        print(
            f"{row.name:<34} {row.image_size:>5} {cost.parameters:>11,} {cost.binary_macs:>14,} {cost.real_macs:>12,}"
            f"  {row.summary}"
        )
    return 0
