"""Record the signs of a network's binarizers during a step, and force these signs on another network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lcrbnn.nn.methods.binarizer import Binarizer, BinaryTensor

# Dictionary from the name of a binarizer to a mask, which is True where the sign is +1
SignsByBinarizer = dict[str, Tensor]


def find_binarizers(model: nn.Module) -> dict[str, Binarizer]:
    """Return the weight and activation binarizers by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Binarizer)}


def record_signs(model: nn.Module, template: SignsByBinarizer | None = None) -> SignsByBinarizer:
    """Record the signs of every later forward pass in the returned dictionary.

    A compiled step needs existing tensors to write to. `template` gives their shapes, from the eager step.
    """
    recorded = {} if template is None else {name: torch.zeros_like(signs) for name, signs in template.items()}

    def make_hook(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: BinaryTensor) -> None:
            if template is None:
                recorded[name] = output.signs.detach() > 0
            else:
                recorded[name].copy_(output.signs.detach() > 0)

        return hook

    for name, module in find_binarizers(model).items():
        module.register_forward_hook(make_hook(name))
    return recorded


def force_signs(model: nn.Module, forced: SignsByBinarizer) -> None:
    """Make every later forward pass use the given signs. The gradients flow as before."""

    def make_hook(signs: Tensor) -> Callable[..., BinaryTensor]:
        def hook(module: nn.Module, inputs: Any, output: BinaryTensor) -> BinaryTensor:
            target = signs.to(output.signs.dtype) * 2 - 1
            return output._replace(signs=output.signs + (target - output.signs).detach())

        return hook

    for name, module in find_binarizers(model).items():
        # This hook is prepended. Otherwise the hooks of LCR would run first and get the original signs.
        module.register_forward_hook(make_hook(forced[name]), prepend=True)


def count_flipped_signs(a: SignsByBinarizer, b: SignsByBinarizer) -> dict[str, Any]:
    """Return the total number of differing signs, and the binarizer name with the largest fraction of such signs."""
    counts = {name: (int((a[name] ^ b[name]).sum()), a[name].numel()) for name in a}
    worst = max(counts, key=lambda name: counts[name][0] / counts[name][1])
    return {
        "flipped": sum(n for n, _ in counts.values()),
        "of": sum(n for _, n in counts.values()),
        "worst": worst,
        "worst_share": counts[worst][0] / counts[worst][1],
    }
