"""Choose device, precision, threads and random seeds, and test whether Triton can run."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lcrbnn.errors import InputError

_HAS_TRITON = importlib.util.find_spec("triton") is not None
# The environment is read once. So a compiler that traces can_run_triton sees a constant.
_IS_TRITON_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def can_run_triton(*tensors: Tensor) -> bool:
    """Return whether Triton kernels can read these tensors.

    They must be on a GPU, unless Triton's interpreter is used.
    """
    return _HAS_TRITON and (_IS_TRITON_INTERPRETED or all(t.is_cuda for t in tensors))


def is_eager() -> bool:
    """Return whether PyTorch runs in eager mode. The result is False in traced code and during a CUDA graph capture."""
    if torch.compiler.is_compiling():
        return False
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def is_in_backward() -> bool:
    """Return whether a backward pass runs this code, as it does when activation checkpointing computes a block again.

    This is always False in a compiled step, which cannot know it.
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def find_device(name: str) -> torch.device:
    """Return the device with this name: "auto" (a GPU if there is one), "cpu" or "cuda"."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"no device is called {name!r}; there are auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("this computer has no CUDA device; there are auto, cpu")
    # Deterministic cuBLAS products need this variable, which is read when the GPU is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return torch.device("cpu" if name == "cpu" or not torch.cuda.is_available() else "cuda")


@contextmanager
def deterministic_run(deterministic: bool, precision: str) -> Iterator[None]:
    """Set determinism and TF32 for a run. At the end, restore these flags and the random state of PyTorch.

    Precisions other than float32 and float64 allow TF32 products.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    flags_before = torch.are_deterministic_algorithms_enabled(), matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    deterministic_module: Any = torch.utils.deterministic
    fill_before = deterministic_module.fill_uninitialized_memory
    warn_only_before, rng_state_before = torch.is_deterministic_algorithms_warn_only_enabled(), torch.get_rng_state()
    torch.use_deterministic_algorithms(deterministic)
    deterministic_module.fill_uninitialized_memory = (
        False  # if it were True, a hundred more kernels per step would fill memory that is never read
    )
    matmul.allow_tf32 = cudnn.allow_tf32 = precision not in ("float32", "float64")
    cudnn.benchmark = not deterministic
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(flags_before[0], warn_only=warn_only_before)
        torch.set_rng_state(rng_state_before)
        deterministic_module.fill_uninitialized_memory = fill_before
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = flags_before[1:]


@contextmanager
def use_full_float32() -> Iterator[None]:
    """Make convolutions and products on a GPU use full float32 (no TF32) and deterministic kernels."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@contextmanager
def single_thread() -> Iterator[None]:
    """Make PyTorch use one thread.

    For small networks two threads are not faster, and much slower if one core is busy.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit random seed for one purpose. An example is derive_seed(0, "order", epoch)."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def make_generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Return a CPU random generator for one purpose. Its numbers do not depend on the device of the run."""
    return torch.Generator().manual_seed(derive_seed(seed, *purpose))


AUTOCAST_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}  # the precisions that use autocast


@contextmanager
def autocast_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Compute products in this precision inside the context. For bfloat16 and float16, autocast is used."""
    dtype = AUTOCAST_DTYPES.get(precision)
    with torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None):
        yield
