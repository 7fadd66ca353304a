"""Adjust folded batch norms by a few ulps so that folding changes no sign of the next binary layer.

A binary layer has few possible sums. Each of them is evaluated with PyTorch's modules and with the arithmetic of the
format, up to the sign that the next binary layer takes. If the signs of a channel differ, its `b` (then its `a`) moves
to the nearest number for which all signs agree. A max pool may be in between: the functions after it are monotone, so
the sign of the maximum is the largest or the smallest of the signs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from lcrbnn.deploy.engine.graph import BnnModel, Node
from lcrbnn.deploy.engine.reference import compute_signs, compute_values
from lcrbnn.deploy.export.graph.graph_builder import NodeBuilder, find_consumers, raise_export_error

ELEMENTWISE_OPS = (
    "affine",
    "hardtanh",
    "relu",
    "prelu",
    "shift",
    "clamp",
)  # operators that act on each element separately
SELECTION_OPS = ("maxpool", "subsample")  # operators that return some of their input elements
MAX_CHUNK_ELEMENTS = 2**22  # maximum number of elements per evaluation, which limits the memory
# Changes of b that are tried, in half ulps; in ulps: 1, 1.5, 2, 3, 4, 6 ...
SHIFTS_HALF_ULPS = [m << n for n in range(12) for m in (2, 3)]


class SignPath(NamedTuple):
    """A path from a binary layer to `target`, a binary layer that takes the sign of the first layer's output."""

    nodes: list[NodeBuilder]
    target: NodeBuilder

    @property
    def adjustable_index(self) -> int:
        """Return the index of the node whose a and b are adjusted, which is the last node that has a and b."""
        return max(i for i, node in enumerate(self.nodes) if "a" in node.attributes)


def adjust_rounding(nodes: Sequence[NodeBuilder]) -> None:
    """Adjust a and b until every sign that depends on one sum equals PyTorch's. Otherwise raise InputError."""
    consumers = find_consumers(nodes)
    for node in nodes:
        if node.op == "bconv":
            paths = list(_iter_sign_paths([node], consumers))
            for path in paths:
                repair_channels(path)
            # Check all paths again, because the repair of one path may break another one
            for path in paths if len(paths) > 1 else []:
                if find_wrong_channels(path).any():
                    raise_export_error(node.name, "no numbers reproduce PyTorch's signs in all layers that read it")


def _iter_sign_paths(
    nodes: list[NodeBuilder], consumers: Mapping[NodeBuilder, list[NodeBuilder]]
) -> Iterator[SignPath]:
    for consumer in consumers[nodes[-1]]:
        if consumer.op == "bconv" and not isinstance(consumer.attributes["threshold"], str):
            yield SignPath(nodes, consumer)
        elif consumer.op in (*ELEMENTWISE_OPS, *SELECTION_OPS, "flatten"):
            yield from _iter_sign_paths([*nodes, consumer], consumers)


def list_reachable_sums(node: NodeBuilder) -> np.ndarray:
    """Return every possible sum of a binary layer. With zero padding, a sum can be even or odd."""
    num_terms = node.attributes["weight"].n
    has_both_parities = node.attributes["pad_sign"] == 0 and any(node.attributes["pad"])
    return np.arange(-num_terms, num_terms + 1, 1 if has_both_parities else 2, dtype=np.float32)


def _iter_sum_chunks(path: SignPath, values_per_sum: int = 1) -> Iterator[np.ndarray]:
    """Yield the reachable sums in chunks. The results of a chunk, for all positions and channels, fit into memory."""
    sums = list_reachable_sums(path.nodes[0])
    chunk_size = max(
        MAX_CHUNK_ELEMENTS
        // (values_per_sum * max(s.shape[2] for s in path.nodes) * _count_positions(path.nodes[0])[0]),
        1,
    )
    for start in range(0, len(sums), chunk_size):
        yield sums[start : start + chunk_size]


def _count_positions(node: NodeBuilder) -> tuple[int, tuple[int, int]]:
    size = node.shape[:2] if "spatial" in node.attributes else (1, 1)
    return size[0] * size[1], size


def compute_torch_signs(path: SignPath, sums: np.ndarray) -> np.ndarray:
    """Return whether PyTorch's sign is -1, for each sum (and position) and each channel of the adjustable node."""
    first, x = path.nodes[0], torch.from_numpy(sums)
    with torch.no_grad():
        if first.is_flat:
            x = first.torch_functions[0](x[:, None].expand(-1, first.shape[2]).contiguous())
        else:
            size = _count_positions(first)[1]
            x = first.torch_functions[0](x[:, None, None, None].expand(-1, first.shape[2], *size).contiguous())
            # The sums are arranged as the pixels of one feature map.
            x = x.transpose(0, 1).reshape(1, first.shape[2], -1, 1)
        for torch_function in first.torch_functions[1:]:
            x = torch_function(x)
        flat_indices = None
        for previous, node in zip(path.nodes, path.nodes[1:], strict=False):
            x = _set_rank(x, is_flat=node.is_flat)
            if node.op == "flatten":
                assert node.flat_indices is not None
                flat_indices = node.flat_indices
                x = x[:, flat_indices % previous.shape[2]]  # every pixel of a channel has the same sum
            for torch_function in node.torch_functions:
                x = torch_function(x)
        assert path.target.torch_sign is not None
        x = _set_rank(x, is_flat=path.target.is_flat)
        is_negative = _set_rank(path.target.torch_sign(x) < 0, is_flat=True).numpy()
    is_negative = is_negative if flat_indices is None else is_negative[:, np.argsort(flat_indices)]
    return is_negative.reshape(-1, path.nodes[path.adjustable_index].shape[2])


