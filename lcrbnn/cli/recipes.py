"""`lcrbnn recipes` lists the recipes, or prints the settings of one recipe."""

from __future__ import annotations

import argparse
from dataclasses import fields

from lcrbnn.train.setup.spec import TrainSpec

EXAMPLES = ("lcrbnn recipes", "lcrbnn recipes cifar10-resnet20-double-irnet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the name of the recipe."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="name of the recipe whose description and settings are printed (default: list all recipes)",
    )


def execute(args: argparse.Namespace) -> int:
    """Print one line per recipe, or description and settings of one recipe."""
    from lcrbnn.recipes.recipe import find_recipe, list_recipes

    if args.name is None:
        names = list_recipes()
        width = max(map(len, names))
        for name in names:
            print(f"{name:<{width}}  {find_recipe(name).summary}")
        return 0
    recipe = find_recipe(args.name)
    print("\n".join(recipe.header))
    defaults = TrainSpec()
    for setting in fields(TrainSpec):
        value = getattr(recipe.spec, setting.name)
        if value != getattr(defaults, setting.name):
            print(f"{setting.name} = {' '.join(map(str, value)) if isinstance(value, tuple) else value}")
    return 0
