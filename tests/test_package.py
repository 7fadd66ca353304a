from __future__ import annotations

import importlib
import pkgutil

import pytest

import lcrbnn


@pytest.mark.parametrize("name", lcrbnn.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(lcrbnn, name) is not None


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match="lcrbnn has no name 'Retantion'; there are binarize"):
        lcrbnn.Retantion  # noqa: B018  # the access is the test


def test_public_names_survive_the_import_of_every_module() -> None:
    """A module of the same name as a function would take its place."""
    for module in pkgutil.walk_packages(lcrbnn.__path__, "lcrbnn."):
        if module.name != "lcrbnn.__main__":
            importlib.import_module(module.name)
    assert callable(lcrbnn.binarize)
    assert callable(lcrbnn.network)
    assert callable(lcrbnn.method)
    assert callable(lcrbnn.fit)
