from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from lcrbnn.errors import InputError
from lcrbnn.evaluation.analysis.convolution_norm import (
    CONVERGED_RESIDUAL,
    Convolution,
    bound_norm,
    bound_norm_above,
    bound_norm_below,
    exact_matrix_norm,
)


def make_convolution(
    k: int, stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1, **options
) -> Convolution:
    kernel = torch.randn(4, 6 // groups, k, k, dtype=torch.float64)
    gain = options.pop("gain", torch.ones(4, 1, 1, dtype=torch.float64))
    return Convolution(kernel, gain, (stride, stride), (pad,) * 4, (dilation, dilation), groups, **options)


def dense_matrix(conv: Convolution, shape: tuple[int, int, int]) -> Tensor:
    """Return the linear map as a dense matrix, one column per input."""
    return conv(torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)).flatten(1).T


def true_norm(conv: Convolution, shape: tuple[int, int, int]) -> float:
    return torch.linalg.svdvals(dense_matrix(conv, shape))[0].item()


SHAPES = [
    (k, stride, pad, dilation, groups, size)
    for k, stride, pad, dilation, groups, size in itertools.product(
        (1, 2, 3, 5), (1, 2, 3), (0, 1, 2), (1, 2), (1, 2), ((5, 5), (6, 4))
    )
    if min(size) + 2 * pad > dilation * (k - 1)
]


@pytest.mark.parametrize(("k", "stride", "pad", "dilation", "groups", "size"), SHAPES)
def test_the_interval_encloses_the_norm_of_the_dense_matrix(
    k: int, stride: int, pad: int, dilation: int, groups: int, size: tuple[int, int]
) -> None:
    conv = make_convolution(k, stride, pad, dilation, groups)
    interval, exact = bound_norm(conv, (6, *size)), true_norm(conv, (6, *size))
    assert interval.residual <= CONVERGED_RESIDUAL
    assert exact * (1 - 1e-9) <= interval.low <= exact * (1 + 1e-12)  # converged, and not above the norm
    assert exact <= interval.high
    if k <= 3 and dilation == 1 and groups == 1 and pad == k // 2:  # usual layers: the upper bound is close
        assert interval.high <= 1.35 * exact


def test_the_norm_of_a_1x1_convolution_is_that_of_its_matrix() -> None:
    conv = make_convolution(1)
    interval, exact = bound_norm(conv, (6, 5, 4)), torch.linalg.matrix_norm(conv.kernel[:, :, 0, 0], 2).item()
    assert interval.low == pytest.approx(exact, rel=1e-12)
    assert interval.high == pytest.approx(exact, rel=2e-9)
    assert interval.low <= interval.high
    assert exact_matrix_norm(conv.kernel[:, :, 0, 0]).low == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("stride", [1, 2])
def test_the_bound_of_a_circular_convolution_is_exact(stride: int) -> None:
    conv = make_convolution(3, stride, 1, is_circular=True)
    assert bound_norm_above(conv, (6, 8)) == pytest.approx(true_norm(conv, (6, 6, 8)), rel=1e-8)


def test_a_circular_convolution_that_does_not_cover_its_image_once_is_rejected() -> None:
    for conv in (make_convolution(3, 2, 1, is_circular=True), make_convolution(3, 1, 2, is_circular=True)):
        with pytest.raises(InputError, match="covers the image exactly once"):
            bound_norm_above(conv, (5, 5))


def test_a_scale_per_position_is_enclosed() -> None:
    conv = make_convolution(3, 1, 1, gain=torch.randn(4, 5, 5, dtype=torch.float64))
    interval, exact = bound_norm(conv, (6, 5, 5)), true_norm(conv, (6, 5, 5))
    assert interval.low == pytest.approx(exact, rel=1e-9)
    assert exact <= interval.high


def test_a_negative_scale_counts_with_its_absolute_value() -> None:
    gain = torch.full((4, 5, 5), -5.0, dtype=torch.float64)
    gain[:, 0, 0] = 0.1
    conv = make_convolution(3, 1, 1, gain=gain)
    assert true_norm(conv, (6, 5, 5)) <= bound_norm(conv, (6, 5, 5)).high


def test_norms_scale_with_the_kernel_and_a_shift_has_norm_1() -> None:
    conv = make_convolution(3, 2, 1)
    scaled_conv = Convolution(10 * conv.kernel, conv.gain, conv.stride, conv.padding, conv.dilation, 1)
    interval, scaled_interval = bound_norm(conv, (6, 6, 6)), bound_norm(scaled_conv, (6, 6, 6))
    assert (scaled_interval.low, scaled_interval.high) == pytest.approx(
        (10 * interval.low, 10 * interval.high), rel=1e-9
    )
    shift_kernel = torch.zeros(4, 4, 3, 3, dtype=torch.float64)
    shift_kernel[range(4), [2, 0, 3, 1], 0, 2] = 1
    shift_conv = Convolution(shift_kernel, conv.gain, (1, 1), (1,) * 4, (1, 1), 1)
    shift_interval = bound_norm(shift_conv, (4, 6, 6))
    assert (shift_interval.low, shift_interval.high) == pytest.approx((1, 1), rel=1e-6)


def test_too_few_steps_underestimate_the_norm_and_have_a_large_residual() -> None:
    conv = make_convolution(3, 1, 1)
    low, steps, residual = bound_norm_below(conv, (6, 6, 6), steps=2)
    assert steps == 2
    assert residual > CONVERGED_RESIDUAL
    assert low < 0.999 * true_norm(conv, (6, 6, 6))


def test_a_kernel_of_zeros_has_norm_0() -> None:
    conv = make_convolution(3, 1, 1)
    zero_conv = Convolution(0 * conv.kernel, conv.gain, (1, 1), (1,) * 4, (1, 1), 1)
    interval = bound_norm(zero_conv, (6, 5, 5))
    assert (interval.low, interval.high) == (0, 0)


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_upper_bound_holds_for_images_smaller_than_the_kernel(size: tuple[int, int], stride: int) -> None:
    # Kernels that sum to 0 cancel on a torus of the size of the image, but not with zero padding.
    conv = make_convolution(3, stride, 1)
    conv.kernel.sub_(conv.kernel.mean((2, 3), keepdim=True))
    assert true_norm(conv, (6, *size)) <= bound_norm_above(conv, size)
