"""Pixels as numbers and back, shifted images, and filters whose sums have a fixed order on every device.

A corruption ends by cutting the fraction off, so a last bit can be a whole level. Hence: one multiplication, addition
or division a kernel (nothing is fused), weights made on the CPU, float64 where the published code has it. Matrix
products, whose sums have an order of the library's own, are for whole numbers, for random fields, or rounded to float32
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

NEGLIGIBLE = 1e-12  # a weight that moves no pixel


def over(x: Tensor, by: float) -> Tensor:
    """x / by, rounded once. (By a plain number, torch on a GPU multiplies by 1 / by instead.)"""
    return x / torch.full((), by, dtype=x.dtype, device=x.device)


def unit(images: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """uint8 -> from 0 to 1."""
    return over(images.to(dtype), 255)


def levels(x: Tensor) -> Tensor:
    """From 0 to 1 -> uint8: what lies outside is clipped, a fraction is cut off."""
    return (x.clamp(0, 1) * 255).to(torch.uint8)


def at(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """The pixels of (n, c, h, w) at places (n, h', w') of the image."""
    n, c, _, w = x.shape
    place = (row * w + column).reshape(n, 1, -1)
    return x.reshape(n, c, -1).gather(2, place.expand(n, c, -1)).view(n, c, *row.shape[1:])


Edge = Callable[[np.ndarray, int], np.ndarray]


def nearest(place: np.ndarray, side: int) -> np.ndarray:
    """Beyond an edge its pixel goes on: a a | a b c | c c."""
    return place.clip(0, side - 1)


def mirrored(place: np.ndarray, side: int) -> np.ndarray:
    """Beyond an edge the image is mirrored, with the edge's pixel: b a | a b c | c b."""
    turn = np.mod(place, 2 * side)
    return np.where(turn < side, turn, 2 * side - 1 - turn)


def reflected(place: np.ndarray, side: int) -> np.ndarray:
    """Beyond an edge the image is mirrored, without the edge's pixel: c b | a b c | b a."""
    turn = np.mod(place, 2 * side - 2)
    return np.where(turn < side, turn, 2 * side - 2 - turn)


def padded(x: Tensor, by: int, edge: Edge) -> Tensor:
    """(..., h, w) -> (..., h + 2 by, w + 2 by)."""
    h, w = x.shape[-2:]
    row, column = (torch.from_numpy(edge(np.arange(-by, side + by), side)).to(x.device) for side in (h, w))
    return x.index_select(-2, row).index_select(-1, column)


def correlate(x: Tensor, kernel: np.ndarray, edge: Edge = reflected) -> Tensor:
    """The sum of kernel[i, j] times the image moved by so much, in float64; the kernel's side is odd."""
    reach, (h, w) = len(kernel) // 2, x.shape[-2:]
    wide, total = padded(x.double(), reach, edge), torch.zeros_like(x, dtype=torch.float64)
    for i, j in zip(*np.nonzero(np.abs(kernel) > NEGLIGIBLE), strict=True):
        part = wide[..., i : i + h, j : j + w]
        total += part if kernel[i, j] == 1 else part * float(kernel[i, j])
    return total


@lru_cache(maxsize=256)
def gaussian_weights(sigma: float, truncate: float) -> np.ndarray:
    """Of a Gaussian that ends `truncate` deviations out: float64, of odd length, with sum 1."""
    reach = int(truncate * sigma + 0.5)
    weights = np.exp(-0.5 / (sigma * sigma) * np.arange(-reach, reach + 1) ** 2)
    return weights / weights.sum()


def smooth(x: Tensor, sigma: float) -> Tensor:
    """A Gaussian blur of (..., h, w), rows first, edges going on; summed in SciPy's order, so that bits agree.

    In float32 the sums are float64 and each of the two passes is rounded once.
    """
    weights = gaussian_weights(sigma, 4.0)
    reach = len(weights) // 2
    for dim in (-2, -1):
        side = x.shape[dim]
        place = torch.from_numpy(nearest(np.arange(-reach, side + reach), side)).to(x.device)
        wide = x.double().index_select(dim, place)
        total = wide.narrow(dim, reach, side) * float(weights[reach])
        for far in range(reach, 0, -1):
            both = wide.narrow(dim, reach - far, side) + wide.narrow(dim, reach + far, side)
            total += both.mul_(float(weights[reach - far]))
        x = total.to(x.dtype)
    return x


def apply_rows_and_columns(x: Tensor, matrix: Tensor) -> Tensor:
    """matrix @ x @ matrix.T for images (n, c, h, w), in float64."""
    return apply_columns(apply_columns(x, matrix).mT, matrix).mT


def apply_columns(x: Tensor, matrix: Tensor) -> Tensor:
    """x @ matrix.T for images (n, c, h, w)."""
    return (x.reshape(-1, x.shape[-1]) @ matrix.T).view(*x.shape[:-1], len(matrix))


def on(array: np.ndarray | Sequence[float], like: Tensor) -> Tensor:
    """A small array where a tensor is."""
    return torch.from_numpy(np.asarray(array)).to(like.device)
