"""A graph of two nodes, for tests that need some model."""

import pytest

from tests.engine.graphs import Build, chain


@pytest.fixture
def small() -> Build:
    build = Build(5, (4, 5, 8))
    chain(build, "bconv", "relu")
    return build
