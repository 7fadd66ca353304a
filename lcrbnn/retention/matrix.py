"""Retention matrices: how the maps before and after a layer or block correlate, as operators that are never formed.

A retention matrix RM is symmetric and positive semi-definite. Each form gives it in two ways: `small`, a matrix that
power iteration can use again and again, formed once without a graph; and `quadratic`, the number u^T RM v for given
vectors, by thin products with the maps themselves, through which gradient flows at the cost of reading the maps.

    batch    Eq. 8: RM = G^T G, G = A_front^T A_back, an N x N matrix over the batch (A is d x N, a column a sample)
    square   Eq. 9: RM = A_back^T A_back, N x N; the front map plays no part
    channel  the official code: a sample at a time, RM = R R^T, R = front back^T / pixels, channels x channels
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.errors import InputError

_TINY = 1e-12  # a norm below it is that of a constant or empty map, which has no direction


def align(front: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """Bring a front map to the shape of the back map: average-pool its pixels, pad channels with zeros on both sides.

    (n, c1, h1, w1), (n, c2, h2, w2) -> both (n, max(c1, c2), h2, w2). Where the back map has fewer channels, it is the
    one that is padded. Maps of a linear layer, (n, d1) and (n, d2), are padded only.
    """
    front = pool(front, back)
    width = max(front.shape[1], back.shape[1])
    return _pad(front, width), _pad(back, width)


def pool(front: Tensor, back: Tensor) -> Tensor:
    """Average-pool the front map to the pixels of the back map; channels stay."""
    if front.dim() != back.dim() or front.dim() not in (2, 4) or front.shape[0] != back.shape[0]:
        raise InputError(
            "retention compares two maps of one batch, (n, c, h, w) or (n, d); "
            f"got shapes {tuple(front.shape)} and {tuple(back.shape)}"
        )
    if front.dim() == 2 or front.shape[2:] == back.shape[2:]:
        return front
    (h, w), (rows, columns) = front.shape[2:], back.shape[2:]
    if h % rows == 0 and w % columns == 0:  # the same numbers, and a gradient that is deterministic on a GPU
        return F.avg_pool2d(front, (h // rows, w // columns))
    return F.adaptive_avg_pool2d(front, (rows, columns))


def _pad(x: Tensor, width: int) -> Tensor:
    missing = width - x.shape[1]
    if missing == 0:
        return x
    before = missing // 2
    return F.pad(x, (*[0] * (2 * (x.dim() - 2)), before, missing - before))


class _Times(torch.autograd.Function):
    # z (k, d) -> (k, n): inner products of k vectors with the scaled rows.
    @staticmethod
    def forward(ctx: Any, x: Tensor, inverse: Tensor | None, z: Tensor) -> Tensor:
        y = z @ x.mT
        y = y if inverse is None else y * inverse
        ctx.save_for_backward(x, inverse, z, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor]:
        x, inverse, z, y = ctx.saved_tensors
        scaled = grad if inverse is None else grad * inverse
        along = None if inverse is None else (grad * y).sum(0) * inverse.square()
        return _outer(scaled, z, along, x), None, scaled @ x


class _TransposedTimes(torch.autograd.Function):
    # v (k, n) -> (k, d): k combinations of the scaled rows; v takes no gradient.
    @staticmethod
    def forward(ctx: Any, x: Tensor, inverse: Tensor | None, v: Tensor) -> Tensor:
        scaled = v if inverse is None else v * inverse
        ctx.save_for_backward(x, inverse, scaled)
        return scaled @ x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x, inverse, scaled = ctx.saved_tensors
        along = None if inverse is None else (scaled * (grad @ x.mT)).sum(0) * inverse.square()
        return _outer(scaled, grad, along, x), None, None


def _outer(a: Tensor, b: Tensor, along: Tensor | None, x: Tensor) -> Tensor:
    """Sum of k outer products, (k, n) and (k, d) -> (n, d), less `along` times the rows: one pass over memory each.

    Dividing a row by its length takes from the row's gradient the part along the row; that is the last term.
    """
    total = a[0, :, None] * b[0]
    for k in range(1, a.shape[0]):
        total = torch.addcmul(total, a[k, :, None], b[k])
    return total if along is None else torch.addcmul(total, along[:, None], x, value=-1)


@dataclass(frozen=True)
class Rows:
    """A map as a row a sample, (n, d), each row times its `inverse` length, (n,), if there is one.

    Vectors come as rows too, (k, n) or (k, d): a product of two of them with a map then reads the map once, whereas the
    transposed layout costs up to eight times as much on a CPU.
    """

    x: Tensor
    inverse: Tensor | None  # without a graph: the products below know that it belongs to x

    def gram(self, other: Rows) -> Tensor:
        """Inner products of all rows with all rows of the other, (n, n), without a graph."""
        product = self.x.detach() @ other.x.detach().mT
        product = product if self.inverse is None else product * self.inverse[:, None]
        return product if other.inverse is None else product * other.inverse

    def times(self, z: Tensor) -> Tensor:
        """Inner products of the rows with vectors, (k, d) -> (k, n)."""
        return _Times.apply(self.x, self.inverse, z)

    def transposed_times(self, v: Tensor) -> Tensor:
        """Combinations of the rows, (k, n) -> (k, d); no gradient to v."""
        return _TransposedTimes.apply(self.x, self.inverse, v)


def _raw(x: Tensor) -> Rows:
    return Rows(x, None)


def _unit(x: Tensor) -> Rows:
    norm = torch.linalg.vector_norm(x.detach(), dim=1)
    return Rows(x, _inverse(norm, norm > _TINY))


def _centered(x: Tensor) -> Rows:
    centred = x - x.mean(1, keepdim=True)
    # Rounding leaves a constant row a little off zero: relative to its size that is no direction.
    noise = x.detach().abs().amax(1) * (x.shape[1] ** 0.5 * 1e-6)
    norm = torch.linalg.vector_norm(centred.detach(), dim=1)
    return Rows(centred, _inverse(norm, norm > noise + _TINY))


def _inverse(norm: Tensor, usable: Tensor) -> Tensor:
    return torch.where(usable, 1 / torch.where(usable, norm, 1.0), 0.0)


# How a sample's map is scaled before it is compared. A row without direction (all zero; constant, if centred) counts 0.
NORMALIZATIONS: dict[str, Callable[[Tensor], Rows]] = {"raw": _raw, "unit": _unit, "centered": _centered}


@dataclass(frozen=True)
class BatchMatrix:
    """Eq. 8 (and 10, for a block): RM = G^T G, G = A_front^T A_back over the batch."""

    front: Rows
    back: Rows
    squared = True  # `small` is G, to be applied twice

    @classmethod
    def of(cls, front: Tensor, back: Tensor, normalization: str) -> BatchMatrix:
        """From two maps of one batch."""
        front, back = align(front, back)
        scale = NORMALIZATIONS[normalization]
        return cls(scale(front.flatten(1)), scale(back.flatten(1)))

    def small(self) -> Tensor:
        """G, (1, n, n), without a graph."""
        return self.front.gram(self.back)[None]

    def quadratic(self, u: Tensor, v: Tensor) -> Tensor:
        """u^T RM v for u, v of shape (1, n) -> (1,)."""
        both = self.front.times(self.back.transposed_times(torch.cat([u, v])))
        return (both[0] * both[1]).sum()[None]


@dataclass(frozen=True)
class SquareMatrix:
    """Eq. 9's form: RM = A_back^T A_back over the batch."""

    back: Rows
    squared = False  # `small` is RM itself

    @classmethod
    def of(cls, front: Tensor, back: Tensor, normalization: str) -> SquareMatrix:
        """From two maps of one batch, of which only the second counts."""
        return cls(NORMALIZATIONS[normalization](back.flatten(1)))

    def small(self) -> Tensor:
        """RM, (1, n, n), without a graph."""
        return self.back.gram(self.back)[None]

    def quadratic(self, u: Tensor, v: Tensor) -> Tensor:
        """u^T RM v for u, v of shape (1, n) -> (1,)."""
        both = self.back.transposed_times(torch.cat([u, v]))
        return (both[0] * both[1]).sum()[None]


