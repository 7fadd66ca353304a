"""Views and copies of elements: PyTorch runs them on the numbers of the elements, which gives the layout of the result.

Reshape, permute, slice, repeat, pad or shuffle a tensor: each of these functions only selects elements. They add no
node. A later layer adds one if it needs the elements in another order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.deploy.export.graph.batch_size import BATCH_SIZE, BatchSize, insert_batch_size
from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, Value, raise_export_error
from lcrbnn.deploy.export.graph.layouts import FILL, Layout, simplify_layout
from lcrbnn.nn.models.blocks import Subsample

BATCH_SIZES = (2, 3)  # each function runs for both, which shows whether it keeps the images apart


def select_elements(
    builder: GraphBuilder,
    name: str,
    value: Value,
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    shares_memory: bool | None = False,
    fill: float | None = None,
) -> Any:
    """Return the result of a function that only selects elements: a Value, or a tuple of Values.

    `shares_memory` is None if the result may share memory with the value or not.
    `function` gets the numbers of the elements as its first argument. Where it inserts the number FILL, the result is
    `fill`.
    """
    value = builder.resolve(value, name)
    if fill is not None and (value.layout.indices < 0).any():
        value = builder.arrange_standard(value, name)
    results = []
    for num_images in BATCH_SIZES:
        numbers = _number_elements(value, num_images)
        positional, keywords = insert_batch_size((tuple(args), kwargs or {}), num_images)
        results.append(function(numbers, *positional, **keywords))
    layout_fill = value.layout.fill if fill is None else fill

    def make_value(*batches: Tensor) -> Value:
        layout = _find_layout(name, value, [b.numpy() for b in batches], layout_fill)
        if shares_memory and value.is_same_tensor(layout):
            return replace(value, layout=layout)
        view = Value.from_node(value.node, layout)
        return view if shares_memory is False else view.with_memory_of(value)

    if isinstance(results[0], tuple | list):
        return tuple(make_value(*batches) for batches in zip(*results, strict=True))
    return make_value(*results)


def _number_elements(value: Value, num_images: int) -> Tensor:
    """Return a tensor with a different number for each element of a batch; FILL stays FILL."""
    layout, size = value.layout, prod(value.shape)
    numbers = [np.where(layout.indices < 0, FILL, layout.indices + float(i * size)) for i in range(num_images)]
    return torch.from_numpy(np.ascontiguousarray(np.concatenate(numbers, axis=layout.batch_axis)))


def _find_layout(name: str, value: Value, batches: Sequence[np.ndarray], fill: float) -> Layout:
    """Return the layout of a result from the numbers of its elements for batches of the sizes BATCH_SIZES."""
    size = prod(value.shape)
    axes = [
        axis
        for axis in range(batches[0].ndim)
        if batches[0].ndim == batches[1].ndim
        and batches[0].shape[axis] * BATCH_SIZES[1] == batches[1].shape[axis] * BATCH_SIZES[0]
    ]
    if len(axes) != 1:
        raise_export_error(name, "its result mixes the images of a batch, or does not depend on the images")
    for batch, num_images in zip(batches, BATCH_SIZES, strict=True):
        images = np.split(batch, num_images, axis=axes[0])
        for image, numbers in enumerate(images):
            if not np.array_equal(numbers, np.where(images[0] < 0, FILL, images[0] + image * size)):
                raise_export_error(name, "its result mixes the images of a batch")
    first_image = np.split(batches[0], BATCH_SIZES[0], axis=axes[0])[0]
    return simplify_layout(value.shape, Layout(first_image.shape, axes[0], first_image.astype(np.int32), fill))


def _make_view_rule(function: Any, *, shares_memory: bool | None) -> Callable[..., Any]:
    """Return the rule of a function or tensor method (its name) that selects elements of its first argument."""

    def run(numbers: Tensor, *args: Any, **kwargs: Any) -> Any:
        return (
            getattr(numbers, function)(*args, **kwargs)
            if isinstance(function, str)
            else function(numbers, *args, **kwargs)
        )

    def export_view(builder: GraphBuilder, name: str, input: Value, *args: Any, **kwargs: Any) -> Any:
        return select_elements(builder, name, input, run, args, kwargs, shares_memory=shares_memory)

    return export_view


def export_size(builder: GraphBuilder, name: str, input: Value, dim: int | None = None) -> Any:
    """Return the size of a tensor; its number of images is a BatchSize."""
    layout = input.layout
    sizes: list[int | BatchSize] = list(layout.shape)
    sizes[layout.batch_axis] = BATCH_SIZE * layout.shape[layout.batch_axis]
    return tuple(sizes) if dim is None else sizes[dim]


def _export_attribute(builder: GraphBuilder, name: str, input: Value, attribute: str) -> Any:
    """Return an attribute of a tensor, or a view."""
    constants = {"dtype": torch.float32, "device": torch.device("cpu"), "requires_grad": False, "is_cuda": False}
    if attribute in constants:
        return constants[attribute]
    if attribute == "shape":
        return export_size(builder, name, input)
    if attribute == "ndim":
        return len(input.torch_shape)
    if attribute == "data":
        return input
    if attribute in ("T", "mT"):
        return select_elements(builder, name, input, getattr, (attribute,), shares_memory=True)
    raise ValueError(f"the attribute {attribute!r}")


def _export_dim(builder: GraphBuilder, name: str, input: Value) -> int:
    return len(input.torch_shape)


def _export_numel(builder: GraphBuilder, name: str, input: Value) -> BatchSize:
    return BATCH_SIZE * prod(input.torch_shape)


def _export_contiguous(builder: GraphBuilder, name: str, input: Value, *args: Any, **kwargs: Any) -> Value:
    """Return a value that may or may not share memory with the input, as contiguous() does."""
    if any(
        item not in (torch.float32, "cpu", torch.device("cpu")) and not isinstance(item, torch.memory_format | bool)
        for item in (*args, *kwargs.values())
    ):
        raise ValueError("a conversion to another type or device")
    value = builder.resolve(input, name)
    return value.with_memory_of(value)


def _export_clone(builder: GraphBuilder, name: str, input: Value, *, memory_format: Any = None) -> Value:
    return builder.resolve(input, name).with_new_memory()


def _export_item(builder: GraphBuilder, name: str, input: Value, index: Any) -> Any:
    """Export x[:, :, ::s, ::s], every s-th pixel, as a node, and any other index as a selection of elements."""
    value, everything = builder.resolve(input, name), slice(None)
    step = index[-1].step if isinstance(index, tuple) and isinstance(index[-1], slice) else None
    is_subsample = (
        isinstance(step, int) and step >= 1 and index == (everything, everything, *[slice(None, None, step)] * 2)
    )
    if is_subsample and value.layout.is_map:
        return export_subsample(builder, name, Subsample(int(step or 1)), value)
    has_arrays = any(isinstance(item, Tensor | list) for item in (index if isinstance(index, tuple) else (index,)))
    return select_elements(builder, name, value, operator.getitem, (index,), shares_memory=not has_arrays)


def export_subsample(builder: GraphBuilder, name: str, module: Subsample, x: Value) -> Value:
    """Add a node that takes every s-th pixel."""
    if not builder.resolve(x, name).layout.is_map:
        raise_export_error(name, "it needs a map as input")
    stored = builder.arrange_standard(x, name)
    h, w, c = stored.shape
    s = module.stride
    return builder.add_node("subsample", name, stored, (-(-h // s), -(-w // s), c), stride=[s, s]).with_memory_of(x)


def export_flatten(
    builder: GraphBuilder, name: str, x: Value, function: Callable[..., Any], args: Any, kwargs: Any
) -> Value:
    """Return a reshaped tensor; a map that becomes a vector gets a node, so that the next layer can use its order."""
    x = builder.resolve(x, name)
    view: Value = select_elements(builder, name, x, function, args, kwargs, shares_memory=True)
    is_flattened_map = x.layout.is_map and x.layout.stored_indices is None and view.layout.is_vector
    if not is_flattened_map or view.layout.stored_indices is None:
        return view
    return builder.add_node("flatten", name, x, (1, 1, prod(x.shape)), layout=view.layout).with_memory_of(x)


def _make_reshape_rule(function: Any) -> Callable[..., Any]:
    def reshape(numbers: Tensor, *args: Any, **kwargs: Any) -> Any:
        return getattr(numbers, function)(*args, **kwargs)

    def export_reshape(builder: GraphBuilder, name: str, input: Value, *args: Any, **kwargs: Any) -> Value:
        return export_flatten(builder, name, input, reshape, args, kwargs)

    return export_reshape


def _export_flatten_module(builder: GraphBuilder, name: str, module: nn.Flatten, x: Value) -> Value:
    return export_flatten(builder, name, x, torch.flatten, (module.start_dim, module.end_dim), {})


def _export_view_module(builder: GraphBuilder, name: str, module: nn.Module, x: Value) -> Value:
    return select_elements(builder, name, x, type(module).forward.__get__(module), shares_memory=None)


def _export_view_as(builder: GraphBuilder, name: str, input: Value, other: Value) -> Value:
    return export_flatten(builder, name, input, torch.reshape, (export_size(builder, name, other),), {})


def _export_expand_as(builder: GraphBuilder, name: str, input: Value, other: Value) -> Value:
    sizes = export_size(builder, name, other)
    return select_elements(builder, name, input, lambda v, *s: v.expand(*s), sizes, shares_memory=True)


def _export_unfold(
    builder: GraphBuilder,
    name: str,
    input: Value,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Value:
    """Return the windows of a map; the border is filled with zeros."""
    rows, columns = (padding, padding) if isinstance(padding, int) else padding

    def unfold(numbers: Tensor) -> Tensor:
        return F.unfold(
            F.pad(numbers, (columns, columns, rows, rows), "constant", FILL), kernel_size, dilation, 0, stride
        )

    return select_elements(builder, name, input, unfold, fill=0.0)


def _export_unfold_module(builder: GraphBuilder, name: str, module: nn.Unfold, x: Value) -> Value:
    return _export_unfold(builder, name, x, module.kernel_size, module.dilation, module.padding, module.stride)


VIEW_MODULES: dict[type[nn.Module], Callable[..., Any]] = {
    nn.Flatten: _export_flatten_module,
    Subsample: export_subsample,
    nn.Unfold: _export_unfold_module,
    **dict.fromkeys((nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle), _export_view_module),
}

# Functions that also exist as tensor methods of the same name: views, then functions that copy the elements.
VIEW_FUNCTIONS = (
    torch.permute, torch.transpose, torch.swapaxes, torch.swapdims, torch.squeeze, torch.unsqueeze, torch.movedim,
    torch.moveaxis, torch.select, torch.narrow, torch.split, torch.chunk, torch.tensor_split, torch.unbind,
    torch.unflatten, torch.t,
)  # fmt: skip
COPY_FUNCTIONS = (
    torch.flip, torch.roll, torch.rot90, torch.tile, torch.repeat_interleave, torch.index_select, torch.fliplr,
    torch.flipud,
)  # fmt: skip
VIEW_METHODS = ("expand", "unfold", "split_with_sizes", "diagonal")
COPY_METHODS = ("repeat",)

VIEW_ROWS: list[tuple[tuple[Any, ...], Callable[..., Any]]] = [
    *(
        ((function, function.__name__), _make_view_rule(function.__name__, shares_memory=shares_memory))
        for functions, shares_memory in ((VIEW_FUNCTIONS, True), (COPY_FUNCTIONS, False))
        for function in functions
        if hasattr(Tensor, function.__name__)
    ),
    *(((method,), _make_view_rule(method, shares_memory=True)) for method in VIEW_METHODS),
    *(((method,), _make_view_rule(method, shares_memory=False)) for method in COPY_METHODS),
    *(
        ((function,), _make_view_rule(function, shares_memory=None))
        for function in (F.pixel_shuffle, F.pixel_unshuffle, F.channel_shuffle)
    ),
    ((F.unfold,), _export_unfold),
    ((torch.flatten, "flatten"), _make_reshape_rule("flatten")),
    ((torch.reshape, "reshape"), _make_reshape_rule("reshape")),
    (("view",), _make_reshape_rule("view")),
    (("view_as", "reshape_as"), _export_view_as),
    (("expand_as",), _export_expand_as),
    (("contiguous", "to", "float", "type_as", "detach", "cpu"), _export_contiguous),
    ((torch.clone, "clone"), _export_clone),
    (("size",), export_size),
    (("dim", "ndimension"), _export_dim),
    (("numel",), _export_numel),
    ((getattr,), _export_attribute),
    ((operator.getitem,), _export_item),
]
