"""Record the activations of a PyTorch network, and convert them to the layout of the format, (n, h, w, c)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lcrbnn.deploy.engine.graph import Node
from lcrbnn.nn.layers import BinaryLayer
from lcrbnn.nn.model_hooks import iter_binary_layers


@dataclass
class RecordedActivations:
    """Dictionaries from module names to inputs, outputs and, for binary layers, input signs and integer sums."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    signs: dict[str, Tensor] = field(default_factory=dict)
    sums: dict[str, Tensor] = field(default_factory=dict)


@contextmanager
def record_activations(net: nn.Module) -> Iterator[RecordedActivations]:
    """Record the activations of forward passes inside the context. At the end, restore the network."""
    recorded, hooks, layers = RecordedActivations(), [], dict(iter_binary_layers(net))
    for name, module in net.named_modules():

        def record_call(module: nn.Module, args: tuple[Tensor, ...], output: Tensor, name: str = name) -> None:
            recorded.inputs[name], recorded.outputs[name] = args[0], output

        hooks.append(module.register_forward_hook(record_call))
    for name, layer in layers.items():

        def multiply(
            x: Tensor, w: Tensor, padding_value: float, name: str = name, layer: BinaryLayer = layer
        ) -> Tensor:
            recorded.signs[name] = x
            recorded.sums[name] = type(layer)._apply_linear(layer, x, w, padding_value)
            return recorded.sums[name]

        layer.__dict__["_apply_linear"] = multiply
    try:
        with torch.no_grad():
            yield recorded
    finally:
        for hook in hooks:
            hook.remove()
        for layer in layers.values():
            del layer.__dict__["_apply_linear"]


def to_channels_last(x: Tensor) -> np.ndarray:
    """Return a tensor (n, c, h, w) or (n, c) as an array (n, h, w, c)."""
    x = x.detach() if x.dim() == 4 else x.detach()[:, :, None, None]
    return np.ascontiguousarray(x.permute(0, 2, 3, 1).numpy())


def to_format_order(x: Tensor, feature_order: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    """Return a tensor in the layout of the format. The features of a flattened map have the format's order."""
    return (to_channels_last(x) if feature_order is None else to_channels_last(x)[..., feature_order]).reshape(shape)


def source_module_name(node: Node) -> str:
    """Return the name of the module that a node was exported from, without a folded batch norm."""
    return node.name.split(" + ")[0]


def find_torch_value(
    node: Node, recorded: RecordedActivations, feature_order: np.ndarray | None, shape: tuple[int, ...]
) -> np.ndarray | None:
    """Return PyTorch's value of a node, or None if no module computes this value."""
    name = node.name.split(" + ")[-1]
    block, _, part = name.rpartition(".")
    output: Any = recorded.outputs.get(name)
    if output is None and node.op == "add" and part[3:].isdigit():  # the sum is the input of the activation of a block
        output = recorded.inputs[f"{block}.act{part.removeprefix('add')}"]
    return None if output is None else to_format_order(output, feature_order, shape)
