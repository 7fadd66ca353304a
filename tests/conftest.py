from __future__ import annotations

import os
from collections.abc import Iterator

# Two test workers share two cores. NumPy reads this when it is imported, so it must be set before.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

# The examples are the same in every run, so that failures can be reproduced.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _seed_and_use_one_thread() -> Iterator[None]:
    """Seed PyTorch and use one thread per test, because two test workers share two cores."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
