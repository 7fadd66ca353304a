"""Retention matrices contain the correlation of the feature maps before and after a layer or block.

A retention matrix RM is symmetric and positive semi-definite. A stack holds several RMs of one size. It has two
methods:

- `iteration_matrices()`, the matrices that power iteration multiplies by. They are computed once, without autograd. -
`bilinear_forms(u, v)`, the values u^T RM v for given vectors. The values are computed from the iteration matrices. The
feature maps are only read again for their gradient, which has a closed form and costs one thin product per map.

There are three kinds of RM, for a batch of N samples (A is d x N, one column per sample):

Feature maps may be narrower than float32, but all sums over them are computed in float32.

Feature maps may be narrower than float32. All sums over them are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.device import can_run_triton
from lcrbnn.errors import InputError
from lcrbnn.lcr.row_scaling import max_safe_length, shrink_long_rows, shrink_unless_kernels, zero_long_rows
from lcrbnn.lcr.spectral_norm import apply_matrices, rayleigh_value
from lcrbnn.nn.kernels.gram import gram_matrices, pairwise_products

Pair = tuple[Tensor, Tensor]  # feature map before (front) and feature map after (back) a layer or block

# A row that is shorter than this length has no direction. The feature map of such a row is zero everywhere, or constant
# if maps are centered.
_MIN_LENGTH = 1e-12


def align_maps(front: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """Return both maps in one shape.

    The front map is average-pooled, and the map with fewer channels is padded with zeros. (n, c1, h1, w1), (n, c2, h2,
    w2) -> both (n, max(c1, c2), h2, w2). The added channels are zero, half of them before and half after the others.
    Maps of linear layers, (n, d1) and (n, d2), are only padded.
    """
    front = pool_map(front, back)
    num_channels = max(front.shape[1], back.shape[1])
    return _pad_channels(front, num_channels), _pad_channels(back, num_channels)


def are_comparable(front: Tensor, back: Tensor) -> bool:
    """Return whether `align_maps` accepts two maps.

    They need the same batch size. Both are (n, c, h, w), both are (n, d), or their shapes are equal.
    """
    if front.shape == back.shape:
        return front.dim() > 1
    return front.dim() == back.dim() and front.dim() in (2, 4) and front.shape[0] == back.shape[0]


def pool_map(front: Tensor, back: Tensor) -> Tensor:
    """Return the front map, average-pooled to the height and width of the back map."""
    # The maps of a pair with equal shapes need no pooling, such as token maps (n, t, d)
    if front.shape == back.shape and front.dim() > 1:
        return front
    if not are_comparable(front, back):
        raise InputError(
            "Retention compares two feature maps of one batch, (n, c, h, w), (n, d), or two of the same shape; "
            f"got shapes {tuple(front.shape)} and {tuple(back.shape)}"
        )
    if front.dim() == 2 or front.shape[2:] == back.shape[2:]:
        return front
    front = to_float32(front)
    (h, w), (rows, columns) = front.shape[2:], back.shape[2:]
    if h % rows == 0 and w % columns == 0:
        # The result is the same as that of adaptive_avg_pool2d below, but the gradient is deterministic on a GPU.
        return F.avg_pool2d(front, (h // rows, w // columns))
    return F.adaptive_avg_pool2d(front, (rows, columns))


def _pad_channels(x: Tensor, num_channels: int) -> Tensor:
    missing = num_channels - x.shape[1]
    if missing == 0:
        return x
    before = missing // 2
    return F.pad(x, (*[0] * (2 * (x.dim() - 2)), before, missing - before))


def to_float32(x: Tensor) -> Tensor:
    """Return the map in float32, or unchanged if its type is at least that wide."""
    return x if x.dtype.itemsize >= 4 else x.float()


def _flatten_in_memory_order(*maps: Tensor) -> list[Tensor]:
    """Return maps of one shape as rows (n, d). All rows have the same order of entries.

    If possible, this is the order of the last map in memory. Then the rows are a view and not a copy. Inner products do
    not depend on the order of entries.
    """
    last = maps[-1]
    if last.dim() == 4 and last.is_contiguous(memory_format=torch.channels_last):
        return [x.permute(0, 2, 3, 1).flatten(1) for x in maps]
    return [x.flatten(1) for x in maps]


class _AttachGradient(torch.autograd.Function):
    """Return `sigma` unchanged, and attach the known gradient of sigma with respect to the map `x` (rows, (n, d)).

    The gradient of x is (left^T right) other_rows - along * x, where left and right are (k, n). The last term is
    present if rows are divided by their lengths. Dividing a row by its length removes the part of the gradient that is
    parallel to the row. Autograd through the matrix products would give the same gradient at a higher cost.
    """

    @staticmethod
    def forward(
        ctx: Any, sigma: Tensor, x: Tensor, other_rows: Tensor, left: Tensor, right: Tensor, along: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(x, other_rows, left, right, along)
        return sigma.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise InputError("the LCR loss has no second derivative, so create_graph=True is not supported")
        x, other_rows, left, right, along = ctx.saved_tensors
        left = left * grad
        combined_rows = _combine_rows(right, other_rows)
        map_gradient = left[0, :, None] * combined_rows[0]
        for k in range(1, len(left)):
            map_gradient = torch.addcmul(map_gradient, left[k, :, None], combined_rows[k])
        if along is not None:
            map_gradient = torch.addcmul(map_gradient, (along * grad)[:, None], x.to(map_gradient.dtype), value=-1)
        return grad, map_gradient if map_gradient.dtype == x.dtype else map_gradient.to(x.dtype), None, None, None, None


def _combine_rows(coefficients: Tensor, x: Tensor) -> list[Tensor]:
    """Return the k rows of coefficients @ x, for coefficients (k, n) and x (n, d), in the type of the coefficients."""
    if can_run_triton(x):  # torch.compile turns this sum into one pass over x without a float32 copy of x
        return [(row[:, None] * x).sum(0) for row in coefficients]
    return list((coefficients @ x.to(coefficients.dtype)).unbind())


@dataclass(frozen=True)
class FlattenedMap:
    """A feature map as rows (n, d), one row per sample, and a flag for the division of each row by its length.

    After centering, rounding errors give a constant row a small length. `noise_length`, (n,), is an upper bound of it.
    A row that is not longer than this has no direction, and it is replaced by 0.
    """

    rows: Tensor
    is_normalized: bool
    noise_length: Tensor | None = None


def _keep_scale(x: Tensor) -> FlattenedMap:
    return FlattenedMap(x, is_normalized=False)


def _scale_to_unit_length(x: Tensor) -> FlattenedMap:
    return FlattenedMap(shrink_unless_kernels(x), is_normalized=True)


def _center_and_scale(x: Tensor) -> FlattenedMap:
    x = shrink_long_rows(to_float32(x))
    # After centering, a constant row is not exactly zero because of rounding errors. Their size is proportional to the
    # row's largest value.
    noise_length = x.detach().abs().amax(1) * (x.shape[1] ** 0.5 * 1e-6)
    return FlattenedMap(x - x.mean(1, keepdim=True), is_normalized=True, noise_length=noise_length)


def _row_lengths(flat_maps: Sequence[FlattenedMap]) -> Tensor:
    """Return the lengths of all rows, (b, n), without autograd."""
    maps = [r.rows.detach() for r in flat_maps]
    return torch.stack(
        [torch.linalg.vector_norm(x, dim=1, dtype=torch.promote_types(x.dtype, torch.float32)) for x in maps]
    )


def _inverse_lengths(lengths: Tensor, flat_maps: Sequence[FlattenedMap]) -> Tensor:
    """Return the reciprocal length of each row, (b, n), and 0 for rows of zeros and rows whose length overflows."""
    noise_lengths = [r.noise_length for r in flat_maps if r.noise_length is not None]
    has_direction = lengths > (torch.stack(noise_lengths) + _MIN_LENGTH if noise_lengths else _MIN_LENGTH)
    has_direction = has_direction & (lengths <= max_safe_length(lengths.dtype))
    return torch.where(has_direction, 1 / torch.where(has_direction, lengths, 1.0), 0.0)


# Functions that scale the feature map of each sample, by `LcrVariant.normalization`. Rows without direction become 0.
NORMALIZATIONS: dict[str, Callable[[Tensor], FlattenedMap]] = {
    "none": _keep_scale,
    "l2": _scale_to_unit_length,
    "centered-l2": _center_and_scale,
}


class MatrixStack(Protocol):
    """Retention matrices of one size, from one or more pairs of feature maps."""

    squared: bool  # True if RM = M^T M for the iteration matrix M, False if RM = M

    def iteration_matrices(self) -> Tensor:
        """Return the matrices M that power iteration uses, (b, m, n), for all pairs together, without autograd."""
        ...

    def bilinear_forms(self, u: Tensor, v: Tensor) -> list[Tensor]:
        """Return u^T RM v for u, v of shape (b, n), as one tensor (b / pairs,) per pair.

        The values are differentiable in the feature maps.
        """
        ...


@dataclass(frozen=True)
class CrossGramStack:
    """Retention matrices RM = G^T G with G = A_front^T A_back (Eq. 8, and Eq. 10 for a block)."""

    fronts: list[FlattenedMap]
    backs: list[FlattenedMap]
    # reciprocal lengths of the front rows and of the back rows, each (b, n); None without normalization
    scales: tuple[Tensor, Tensor] | None
    cross_gram: Tensor
    squared = True

    @classmethod
    def from_pairs(cls, pairs: Sequence[Pair], normalization: str) -> CrossGramStack:
        """Build the stack from pairs of feature maps of one batch."""
        flat = [_flatten_in_memory_order(*align_maps(front, back)) for front, back in pairs]
        fronts, backs = ([NORMALIZATIONS[normalization](x) for x in side] for side in zip(*flat, strict=True))
        with torch.no_grad():
            g = pairwise_products(*([flat_map.rows.detach() for flat_map in side] for side in (fronts, backs)))
            scales = None
            if fronts[0].is_normalized:
                front_lengths, back_lengths = _row_lengths(fronts), _row_lengths(backs)
                scales = _inverse_lengths(front_lengths, fronts), _inverse_lengths(back_lengths, backs)
                is_long_front = front_lengths > max_safe_length(front_lengths.dtype)
                is_long_back = back_lengths > max_safe_length(back_lengths.dtype)
                g = zero_long_rows(g, is_long_front, is_long_back)
                g = g * scales[0][:, :, None] * scales[1][:, None, :]
        return cls(fronts, backs, scales, g)

    def iteration_matrices(self) -> Tensor:
        """Return G, (b, n, n), without autograd."""
        return self.cross_gram

    def bilinear_forms(self, u: Tensor, v: Tensor) -> list[Tensor]:
        """Return u^T RM v = (G u) . (G v) for u, v of shape (b, n), as a list of tensors (1,)."""
        with torch.no_grad():
            # Let X be the front rows and Y the back rows, so that G = X Y^T and sigma = u^T RM v = (G u) . (G v). Then
            # d sigma / dX = (G u) (v^T Y) + (G v) (u^T Y), and d sigma / dY = v ((G u)^T X) + u ((G v)^T X). Both have
            # the form (left^T right) other_rows of _AttachGradient, with left and right exchanged.
            g = self.cross_gram
            g_u, g_v = apply_matrices(g, u), apply_matrices(g, v)
            sigmas = (g_u * g_v).sum(1)
            front_vectors, back_vectors = torch.stack([g_u, g_v], 1), torch.stack([v, u], 1)
            along_front = along_back = None
            # With normalization, a row x enters as s x with s = 1 / |x|. For the gradient h with respect to s x, the
            # gradient with respect to x is s h - s^2 (h . s x) x. The factor s^2 (h . s x) is `along`. The matrix G
            # already contains the scales, so for X the product h . s x is 2 (G u) (G v), row by row.
            if self.scales is not None:
                front_scales, back_scales = self.scales
                along_front = 2 * g_u * g_v * front_scales.square()
                along_back = (v * apply_matrices(g.mT, g_u) + u * apply_matrices(g.mT, g_v)) * back_scales.square()
                front_vectors, back_vectors = front_vectors * front_scales[:, None], back_vectors * back_scales[:, None]
        values = []
        for i, (front, back) in enumerate(zip(self.fronts, self.backs, strict=True)):
            x, y, left, right = front.rows, back.rows, front_vectors[i], back_vectors[i]
            sigma = _attach_gradient(sigmas[i : i + 1], x, y, left, right, _index_or_none(along_front, i))
            values.append(_attach_gradient(sigma, y, x, right, left, _index_or_none(along_back, i)))
        return values


@dataclass(frozen=True)
class GramStack:
    """Retention matrices RM = A_back^T A_back (Eq. 9)."""

    backs: list[FlattenedMap]
    scales: Tensor | None  # reciprocal length 1 / |row| of each row, (b, n); None without normalization
    gram: Tensor
    squared = False

    @classmethod
    def from_pairs(cls, pairs: Sequence[Pair], normalization: str) -> GramStack:
        """Build the stack from pairs of feature maps of one batch. The front maps are not used."""
        backs = [NORMALIZATIONS[normalization](*_flatten_in_memory_order(back)) for _, back in pairs]
        with torch.no_grad():
            rm = gram_matrices([back_map.rows.detach() for back_map in backs])
            scales = None
            if backs[0].is_normalized:
                # The squared lengths are the diagonal of RM. So the maps are not read again.
                squared_lengths = rm.flatten(1)[:, :: rm.shape[2] + 1]
                lengths = squared_lengths.sqrt()
                scales, is_too_long = _inverse_lengths(lengths, backs), lengths > max_safe_length(lengths.dtype)
                rm = zero_long_rows(rm, is_too_long, is_too_long)
                rm = rm * scales[:, :, None] * scales[:, None, :]
        return cls(backs, scales, rm)

    def iteration_matrices(self) -> Tensor:
        """Return RM, (b, n, n), without autograd."""
        return self.gram

    def bilinear_forms(self, u: Tensor, v: Tensor) -> list[Tensor]:
        """Return u^T RM v for u, v of shape (b, n), as a list of tensors (1,)."""
        with torch.no_grad():
            # Let Y be the back rows, so that RM = Y Y^T. Then d sigma / dY = u (v^T Y) + v (u^T Y). With normalization,
            # `along` removes the part of the gradient that is parallel to each row, as in CrossGramStack.
            rm_u, rm_v = apply_matrices(self.gram, u), apply_matrices(self.gram, v)
            sigmas = (u * rm_v).sum(1)
            left, right, along = torch.stack([u, v], 1), torch.stack([v, u], 1), None
            if self.scales is not None:
                along = (u * rm_v + v * rm_u) * self.scales.square()
                left, right = left * self.scales[:, None], right * self.scales[:, None]
        return [
            _attach_gradient(sigmas[i : i + 1], back.rows, back.rows, left[i], right[i], _index_or_none(along, i))
            for i, back in enumerate(self.backs)
        ]


def _attach_gradient(
    sigma: Tensor, x: Tensor, other_rows: Tensor, left: Tensor, right: Tensor, along: Tensor | None
) -> Tensor:
    return _AttachGradient.apply(sigma, x, other_rows.detach(), left, right, along) if x.requires_grad else sigma


def _index_or_none(vectors: Tensor | None, i: int) -> Tensor | None:
    return None if vectors is None else vectors[i]


@dataclass(frozen=True)
class PerSampleStack:
    """Retention matrices RM = R R^T of each sample, with R = front back^T / pixels (as in the official code)."""

    fronts: list[Tensor]  # front maps of all pairs, (n, c1, pixels) each
    backs: list[Tensor]  # back maps of all pairs, (n, c2, pixels) each
    correlations: list[Tensor]  # matrices R^T of all pairs, (n, c2, c1) each, without autograd
    squared = True

    @classmethod
    def from_pairs(cls, pairs: Sequence[Pair], normalization: str) -> PerSampleStack:
        """Build the stack from pairs of feature maps of one batch. Front maps are pooled but not padded."""
        maps = [(pool_map(to_float32(front), back), to_float32(back)) for front, back in pairs]
        normalized_pairs = [
            (_normalize_samples(front, normalization), _normalize_samples(back, normalization)) for front, back in maps
        ]
        with torch.no_grad():
            correlations = [back @ front.mT / back.shape[2] for front, back in normalized_pairs]
        return cls([front for front, _ in normalized_pairs], [back for _, back in normalized_pairs], correlations)

    def iteration_matrices(self) -> Tensor:
        """Return R^T of all pairs in one tensor (b, c2, c1), without autograd."""
        return torch.cat(self.correlations)

    def bilinear_forms(self, u: Tensor, v: Tensor) -> list[Tensor]:
        """Return u^T RM v for u, v of shape (b, c1), as a list of tensors (n,)."""
        num_samples, values = len(self.fronts[0]), []
        for front, back, matrices, *uv in zip(
            self.fronts, self.backs, self.correlations, u.split(num_samples), v.split(num_samples), strict=True
        ):
            if front.requires_grad or back.requires_grad:
                correlated = back @ (front.mT @ torch.stack(uv, dim=2)) / back.shape[2]
                values.append((correlated[..., 0] * correlated[..., 1]).sum(1))
            else:
                values.append(rayleigh_value(matrices, *uv, squared=True))
        return values


def _normalize_samples(x: Tensor, normalization: str) -> Tensor:
    flat_map = NORMALIZATIONS[normalization](x.flatten(1))
    rows = flat_map.rows
    if flat_map.is_normalized:
        length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        has_direction = _inverse_lengths(length.detach().mT, [flat_map]).mT > 0
        rows = torch.where(has_direction, rows / torch.where(has_direction, length, 1.0), 0.0)
    return rows.reshape(x.shape[0], x.shape[1], -1)


# Functions that build a stack from several pairs of feature maps and a normalization, by `LcrVariant.matrix`.
MATRIX_STACKS: dict[str, Callable[[Sequence[Pair], str], MatrixStack]] = {
    "cross-gram": CrossGramStack.from_pairs,
    "gram": GramStack.from_pairs,
    "per-sample": PerSampleStack.from_pairs,
}
