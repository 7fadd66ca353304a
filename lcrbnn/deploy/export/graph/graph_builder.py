"""Build a graph of nodes with shapes, float64 parameters and the PyTorch functions that the nodes replace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
from torch import Tensor

from lcrbnn.deploy.export.graph.layouts import Layout, Shape, find_reorderings, make_standard_layout
from lcrbnn.errors import InputError

TorchFunction = Callable[[Tensor], Tensor]


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
    is_flat: bool = False  # the functions take (rows, channels), not (n, channels, h, w)
    flat_indices: np.ndarray | None = None  # for a flattened map: the number of each of PyTorch's features


@dataclass(eq=False)
class TensorState:
    """Current content of a PyTorch tensor, which in-place operations may overwrite: its node and its layout.

    `aliases` are all tensors that may share its memory, including itself. After a write to another alias, the content
    of this tensor is unknown. `overwritten_by` is then the name of the operation that wrote.
    """

    node: NodeBuilder
    layout: Layout
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
    layout: Layout

    @classmethod
    def from_node(cls, node: NodeBuilder, layout: Layout) -> Value:
        """Return the output of a node in new memory."""
        return cls(node, TensorState(node, layout), layout)

    def with_new_memory(self) -> Value:
        """Return the same content in new memory."""
        return replace(self, tensor=TensorState(self.node, self.layout))

    def with_memory_of(self, source: Value) -> Value:
        """Return the same value as one that may share memory with another value."""
        return replace(self, tensor=TensorState(self.node, self.layout, source.tensor.aliases))

    def with_layout(self, layout: Layout) -> Value:
        """Return a view of the same node: another tensor that may share memory with this one."""
        return replace(self, layout=layout, tensor=TensorState(self.node, layout, self.tensor.aliases))

    def is_same_tensor(self, layout: Layout) -> bool:
        """Return whether a view with this layout differs only in axes of length 1, so that a write changes both."""
        layouts = (layout, self.layout)
        return all(v.stored_indices is None and v.standard_shape == self.shape for v in layouts)

    @property
    def shape(self) -> Shape:
        """Height, width, channels of the stored value."""
        return self.node.shape

    @property
    def torch_shape(self) -> tuple[int, ...]:
        """Shape of PyTorch's tensor for a batch of one image."""
        return self.layout.shape

    @property
    def is_flat(self) -> bool:
        """Whether PyTorch's tensor is a batch of vectors, (n, features)."""
        return self.layout.is_vector


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


