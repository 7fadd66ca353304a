"""Measure the sensitivity to noise, which is the change of the output, and the fraction of flipped signs per layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lcrbnn.device import make_generator
from lcrbnn.lcr.capture import ModulePort, capture_maps
from lcrbnn.nn.model_hooks import iter_binary_layers


@torch.no_grad()
def capture_layer_signs(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return the signs of the inputs of each layer that binarizes its inputs, in evaluation mode."""
    points = [ModulePort(name, "in") for name, layer in iter_binary_layers(model) if layer.input_binarizer is not None]
    maps = capture_maps(model, points, images, capture_binary=True)
    return {point.module: maps.binary[point].signs for point in points}


class FlipRates(NamedTuple):
    """Fractions of a layer's signs that differ between an image and its noisy version, and between two images."""

    under_noise: list[float]  # fraction of flipped signs for each noisy version
    # Fraction of signs that differ between two images. Signs that are the same for all images cannot flip under noise
    # either.
    between_images: float


def measure_flip_rates(model: nn.Module, clean: Tensor, noisy: Sequence[Tensor]) -> dict[str, FlipRates]:
    """Return the flip rates of each layer for several noisy versions of the same images."""
    clean_signs = capture_layer_signs(model, clean)
    rates: dict[str, list[float]] = {name: [] for name in clean_signs}
    for images in noisy:
        for name, signs in capture_layer_signs(model, images).items():
            rates[name].append((signs != clean_signs[name]).double().mean().item())
    return {name: FlipRates(rates[name], _difference_between_images(signs)) for name, signs in clean_signs.items()}


def _difference_between_images(signs: Tensor) -> float:
    """Return the fraction of signs that differ, averaged over all pairs of images.

    Images are axis 0, or axis -4 if there are bases.
    """
    n = signs.shape[-4] if signs.dim() >= 4 else signs.shape[0]
    mean = signs.double().mean(-4 if signs.dim() >= 4 else 0)
    return ((1 - mean.square()) / 2).mean().item() * n / max(n - 1, 1)


# Euclidean norms of the noise. Noise with norm 1 has a std of 0.018 per number of a 3 x 32 x 32 image.
NOISE_RADII = (0.01, 0.1, 1.0, 4.0)
DIRECTIONS_PER_IMAGE = 2
QUANTILES = (0.5, 0.9, 0.99)
SEED = 0

LogitsOfPixels = Callable[[Tensor], Tensor]  # function from pixels (0 to 1) to logits


@torch.no_grad()
def measure_sensitivity(
    compute_logits: LogitsOfPixels,
    pixels: Tensor,
    radii: Sequence[float] = NOISE_RADII,
    directions_per_image: int = DIRECTIONS_PER_IMAGE,
) -> dict:
    """Return statistics of |change of logits| / |change of image|, per noise radius and for pairs of images.

    The statistics are mean, quantiles and maximum.

    Noisy images are not clipped, so their distance is exactly the radius. The noise direction depends only on the index
    of the image and the number of the draw.
    """
    clean_logits = compute_logits(pixels)
    ratios: dict[str, list[Tensor]] = {f"{radius:g}": [] for radius in radii}
    for draw in range(directions_per_image):
        directions = torch.stack([_draw_direction(pixels[i], i, draw) for i in range(len(pixels))]).to(pixels)
        for radius in radii:
            noisy_logits = compute_logits(pixels + radius * directions)
            ratios[f"{radius:g}"].append((noisy_logits - clean_logits).norm(dim=1) / radius)
    pair_ratios = _image_pair_ratios(clean_logits, pixels)
    return {
        "radii": {name: _summarize_values(torch.cat(batches)) for name, batches in ratios.items()},
        "pairs": _summarize_values(pair_ratios),
        "over_pairs": {name: float(torch.cat(batches).mean() / pair_ratios.mean()) for name, batches in ratios.items()},
    }


def _draw_direction(image: Tensor, index: int, draw: int) -> Tensor:
    noise = torch.randn(image.shape, generator=make_generator(SEED, "direction", index, draw))
    return noise / noise.norm()


def _image_pair_ratios(clean_logits: Tensor, pixels: Tensor) -> Tensor:
    """Return |change of logits| / |change of image| for all pairs of different images."""
    i, j = torch.triu_indices(len(pixels), len(pixels), 1, device=pixels.device)
    distances = torch.cdist(pixels.flatten(1).double(), pixels.flatten(1).double())[i, j]
    return torch.cdist(clean_logits.double(), clean_logits.double())[i, j] / distances.clamp_min(1e-12)


def _interpolate(sorted_values: Tensor, position: float) -> Tensor:
    """Return the value at a fractional position in a sorted tensor, by linear interpolation."""
    low = int(position)
    return torch.lerp(sorted_values[low], sorted_values[min(low + 1, len(sorted_values) - 1)], position - low)


def _summarize_values(values: Tensor) -> dict[str, float]:
    values = values.double().sort().values  # sort instead of torch.quantile, which accepts at most 16 million numbers
    quantiles = torch.stack([_interpolate(values, q * (len(values) - 1)) for q in QUANTILES])
    return {
        "mean": values.mean().item(),
        **{f"q{100 * q:g}": v for q, v in zip(QUANTILES, quantiles.tolist(), strict=True)},
        "max": values.max().item(),
    }
