from __future__ import annotations

import pytest
import torch

from lcrbnn.kernels.power import power, takes_power
from tests.kernels.interpreted import check_interpreted, run_interpreted
from tools.gpu import iterations


def special_cases() -> dict[str, bool]:
    torch.manual_seed(0)
    small, start = torch.randn(3, 6, 6), torch.randn(6)
    shared = power(small, start.expand(3, -1), 4, True)
    apart = power(small, start.repeat(3, 1), 4, True)
    zero = power(torch.zeros(2, 6, 6), torch.ones(2, 6), 3, False)
    bad = power(torch.full((1, 6, 6), torch.nan), torch.ones(1, 6), 3, False)
    transposed = power(small.mT, apart[0], 4, False)
    return {
        "one start for all": all(torch.equal(a, b) for a, b in zip(shared, apart, strict=True)),
        "a zero matrix gives zero": bool((zero[0] == 0).all()),
        "a bad number stays one": bool(transposed[0].isfinite().all()) and bool(bad[0].isnan().any()),
        "any strides": torch.equal(transposed[0], power(small.mT.contiguous(), apart[0], 4, False)[0]),
        "a large zero matrix too": bool((power(torch.zeros(1, 200, 200), torch.ones(1, 200), 3, False)[0] == 0).all()),
        "float32 goes to it": takes_power(small),
        "float64 does not": not takes_power(small.double()),
        "nor a large matrix": not takes_power(torch.zeros(1, 257, 257)),
        "nor one that is not square": not takes_power(torch.zeros(1, 4, 5)),
    }


def test_the_kernel_agrees_with_the_plain_iteration_in_float64() -> None:
    check_interpreted(iterations)


def test_special_cases() -> None:
    for case, holds in run_interpreted(special_cases).items():
        assert holds, case


@pytest.mark.parametrize("size", [4, 128])
def test_without_a_gpu_it_is_not_taken(size: int) -> None:
    assert not takes_power(torch.zeros(2, size, size))


def test_the_compiler_is_told_the_shape_of_the_vectors() -> None:
    with torch._subclasses.FakeTensorMode():
        v, before = power(torch.empty(3, 5, 5), torch.empty(5).expand(3, -1), 2, True)
    assert v.shape == before.shape == (3, 5)
    assert v.is_contiguous()