class CallChecker(Protocol):
    """Observer of every exported call. It may return a replacement for the result of a call that cannot be exported."""

    def check_module(self, export: Callable[[], Any], name: str, module: Any) -> Any:
        """Return the result of `export()`, which exports one call of a module."""

    def check_function(
        self, export: Callable[[], Any], name: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Return the result of `export()`, which exports one call of a function or tensor method."""


class GraphBuilder:
    """A graph under construction: the nodes added so far, in order.

    `checker` is set by check_export, which collects the problems of all layers. Otherwise the first problem raises.
    """

    def __init__(self, shape: Shape) -> None:
        """Start with an input of this shape."""
        image = NodeBuilder("image", "image", [], shape)
        self.input_value = Value.from_node(image, make_standard_layout(shape, 4))
        self.nodes: list[NodeBuilder] = []
        self.checker: CallChecker | None = None

    def add_node(
        self,
        op: str,
        name: str,
        inputs: Value | Sequence[Value],
        shape: Shape | None = None,
        torch_function: TorchFunction | None = None,
        layout: Layout | None = None,
        **attributes: Any,
    ) -> Value:
        """Add a node and return its value; the default shape and layout are those of the first input.

        For another shape, the default layout is the standard layout of a tensor with as many axes as the first input.
        """
        values = [self.resolve(v, name) for v in ([inputs] if isinstance(inputs, Value) else inputs)]
        if layout is None:
            first = values[0]
            keeps_layout = shape is None or shape == first.shape
            layout = (
                first.layout if keeps_layout else make_standard_layout(shape or first.shape, len(first.torch_shape))
            )
        node = NodeBuilder(
            op,
            name,
            [v.node for v in values],
            shape or values[0].shape,
            attributes,
            [torch_function] if torch_function else [],
        )
        node.is_flat = not layout.is_map or layout.stored_indices is not None
        if op == "flatten":
            node.flat_indices = layout.indices.reshape(-1)
        elif values and shape in (None, values[0].shape) and layout is values[0].layout:
            node.flat_indices = values[0].node.flat_indices
        self.nodes.append(node)
        return Value.from_node(node, layout)

    def add_constant(self, name: str, numbers: np.ndarray, layout: Layout) -> Value:
        """Add a node whose value is an array (h, w, c)."""
        h, w, c = numbers.shape
        return self.add_node("constant", name, [], (h, w, c), layout=layout, value=np.ascontiguousarray(numbers))

    def arrange(self, value: Value, name: str, target: np.ndarray, layout: Layout) -> Value:
        """Return a value that stores the elements `target`, (h, w, c), of a value; add nodes if it must be reordered.

        `target` is made of the indices of the value, and `layout` is the layout of the result.
        """
        value = self.resolve(value, name)
        reorderings = find_reorderings(value.shape, target, value.layout.fill)
        if reorderings is None:
            raise_export_error(name, f"it reorders a map of the shape {value.torch_shape} in a way that is not regular")
        arranged = value
        for reordering in reorderings:
            arranged = self.add_node(reordering.op, f"{name}.layout", arranged, reordering.shape, layout=layout)
            arranged.node.attributes = reordering.attributes
        return value.with_layout(layout) if arranged is value else arranged.with_memory_of(value)

    def arrange_standard(self, value: Value, name: str) -> Value:
        """Return a value in the standard layout of its tensor, (h, w, c) for a batch of maps."""
        value = self.resolve(value, name)
        layout = Layout(value.torch_shape, value.layout.batch_axis)
        if value.layout.stored_indices is None and value.shape == layout.standard_shape:
            return value
        return self.arrange(value, name, value.layout.arrange_standard(), layout)

    def arrange_permutation(self, value: Value, name: str) -> Value:
        """Return a value in which each stored number belongs to exactly one element of the tensor."""
        value = self.resolve(value, name)
        is_complete = value.layout.is_permutation and prod(value.torch_shape) == prod(value.shape)
        return value if is_complete else self.arrange_standard(value, name)

    def record_overwrite(self, name: str, overwritten: Value, new: Value) -> Value:
        """Record that PyTorch overwrites one value with another in place. Return the new value.

        Every user of the overwritten tensor now reads the new content. The content of its aliases becomes unknown.
        """
        if new.tensor is overwritten.tensor:
            return new
        if new.torch_shape != overwritten.torch_shape:
            raise_export_error(name, f"it writes {new.torch_shape} to a tensor of the shape {overwritten.torch_shape}")
        overwritten.tensor.node, overwritten.tensor.layout = new.node, new.layout
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
        node, layout = value.tensor.node, value.tensor.layout
        if layout.shape == value.torch_shape:
            return replace(value, node=node, layout=layout)
        if layout.stored_indices is not None or value.layout.standard_shape != node.shape:
            raise_export_error(name, "it reads a view of a map that was overwritten in another layout")
        return replace(value, node=node)

    def remove_unused_nodes(self, outputs: Sequence[Value]) -> None:
        """Remove the nodes that no output depends on."""
        needed, pending = set(), [output.node for output in outputs]
        while pending:
            node = pending.pop()
            if node not in needed:
                needed.add(node)
                pending += node.inputs
        self.nodes = [node for node in self.nodes if node in needed]


class ExportError(InputError):
    """A layer cannot be exported. `layer` is its name ("" for the network), `alternatives` are what can be exported."""

    def __init__(self, layer: str, reason: str, alternatives: Sequence[str], hint: str) -> None:
        """Make the message of these parts. `hint` tells where all alternatives are listed."""
        self.layer, self.reason, self.alternatives = layer, reason, tuple(alternatives)
        subject = f"layer {layer!r}" if layer else "the network"
        closest = f"; the closest with a rule: {', '.join(alternatives)}" if alternatives else ""
        super().__init__(f"{subject} cannot be exported: {reason}{closest}{f' ({hint})' if hint else ''}")


def raise_export_error(name: str, reason: str, alternatives: Sequence[str] = (), hint: str = "") -> NoReturn:
    """Raise ExportError with the name of the layer and the reason."""
    raise ExportError(name, reason, alternatives, hint)


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
