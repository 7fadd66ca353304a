"""Calls without maps: PyTorch computes them at export. A constant that is repeated for each image becomes a node."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lcrbnn.deploy.export.binary_layers.sign_rules import to_array
from lcrbnn.deploy.export.graph.batch_size import BatchSize, insert_batch_size
from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, Value, raise_export_error
from lcrbnn.deploy.export.graph.layouts import Layout

BATCH_SIZES = (2, 3)


def call_with_constants(
    builder: GraphBuilder, name: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Return what PyTorch or Python returns; a tensor with one part per image becomes a Value."""
    function_name = target if isinstance(target, str) else getattr(target, "__name__", repr(target))
    if inspect.isfunction(target) and str(target.__module__).partition(".")[0] != "torch":
        raise_export_error(name, f"the function {function_name!r} has no export rule")
    if kwargs.get("inplace") or kwargs.get("out") is not None:
        raise_export_error(name, f"the function {function_name!r} overwrites a tensor that is not a map")

    def call(num_images: int) -> Any:
        positional, keywords = insert_batch_size((tuple(args), kwargs), num_images)
        with torch.no_grad():
            if isinstance(target, str):
                return getattr(positional[0], target)(*positional[1:], **keywords)
            return target(*positional, **keywords)

    sizes = [
        item for part in (*args, *kwargs.values()) for item in (part if isinstance(part, tuple | list) else (part,))
    ]
    try:
        if not any(isinstance(item, BatchSize) for item in sizes):
            return call(0)
        results = [call(num_images) for num_images in BATCH_SIZES]
    except (TypeError, ValueError, ArithmeticError, IndexError, AttributeError, RuntimeError) as error:
        raise_export_error(name, f"{function_name} of {args} is not known at export ({' '.join(str(error).split())})")
    if not all(isinstance(result, Tensor) for result in results):
        raise_export_error(name, f"{function_name} of {args} depends on the number of images")
    return _make_batch_constant(builder, name, [to_array(result) for result in results])


def _make_batch_constant(builder: GraphBuilder, name: str, batches: Sequence[np.ndarray]) -> Value:
    """Return a constant with the same content for each image."""
    first, second = batches
    axes = [
        axis
        for axis in range(first.ndim)
        if first.ndim == second.ndim and first.shape[axis] * BATCH_SIZES[1] == second.shape[axis] * BATCH_SIZES[0]
    ]
    parts = (
        [part for b, n in zip(batches, BATCH_SIZES, strict=True) for part in np.split(b, n, axes[0])] if axes else []
    )
    if len(axes) != 1 or not all(np.array_equal(part, parts[0]) for part in parts):
        raise_export_error(name, "its result depends on the number of images")
    return make_constant(builder, name, parts[0], axes[0])


def make_constant(builder: GraphBuilder, name: str, numbers: np.ndarray, batch_axis: int) -> Value:
    """Return a node for a tensor that is the same for all images; its axis of the images has length 1."""
    if numbers.dtype not in (np.float32, np.float64):
        raise_export_error(name, f"it needs a constant of {numbers.dtype} numbers, but values are float32")
    layout = Layout(numbers.shape, batch_axis)
    stored = np.empty(numbers.size, np.float64)
    stored[layout.indices.reshape(-1)] = numbers.reshape(-1)
    return builder.add_constant(name, stored.reshape(layout.standard_shape), layout)
