"""Sample the latent weights of each layer of a network, and compute standard deviation, kurtosis and histograms.

The stored latent weights are used. Many methods standardize a filter before they take its sign. So the standard
deviation alone does not determine the outputs of the network. The kurtosis does not change with the standard deviation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lcrbnn.nn.model_hooks import iter_binary_layers

# number of sampled weights per layer, as in Figure 2 of the paper; smaller layers are used completely
MAX_SAMPLED_WEIGHTS = 10_000
NUM_BINS = 41  # number of bins of a histogram; it is odd, so that one bin is centered at 0


class WeightSpread(NamedTuple):
    """Statistics of the sampled weights of a layer."""

    size: int
    std: float
    kurtosis: float  # excess kurtosis, which is 0 for a normal distribution


def sample_weights(model: nn.Module, count: int = MAX_SAMPLED_WEIGHTS) -> dict[str, Tensor]:
    """Return a random sample of the weights of each binary layer. If no layer is binary, each convolution is sampled.

    The sampled positions depend only on the name of the layer. So the same positions are compared in all networks.
    """
    layers: list[tuple[str, nn.Module]] = list(iter_binary_layers(model))
    if not layers:
        layers = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Conv2d)]
    return {
        name: _sample_tensor(layer.weight, name, count) for name, layer in layers if isinstance(layer.weight, Tensor)
    }


def _sample_tensor(weight: Tensor, name: str, count: int) -> Tensor:
    flat = weight.detach().flatten().cpu()
    rng = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little"))
    return flat[torch.randperm(len(flat), generator=rng)[:count]]


def compute_spread(weights: Tensor) -> WeightSpread:
    """Return standard deviation and excess kurtosis of the weights. Both are 0 if all weights are equal."""
    x = weights.double()
    x = x - x.mean()
    variance = x.square().mean().item()
    kurtosis = x.pow(4).mean().item() / variance**2 - 3 if variance > 0 else 0.0
    return WeightSpread(len(x), variance**0.5, kurtosis)


class Histogram(NamedTuple):
    """Number of weights per bin. The bins between low and high have equal width."""

    low: float
    high: float
    counts: list[int]


def compute_histograms(
    samples: Mapping[str, Mapping[str, Tensor]], num_bins: int = NUM_BINS
) -> dict[str, dict[str, Histogram]]:
    """Return one histogram per network and layer.

    In all networks, a layer has the same bins, which are symmetric around 0.
    """
    max_abs: dict[str, float] = {}
    for layers in samples.values():
        for name, weights in layers.items():
            max_abs[name] = max(max_abs.get(name, 1e-30), weights.abs().max().item())
    return {
        network: {
            name: Histogram(-max_abs[name], max_abs[name], _count_per_bin(weights, max_abs[name], num_bins))
            for name, weights in layers.items()
        }
        for network, layers in samples.items()
    }


def _count_per_bin(weights: Tensor, max_abs: float, num_bins: int) -> list[int]:
    return [round(n) for n in torch.histc(weights.double(), num_bins, -max_abs, max_abs).tolist()]
