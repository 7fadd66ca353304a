"""How far the answers of the deployed network move when an image does: measured, at stated distances.

|f(x + d) - f(x)| / |d| for random directions d of one length, pixels from 0 to 1, f the logits in evaluation mode. A
sign jumps, so that the ratio has no limit as d shrinks: each figure belongs to its distance, and is a lower bound of
the largest ratio there. Logits have no natural size; the same ratio for pairs of different images sets the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lcrbnn.train.seeds import generator

RADII = (0.01, 0.1, 1.0, 4.0)  # Euclidean; 1 is noise of deviation 0.018 on each of 3 x 32 x 32 pixels
DRAWS = 2  # directions an image
QUANTILES = (0.5, 0.9, 0.99)
SEED = 0

Logits = Callable[[Tensor], Tensor]  # from pixels, 0 to 1


@torch.no_grad()
def sensitivity(logits: Logits, pixels: Tensor, radii: Sequence[float] = RADII, draws: int = DRAWS) -> dict:
    """For each radius and for pairs of images: mean, quantiles and largest of the ratio.

    Images are not clipped afterwards, so that a distance is what it says. A direction depends on the place of an image
    and on the number of the draw alone.
    """
    clean = logits(pixels)
    ratios: dict[str, list[Tensor]] = {f"{radius:g}": [] for radius in radii}
    for draw in range(draws):
        away = torch.stack([_direction(pixels[i], i, draw) for i in range(len(pixels))]).to(pixels)
        for radius in radii:
            moved = logits(pixels + radius * away)
            ratios[f"{radius:g}"].append((moved - clean).norm(dim=1) / radius)
    pairs = _pairs(clean, pixels)
    return {
        "radii": {name: _described(torch.cat(found)) for name, found in ratios.items()},
        "pairs": _described(pairs),
        "over_pairs": {name: float(torch.cat(found).mean() / pairs.mean()) for name, found in ratios.items()},
    }


def _direction(image: Tensor, place: int, draw: int) -> Tensor:
    drawn = torch.randn(image.shape, generator=generator(SEED, "direction", place, draw))
    return drawn / drawn.norm()


def _pairs(clean: Tensor, pixels: Tensor) -> Tensor:
    """The ratio for all pairs of different images."""
    i, j = torch.triu_indices(len(pixels), len(pixels), 1, device=pixels.device)
    apart = torch.cdist(pixels.flatten(1).double(), pixels.flatten(1).double())[i, j]
    return torch.cdist(clean.double(), clean.double())[i, j] / apart.clamp_min(1e-12)


def _between(ordered: Tensor, place: float) -> Tensor:
    """The number at a place between two of them, on a straight line."""
    low = int(place)
    return torch.lerp(ordered[low], ordered[min(low + 1, len(ordered) - 1)], place - low)


def _described(values: Tensor) -> dict[str, float]:
    values = values.double().sort().values  # torch.quantile takes 16 million numbers at most
    found = torch.stack([_between(values, q * (len(values) - 1)) for q in QUANTILES])
    return {
        "mean": values.mean().item(),
        **{f"q{100 * q:g}": v for q, v in zip(QUANTILES, found.tolist(), strict=True)},
        "max": values.max().item(),
    }
