"""What PyTorch computes inside a network, in the order and shape of the format: (n, h, w, c)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lcrbnn.engine import Node
from lcrbnn.layers import BinaryLayer, binary_layers


@dataclass
class Seen:
    """By a module's name: its input and output; of binary layers also the signs of the input, and the sums."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    signs: dict[str, Tensor] = field(default_factory=dict)
    sums: dict[str, Tensor] = field(default_factory=dict)


@contextmanager
def watched(net: nn.Module) -> Iterator[Seen]:
    """Note what the next pass computes; leave the network as it was."""
    seen, hooks, layers = Seen(), [], dict(binary_layers(net))
    for name, module in net.named_modules():

        def note(module: nn.Module, args: tuple[Tensor, ...], output: Tensor, name: str = name) -> None:
            seen.inputs[name], seen.outputs[name] = args[0], output

        hooks.append(module.register_forward_hook(note))
    for name, layer in layers.items():

        def multiply(x: Tensor, w: Tensor, border: float, name: str = name, layer: BinaryLayer = layer) -> Tensor:
            seen.signs[name] = x
            seen.sums[name] = type(layer)._multiply(layer, x, w, border)
            return seen.sums[name]

        layer.__dict__["_multiply"] = multiply
    try:
        with torch.no_grad():
            yield seen
    finally:
        for hook in hooks:
            hook.remove()
        for layer in layers.values():
            del layer.__dict__["_multiply"]


def last(x: Tensor) -> np.ndarray:
    """(n, c, h, w) or (n, c) as the format has it: (n, h, w, c)."""
    x = x.detach() if x.dim() == 4 else x.detach()[:, :, None, None]
    return np.ascontiguousarray(x.permute(0, 2, 3, 1).numpy())


def ordered(x: Tensor, order: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    """As `last`; the numbers of a flattened map in the format's order."""
    return (last(x) if order is None else last(x)[..., order]).reshape(shape)


def first_part(node: Node) -> str:
    """The module that a node was made of, without the batch norm that was folded into it."""
    return node.name.split(" + ")[0]


def known(node: Node, seen: Seen, order: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray | None:
    """PyTorch's value for that of a node, where some module has it."""
    name = node.name.split(" + ")[-1]
    block, _, part = name.rpartition(".")
    found: Any = seen.outputs.get(name)
    if found is None and node.op == "add" and part[3:].isdigit():  # of a block of this package
        found = seen.inputs[f"{block}.act{part.removeprefix('add')}"]
    return None if found is None else ordered(found, order, shape)
