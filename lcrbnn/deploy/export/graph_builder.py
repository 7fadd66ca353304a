"""Build a graph of nodes with shapes, float64 parameters and the PyTorch functions that the nodes replace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

import numpy as np
from torch import Tensor

from lcrbnn.errors import InputError

TorchFunction = Callable[[Tensor], Tensor]
Shape = tuple[int, int, int]  # height, width and number of channels of a feature map


@dataclass(eq=False)
class NodeBuilder:
    """A node under construction. The parameters stay float64 until all folding is done, and are rounded only once.

    `torch_functions` are the PyTorch functions that the node replaces, in order. Those of a binary layer take its sums,
    all others take the input of the node. `torch_sign` computes the signs of a binary layer's input.
    """

    op: str
    name: str
    inputs: list[NodeBuilder]
    shape: Shape
    attributes: dict[str, Any] = field(default_factory=dict)
    torch_functions: list[TorchFunction] = field(default_factory=list)
    torch_sign: TorchFunction | None = None
    is_flat: bool = False  # True if the PyTorch tensor has the shape (n, features) instead of (n, channels, h, w)


@dataclass(eq=False)
class TensorState:
    """The node that computes the current content of a PyTorch tensor, which in-place operations may overwrite.

    `aliases` are all tensors that may share its memory, including itself. After a write to another alias, the content
    of this tensor is unknown. `overwritten_by` is then the name of the operation that wrote.
    """

    node: NodeBuilder
    aliases: list[TensorState] = field(default_factory=list)
    overwritten_by: str = ""

    def __post_init__(self) -> None:
        """Add the tensor to the list of aliases."""
        self.aliases.append(self)


@dataclass(frozen=True)
class Value:
    """The output of a node, and the layout of the corresponding PyTorch tensor."""

    node: NodeBuilder
    tensor: TensorState
    is_flat: bool = False  # as in NodeBuilder; the tensor of a map with one pixel can have either shape
    feature_order: np.ndarray | None = None  # PyTorch's index of each feature, if the value is a flattened map

    @classmethod
    def from_node(cls, node: NodeBuilder, *, is_flat: bool = False, feature_order: np.ndarray | None = None) -> Value:
        """Return the output of a node in new memory."""
        return cls(node, TensorState(node), is_flat, feature_order)

    def with_new_memory(self) -> Value:
        """Return the same content in new memory."""
        return replace(self, tensor=TensorState(self.node))

    def with_memory_of(self, source: Value) -> Value:
        """Return the same value as one that may share memory with another value."""
        return replace(self, tensor=TensorState(self.node, source.tensor.aliases))

    @property
    def shape(self) -> Shape:
        """Return height, width and number of channels."""
        return self.node.shape

    def reorder_features(self, numbers: np.ndarray) -> np.ndarray:
        """Return numbers per feature (last axis), reordered from PyTorch's order to the order of this value."""
        return numbers if self.feature_order is None else numbers[..., self.feature_order]


class SlidingWindow(NamedTuple):
    """A sliding window with the attributes of the file format."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)  # number of padded pixels at the top, left, bottom and right
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def output_size(self, shape: Shape, name: str) -> tuple[int, int]:
        """Return height and width of the output for a map of this shape."""
        top, left, bottom, right = self.pad
        pads = (top + bottom, left + right)
        spans = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True)]
        sizes = [(shape[i] + pads[i] - spans[i]) // self.stride[i] + 1 for i in (0, 1)]
        if min(sizes) < 1:
            raise_export_error(name, f"its window does not fit into a map of {shape[0]} x {shape[1]}")
        return sizes[0], sizes[1]

    def to_attributes(self) -> dict[str, Any]:
        """Return the window as attributes of a node."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in self._asdict().items()}


class GraphBuilder:
    """A graph under construction, with the nodes that were added so far, in order."""

    def __init__(self, shape: Shape) -> None:
        """Start with an input of this shape."""
        self.input_value = Value.from_node(NodeBuilder("image", "image", [], shape))
        self.nodes: list[NodeBuilder] = []

    def add_node(
        self,
        op: str,
        name: str,
        inputs: Value | Sequence[Value],
        shape: Shape | None = None,
        torch_function: TorchFunction | None = None,
        **attributes: Any,
    ) -> Value:
        """Add a node and return its value. The default shape is that of the first input."""
        values = [self.resolve(v, name) for v in ([inputs] if isinstance(inputs, Value) else inputs)]
        first = values[0] if values else self.input_value  # a constant has no inputs; for it, the model input is used
        node = NodeBuilder(
            op,
            name,
            [v.node for v in values],
            shape or first.shape,
            attributes,
            [torch_function] if torch_function else [],
        )
        node.is_flat = first.is_flat
        self.nodes.append(node)
        return Value.from_node(node, is_flat=first.is_flat, feature_order=first.feature_order)

    def record_overwrite(self, name: str, overwritten: Value, new: Value) -> Value:
        """Record that PyTorch overwrites one value with another in place. Return the new value.

        Every user of the overwritten tensor now reads the new content. The content of its aliases becomes unknown.
        """
        if new.tensor is overwritten.tensor:
            return new
        overwritten.tensor.node = new.node
        for alias in overwritten.tensor.aliases:
            if alias is not overwritten.tensor:
                alias.overwritten_by = name
        return replace(new, tensor=overwritten.tensor)

    def resolve(self, value: Value, name: str) -> Value:
        """Return the current content of a value for the layer `name`. Raise InputError if the content is unknown."""
        if value.tensor.overwritten_by:
            raise_export_error(
                name,
                f"it reads a map that {value.tensor.overwritten_by!r} may have overwritten through another view",
            )
        return replace(value, node=value.tensor.node)

    def remove_unused_nodes(self, output: Value) -> None:
        """Remove the nodes that the output does not depend on."""
        needed, pending = set(), [output.node]
        while pending:
            node = pending.pop()
            if node not in needed:
                needed.add(node)
                pending += node.inputs
        self.nodes = [node for node in self.nodes if node in needed]


def raise_export_error(name: str, reason: str) -> NoReturn:
    """Raise InputError with the name of the layer and the reason."""
    raise InputError(f"{f'layer {name!r}' if name else 'the network'} cannot be exported: {reason}")


def channels_first_index(shape: Shape) -> np.ndarray:
    """Return the index in PyTorch's order (c, h, w) of each number of a flattened map (h, w, c)."""
    h, w, c = shape
    return np.arange(c * h * w).reshape(c, h, w).transpose(1, 2, 0).reshape(-1)


def find_consumers(nodes: Sequence[NodeBuilder]) -> dict[NodeBuilder, list[NodeBuilder]]:
    """Return a dictionary from each node to the nodes that read its value."""
    consumers: dict[NodeBuilder, list[NodeBuilder]] = {node: [] for node in nodes}
    for node in nodes:
        for input_node in node.inputs:
            consumers.setdefault(input_node, []).append(node)
    return consumers
