"""Device, arithmetic and random state of a run: set for it, and put back afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lcrbnn.errors import InputError
from lcrbnn.train.spec import Spec


def find_device(name: str) -> torch.device:
    """The device called auto (a GPU if there is one), cpu or cuda."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"no device is called {name!r}; there are auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("there is no CUDA device here; there are auto, cpu")
    # Deterministic products need it, and it is read when the GPU is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return torch.device("cpu" if name == "cpu" or not torch.cuda.is_available() else "cuda")


@contextmanager
def numerics(spec: Spec) -> Iterator[None]:
    """Inside, kernels are deterministic and products short or long as the spec says; draws are the run's own."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    warned, drawn = torch.is_deterministic_algorithms_warn_only_enabled(), torch.get_rng_state()
    torch.use_deterministic_algorithms(spec.deterministic)
    memory.fill_uninitialized_memory = False  # a hundred kernels a step, for memory nobody reads
    matmul.allow_tf32 = cudnn.allow_tf32 = spec.precision not in ("float32", "float64")
    cudnn.benchmark = not spec.deterministic
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=warned)
        torch.set_rng_state(drawn)
        memory.fill_uninitialized_memory = filled
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before[1:]


@contextmanager
def all_digits() -> Iterator[None]:
    """Inside, a GPU's convolutions and products keep all digits of float32, and take the same kernel every time."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch computes on one core: a small network gains nothing from two, and loses all if one is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
