"""Latent weights of a network, layer by layer: a random sample of each, how wide it spreads, how heavy its tails are.

As they are stored. Many methods standardise a filter before they take its sign, so that the width by itself changes
nothing that the network computes; the kurtosis does not depend on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lcrbnn.layers import binary_layers

SAMPLE = 10_000  # weights of a layer, as in the paper's Figure 2; smaller layers give all they have
BINS = 41  # of a histogram: an odd number, so that one is around 0


class Spread(NamedTuple):
    """Of the sampled weights of a layer."""

    size: int
    std: float
    kurtosis: float  # excess over a normal distribution's


def sample_weights(model: nn.Module, count: int = SAMPLE) -> dict[str, Tensor]:
    """Weights of each binary layer (each convolution, if none is binary), drawn without putting back.

    Which ones depends on the name of the layer alone: two networks are compared at the same places.
    """
    layers: list[tuple[str, nn.Module]] = list(binary_layers(model))
    if not layers:
        layers = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Conv2d)]
    return {name: _sample(layer.weight, name, count) for name, layer in layers if isinstance(layer.weight, Tensor)}


def _sample(weight: Tensor, name: str, count: int) -> Tensor:
    flat = weight.detach().flatten().cpu()
    draws = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little"))
    return flat[torch.randperm(len(flat), generator=draws)[:count]]


def spread(weights: Tensor) -> Spread:
    """Standard deviation and excess kurtosis of numbers; 0 for numbers that are all alike."""
    x = weights.double()
    x = x - x.mean()
    variance = x.square().mean().item()
    kurtosis = x.pow(4).mean().item() / variance**2 - 3 if variance > 0 else 0.0
    return Spread(len(x), variance**0.5, kurtosis)


class Histogram(NamedTuple):
    """How many numbers fall between low and high, in bins of the same width."""

    low: float
    high: float
    counts: list[int]


def histograms(samples: Mapping[str, Mapping[str, Tensor]], bins: int = BINS) -> dict[str, dict[str, Histogram]]:
    """Of each network's layers; a layer has the same bins in all of them, around 0."""
    reach: dict[str, float] = {}
    for layers in samples.values():
        for name, weights in layers.items():
            reach[name] = max(reach.get(name, 1e-30), weights.abs().max().item())
    return {
        label: {
            name: Histogram(-reach[name], reach[name], _counts(weights, reach[name], bins))
            for name, weights in layers.items()
        }
        for label, layers in samples.items()
    }


def _counts(weights: Tensor, reach: float, bins: int) -> list[int]:
    return [round(n) for n in torch.histc(weights.double(), bins, -reach, reach).tolist()]
