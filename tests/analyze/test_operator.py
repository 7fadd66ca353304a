from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from lcrbnn.analyze.operator import CLOSE, Convolution, lower_norm, matrix_norm, norm_of, upper_norm
from lcrbnn.errors import InputError


def convolution(k: int, stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1, **more) -> Convolution:
    kernel = torch.randn(4, 6 // groups, k, k, dtype=torch.float64)
    gain = more.pop("gain", torch.ones(4, 1, 1, dtype=torch.float64))
    return Convolution(kernel, gain, (stride, stride), (pad,) * 4, (dilation, dilation), groups, **more)


def dense(conv: Convolution, shape: tuple[int, int, int]) -> Tensor:
    """The map as a matrix, a column an input."""
    return conv(torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)).flatten(1).T


def true_norm(conv: Convolution, shape: tuple[int, int, int]) -> float:
    return torch.linalg.svdvals(dense(conv, shape))[0].item()


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
    conv = convolution(k, stride, pad, dilation, groups)
    found, true = norm_of(conv, (6, *size)), true_norm(conv, (6, *size))
    assert found.residual <= CLOSE
    assert true * (1 - 1e-9) <= found.low <= true * (1 + 1e-12)  # converged, and not above
    assert true <= found.high
    if k <= 3 and dilation == 1 and groups == 1 and pad == k // 2:  # what networks have: not far above either
        assert found.high <= 1.35 * true


def test_a_convolution_of_one_pixel_is_its_matrix() -> None:
    conv = convolution(1)
    found, exact = norm_of(conv, (6, 5, 4)), torch.linalg.matrix_norm(conv.kernel[:, :, 0, 0], 2).item()
    assert found.low == pytest.approx(exact, rel=1e-12)
    assert found.high == pytest.approx(exact, rel=2e-9)
    assert found.low <= found.high
    assert matrix_norm(conv.kernel[:, :, 0, 0]).low == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("stride", [1, 2])
def test_the_bound_of_a_circular_convolution_is_exact(stride: int) -> None:
    conv = convolution(3, stride, 1, circular=True)
    assert upper_norm(conv, (6, 8)) == pytest.approx(true_norm(conv, (6, 6, 8)), rel=1e-8)


def test_a_circular_convolution_that_covers_its_image_otherwise_has_no_bound() -> None:
    for conv in (convolution(3, 2, 1, circular=True), convolution(3, 1, 2, circular=True)):
        with pytest.raises(InputError, match="covers the image once"):
            upper_norm(conv, (5, 5))


def test_a_scale_at_each_place_is_bounded_by_its_largest() -> None:
    conv = convolution(3, 1, 1, gain=torch.randn(4, 5, 5, dtype=torch.float64))
    found, true = norm_of(conv, (6, 5, 5)), true_norm(conv, (6, 5, 5))
    assert found.low == pytest.approx(true, rel=1e-9)
    assert true <= found.high


def test_a_negative_scale_counts_as_its_size() -> None:
    gain = torch.full((4, 5, 5), -5.0, dtype=torch.float64)
    gain[:, 0, 0] = 0.1
    conv = convolution(3, 1, 1, gain=gain)
    assert true_norm(conv, (6, 5, 5)) <= norm_of(conv, (6, 5, 5)).high


def test_norms_scale_with_the_kernel_and_a_shift_has_norm_1() -> None:
    conv = convolution(3, 2, 1)
    ten = Convolution(10 * conv.kernel, conv.gain, conv.stride, conv.pads, conv.dilation, 1)
    one, other = norm_of(conv, (6, 6, 6)), norm_of(ten, (6, 6, 6))
    assert (other.low, other.high) == pytest.approx((10 * one.low, 10 * one.high), rel=1e-9)
    shift = torch.zeros(4, 4, 3, 3, dtype=torch.float64)
    shift[range(4), [2, 0, 3, 1], 0, 2] = 1
    moved = Convolution(shift, conv.gain, (1, 1), (1,) * 4, (1, 1), 1)
    found = norm_of(moved, (4, 6, 6))
    assert (found.low, found.high) == pytest.approx((1, 1), rel=1e-6)


def test_few_steps_come_out_low_and_say_so() -> None:
    conv = convolution(3, 1, 1)
    low, steps, residual = lower_norm(conv, (6, 6, 6), steps=2)
    assert steps == 2
    assert residual > CLOSE
    assert low < 0.999 * true_norm(conv, (6, 6, 6))


def test_a_kernel_of_zeros_has_norm_0() -> None:
    conv = convolution(3, 1, 1)
    nothing = Convolution(0 * conv.kernel, conv.gain, (1, 1), (1,) * 4, (1, 1), 1)
    found = norm_of(nothing, (6, 5, 5))
    assert (found.low, found.high) == (0, 0)


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("stride", [1, 2])
def test_an_image_smaller_than_the_kernel_does_not_see_itself(size: tuple[int, int], stride: int) -> None:
    # Taps that sum to 0 would cancel on a torus of the image's own size; with zeros around it they do not.
    conv = convolution(3, stride, 1)
    conv.kernel.sub_(conv.kernel.mean((2, 3), keepdim=True))
    assert true_norm(conv, (6, *size)) <= upper_norm(conv, size)
