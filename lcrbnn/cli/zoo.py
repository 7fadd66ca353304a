"""`lcrbnn zoo`."""

from __future__ import annotations

import argparse

from lcrbnn.cli._given import COMMANDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing to say."""


def execute(args: argparse.Namespace) -> int:
    """Print each network: name, accuracy of its file, seed, mean of all seeds, size, training command, record."""
    from lcrbnn.zoo import members

    found = members().values()
    width = max((len(one.name) for one in found), default=0)
    for one in found:
        print(
            f"{one.name:<{width}}  {one.top1:.2f} % of {one.images:,} test images of {one.data}, {one.bytes:,} bytes, "
            f"{one.network} {one.method}, retention: {one.retention}"
        )
        if one.mean_top1 is not None:
            print(f"  seed {one.seed}; mean of all {one.runs} seeds, as trained: {one.mean_top1:.2f} %")
        if one.note:
            print(f"  {one.note}")
        print(f"  {one.recipe}\n  {one.record}")
    print(f"each by zoo:NAME in lcrbnn {', '.join(COMMANDS)}; in Python lcrbnn.zoo.load(NAME)")
    return 0
