"""What an attack may see of a network: logits of pixels from 0 to 1, normalising inside, and gradients if it wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lcrbnn.data import DataSet
from lcrbnn.layers import evaluating

Loss = Callable[[Tensor, Tensor], Tensor]  # logits (n, classes), labels (n,) -> (n,): what an attack makes large


@dataclass(frozen=True)
class Target:
    """A network in evaluation mode that takes pixels."""

    model: nn.Module
    mean: Tensor  # (channels, 1, 1), in pixels from 0 to 1
    std: Tensor

    def logits(self, pixels: Tensor) -> Tensor:
        """(n, channels, h, w), 0 to 1 -> (n, classes)."""
        return self.model((pixels - self.mean) / self.std).float()

    @torch.no_grad()
    def ask(self, pixels: Tensor) -> Tensor:
        """Logits alone: one query."""
        return self.logits(pixels)

    def gradient(self, pixels: Tensor, labels: Tensor, loss: Loss) -> tuple[Tensor, Tensor, Tensor]:
        """Logits and loss at the pixels, and the gradient of each image's own loss.

        In a binary network it goes through the surrogate slopes of its signs.
        """
        with torch.enable_grad():
            pixels = pixels.detach().requires_grad_()
            logits = self.logits(pixels)
            losses = loss(logits, labels)
            (gradient,) = torch.autograd.grad(losses.sum(), pixels)
        return logits.detach(), losses.detach(), gradient


@contextmanager
def target_of(model: nn.Module, row: DataSet) -> Iterator[Target]:
    """Inside, the network is a target; afterwards it is as it was: modes, gradients, what asks for one, buffers."""
    asks = {p: p.requires_grad for p in model.parameters()}
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    device = next(model.parameters()).device
    mean, std = (torch.tensor(values, device=device).reshape(-1, 1, 1) for values in (row.mean, row.std))
    try:
        model.requires_grad_(False)  # nothing is learned: gradients of weights would only cost time
        with evaluating(model):
            yield Target(model, mean, std)
    finally:
        for parameter, asked in asks.items():
            parameter.requires_grad_(asked)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
