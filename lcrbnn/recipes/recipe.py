"""Read recipes, which are TOML files with training settings, from the package or from a user.

The module also has the recommended LCR settings.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from lcrbnn.errors import InputError, lookup
from lcrbnn.runs.atomic_files import read_regular_file
from lcrbnn.runs.old_names import upgrade_settings
from lcrbnn.train.setup.spec import TrainSpec


class Recipe(NamedTuple):
    """Name, description and training spec of a recipe."""

    name: str
    header: list[str]  # description of the recipe: the comment lines at the top of the file, or its text `about`
    spec: TrainSpec  # training spec; settings that the recipe file does not contain have default values

    @property
    def summary(self) -> str:
        """Return the first line of the description."""
        return self.header[0] if self.header else ""


def list_recipes() -> list[str]:
    """Return the sorted names of all recipes of the package."""
    return list(_read_package_recipes())


def find_recipe(name: str) -> Recipe:
    """Return the recipe of the package with this name. If the name ends in .toml, read that file instead."""
    if name.endswith(".toml"):
        try:
            header, settings = _parse(read_regular_file(Path(name)).decode(), name)
        except OSError as error:
            raise InputError(f"the recipe {name} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InputError(f"the recipe {name} is not a text file") from None
    else:
        header, settings = lookup(_read_package_recipes(), name, "recipe", "lcrbnn recipes")
    try:
        settings = upgrade_settings(settings)
        settings.pop("schema", None)
        return Recipe(name, header, TrainSpec().replace(**settings))
    except InputError as error:
        raise InputError(f"the recipe {name}: {error}") from None


def _read_package_recipes() -> dict[str, tuple[list[str], dict[str, Any]]]:
    """Return the description and the settings of each recipe of the package, sorted by name.

    A file is either one recipe, or has a table [recipes] of several recipes. These share the settings in [settings]. A
    recipe can also name a table in [protocols], whose settings it then uses.
    """
    recipes = {}
    for file in files("lcrbnn").joinpath("recipes").iterdir():
        if not file.name.endswith(".toml"):
            continue
        header, content = _parse(file.read_text(encoding="utf-8"), file.name)
        if "recipes" not in content:
            recipes[file.name.removesuffix(".toml")] = header, content
            continue
        for name, table in content["recipes"].items():
            about, protocol = table.pop("about"), table.pop("protocol", None)
            shared_settings = content["settings"] | (content["protocols"][protocol] if protocol else {})
            recipes[name] = about.splitlines(), shared_settings | table
    return dict(sorted(recipes.items()))


def _parse(text: str, name: str) -> tuple[list[str], dict[str, Any]]:
    """Return the comment lines at the top of a TOML file, and its content."""
    header = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        header.append(line.removeprefix("#").strip())
    try:
        return header, tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"the recipe {name} is not valid TOML: {error}") from None


LCR_DEFAULTS: dict[str, Callable[[TrainSpec], dict[str, Any]]] = {
    # Chosen on validation images (paper/studies/cifar10-late.toml). LCR from the first epoch on lowers the accuracy,
    # but a warm-up over all epochs does not.
    "default": lambda spec: {
        "lcr_variant": "default",
        "lcr_gradient_ratio": 0.03,
        "lcr_warmup_epochs": float(spec.epochs),
    },
    # The weight that is best in the paper's Table 3. Here, training with this weight diverges, because this variant
    # does not normalize the activations (paper/docs/LOG.md).
    "paper": lambda spec: {"lcr_variant": "paper", "lcr_weight": 4.0},
    # weight λ of the released code; this variant needs a teacher
    "official": lambda spec: {"lcr_variant": "official", "lcr_weight": 8.0},
}


def apply_lcr_default(spec: TrainSpec, name: str) -> TrainSpec:
    """Return the spec with this LCR variant and the settings that are recommended for it.

    These are its weight or gradient ratio, and the warm-up.
    """
    no_lcr = {"lcr_weight": 0.0, "lcr_gradient_ratio": 0.0, "lcr_warmup_epochs": 0.0}
    return spec.replace(**(no_lcr | lookup(LCR_DEFAULTS, name, "LCR variant")(spec)))
