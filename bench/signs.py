"""The signs of a network's binarizers: noted during a step, also a compiled one, and forced upon another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lcrbnn.methods import Binary
from lcrbnn.methods.contract import Binarizer

Signs = dict[str, Tensor]  # True for +1, by the binarizer's name


def binarizers(model: nn.Module) -> dict[str, Binarizer]:
    """Those of weights and of activations."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Binarizer)}


def note_signs(model: nn.Module, like: Signs | None = None) -> Signs:
    """From now on each pass leaves its signs here. A compiled step needs tensors to write to, `like` its twin's."""
    noted = {} if like is None else {name: torch.zeros_like(signs) for name, signs in like.items()}

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: Any, output: Binary) -> None:
            if like is None:
                noted[name] = output.signs.detach() > 0
            else:
                noted[name].copy_(output.signs.detach() > 0)

        return hook

    for name, module in binarizers(model).items():
        module.register_forward_hook(note(name))
    return noted


def force_signs(model: nn.Module, wanted: Signs) -> None:
    """From now on the network has these signs, whatever its own would be; gradients go where they went."""

    def force(signs: Tensor) -> Callable[..., Binary]:
        def hook(module: nn.Module, given: Any, output: Binary) -> Binary:
            meant = signs.to(output.signs.dtype) * 2 - 1
            return output._replace(signs=output.signs + (meant - output.signs).detach())

        return hook

    for name, module in binarizers(model).items():
        module.register_forward_hook(force(wanted[name]), prepend=True)  # retention is to see them too


def flipped(one: Signs, other: Signs) -> dict[str, Any]:
    """How many signs differ, of how many, and where the largest share of them does."""
    counts = {name: (int((one[name] ^ other[name]).sum()), one[name].numel()) for name in one}
    worst = max(counts, key=lambda name: counts[name][0] / counts[name][1])
    return {
        "flipped": sum(n for n, _ in counts.values()),
        "of": sum(n for _, n in counts.values()),
        "worst": worst,
        "worst_share": counts[worst][0] / counts[worst][1],
    }
