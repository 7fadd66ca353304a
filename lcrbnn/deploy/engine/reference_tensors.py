"""Reference implementation of the operators that move, resize, multiply or normalise whole feature maps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lcrbnn.deploy.engine.graph import Node


def multiply_matrices(node: Node, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the matrix products of each row of both maps. The sums have double precision."""
    other = y.swapaxes(2, 3) if node.attributes["transpose"] else y
    return (x.astype(np.float64) @ other.astype(np.float64)).astype(np.float32)


def take_elements(node: Node, x: np.ndarray) -> np.ndarray:
    """Return the rows, columns and channels that the indices select. The index −1 selects the key `fill`."""
    fill = np.float32(node.attributes.get("fill", 0))
    # Add one element at the end of each axis, which index −1 selects
    extended = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 1)), constant_values=fill)
    for axis, key in enumerate(("rows", "columns", "channels"), start=1):
        indices = node.attributes.get(key, np.arange(x.shape[axis]))
        extended = extended.take(indices, axis=axis, mode="wrap")
    return extended


def select_strided(node: Node, x: np.ndarray) -> np.ndarray:
    """Return the elements at offset + sum(digit · stride), for all digits of the output's index in row-major order."""
    indices = np.array(node.attributes["offset"])
    for length, stride in zip(node.attributes["lengths"], node.attributes["strides"], strict=True):
        indices = indices[..., None] + stride * np.arange(length)
    return x.reshape(len(x), -1)[:, indices.reshape(-1)].reshape(len(x), *node.attributes["shape"])


def normalize_groups(node: Node, x: np.ndarray) -> np.ndarray:
    """Return a · ((x − mean) · inv) + b; mean and inv are computed in double precision for each group of channels."""
    n, h, w, c = x.shape
    groups = x.reshape(n, h, w, node.attributes["groups"], -1)
    axes = (1, 2, 4) if node.attributes["spatial"] else (4,)
    means = groups.mean(axis=axes, dtype=np.float64, keepdims=True)
    variances = np.square(groups - means).mean(axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(variances + np.float64(np.float32(node.attributes["eps"])))
    normalized = (groups - means.astype(np.float32)) * inverse.astype(np.float32)
    return node.attributes["a"] * normalized.reshape(n, h, w, c) + node.attributes["b"]


def resize_bilinear(node: Node, x: np.ndarray) -> np.ndarray:
    """Return the resized map, interpolated first along the columns, then along the rows."""
    (h, w), align_corners = node.attributes["size"], bool(node.attributes["align_corners"])
    top, bottom, row_weights = _find_source_positions(x.shape[1], h, align_corners)
    left, right, column_weights = _find_source_positions(x.shape[2], w, align_corners)
    weights = column_weights[:, None]
    x = x[:, :, left] + weights * (x[:, :, right] - x[:, :, left])
    weights = row_weights[:, None, None]
    return x[:, top] + weights * (x[:, bottom] - x[:, top])


def _find_source_positions(size: int, new_size: int, align_corners: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the two input indices around each output index, and the weight of the second input index."""
    outputs = np.arange(new_size, dtype=np.float64)
    if align_corners:
        positions = outputs * ((size - 1) / (new_size - 1) if new_size > 1 else 0.0)
    else:
        positions = np.maximum((outputs + 0.5) * (size / new_size) - 0.5, 0)
    first = np.minimum(positions.astype(np.int64), size - 1)
    return first, np.minimum(first + 1, size - 1), (positions - first).astype(np.float32)


def average_adaptively(node: Node, x: np.ndarray) -> np.ndarray:
    """Return the means over the windows of torch's adaptive average pooling, in double precision."""
    (h, w), n = node.attributes["size"], len(x)
    y = np.empty((n, h, w, x.shape[3]), np.float32)
    for row in range(h):
        rows = slice(row * x.shape[1] // h, -(-(row + 1) * x.shape[1] // h))
        for column in range(w):
            columns = slice(column * x.shape[2] // w, -(-(column + 1) * x.shape[2] // w))
            y[:, row, column] = x[:, rows, columns].mean(axis=(1, 2), dtype=np.float64)
    return y


TENSOR_FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "matmul": multiply_matrices,
    "take": take_elements,
    "strided": select_strided,
    "normalize": normalize_groups,
    "bilinear": resize_bilinear,
    "adaptive_avgpool": average_adaptively,
}
