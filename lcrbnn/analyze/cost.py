"""Counting parameters, bits and multiply-accumulates, from the modules of any network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lcrbnn.layers import BinaryLayer, evaluating


@dataclass(frozen=True)
class Cost:
    """What one image costs. A multiply-accumulate counts once; batch norm, activations and pools are not counted."""

    parameters: int  # learnable numbers, latent weights among them
    binary_weights: int  # of these, the ones of which one bit is kept
    binary_macs: int  # 1-bit weight times 1-bit (or few-bit) activation
    mixed_macs: int  # 1-bit weight times real activation
    real_macs: int


def count(model: nn.Module, shape: tuple[int, ...]) -> Cost:
    """Run one image of this shape (channels, height, width) and count what each convolution and linear layer does."""
    macs = {"binary": 0, "mixed": 0, "real": 0}

    def note(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        positions = output.shape[2:].numel() if isinstance(layer, nn.Conv2d) else output[0].numel() // output.shape[-1]
        macs[_kind(layer)] += layer.weight.numel() * positions

    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [m.register_forward_hook(note) for m in layers]
    parameter = next(model.parameters(), torch.zeros(()))
    try:
        with evaluating(model), torch.no_grad():
            model(torch.zeros(1, *shape, device=parameter.device, dtype=parameter.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    return Cost(
        parameters=sum(p.numel() for p in model.parameters()),
        binary_weights=sum(m.weight.numel() for m in layers if isinstance(m, BinaryLayer)),
        binary_macs=macs["binary"],
        mixed_macs=macs["mixed"],
        real_macs=macs["real"],
    )


def _kind(layer: nn.Module) -> str:
    if not isinstance(layer, BinaryLayer):
        return "real"
    return "mixed" if layer.input_binarizer is None else "binary"
