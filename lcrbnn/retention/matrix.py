"""Retention matrices: how the maps before and after a layer or block correlate.

A retention matrix RM is symmetric and positive semi-definite. A stack of them, all of one size, gives them in two ways:
`small`, a matrix each that power iteration can use again and again, formed once without a graph; and the numbers
u^T RM v for given vectors. Their values come from `small` alone. The maps are read again only for their gradient, which
is known in closed form and costs one thin product a map.

    batch    Eq. 8: RM = G^T G, G = A_front^T A_back, an N x N matrix over the batch (A is d x N, a column a sample)
    square   Eq. 9: RM = A_back^T A_back, N x N; the front map plays no part
    channel  the official code: a sample at a time, RM = R R^T, R = front back^T / pixels, channels x channels

Maps may be narrower than float32: everything summed over them is float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.errors import InputError
from lcrbnn.kernels.gram import grams, products
from lcrbnn.kernels.support import usable
from lcrbnn.retention.extent import leave_out, longest, shrink_long_rows, shrink_unless_kernels
from lcrbnn.retention.spectral import applied, value

Pair = tuple[Tensor, Tensor]  # the maps before and after a layer or block

_TINY = 1e-12  # a norm below it is that of a constant or empty map, which has no direction


def align(front: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """Bring a front map to the shape of the back map: average-pool its pixels, pad channels with zeros on both sides.

    (n, c1, h1, w1), (n, c2, h2, w2) -> both (n, max(c1, c2), h2, w2). Where the back map has fewer channels, it is the
    one that is padded. Maps of a linear layer, (n, d1) and (n, d2), are padded only.
    """
    front = pool(front, back)
    width = max(front.shape[1], back.shape[1])
    return _pad(front, width), _pad(back, width)


def comparable(front: Tensor, back: Tensor) -> bool:
    """Whether two maps can be brought to one shape: of one batch, both (n, c, h, w), both (n, d), or of one shape."""
    if front.shape == back.shape:
        return front.dim() > 1
    return front.dim() == back.dim() and front.dim() in (2, 4) and front.shape[0] == back.shape[0]


def pool(front: Tensor, back: Tensor) -> Tensor:
    """Average-pool the front map to the pixels of the back map; channels stay."""
    if front.shape == back.shape and front.dim() > 1:  # tokens (n, t, d) too: nothing is to be pooled
        return front
    if not comparable(front, back):
        raise InputError(
            "retention compares two maps of one batch, (n, c, h, w), (n, d), or two of one shape; "
            f"got shapes {tuple(front.shape)} and {tuple(back.shape)}"
        )
    if front.dim() == 2 or front.shape[2:] == back.shape[2:]:
        return front
    front = wide(front)
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


def wide(x: Tensor) -> Tensor:
    """The same map in float32 at least."""
    return x if x.dtype.itemsize >= 4 else x.float()


def _flat(*maps: Tensor) -> list[Tensor]:
    """Maps of one shape as rows (n, d), all in the same order: that in which the last one lies in memory, if it can be.

    Inner products do not see the order, and rows in the order of memory are a view; others would be a copy.
    """
    last = maps[-1]
    if last.dim() == 4 and last.is_contiguous(memory_format=torch.channels_last):
        return [x.permute(0, 2, 3, 1).flatten(1) for x in maps]
    return [x.flatten(1) for x in maps]


class _Attach(torch.autograd.Function):
    # The same number, from which gradient flows to a map too: (left^T right) other, less `along` times the map's rows.
    # left and right are (k, n) and take no gradient. Dividing a row by its length takes from its gradient the part
    # along the row; that is the last term.
    @staticmethod
    def forward(
        ctx: Any, sigma: Tensor, x: Tensor, other: Tensor, left: Tensor, right: Tensor, along: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(x, other, left, right, along)
        return sigma.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise InputError("the retention loss has no second derivative: it was asked for with create_graph=True")
        x, other, left, right, along = ctx.saved_tensors
        left = left * grad
        thin = _combined(right, other)
        total = left[0, :, None] * thin[0]
        for k in range(1, len(left)):
            total = torch.addcmul(total, left[k, :, None], thin[k])
        if along is not None:
            total = torch.addcmul(total, (along * grad)[:, None], x.to(total.dtype), value=-1)
        return grad, total if total.dtype == x.dtype else total.to(x.dtype), None, None, None, None


def _combined(v: Tensor, x: Tensor) -> list[Tensor]:
    """Combinations of the rows of x (n, d), one for each row of v (k, n): k vectors of length d, as wide as v."""
    if usable(x):  # torch's compiler makes this one pass over x, without a wide copy
        return [(row[:, None] * x).sum(0) for row in v]
    return list((v @ x.to(v.dtype)).unbind())


@dataclass(frozen=True)
class Rows:
    """A map as a row a sample, (n, d), and whether each row is to be divided by its length.

    A row no longer than its `noise`, (n,), is constant but for rounding: it has no direction and counts 0.
    """

    x: Tensor
    scaled: bool
    noise: Tensor | None = None


def _raw(x: Tensor) -> Rows:
    return Rows(x, scaled=False)


def _unit(x: Tensor) -> Rows:
    return Rows(shrink_unless_kernels(x), scaled=True)


def _centered(x: Tensor) -> Rows:
    x = shrink_long_rows(wide(x))
    # Rounding leaves a constant row a little off zero: relative to its size that is no direction.
    noise = x.detach().abs().amax(1) * (x.shape[1] ** 0.5 * 1e-6)
    return Rows(x - x.mean(1, keepdim=True), scaled=True, noise=noise)


def _lengths(rows: Sequence[Rows]) -> Tensor:
    """Of all rows, (b, n), without a graph."""
    maps = [r.x.detach() for r in rows]
    return torch.stack(
        [torch.linalg.vector_norm(x, dim=1, dtype=torch.promote_types(x.dtype, torch.float32)) for x in maps]
    )


def _inverses(lengths: Tensor, rows: Sequence[Rows]) -> Tensor:
    """1 / length, and 0 for a row without direction or of a length that overflows; (b, n) both."""
    noise = [r.noise for r in rows if r.noise is not None]
    usable = lengths > (torch.stack(noise) + _TINY if noise else _TINY)
    usable = usable & (lengths <= longest(lengths.dtype))
    return torch.where(usable, 1 / torch.where(usable, lengths, 1.0), 0.0)


# How a sample's map is scaled before it is compared. A row without direction (all zero; constant, if centred) counts 0.
NORMALIZATIONS: dict[str, Callable[[Tensor], Rows]] = {"raw": _raw, "unit": _unit, "centered": _centered}


class Stack(Protocol):
    """Retention matrices of one size, from one pair of maps or several."""

    squared: bool  # whether RM is small^T small, else it is `small` itself

    def small(self) -> Tensor:
        """What power iteration multiplies by, (b, m, n), without a graph; b counts all matrices of all pairs."""
        ...

    def values(self, u: Tensor, v: Tensor) -> list[Tensor]:
        """u^T RM v for u, v of shape (b, n): an entry a pair, (b / pairs,), differentiable in its maps."""
        ...

    def quadratic(self, u: Tensor, v: Tensor) -> Tensor:
        """The same in one piece, (b,)."""
        ...


@dataclass(frozen=True)
class BatchStack:
    """Eq. 8 (and 10, for a block): RM = G^T G, G = A_front^T A_back over the batch."""

    fronts: list[Rows]
    backs: list[Rows]
    scales: tuple[Tensor, Tensor] | None  # of the rows before and after, each (b, n)
    correlations: Tensor
    squared = True  # `small` is G, to be applied twice

    @classmethod
    def of(cls, pairs: Sequence[Pair], normalization: str) -> BatchStack:
        """From pairs of maps of one batch."""
        flat = [_flat(*align(front, back)) for front, back in pairs]
        fronts, backs = ([NORMALIZATIONS[normalization](x) for x in side] for side in zip(*flat, strict=True))
        with torch.no_grad():
            g = products(*([rows.x.detach() for rows in side] for side in (fronts, backs)))
            scales = None
            if fronts[0].scaled:
                lengths = [_lengths(rows) for rows in (fronts, backs)]
                before, after = (_inverses(of, rows) for of, rows in zip(lengths, (fronts, backs), strict=True))
                g = leave_out(g, *(of > longest(of.dtype) for of in lengths))
                g, scales = g * before[:, :, None] * after[:, None, :], (before, after)
        return cls(fronts, backs, scales, g)

    def small(self) -> Tensor:
        """G, (b, n, n), without a graph."""
        return self.correlations

    def values(self, u: Tensor, v: Tensor) -> list[Tensor]:
        """u^T RM v = (G u) . (G v) for u, v of shape (b, n): a list of (1,)."""
        with torch.no_grad():
            g = self.correlations
            a, b = applied(g, u), applied(g, v)
            sigmas = (a * b).sum(1)
            before, after = torch.stack([a, b], 1), torch.stack([v, u], 1)
            along_front = along_back = None
            if self.scales is not None:
                first, second = self.scales
                along_front = 2 * a * b * first.square()
                along_back = (v * applied(g.mT, a) + u * applied(g.mT, b)) * second.square()
                before, after = before * first[:, None], after * second[:, None]
        found = []
        for i, (front, back) in enumerate(zip(self.fronts, self.backs, strict=True)):
            sigma = _attached(sigmas[i : i + 1], front.x, back.x, before[i], after[i], _at(along_front, i))
            found.append(_attached(sigma, back.x, front.x, after[i], before[i], _at(along_back, i)))
        return found

    def quadratic(self, u: Tensor, v: Tensor) -> Tensor:
        """u^T RM v for u, v of shape (b, n) -> (b,)."""
        return torch.cat(self.values(u, v))


@dataclass(frozen=True)
class SquareStack:
    """Eq. 9's form: RM = A_back^T A_back over the batch."""

    backs: list[Rows]
    scales: Tensor | None  # of the rows, (b, n)
    correlations: Tensor
    squared = False  # `small` is RM itself

    @classmethod
    def of(cls, pairs: Sequence[Pair], normalization: str) -> SquareStack:
        """From pairs of maps of one batch, of which only the second counts."""
        backs = [NORMALIZATIONS[normalization](*_flat(back)) for _, back in pairs]
        with torch.no_grad():
            rm = grams([rows.x.detach() for rows in backs])
            scales = None
            if backs[0].scaled:
                squares = rm.flatten(1)[:, :: rm.shape[2] + 1]  # the diagonal: no need to read the maps again
                lengths = squares.sqrt()
                scales, too_long = _inverses(lengths, backs), lengths > longest(lengths.dtype)
                rm = leave_out(rm, too_long, too_long)
                rm = rm * scales[:, :, None] * scales[:, None, :]
        return cls(backs, scales, rm)

    def small(self) -> Tensor:
        """RM, (b, n, n), without a graph."""
        return self.correlations

    def values(self, u: Tensor, v: Tensor) -> list[Tensor]:
        """u^T RM v for u, v of shape (b, n): a list of (1,)."""
        with torch.no_grad():
            of_u, of_v = applied(self.correlations, u), applied(self.correlations, v)
            sigmas = (u * of_v).sum(1)
            left, right, along = torch.stack([u, v], 1), torch.stack([v, u], 1), None
            if self.scales is not None:
                along = (u * of_v + v * of_u) * self.scales.square()
                left, right = left * self.scales[:, None], right * self.scales[:, None]
        return [
            _attached(sigmas[i : i + 1], rows.x, rows.x, left[i], right[i], _at(along, i))
            for i, rows in enumerate(self.backs)
        ]

    def quadratic(self, u: Tensor, v: Tensor) -> Tensor:
        """u^T RM v for u, v of shape (b, n) -> (b,)."""
        return torch.cat(self.values(u, v))


