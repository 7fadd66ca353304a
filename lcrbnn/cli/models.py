"""`lcrbnn models`."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The list takes no options."""


def execute(args: argparse.Namespace) -> int:
    """Print a line a network, counted on its own image size with irnet at 1/1."""
    from lcrbnn.analyze.cost import count
    from lcrbnn.models import MODELS, network

    print(f"{'network':<34} {'image':>5} {'parameters':>11} {'binary MACs':>14} {'real MACs':>12}  what it is")
    for row in MODELS.values():
        cost = count(network(row.name, "irnet"), (3, row.image, row.image))
        print(
            f"{row.name:<34} {row.image:>5} {cost.parameters:>11,} {cost.binary_macs:>14,} {cost.real_macs:>12,}"
            f"  {row.summary}"
        )
    return 0
