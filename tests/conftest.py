from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

# Deterministic in CI and at home: a failure that cannot be repeated helps nobody.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """Every test starts from the same generator and one thread (two workers share two cores)."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
