"""The public names of lcrbnn, the messages for renamed ones, and what an import loads."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import lcrbnn

RENAMED = {
    "Form": "LcrVariant",
    "PRESETS": "LCR_VARIANTS",
    "advance": "set_progress",
    "fit": "fit_output_shapes",
    "method": "get_method",
    "network": "create_model",
    "project": "project_weights",
}

FUNCTIONS = [
    "binarize", "check_export", "create_model", "export_model", "extra_loss", "fit_output_shapes", "get_method",
    "load_network", "project_weights", "run_training", "set_progress", "start_epoch",
]  # fmt: skip
CLASSES = ["BinaryConv2d", "BinaryLinear", "Engine", "InputError", "LcrVariant", "Retention", "TrainSpec"]
TABLES = ["LCR_VARIANTS", "METHODS", "MODELS"]


def test_all_lists_every_public_name_once() -> None:
    assert sorted(lcrbnn.__all__) == sorted([*FUNCTIONS, *CLASSES, *TABLES, "__version__", "zoo"])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_function_is_callable(name: str) -> None:
    assert callable(getattr(lcrbnn, name))


@pytest.mark.parametrize("name", CLASSES)
def test_public_class_has_its_name(name: str) -> None:
    assert getattr(lcrbnn, name).__name__ == name


@pytest.mark.parametrize("name", TABLES)
def test_public_table_is_a_dict(name: str) -> None:
    assert isinstance(getattr(lcrbnn, name), dict)


def test_zoo_is_a_module_that_loads_networks() -> None:
    assert callable(lcrbnn.zoo.load)


def test_unknown_name_error_lists_the_public_names() -> None:
    with pytest.raises(AttributeError, match="lcrbnn has no name 'Retantion'; the closest are Retention, "):
        lcrbnn.Retantion  # noqa: B018  # the access is the test
    assert not hasattr(lcrbnn, "Retantion")


@pytest.mark.parametrize(("old_name", "new_name"), RENAMED.items())
def test_renamed_attribute_error_names_the_new_name(old_name: str, new_name: str) -> None:
    assert hasattr(lcrbnn, new_name)
    assert not hasattr(lcrbnn, old_name)
    with pytest.raises(AttributeError, match=f"^lcrbnn.{old_name} is called lcrbnn.{new_name} now$"):
        getattr(lcrbnn, old_name)


@pytest.mark.parametrize(("old_name", "new_name"), RENAMED.items())
def test_renamed_import_error_names_the_new_name(old_name: str, new_name: str) -> None:
    with pytest.raises(ImportError, match=f"^lcrbnn.{old_name} is called lcrbnn.{new_name} now$"):
        exec(f"from lcrbnn import {old_name}")


def test_import_loads_no_torch() -> None:
    code = "import sys, lcrbnn; from lcrbnn import InputError; print('torch' in sys.modules or 'numpy' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "False\n"


def test_public_names_survive_the_import_of_every_module() -> None:
    """A submodule with the name of a public function would replace it."""
    expected = {name: getattr(lcrbnn, name) for name in lcrbnn.__all__}
    for module in pkgutil.walk_packages(lcrbnn.__path__, "lcrbnn."):
        if module.name != "lcrbnn.__main__":
            importlib.import_module(module.name)
    assert {name: getattr(lcrbnn, name) for name in lcrbnn.__all__} == expected
