"""Fixture with a small graph, for tests that need any model."""

import pytest

from tests.deploy.engine.random_graphs import RandomGraph, add_chain


@pytest.fixture
def small() -> RandomGraph:
    build = RandomGraph(5, (4, 5, 8))
    add_chain(build, "bconv", "relu")
    return build
