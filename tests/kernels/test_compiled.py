"""Every kernel, with the arguments that it is launched with, compiles for GPUs that are not here."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lcrbnn.kernels import conv, norm
from lcrbnn.kernels.gram import product_parts
from lcrbnn.kernels.power import power

# Bytes that a program may have of the memory that its threads share: A100, H100 and H200.
SHARED = {80: 163 << 10, 90: 227 << 10}
TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.int32: "*i32"}


def image(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype).contiguous(memory_format=torch.channels_last)


def convolution(cin: int, cout: int, side: int, stride: int = 1) -> Callable[[], object]:
    def launch() -> None:
        x, w, g = image(2, cin, side, side), image(cout, cin, 3, 3), image(2, cout, side // stride, side // stride)
        conv.convolve(x, w, stride)
        conv.convolve_weight(x, g, stride)
        if cin != conv.THIN:
            conv.convolve_input(g, w, stride)

    return launch


def maps(dtype: torch.dtype, rows: int = 128) -> list[torch.Tensor]:
    return [torch.zeros(rows, columns, dtype=dtype) for columns in (16384, 8192, 4096)]


def batch_norm(channels: int, side: int) -> Callable[[], object]:
    def launch() -> None:
        x, counts = image(128, channels, side, side), norm.counts_for(channels, torch.device("cpu"))
        one, two, mean, variance = torch.zeros(4, channels).unbind()
        kept = norm.statistics(x, one, two, mean, variance, 1e-5, 0.1, counts)
        norm.coefficients(x, x, kept, counts)

    return launch


LAUNCHES: dict[str, Callable[[], object]] = {
    "an image": convolution(3, 16, 32),
    "16 channels": convolution(16, 16, 32),
    "16 to 32, stride 2": convolution(16, 32, 32, 2),
    "64 channels": convolution(64, 64, 8),
    "Gram matrices": lambda: product_parts(maps(torch.bfloat16), []),
    "Gram matrices, wide": lambda: product_parts(maps(torch.float32), []),
    "products of two maps": lambda: product_parts(maps(torch.bfloat16), maps(torch.bfloat16)),
    "Gram matrices of 256 rows": lambda: product_parts(maps(torch.bfloat16, 256), []),
    "products of 256 rows": lambda: product_parts(maps(torch.bfloat16, 256), maps(torch.bfloat16, 256)),
    "few rows": lambda: product_parts(maps(torch.float16, 5), maps(torch.float16, 5)),
    "batch norm": batch_norm(16, 32),
    "batch norm, many channels": batch_norm(512, 4),
    "power iteration": lambda: power(torch.zeros(4, 128, 128), torch.zeros(4, 128), 5, True),
    "power iteration of 256 rows": lambda: power(torch.zeros(4, 256, 256), torch.zeros(4, 256), 5, True),
    "power iteration of 256 rows, once": lambda: power(torch.zeros(4, 256, 256), torch.zeros(4, 256), 5, False),
}


def described(kernel: Any, args: tuple[Any, ...]) -> ASTSource:
    """The source of a launch: the types of its arguments, and the values of those that are constants to it."""
    types, constants = {}, {}
    for parameter, value in zip(kernel.params, args, strict=True):
        if parameter.is_constexpr:
            types[parameter.name], constants[parameter.name] = "constexpr", value
        else:
            number = "fp32" if isinstance(value, float) else "i32"
            types[parameter.name] = TYPES[value.dtype] if isinstance(value, torch.Tensor) else number
    return ASTSource(kernel, types, constexprs=constants)


OLDER = ("16 channels", "products of two maps", "batch norm", "power iteration")


@pytest.mark.parametrize(
    ("name", "architecture"), [*((name, 90) for name in LAUNCHES), *((name, 80) for name in OLDER)]
)
def test_a_kernel_compiles_for_a_gpu(name: str, architecture: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def compiled(kernel: Any, *args: Any, grid: Any, warmup: bool, num_warps: int = 4) -> None:
        source = described(kernel, args)
        made.append(triton.compile(source, GPUTarget("cuda", architecture, 32), options={"num_warps": num_warps}))

    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # as it was in all versions; later ones warn if nobody says so
    monkeypatch.setattr(triton.runtime.jit.JITFunction, "run", compiled)
    LAUNCHES[name]()
    assert made
    assert all(one.asm["cubin"] for one in made)
    assert all(one.metadata.shared <= SHARED[architecture] for one in made)


@pytest.mark.parametrize("rows", [128, 256])
def test_both_vectors_of_the_power_iteration_come_out_of_its_loop(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler once took the second-last vector for a constant, and the kernel stored its start vector."""
    made = []

    def compiled(kernel: Any, *args: Any, grid: Any, warmup: bool, num_warps: int = 4) -> None:
        made.append(
            triton.compile(described(kernel, args), GPUTarget("cuda", 90, 32), options={"num_warps": num_warps})
        )

    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setattr(triton.runtime.jit.JITFunction, "run", compiled)
    power(torch.zeros(4, rows, rows), torch.zeros(4, rows), 5, True)
    (kernel,) = made
    stored = re.findall(r"tt\.store \S+, (%\w+)(?:#\d+)?,", kernel.asm["ttir"])
    loops = re.findall(r"(%\w+)(?::\d+)? = scf\.for", kernel.asm["ttir"])
    assert len(stored) == 2
    assert set(stored) <= set(loops)
