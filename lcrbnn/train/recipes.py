"""Recipes: TOML files of a spec's fields, with a header that says what they reach; the package's, or a user's."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from lcrbnn.errors import InputError, choose
from lcrbnn.runs.files import read_regular_file
from lcrbnn.train.spec import Spec


class Recipe(NamedTuple):
    """A recipe: its comment lines at the top, and the spec that it makes of the defaults."""

    name: str
    header: list[str]
    spec: Spec

    @property
    def summary(self) -> str:
        """The first line of the header."""
        return self.header[0] if self.header else ""


def package_recipes() -> list[str]:
    """The names of the recipes that come with the package."""
    return sorted(
        p.name.removesuffix(".toml") for p in files("lcrbnn").joinpath("recipes").iterdir() if ".toml" in p.name
    )


def find_recipe(name: str) -> Recipe:
    """The package's recipe of this name, or the file if the name ends in .toml."""
    if name.endswith(".toml"):
        try:
            return _parse(read_regular_file(Path(name)).decode(), name)
        except OSError as error:
            raise InputError(f"the recipe {name} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InputError(f"the recipe {name} is not a text file") from None
    choose(dict.fromkeys(package_recipes()), name, "recipe")
    return _parse(files("lcrbnn").joinpath("recipes", f"{name}.toml").read_text(encoding="utf-8"), name)


def _parse(text: str, name: str) -> Recipe:
    header = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        header.append(line.removeprefix("#").strip())
    try:
        settings: dict[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"the recipe {name} is no TOML: {error}") from None
    try:
        return Recipe(name, header, Spec().but(**settings))
    except InputError as error:
        raise InputError(f"the recipe {name}: {error}") from None
