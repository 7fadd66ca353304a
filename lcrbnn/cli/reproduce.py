"""`lcrbnn reproduce` makes the paper's tables. The code is in the folder paper/ of the repository, not in the wheel."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from lcrbnn.errors import InputError

CHECKOUT = Path(__file__).parents[2]

EXAMPLES = ("lcrbnn reproduce", "lcrbnn reproduce double --from-records")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tables and the options of their runs."""
    _import_command().add_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    """Train the missing runs of the given tables and print these tables."""
    return int(_import_command().execute(args))


def _import_command() -> ModuleType:
    """Return paper/reproduce.py of the checkout that contains this package."""
    if not (CHECKOUT / "paper" / "reproduce.py").is_file():
        raise InputError(
            "lcrbnn reproduce needs the source tree: its folder paper/ is not part of the installed package. "
            "Clone the repository and run the command there"
        )
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))
    return import_module("paper.reproduce")
