"""Gaussian, shot, impulse and speckle noise. The noise of each pixel and channel is independent."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from lcrbnn.evaluation.corruptions.counter_random import ImageRandom
from lcrbnn.evaluation.corruptions.pixel_operations import divide, to_uint8, to_unit_range

POISSON_TAIL = 1e-15  # cumulative Poisson probabilities above 1 - POISSON_TAIL are treated as 1


def draw_normal(rng: ImageRandom, images: Tensor, std: float) -> tuple[Tensor]:
    """Return normally distributed noise in the shape of the images."""
    return (rng.normal(*images.shape[1:]) * std,)


def gaussian_noise(images: Tensor, std: float, noise: Tensor) -> Tensor:
    """Return images with noise added to each pixel value."""
    return to_uint8(to_unit_range(images) + noise)


def speckle_noise(images: Tensor, std: float, noise: Tensor) -> Tensor:
    """Return images with noise that is proportional to the pixel value."""
    x = to_unit_range(images)
    return to_uint8(x + x * noise)


def draw_photon_counts(rng: ImageRandom, images: Tensor, photons: float) -> tuple[Tensor]:
    """Return random photon counts, Poisson numbers with mean pixel * photons (pixel from 0 to 1).

    They are drawn by inverting tables of the 256 cumulative distributions.
    """
    table, counts_per_pixel = _cumulative_poisson(photons)
    table = table.to(images.device)
    # One sorted table contains the distributions of all pixel values. That of pixel value x has entries from x to x +
    # 1. So a search for x + (random number) finds the count, and one search serves all pixels.
    table_index = torch.searchsorted(table, images.double() + rng.uniform(*images.shape[1:]), right=True)
    return (table_index - images.long() * counts_per_pixel,)


@lru_cache(maxsize=16)
def _cumulative_poisson(photons: float) -> tuple[Tensor, int]:
    """Return the sorted table x + P(count <= k), and the number of counts k.

    x are the pixel values 0..255, and k the counts 0, 1, ... .
    """
    rates = torch.arange(256, dtype=torch.float64) / 255 * photons
    counts = torch.arange(int(photons + 12 * math.sqrt(photons) + 24), dtype=torch.float64)
    log_probabilities = counts * rates[:, None].clamp(min=1e-300).log() - rates[:, None] - torch.lgamma(counts + 1)
    cumulative = log_probabilities.exp().cumsum(1)
    cumulative[cumulative > 1 - POISSON_TAIL] = 1.0
    cumulative[:, -1] = 1.0
    return (torch.arange(256, dtype=torch.float64)[:, None] + cumulative).reshape(-1), len(counts)


def shot_noise(images: Tensor, photons: float, counts: Tensor) -> Tensor:
    """Return images whose pixels have these photon counts."""
    return to_uint8(divide(counts.double(), photons))


def draw_impulses(rng: ImageRandom, images: Tensor, fraction: float) -> tuple[Tensor]:
    """Return +1 (salt) and -1 (pepper) at random positions, and 0 elsewhere. Salt and pepper are equally likely."""
    u = rng.uniform(*images.shape[1:])
    return ((u < fraction / 2).to(torch.int8) - ((u >= fraction / 2) & (u < fraction)).to(torch.int8),)


def impulse_noise(images: Tensor, fraction: float, impulses: Tensor) -> Tensor:
    """Return images in which a fraction of the values is replaced, half by white and half by black."""
    return torch.where(impulses == 0, images, (impulses > 0).to(torch.uint8) * 255)
