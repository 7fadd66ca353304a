"""The threat model defines how much an attack may change a pixel, and how an attack can use the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lcrbnn.data.datasets import DataSet
from lcrbnn.device import make_generator
from lcrbnn.nn.model_hooks import eval_mode


@dataclass(frozen=True)
class LinfBall:
    """Images and their Linf balls. A ball contains all images that differ from its centre by at most eps per pixel."""

    images: Tensor  # images (n, channels, h, w) with pixels from 0 to 1
    labels: Tensor
    indices: tuple[int, ...]  # row numbers of the images in their split, which determine the random numbers
    eps: float
    seed: int

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    @property
    def lower_bound(self) -> Tensor:
        """Return the smallest allowed value of each pixel."""
        return (self.images - self.eps).clamp_min(0)

    @property
    def upper_bound(self) -> Tensor:
        """Return the largest allowed value of each pixel."""
        return (self.images + self.eps).clamp_max(1)

    def project(self, pixels: Tensor) -> Tensor:
        """Return the point of each ball that is nearest to x."""
        return torch.minimum(torch.maximum(pixels, self.lower_bound), self.upper_bound)

    def select(self, rows: Tensor) -> LinfBall:
        """Return the balls of the images in these rows."""
        indices = tuple(self.indices[i] for i in rows.tolist())
        return LinfBall(self.images[rows], self.labels[rows], indices, self.eps, self.seed)

    def draw_uniform(self, *purpose: str | int, shape: tuple[int, ...] | None = None) -> Tensor:
        """Return uniform random numbers from 0 to 1 as (n, *shape). The default shape is that of an image.

        Each image has its own CPU generator. So its numbers do not depend on the batch and the device.
        """
        shape = tuple(self.images.shape[1:]) if shape is None else shape
        numbers = [torch.rand(shape, generator=make_generator(self.seed, *purpose, index)) for index in self.indices]
        return torch.stack(numbers).to(self.images) if numbers else self.images.new_empty(0, *shape)


# function from logits (n, classes) and labels (n,) to losses (n,), which attacks maximize
AttackLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class AttackedModel:
    """A network in evaluation mode whose inputs are pixels from 0 to 1."""

    model: nn.Module
    mean: Tensor  # normalization per channel, (channels, 1, 1), for pixels from 0 to 1
    std: Tensor

    def compute_logits(self, pixels: Tensor) -> Tensor:
        """Return logits (n, classes) of pixels (n, channels, h, w) from 0 to 1."""
        return self.model((pixels - self.mean) / self.std).float()

    @torch.no_grad()
    def query(self, pixels: Tensor) -> Tensor:
        """Return the logits without gradients. The call counts as one query of a black-box attack."""
        return self.compute_logits(pixels)

    def compute_gradient(self, pixels: Tensor, labels: Tensor, loss: AttackLoss) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits, the loss of each image, and the gradient of this loss with respect to the pixels.

        In a binary network the gradient is computed with the surrogate gradients of sign.
        """
        with torch.enable_grad():
            pixels = pixels.detach().requires_grad_()
            logits = self.compute_logits(pixels)
            losses = loss(logits, labels)
            (gradient,) = torch.autograd.grad(losses.sum(), pixels)
        return logits.detach(), losses.detach(), gradient


@contextmanager
def wrap_model(model: nn.Module, dataset: DataSet) -> Iterator[AttackedModel]:
    """Yield the network as an attacked model. At the end, restore its modes, requires_grad flags and buffers."""
    requires_grad = {p: p.requires_grad for p in model.parameters()}
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    device = next(model.parameters()).device
    mean, std = (torch.tensor(values, device=device).reshape(-1, 1, 1) for values in (dataset.mean, dataset.std))
    try:
        model.requires_grad_(False)  # attacks need no gradients of the weights
        with eval_mode(model):
            yield AttackedModel(model, mean, std)
    finally:
        for parameter, required in requires_grad.items():
            parameter.requires_grad_(required)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
