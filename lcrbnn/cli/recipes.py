"""`lcrbnn recipes`."""

from __future__ import annotations

import argparse
from dataclasses import fields

from lcrbnn.train.spec import Spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One recipe, or none for the list."""
    parser.add_argument("name", nargs="?", help="show this recipe whole: its header, and what it changes")


def execute(args: argparse.Namespace) -> int:
    """Print a line a recipe, or one of them."""
    from lcrbnn.train.recipes import find_recipe, package_recipes

    if args.name is None:
        names = package_recipes()
        width = max(map(len, names))
        for name in names:
            print(f"{name:<{width}}  {find_recipe(name).summary}")
        return 0
    recipe = find_recipe(args.name)
    print("\n".join(recipe.header))
    plain = Spec()
    for one in fields(Spec):
        value = getattr(recipe.spec, one.name)
        if value != getattr(plain, one.name):
            print(f"{one.name} = {' '.join(map(str, value)) if isinstance(value, tuple) else value}")
    return 0
