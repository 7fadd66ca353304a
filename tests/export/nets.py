"""Networks with nothing at its trivial start, and what PyTorch computes inside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from lcrbnn.engine import Node
from lcrbnn.engine.reference import _OPS
from lcrbnn.export import Input
from lcrbnn.layers import binary_layers
from lcrbnn.methods import METHODS, Method, method
from lcrbnn.methods.rbnn import RbnnWeight
from lcrbnn.methods.reactnet import ReactActivation
from lcrbnn.methods.xnorpp import XnorPlusWeight
from lcrbnn.models.blocks import RPReLU

# Every method with one bit for activations, and with real ones, where it has them.
CHOICES: list[Method] = [
    method(name, f"1/{b}") for name, row in METHODS.items() for b in row.activation_bits if b in (1, 32)
]
IDS = [f"{m.name}-{m.chosen_bits}" for m in CHOICES]


@torch.no_grad()
def stirred(net: nn.Module, images: Tensor, seed: int = 0) -> nn.Module:
    """Draw weights, shifts, slopes and scales; batch norms learn the images' statistics and are then moved."""
    torch.manual_seed(seed)
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.weight.normal_(0, module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                module.bias.normal_(0, 0.3)
        if isinstance(module, ReactActivation):
            module.shift.normal_(0, 0.3)
        if isinstance(module, RbnnWeight):
            module.theta.uniform_(0.2, 1.4)
            module.alpha.uniform_(0.05, 0.2)
        if isinstance(module, XnorPlusWeight):
            for factor in module.factors:
                factor.uniform_(0.5, 1.5)
        if isinstance(module, RPReLU):
            module.front.normal_(0, 0.3)
            module.back.normal_(0, 0.3)
        if isinstance(module, nn.PReLU):
            module.weight.uniform_(-0.2, 0.6)
    for _, layer in binary_layers(net):
        layer.weight_binarizer.project(layer.weight)
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
        norm.weight.uniform_(0.5, 1.5).mul_(torch.where(torch.rand(norm.num_features) < 0.1, -1, 1))
        norm.bias.normal_(0, 0.3)
    net.train()(images)
    for norm in norms:
        norm.running_mean.add_(0.1 * norm.running_var.sqrt() * torch.randn(norm.num_features))
        low = max(norm.running_var.mean().item() / 4, 0.5)  # a ReLU before a sign leaves no variance at all
        norm.running_var.clamp_(low).mul_(torch.empty(norm.num_features).uniform_(0.7, 1.4))
    return net.eval()


def input_of(images: Tensor, classes: int) -> Input:
    return Input((*images.shape[2:], images.shape[1]), tuple(map(str, range(classes))))


def last(x: Tensor) -> np.ndarray:
    """(n, c, h, w) or (n, c) as the format has it: (n, h, w, c)."""
    x = x.detach() if x.dim() == 4 else x.detach()[:, :, None, None]
    return np.ascontiguousarray(x.permute(0, 2, 3, 1).numpy())


@dataclass
class Seen:
    """What PyTorch computed: by a module's name its input and output, and of binary layers their signs and sums."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    signs: dict[str, Tensor] = field(default_factory=dict)
    sums: dict[str, Tensor] = field(default_factory=dict)


@contextmanager
def watched(net: nn.Module) -> Iterator[Seen]:
    seen, hooks, layers = Seen(), [], dict(binary_layers(net))
    for name, module in net.named_modules():

        def note(module: nn.Module, args: tuple[Tensor, ...], output: Tensor, name: str = name) -> None:
            seen.inputs[name], seen.outputs[name] = args[0], output

        hooks.append(module.register_forward_hook(note))
    for name, layer in layers.items():

        def multiply(x: Tensor, w: Tensor, border: float, name: str = name, layer: nn.Module = layer) -> Tensor:
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


def step(node: Node, *inputs: np.ndarray) -> np.ndarray:
    """What the reference makes of a single node."""
    return _OPS[node.op](node, *inputs)


def first_part(node: Node) -> str:
    return node.name.split(" + ")[0]


def ordered(x: Tensor, order: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    """As `last`; the numbers of a flattened map in the format's order."""
    return (last(x) if order is None else last(x)[..., order]).reshape(shape)


def known(node: Node, seen: Seen, order: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray | None:
    """PyTorch's value for that of a node, where some module has it."""
    name = node.name.split(" + ")[-1]
    block, _, part = name.rpartition(".")
    if node.op == "add":
        return last(seen.inputs[f"{block}.act{part.removeprefix('add')}"])
    found = seen.outputs.get(name)
    return None if found is None else ordered(found, order, shape)
