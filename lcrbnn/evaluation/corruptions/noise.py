"""Gaussian, shot, impulse and speckle noise, independent for each pixel and channel."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from lcrbnn.evaluation.corruptions.counter_random import ImageRandom
from lcrbnn.evaluation.corruptions.pixel_operations import divide, to_uint8, to_unit_range

POISSON_TAIL = 1e-15  # a cumulative Poisson probability above 1 - POISSON_TAIL counts as 1


def draw_normal(rng: ImageRandom, images: Tensor, std: float) -> tuple[Tensor]:
    """Return normal noise in the shape of the images."""
    return (rng.normal(*images.shape[1:]) * std,)


def gaussian_noise(images: Tensor, std: float, noise: Tensor) -> Tensor:
    """Return images plus noise."""
    return to_uint8(to_unit_range(images) + noise)


def speckle_noise(images: Tensor, std: float, noise: Tensor) -> Tensor:
    """Return images plus noise that is proportional to the pixel value."""
    x = to_unit_range(images)
    return to_uint8(x + x * noise)


def draw_photon_counts(rng: ImageRandom, images: Tensor, photons: float) -> tuple[Tensor]:
    """Return Poisson counts of mean pixel * photons, by inverse transform sampling from 256 tabulated distributions."""
    table, counts_per_pixel = _cumulative_poisson(photons)
    table = table.to(images.device)
    # One sorted table for all pixel values: the distribution of pixel value x has entries from x to x + 1.
    table_index = torch.searchsorted(table, images.double() + rng.uniform(*images.shape[1:]), right=True)
    return (table_index - images.long() * counts_per_pixel,)


@lru_cache(maxsize=16)
def _cumulative_poisson(photons: float) -> tuple[Tensor, int]:
    """Return the sorted table x + P(count <= k) for pixels x = 0..255 and k = 0, 1, ..., and the number of k."""
    rates = torch.arange(256, dtype=torch.float64) / 255 * photons
    counts = torch.arange(int(photons + 12 * math.sqrt(photons) + 24), dtype=torch.float64)
    log_probabilities = counts * rates[:, None].clamp(min=1e-300).log() - rates[:, None] - torch.lgamma(counts + 1)
    cumulative = log_probabilities.exp().cumsum(1)
    cumulative[cumulative > 1 - POISSON_TAIL] = 1.0
    cumulative[:, -1] = 1.0
    return (torch.arange(256, dtype=torch.float64)[:, None] + cumulative).reshape(-1), len(counts)


def shot_noise(images: Tensor, photons: float, counts: Tensor) -> Tensor:
    """Return images with the given photon counts."""
    return to_uint8(divide(counts.double(), photons))


def draw_impulses(rng: ImageRandom, images: Tensor, fraction: float) -> tuple[Tensor]:
    """Return +1 (salt) and -1 (pepper), each for half of this fraction of the values, and 0 elsewhere."""
    u = rng.uniform(*images.shape[1:])
    return ((u < fraction / 2).to(torch.int8) - ((u >= fraction / 2) & (u < fraction)).to(torch.int8),)


def impulse_noise(images: Tensor, fraction: float, impulses: Tensor) -> Tensor:
    """Return images in which some values are white and as many are black."""
    return torch.where(impulses == 0, images, (impulses > 0).to(torch.uint8) * 255)
