"""Images to attack: their labels, how far a pixel may move, and draws that depend on an image's own place alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lcrbnn.train.seeds import generator


@dataclass(frozen=True)
class Ball:
    """Images with all that differs from them by at most eps in each pixel and is an image (0 to 1)."""

    images: Tensor  # (n, channels, h, w), 0 to 1
    labels: Tensor
    places: tuple[int, ...]  # of the images in their split
    eps: float
    seed: int

    def __len__(self) -> int:
        """The number of images."""
        return len(self.labels)

    @property
    def low(self) -> Tensor:
        """The least that each pixel may be."""
        return (self.images - self.eps).clamp_min(0)

    @property
    def high(self) -> Tensor:
        """The most that each pixel may be."""
        return (self.images + self.eps).clamp_max(1)

    def project(self, pixels: Tensor) -> Tensor:
        """The nearest point of the ball."""
        return torch.minimum(torch.maximum(pixels, self.low), self.high)

    def take(self, rows: Tensor) -> Ball:
        """Some of the images, by their numbers."""
        kept = rows.tolist()
        places = tuple(self.places[i] for i in kept)
        return Ball(self.images[rows], self.labels[rows], places, self.eps, self.seed)

    def uniform(self, *purpose: str | int, shape: tuple[int, ...] | None = None) -> Tensor:
        """Numbers from 0 to 1, (n, *shape) (that of an image if not said): one generator an image, on the CPU."""
        shape = tuple(self.images.shape[1:]) if shape is None else shape
        drawn = [torch.rand(shape, generator=generator(self.seed, *purpose, place)) for place in self.places]
        return torch.stack(drawn).to(self.images) if drawn else self.images.new_empty(0, *shape)
