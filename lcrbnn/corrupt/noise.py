"""Noise: Gaussian, shot, impulse and speckle, each pixel's channel for itself."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from lcrbnn.corrupt.pixels import levels, over, unit
from lcrbnn.corrupt.source import Source

TAIL = 1e-15  # of a Poisson distribution, beyond which counts are not listed


def draw_normal(source: Source, images: Tensor, deviation: float) -> tuple[Tensor]:
    """Noise of this deviation, the shape of the images."""
    return (source.normal(*images.shape[1:]) * deviation,)


def gaussian_noise(images: Tensor, deviation: float, noise: Tensor) -> Tensor:
    """The same noise wherever a pixel lies between black and white."""
    return levels(unit(images) + noise)


def speckle_noise(images: Tensor, deviation: float, noise: Tensor) -> Tensor:
    """Noise in proportion to the pixel."""
    x = unit(images)
    return levels(x + x * noise)


def draw_counts(source: Source, images: Tensor, photons: float) -> tuple[Tensor]:
    """Poisson counts of mean x * photons, by inverting the distribution: only 256 of them occur."""
    table, width = _cumulated(photons)
    table = table.to(images.device)
    # One sorted list for all: the distribution of pixel x lies between x and x + 1.
    place = torch.searchsorted(table, images.double() + source.uniform(*images.shape[1:]), right=True)
    return (place - images.long() * width,)


@lru_cache(maxsize=16)
def _cumulated(photons: float) -> tuple[Tensor, int]:
    """x + P(count <= k) for pixels x = 0..255 and k = 0, 1, ...: one rising list, and how many k a pixel has."""
    rates = torch.arange(256, dtype=torch.float64) / 255 * photons
    counts = torch.arange(int(photons + 12 * math.sqrt(photons) + 24), dtype=torch.float64)
    logs = counts * rates[:, None].clamp(min=1e-300).log() - rates[:, None] - torch.lgamma(counts + 1)
    share = logs.exp().cumsum(1)
    share[share > 1 - TAIL] = 1.0
    share[:, -1] = 1.0
    return (torch.arange(256, dtype=torch.float64)[:, None] + share).reshape(-1), len(counts)


def shot_noise(images: Tensor, photons: float, counts: Tensor) -> Tensor:
    """As many photons as were counted."""
    return levels(over(counts.double(), photons))


def draw_impulses(source: Source, images: Tensor, amount: float) -> tuple[Tensor]:
    """+1 for salt, -1 for pepper, each on half of this share of the values; 0 elsewhere."""
    u = source.uniform(*images.shape[1:])
    return ((u < amount / 2).to(torch.int8) - ((u >= amount / 2) & (u < amount)).to(torch.int8),)


def impulse_noise(images: Tensor, amount: float, impulses: Tensor) -> Tensor:
    """Some values become white, as many black."""
    return torch.where(impulses == 0, images, (impulses > 0).to(torch.uint8) * 255)
