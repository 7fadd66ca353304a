from __future__ import annotations

import pytest
import torch

from lcrbnn.nn.kernels.power_iteration import power_iteration, supports_power_iteration
from tests.nn.kernels.interpreted import assert_interpreted_within_bounds, run_interpreted
from tools.gpu_kernels import check_iterations


def check_special_cases() -> dict[str, bool]:
    torch.manual_seed(0)
    matrices, initial_v = torch.randn(3, 6, 6), torch.randn(6)
    with_shared_start = power_iteration(matrices, initial_v.expand(3, -1), 4, True)
    with_separate_starts = power_iteration(matrices, initial_v.repeat(3, 1), 4, True)
    with_zero_matrix = power_iteration(torch.zeros(2, 6, 6), torch.ones(2, 6), 3, False)
    with_nan = power_iteration(torch.full((1, 6, 6), torch.nan), torch.ones(1, 6), 3, False)
    transposed = power_iteration(matrices.mT, with_separate_starts[0], 4, False)
    return {
        "one start for all": all(
            torch.equal(a, b) for a, b in zip(with_shared_start, with_separate_starts, strict=True)
        ),
        "a zero matrix gives zero": bool((with_zero_matrix[0] == 0).all()),
        "a bad number stays one": bool(transposed[0].isfinite().all()) and bool(with_nan[0].isnan().any()),
        "any strides": torch.equal(
            transposed[0], power_iteration(matrices.mT.contiguous(), with_separate_starts[0], 4, False)[0]
        ),
        "a large zero matrix too": bool(
            (power_iteration(torch.zeros(1, 200, 200), torch.ones(1, 200), 3, False)[0] == 0).all()
        ),
        "float32 goes to it": supports_power_iteration(matrices),
        "float64 does not": not supports_power_iteration(matrices.double()),
        "nor a large matrix": not supports_power_iteration(torch.zeros(1, 257, 257)),
        "nor one that is not square": not supports_power_iteration(torch.zeros(1, 4, 5)),
    }


def test_the_kernel_agrees_with_the_plain_iteration_in_float64() -> None:
    assert_interpreted_within_bounds(check_iterations)


def test_special_cases() -> None:
    for case, holds in run_interpreted(check_special_cases).items():
        assert holds, case


@pytest.mark.parametrize("size", [4, 128])
def test_kernel_is_not_used_without_a_gpu(size: int) -> None:
    assert not supports_power_iteration(torch.zeros(2, size, size))


def test_fake_tensors_have_the_shape_of_the_vectors() -> None:
    with torch._subclasses.FakeTensorMode():
        v, previous_v = power_iteration(torch.empty(3, 5, 5), torch.empty(5).expand(3, -1), 2, True)
    assert v.shape == previous_v.shape == (3, 5)
    assert v.is_contiguous()
