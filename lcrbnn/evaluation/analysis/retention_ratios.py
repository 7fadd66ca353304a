"""Measure the retention ratio of each layer as in the paper, and test the assumption that images are independent."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError
from lcrbnn.evaluation.analysis.map_similarity import capture_layer_maps, mean_similarity
from lcrbnn.lcr.choose_blocks import LcrModules, choose_lcr_modules
from lcrbnn.lcr.lcr_variants import LCR_VARIANTS
from lcrbnn.lcr.retention import Retention
from lcrbnn.nn.model_hooks import eval_mode, iter_binary_layers
from lcrbnn.nn.models.network import Network

# number of power iterations; the five iterations of training underestimate sigma (docs/method.md)
POWER_ITERATIONS = 200
# Dictionary from a key in records to a normalization of feature maps
NORMALIZATION_BY_KEY = {"eq8": "none", "eq8-unit": "l2"}


@torch.no_grad()
def measure_retention_ratios(model: nn.Module, images: Tensor) -> dict[str, dict[str, float]] | None:
    """Return sigma_1(RM_B) / sigma_1(RM_F) per layer and normalization, in eval mode, or None for a real network."""
    ratios_by_layer: dict[str, dict[str, float]] = {}
    if not any(iter_binary_layers(model)):
        return None
    for key, normalization in NORMALIZATION_BY_KEY.items():
        try:
            modules = LcrModules()
            if not isinstance(model, Network):
                modules = choose_lcr_modules(model, LCR_VARIANTS["paper"].granularity, images[:2])
            retention = Retention(
                model,
                "paper",
                blocks=modules.blocks,
                layers=modules.layers,
                lcr_weight=1.0,
                power_iterations=POWER_ITERATIONS,
                power_iteration_init="longest-column",
                normalization=normalization,
                check_overflow=False,
            )
        except InputError:
            return None
        try:
            with eval_mode(model):
                model(images)
                retention.loss()
        finally:
            retention.close()
        assert retention.sigma_ratios is not None
        for (front, _), ratio in zip(retention.spans, retention.sigma_ratios.tolist(), strict=True):
            ratios_by_layer.setdefault(front.module, {})[key] = ratio
    return ratios_by_layer


def measure_similarity(model: nn.Module, images: Tensor) -> dict[str, dict[str, Any]]:
    """Return the mean similarity of different images at the input of each layer and before the head."""
    return {
        name: {
            "real": mean_similarity(layer_maps.real)._asdict(),
            **({} if layer_maps.binary is None else {"binary": mean_similarity(layer_maps.binary)._asdict()}),
        }
        for name, layer_maps in capture_layer_maps(model, images).items()
    }
