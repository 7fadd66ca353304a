"""`lcrbnn zoo` lists the trained networks of the package."""

from __future__ import annotations

import argparse

from lcrbnn.cli.model_arguments import ZOO_COMMANDS

EXAMPLES = ("lcrbnn zoo", "lcrbnn eval zoo:digits-resnet8-irnet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments, because the command has no options."""


def execute(args: argparse.Namespace) -> int:
    """Print one entry per network: name, accuracy, seed, mean over all seeds, size, training command and record."""
    from lcrbnn.zoo.zoo_index import list_members

    members = list_members().values()
    width = max((len(member.name) for member in members), default=0)
    for member in members:
        print(
            f"{member.name:<{width}}  {member.top1:.2f} % of {member.images:,} test images of {member.dataset}, "
            f"{member.bytes:,} bytes, {member.model} {member.method}, LCR: {member.lcr}"
        )
        if member.mean_top1 is not None:
            print(f"  seed {member.seed}; mean of all {member.runs} seeds, as trained: {member.mean_top1:.2f} %")
        if member.note:
            print(f"  {member.note}")
        print(f"  {member.train_command}\n  {member.record}")
    print(f"use zoo:NAME in lcrbnn {', '.join(ZOO_COMMANDS)}, and lcrbnn.zoo.load(NAME) in Python")
    return 0