def _attached(sigma: Tensor, x: Tensor, other: Tensor, left: Tensor, right: Tensor, along: Tensor | None) -> Tensor:
    return _Attach.apply(sigma, x, other.detach(), left, right, along) if x.requires_grad else sigma


def _at(vectors: Tensor | None, i: int) -> Tensor | None:
    return None if vectors is None else vectors[i]


@dataclass(frozen=True)
class ChannelStack:
    """The official code's form, a matrix a sample: RM = R R^T, R = front back^T / pixels."""

    fronts: list[Tensor]  # (n, c1, pixels)
    backs: list[Tensor]  # (n, c2, pixels)
    correlations: list[Tensor]  # R^T of each pair, (n, c2, c1), without a graph
    squared = True

    @classmethod
    def of(cls, pairs: Sequence[Pair], normalization: str) -> ChannelStack:
        """From pairs of maps of one batch; the front map is pooled, its channels stay."""
        maps = [(pool(wide(front), back), wide(back)) for front, back in pairs]
        scaled = [(_scaled(front, normalization), _scaled(back, normalization)) for front, back in maps]
        with torch.no_grad():
            smalls = [back @ front.mT / back.shape[2] for front, back in scaled]
        return cls([front for front, _ in scaled], [back for _, back in scaled], smalls)

    def small(self) -> Tensor:
        """R^T of all pairs one after another, (b, c2, c1), without a graph."""
        return torch.cat(self.correlations)

    def values(self, u: Tensor, v: Tensor) -> list[Tensor]:
        """u^T RM v for u, v of shape (b, c1): a list of (n,)."""
        count, found = len(self.fronts[0]), []
        for front, back, small, *uv in zip(
            self.fronts, self.backs, self.correlations, u.split(count), v.split(count), strict=True
        ):
            if front.requires_grad or back.requires_grad:
                both = back @ (front.mT @ torch.stack(uv, dim=2)) / back.shape[2]
                found.append((both[..., 0] * both[..., 1]).sum(1))
            else:
                found.append(value(small, *uv, squared=True))
        return found

    def quadratic(self, u: Tensor, v: Tensor) -> Tensor:
        """u^T RM v for u, v of shape (b, c1) -> (b,)."""
        return torch.cat(self.values(u, v))


def _scaled(x: Tensor, normalization: str) -> Tensor:
    rows = NORMALIZATIONS[normalization](x.flatten(1))
    flat = rows.x
    if rows.scaled:
        norm = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
        usable = _inverses(norm.detach().mT, [rows]).mT > 0
        flat = torch.where(usable, flat / torch.where(usable, norm, 1.0), 0.0)
    return flat.reshape(x.shape[0], x.shape[1], -1)


STACKS: dict[str, Callable[[Sequence[Pair], str], Stack]] = {
    "batch": BatchStack.of,
    "square": SquareStack.of,
    "channel": ChannelStack.of,
}


def _alone(kind: str) -> Callable[[Tensor, Tensor, str], Stack]:
    return lambda front, back, normalization: STACKS[kind]([(front, back)], normalization)


# The stack of a single pair: from the map before, the map after and the normalization.
MATRICES: dict[str, Callable[[Tensor, Tensor, str], Stack]] = {kind: _alone(kind) for kind in STACKS}
