"""The paper's retention ratio of each layer, beside what it assumes: how independent the images of a batch are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lcrbnn.analyze.correlation import alike, layer_maps
from lcrbnn.errors import InputError
from lcrbnn.layers import binary_layers, evaluating
from lcrbnn.models import Network
from lcrbnn.retention import Retention

ITERATIONS = 200  # five, as in training, come out low (docs/method.md)
FORMS = {"eq8": "raw", "eq8-unit": "unit"}  # the preset `paper`, maps as they are or each of length 1


@torch.no_grad()
def retention_ratios(model: Network, images: Tensor) -> dict[str, dict[str, float]] | None:
    """sigma_1(RM_B) / sigma_1(RM_F) of each layer, in evaluation mode, for each of FORMS; None for a real network."""
    found: dict[str, dict[str, float]] = {}
    if not any(binary_layers(model)):
        return None
    for form, normalization in FORMS.items():
        try:
            watch = Retention(
                model,
                "paper",
                weight=1.0,
                iterations=ITERATIONS,
                start="heaviest",
                normalization=normalization,
                check_overflow=False,
            )
        except InputError:
            return None
        try:
            with evaluating(model):
                model(images)
                watch.loss()
        finally:
            watch.close()
        assert watch.ratios is not None
        for (front, _), ratio in zip(watch.spans, watch.ratios.tolist(), strict=True):
            found.setdefault(front.module, {})[form] = ratio
    return found


def likeness(model: Network, images: Tensor) -> dict[str, dict[str, Any]]:
    """Means over pairs of different images at the input of each layer, and before the head (`alike`)."""
    return {
        name: {
            "real": alike(seen.real)._asdict(),
            **({} if seen.binary is None else {"binary": alike(seen.binary)._asdict()}),
        }
        for name, seen in layer_maps(model, images).items()
    }
