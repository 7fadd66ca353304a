"""Compile every kernel, with the arguments of its launches, for GPUs that this machine does not need to have."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lcrbnn.nn.kernels import batch_norm as norm
from lcrbnn.nn.kernels import conv
from lcrbnn.nn.kernels.gram import product_parts
from lcrbnn.nn.kernels.power_iteration import power_iteration

# Maximum shared memory per program: A100 (80), H100 and H200 (90).
SHARED_MEMORY_BYTES_BY_ARCHITECTURE = {80: 163 << 10, 90: 227 << 10}
TRITON_POINTER_TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.int32: "*i32"}


def make_channels_last(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype).contiguous(memory_format=torch.channels_last)


def make_convolution_launch(cin: int, cout: int, side: int, stride: int = 1) -> Callable[[], object]:
    def launch() -> None:
        x, w, g = (
            make_channels_last(2, cin, side, side),
            make_channels_last(cout, cin, 3, 3),
            make_channels_last(2, cout, side // stride, side // stride),
        )
        conv.convolve(x, w, stride)
        conv.convolve_weight(x, g, stride)
        if cin != conv.IMAGE_CHANNELS:
            conv.convolve_input(g, w, stride)

    return launch


def make_feature_maps(dtype: torch.dtype, rows: int = 128) -> list[torch.Tensor]:
    return [torch.zeros(rows, columns, dtype=dtype) for columns in (16384, 8192, 4096)]


def make_batch_norm_launch(channels: int, side: int) -> Callable[[], object]:
    def launch() -> None:
        x, counters = (
            make_channels_last(128, channels, side, side),
            norm.make_arrival_counters(channels, torch.device("cpu")),
        )
        weight, bias, mean, variance = torch.zeros(4, channels).unbind()
        statistics = norm.forward_statistics(x, weight, bias, mean, variance, 1e-5, 0.1, counters)
        norm.backward_coefficients(x, x, statistics, counters)

    return launch


LAUNCHES: dict[str, Callable[[], object]] = {
    "an image": make_convolution_launch(3, 16, 32),
    "16 channels": make_convolution_launch(16, 16, 32),
    "16 to 32, stride 2": make_convolution_launch(16, 32, 32, 2),
    "64 channels": make_convolution_launch(64, 64, 8),
    "Gram matrices": lambda: product_parts(make_feature_maps(torch.bfloat16), []),
    "Gram matrices, wide": lambda: product_parts(make_feature_maps(torch.float32), []),
    "products of two maps": lambda: product_parts(make_feature_maps(torch.bfloat16), make_feature_maps(torch.bfloat16)),
    "Gram matrices of 256 rows": lambda: product_parts(make_feature_maps(torch.bfloat16, 256), []),
    "products of 256 rows": lambda: product_parts(
        make_feature_maps(torch.bfloat16, 256), make_feature_maps(torch.bfloat16, 256)
    ),
    "few rows": lambda: product_parts(make_feature_maps(torch.float16, 5), make_feature_maps(torch.float16, 5)),
    "batch norm": make_batch_norm_launch(16, 32),
    "batch norm, many channels": make_batch_norm_launch(512, 4),
    "power iteration": lambda: power_iteration(torch.zeros(4, 128, 128), torch.zeros(4, 128), 5, True),
    "power iteration of 256 rows": lambda: power_iteration(torch.zeros(4, 256, 256), torch.zeros(4, 256), 5, True),
    "power iteration of 256 rows, once": lambda: power_iteration(
        torch.zeros(4, 256, 256), torch.zeros(4, 256), 5, False
    ),
}


def describe_launch(kernel: Any, args: tuple[Any, ...]) -> ASTSource:
    """Return the source of a launch: the types of its arguments and the values of its constants."""
    types, constants = {}, {}
    for parameter, value in zip(kernel.params, args, strict=True):
        if parameter.is_constexpr:
            types[parameter.name], constants[parameter.name] = "constexpr", value
        else:
            number = "fp32" if isinstance(value, float) else "i32"
            types[parameter.name] = TRITON_POINTER_TYPES[value.dtype] if isinstance(value, torch.Tensor) else number
    return ASTSource(kernel, types, constexprs=constants)


LAUNCHES_FOR_A100 = ("16 channels", "products of two maps", "batch norm", "power iteration")


@pytest.mark.parametrize(
    ("name", "architecture"), [*((name, 90) for name in LAUNCHES), *((name, 80) for name in LAUNCHES_FOR_A100)]
)
def test_kernel_compiles_for_a_gpu(name: str, architecture: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_kernels = []

    def compile_kernel(kernel: Any, *args: Any, grid: Any, warmup: bool, num_warps: int = 4) -> None:
        source = describe_launch(kernel, args)
        compiled_kernels.append(
            triton.compile(source, GPUTarget("cuda", architecture, 32), options={"num_warps": num_warps})
        )

    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # the default, which newer versions want to be explicit
    monkeypatch.setattr(triton.runtime.jit.JITFunction, "run", compile_kernel)
    LAUNCHES[name]()
    assert compiled_kernels
    assert all(compiled.asm["cubin"] for compiled in compiled_kernels)
    assert all(
        compiled.metadata.shared <= SHARED_MEMORY_BYTES_BY_ARCHITECTURE[architecture] for compiled in compiled_kernels
    )


@pytest.mark.parametrize("rows", [128, 256])
def test_power_iteration_stores_two_vectors_that_its_loop_computes(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression test: the compiler treated the second-last vector as a constant, so the start vector was stored."""
    compiled_kernels = []

    def compile_kernel(kernel: Any, *args: Any, grid: Any, warmup: bool, num_warps: int = 4) -> None:
        compiled_kernels.append(
            triton.compile(describe_launch(kernel, args), GPUTarget("cuda", 90, 32), options={"num_warps": num_warps})
        )

    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setattr(triton.runtime.jit.JITFunction, "run", compile_kernel)
    power_iteration(torch.zeros(4, rows, rows), torch.zeros(4, rows), 5, True)
    (kernel,) = compiled_kernels
    stored = re.findall(r"tt\.store \S+, (%\w+)(?:#\d+)?,", kernel.asm["ttir"])
    loops = re.findall(r"(%\w+)(?::\d+)? = scf\.for", kernel.asm["ttir"])
    assert len(stored) == 2
    assert set(stored) <= set(loops)
