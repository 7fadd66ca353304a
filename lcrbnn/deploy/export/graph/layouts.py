"""How the elements of a PyTorch tensor lie in the (h, w, c) value of a node: index arrays, and nodes that reorder them.

An index array has the shape of the tensor for a batch of one image. It contains, for each element, the number of the
element in the flattened value, or FILL for an element with a constant value (padding).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

Shape = tuple[int, int, int]  # height, width, channels of a value

FILL = -1
MAX_FACTORS = 8  # lengths of a strided node
MAX_INDICES = 2**20  # indices of one axis of a take node


@dataclass(frozen=True, eq=False)
class Layout:
    """Shape of a PyTorch tensor for a batch of one image, and the place of each element in the value of a node.

    `batch_axis` is the axis of the images. It is longer than 1 if the network has merged it with another axis.
    Without `stored_indices`, the elements are stored as arrange_standard describes.
    """

    shape: tuple[int, ...]
    batch_axis: int = 0
    stored_indices: np.ndarray | None = None
    fill: float = 0.0  # value of the elements with the index FILL

    @cached_property
    def indices(self) -> np.ndarray:
        """Index array of the tensor."""
        if self.stored_indices is not None:
            return self.stored_indices
        if self.is_map:
            _, c, h, w = self.shape
            return np.arange(c * h * w, dtype=np.int32).reshape(1, h, w, c).transpose(0, 3, 1, 2)
        return np.arange(prod(self.shape), dtype=np.int32).reshape(self.shape)

    @property
    def is_map(self) -> bool:
        """Whether the tensor is a batch of maps, (n, channels, h, w)."""
        return len(self.shape) == 4 and self.batch_axis == 0 and self.shape[0] == 1

    @property
    def is_vector(self) -> bool:
        """Whether the tensor is a batch of vectors, (n, features)."""
        return len(self.shape) == 2 and self.batch_axis == 0 and self.shape[0] == 1

    @cached_property
    def is_permutation(self) -> bool:
        """Whether no element of the value occurs twice, and no element is filled; all occur if the sizes are equal."""
        if self.stored_indices is None:
            return True
        flat = self.stored_indices.reshape(-1)
        return bool(flat.min() >= 0 and np.bincount(flat).max() == 1)

    @property
    def standard_shape(self) -> Shape:
        """Shape of the value that stores the tensor in the standard order."""
        if self.is_map:
            return self.shape[2], self.shape[3], self.shape[1]
        sizes = list(self.shape)
        if sizes[self.batch_axis] == 1:
            del sizes[self.batch_axis]
        sizes = [1, 1, 1, *sizes] if len(sizes) < 3 else sizes
        return prod(sizes[:-2]), sizes[-2], sizes[-1]

    def arrange_standard(self) -> np.ndarray:
        """Return the indices in the standard order, (h, w, c): channels last for maps, else PyTorch's order."""
        if self.is_map:
            return self.indices[0].transpose(1, 2, 0)
        return self.indices.reshape(self.standard_shape)


def make_standard_layout(shape: Shape, rank: int) -> Layout:
    """Return the layout of a value of this shape for a tensor with `rank` axes: 2 (n, d), 3 (n, t, d) or 4 (a map)."""
    h, w, c = shape
    return Layout({2: (1, c), 3: (1, w, c)}.get(rank, (1, c, h, w)))


def simplify_layout(stored_shape: Shape, layout: Layout) -> Layout:
    """Return the standard layout if a value of this shape is stored in it, else the same layout."""
    standard = Layout(layout.shape, layout.batch_axis)
    is_standard = standard.standard_shape == stored_shape and np.array_equal(layout.indices, standard.indices)
    return standard if is_standard else layout


class Reordering(NamedTuple):
    """A node that reorders the elements of a value: its operator, attributes and output shape."""

    op: str
    attributes: dict[str, Any]
    shape: Shape


def find_reorderings(source: Shape, target: np.ndarray, fill: float) -> list[Reordering] | None:
    """Return the nodes that turn a value of the shape `source` into the one with the indices `target`, (h, w, c).

    The list is empty if the value already has this order. None means that no nodes can do it.
    """
    shape = (target.shape[0], target.shape[1], target.shape[2])
    flat = target.reshape(-1)
    if shape == source and np.array_equal(flat, np.arange(prod(source))):
        return []
    take = _find_take(source, target, fill)
    if take is not None:
        return [take]
    factors = _find_factors(flat)
    if factors is not None:
        return [_make_strided(shape, *factors)]
    if max(prod(source), flat.size) > MAX_INDICES:
        return None
    row = _find_take((1, 1, prod(source)), target.reshape(1, 1, -1), fill)
    assert row is not None  # every order of one row is a take
    reorderings = [_make_reshape((1, 1, prod(source))), row, _make_reshape(shape)]
    return [r for r, before in zip(reorderings, (source, None, row.shape), strict=True) if r.shape != before]


def _make_reshape(shape: Shape) -> Reordering:
    return _make_strided(shape, [prod(shape)], [1], 0)


def _make_strided(shape: Shape, lengths: list[int], strides: list[int], offset: int) -> Reordering:
    return Reordering("strided", {"shape": shape, "lengths": lengths, "strides": strides, "offset": offset}, shape)


def _find_factors(flat: np.ndarray) -> tuple[list[int], list[int], int] | None:
    """Return lengths, strides and offset of a strided node with these indices; None if there are none."""
    lengths: list[int] = []
    strides: list[int] = []
    if flat.min() < 0:
        return None
    offset, remaining = int(flat[0]), flat.astype(np.int64)
    while len(remaining) > 1:
        steps = np.diff(remaining)
        # A row of the innermost factor ends only where the step changes.
        row_ends = np.flatnonzero(steps != steps[0]) + 1
        length = gcd(len(remaining), int(np.gcd.reduce(row_ends)) if len(row_ends) else 0)
        if length == 1:
            return None
        lengths.insert(0, length)
        strides.insert(0, int(steps[0]))
        remaining = remaining[::length]
    return (lengths or [1], strides or [1], offset) if len(lengths) <= MAX_FACTORS else None


def _find_take(source: Shape, target: np.ndarray, fill: float) -> Reordering | None:
    """Return the take node with these indices; None if they are not independent for rows, columns and channels."""
    is_filled = target < 0
    if is_filled.all() or max(target.shape) > MAX_INDICES:
        return None
    axis_indices = []
    for axis, positions in enumerate(np.unravel_index(np.where(is_filled, 0, target), source)):
        other_axes = tuple(a for a in range(3) if a != axis)
        has_source = ~is_filled.all(other_axes)
        first = np.where(is_filled, -1, positions).max(other_axes)
        axis_indices.append(np.where(has_source, first, FILL).astype(np.int32))
    rows, columns, channels = np.ix_(*axis_indices)
    _, w, c = source
    expected = np.where((rows < 0) | (columns < 0) | (channels < 0), FILL, (rows * w + columns) * c + channels)
    if not np.array_equal(expected, target):
        return None
    attributes: dict[str, Any] = {
        key: indices
        for key, indices, size in zip(("rows", "columns", "channels"), axis_indices, source, strict=True)
        if not np.array_equal(indices, np.arange(size))
    }
    if is_filled.any() and fill != 0:
        attributes["fill"] = float(fill)
    return Reordering("take", attributes, (target.shape[0], target.shape[1], target.shape[2]))