@dataclass(frozen=True)
class ChannelMatrix:
    """The official code's form, a matrix a sample: RM = R R^T, R = front back^T / pixels."""

    front: Tensor  # (n, c1, pixels)
    back: Tensor  # (n, c2, pixels)
    squared = True

    @classmethod
    def of(cls, front: Tensor, back: Tensor, normalization: str) -> ChannelMatrix:
        """From two maps of one batch; the front map is pooled, its channels stay."""
        front = pool(front, back)
        return cls(_scaled(front, normalization), _scaled(back, normalization))

    def small(self) -> Tensor:
        """R^T, (n, c2, c1), without a graph."""
        return self.back.detach() @ self.front.detach().mT / self.back.shape[2]

    def quadratic(self, u: Tensor, v: Tensor) -> Tensor:
        """u^T RM v for u, v of shape (n, c1) -> (n,)."""
        both = self.back @ (self.front.mT @ torch.stack([u, v], dim=2)) / self.back.shape[2]
        return (both[..., 0] * both[..., 1]).sum(1)


def _scaled(x: Tensor, normalization: str) -> Tensor:
    rows = NORMALIZATIONS[normalization](x.flatten(1))
    flat = rows.x
    if rows.inverse is not None:
        norm = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
        usable = rows.inverse[:, None] > 0
        flat = torch.where(usable, flat / torch.where(usable, norm, 1.0), 0.0)
    return flat.reshape(x.shape[0], x.shape[1], -1)


Matrix = BatchMatrix | SquareMatrix | ChannelMatrix
MATRICES: dict[str, Callable[[Tensor, Tensor, str], Matrix]] = {
    "batch": BatchMatrix.of,
    "square": SquareMatrix.of,
    "channel": ChannelMatrix.of,
}