def _set_rank(x: torch.Tensor, *, is_flat: bool) -> torch.Tensor:
    """Return rows of channels, or the same rows as the pixels of one feature map."""
    if is_flat:
        return x[0, :, :, 0].T if x.dim() == 4 else x
    return x if x.dim() == 4 else x.T[None, :, :, None]


def _run_elementwise(op: str, attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    """Return the reference result of an elementwise operator for an input (n, channels)."""
    channels = x.shape[1]
    model = BnnModel(
        "path",
        (1, 1, channels),
        1.0,
        (0.0,) * channels,
        (1.0,) * channels,
        ("",) * channels,
        (Node(op, op, (0,), attributes),),
    )
    return compute_values(model, x[:, None, None])[-1][:, 0, 0]


def _run_nodes(nodes: Sequence[NodeBuilder], x: np.ndarray, columns: np.ndarray, channels: int) -> np.ndarray:
    """Return the reference result of a chain of nodes for (n, columns). `columns` has the channel of each column."""
    for node in nodes:
        if node.op == "flatten":
            x = np.tile(x, node.shape[2] // node.inputs[0].shape[2])
        elif node.op in ELEMENTWISE_OPS:
            x = _run_elementwise(
                node.op, {k: _select_channels(v, columns, channels) for k, v in node.attributes.items()}, x
            )
    return x


def _select_channels(parameter: Any, columns: np.ndarray, channels: int) -> Any:
    """Return the parameters of some channels; after a flatten each channel has one parameter per pixel."""
    if not isinstance(parameter, np.ndarray):  # the limit of a clamp
        return parameter
    return parameter.reshape(-1, channels)[:, columns].reshape(-1)


def compute_input_values(path: SignPath, sums: np.ndarray) -> np.ndarray:
    """Return the input of the adjustable node in the arithmetic of the format, (n, channels)."""
    first, index = path.nodes[0], path.adjustable_index
    x = np.broadcast_to(sums[:, None, None, None], (len(sums), *_count_positions(first)[1], first.shape[2]))
    if "spatial" in first.attributes:
        x = first.attributes["spatial"] * x
    x = np.ascontiguousarray(x.reshape(-1, first.shape[2]), np.float32)
    if index == 0:
        return x
    all_channels = np.arange(first.shape[2])
    x = _run_elementwise("affine", {"a": first.attributes["a"], "b": first.attributes["b"]}, x)
    return _run_nodes(path.nodes[1:index], x, all_channels, first.shape[2])


def compute_exported_signs(
    path: SignPath, x: np.ndarray, columns: np.ndarray, a: np.ndarray, b: np.ndarray
) -> np.ndarray:
    """Return whether the exported sign is -1, for inputs x of the adjustable node and candidates a, b."""
    channels = path.nodes[path.adjustable_index].shape[2]
    y = _run_nodes(
        path.nodes[path.adjustable_index + 1 :], _run_elementwise("affine", {"a": a, "b": b}, x), columns, channels
    )
    threshold = _select_channels(path.target.attributes["threshold"], columns, channels)
    is_negative = compute_signs(Node("bconv", path.target.name, (0,), {"threshold": threshold}), y) < 0
    return is_negative.reshape(-1, len(columns))


def find_wrong_channels(path: SignPath) -> np.ndarray:
    """Return which channels of the adjustable node have a sign that differs from PyTorch's."""
    adjustable = path.nodes[path.adjustable_index]
    all_channels = np.arange(adjustable.shape[2])
    is_wrong = np.zeros(len(all_channels), bool)
    for sums in _iter_sum_chunks(path):
        exported_signs = compute_exported_signs(
            path, compute_input_values(path, sums), all_channels, adjustable.attributes["a"], adjustable.attributes["b"]
        )
        is_wrong |= (exported_signs != compute_torch_signs(path, sums)).any(0)
    return is_wrong


def repair_channels(path: SignPath) -> None:
    """Adjust a and b of the channels whose signs differ from PyTorch's."""
    adjustable = path.nodes[path.adjustable_index]
    for channel in np.flatnonzero(find_wrong_channels(path)):
        a, b = list_nearby_coefficients(adjustable.attributes["a"][channel], adjustable.attributes["b"][channel])
        is_candidate = np.ones(len(a), bool)
        for sums in _iter_sum_chunks(path, 1 + len(a) // adjustable.shape[2]):
            x = np.repeat(compute_input_values(path, sums)[:, channel, None], is_candidate.sum(), axis=1)
            exported_signs = compute_exported_signs(
                path, x, np.full(is_candidate.sum(), channel), a[is_candidate], b[is_candidate]
            )
            is_candidate[is_candidate] = (exported_signs == compute_torch_signs(path, sums)[:, channel, None]).all(0)
            if not is_candidate.any():
                raise_export_error(
                    adjustable.name, f"no numbers near those of channel {channel} reproduce all of PyTorch's signs"
                )
        best = np.flatnonzero(is_candidate)[0]
        adjustable.attributes["a"][channel], adjustable.attributes["b"][channel] = a[best], b[best]


def list_nearby_coefficients(a: np.floating, b: np.floating) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs near (a, b), the nearest first. First only b changes, then both numbers."""
    ulp = float(np.spacing(max(np.abs(a), np.abs(b))))
    shifts = [0.0, *(sign * move / 2 * ulp for move in SHIFTS_HALF_ULPS for sign in (1, -1))]
    slopes = [float(a) + n * float(np.spacing(np.abs(a))) for n in (0, 1, -1, 2, -2)]
    pairs = np.array([(slope, float(b) + shift) for slope in slopes for shift in shifts], np.float32)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
