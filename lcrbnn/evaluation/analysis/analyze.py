"""Measure what `lcrbnn analyze` prints, such as norms, Lipschitz bounds, sensitivity, sign flips and correlations."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lcrbnn.data.datasets import DataSet
from lcrbnn.data.loading.augment import normalize
from lcrbnn.data.loading.batches import InMemoryBatches
from lcrbnn.device import find_device, use_full_float32
from lcrbnn.errors import InputError
from lcrbnn.evaluation.analysis.lipschitz_bound import LipschitzBounds, bound_lipschitz
from lcrbnn.evaluation.analysis.retention_ratios import measure_retention_ratios, measure_similarity
from lcrbnn.evaluation.analysis.sensitivity import (
    DIRECTIONS_PER_IMAGE,
    NOISE_RADII,
    measure_flip_rates,
    measure_sensitivity,
)
from lcrbnn.lcr.sigma_ratios import mean_ratio_gap
from lcrbnn.nn.model_hooks import eval_mode, iter_binary_layers
from lcrbnn.nn.models.network import Network
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.validation import NOISE_DEVIATIONS, iter_noisy_batches

BATCH_SIZE = 128  # number of images for retention ratios and for correlations of activations, as in a training batch
SIGNIFICANT_DIGITS = 6
NUM_PARTS = 4  # number of parts of an analysis; the progress bar counts them
IMAGE_PAIRS = "pairs"  # key in `flips`, next to the noise levels, for signs that differ between two different images

# Dictionary: key in the summary of a number that is compared between groups of runs -> title of the table row.
SUMMARY_TITLES: dict[str, str] = {
    "surrogate_log10": "log10 of the surrogate's upper bound",
    "eq5_log10": "log10 of Eq. 5's product (lower ends)",
    **{f"sensitivity_{r:g}": f"mean |df| / |dx| at |dx| = {r:g}" for r in NOISE_RADII},
    **{f"over_pairs_{r:g}": f"the same over that of image pairs, {r:g}" for r in NOISE_RADII},
    **{f"flips_{d:g}": f"sign flips, mean over layers, noise {d:g} (%)" for d in NOISE_DEVIATIONS},
    f"flips_{IMAGE_PAIRS}": "signs that differ between two images (%)",
    **{f"flips_over_pairs_{d:g}": f"sign flips over that, mean over layers, noise {d:g}" for d in NOISE_DEVIATIONS},
    "ratio_eq8": "mean |sigma_B / sigma_F - 1|, Eq. 8, unit maps",
    "cosine": "mean off-diagonal cosine of binary maps",
}


def build_analysis_settings(model_settings: Mapping[str, Any], num_images: int) -> dict[str, Any]:
    """Return the settings on which the figures depend. `model_settings` are the spec and the digest of the network."""
    return {
        **model_settings,
        "images": num_images,
        "batch": min(BATCH_SIZE, num_images),
        "radii": list(NOISE_RADII),
        "draws": DIRECTIONS_PER_IMAGE,
        "noise": list(NOISE_DEVIATIONS),
    }


def analyze_model(
    model: nn.Module, dataset: DataSet, options: RunOptions, num_images: int, report_progress: Callable[[str], None]
) -> dict[str, Any]:
    """Return the figures of a network, measured on a sample of `num_images` training images.

    No test images are used.
    """
    device = find_device(options.device)
    train = dataset.load(options.data_folder).train
    if num_images > len(train.labels):
        raise InputError(f"{dataset.name} has {len(train.labels):,} training images; got --num-images {num_images:,}")
    batches = InMemoryBatches(dataset.sample_split(train, num_images), dataset, device)
    with use_full_float32():
        return analyze_images(model.to(device), batches, dataset, report_progress)


def analyze_images(
    model: nn.Module,
    batches: InMemoryBatches,
    dataset: DataSet,
    report_progress: Callable[[str], None] = lambda part: None,
) -> dict[str, Any]:
    """Return all figures of a network, measured on these images.

    `report_progress` is called after each of the NUM_PARTS parts.
    """
    images = next(batches.evaluation_batches(len(batches))).images
    first_batch = images[:BATCH_SIZE]
    bounds = _bound_known_network(model, first_batch)
    figures: dict[str, Any] = {
        "norms": {} if bounds is None else {name: norm._asdict() for name, norm in bounds.layers.items()},
        "surrogate_log10": None if bounds is None else bounds.surrogate_log10,
        "input_gain": 1 / min(dataset.std),  # input normalization: both products times this gain are relative to pixels
        "eq5_log10": None if bounds is None else list(bounds.eq5_log10),
    }
    report_progress("norms")
    figures["sensitivity"] = _measure_pixel_sensitivity(model, batches, dataset)
    report_progress("sensitivity")
    figures["flips"] = _measure_noise_flips(model, images, batches, dataset.max_pixel_value)
    report_progress("sign flips")
    figures |= {
        "ratios": measure_retention_ratios(model, first_batch),
        "activation_correlation": measure_similarity(model, first_batch),
    }
    report_progress("retention ratios")
    return _round_floats({**figures, "summary": summarize_analysis(figures)})


def _bound_known_network(model: nn.Module, images: Tensor) -> LipschitzBounds | None:
    """Return the Lipschitz bounds, or None for a user's network with modules whose bounds are not known."""
    try:
        return bound_lipschitz(model, images)
    except InputError:
        if isinstance(model, Network):
            raise
        return None


def _measure_pixel_sensitivity(model: nn.Module, batches: InMemoryBatches, dataset: DataSet) -> dict[str, Any]:
    def compute_logits(pixels: Tensor) -> Tensor:
        return model(normalize(pixels * dataset.max_pixel_value, batches.scale, batches.shift))

    with eval_mode(model):
        return measure_sensitivity(compute_logits, batches.images.float() / dataset.max_pixel_value)


def _measure_noise_flips(
    model: nn.Module, clean_images: Tensor, batches: InMemoryBatches, max_pixel: int
) -> dict[str, dict[str, float]]:
    if not any(layer.input_binarizer is not None for _, layer in iter_binary_layers(model)):
        return {}
    noisy_images = [
        torch.cat([batch.images for batch in iter_noisy_batches(batches, d, max_pixel)]) for d in NOISE_DEVIATIONS
    ]
    rates_by_layer = measure_flip_rates(model, clean_images, noisy_images)
    under_noise = {
        f"{d:g}": {name: rates.under_noise[i] for name, rates in rates_by_layer.items()}
        for i, d in enumerate(NOISE_DEVIATIONS)
    }
    return under_noise | {IMAGE_PAIRS: {name: rates.between_images for name, rates in rates_by_layer.items()}}


def summarize_analysis(figures: dict[str, Any]) -> dict[str, float]:
    """Return the figures of SUMMARY_TITLES that a network has. A real-valued one has no flips and no ratios."""
    summary = {}
    if figures["eq5_log10"] is not None:
        summary = {"surrogate_log10": figures["surrogate_log10"], "eq5_log10": figures["eq5_log10"][0]}
    for radius, ratio_statistics in figures["sensitivity"]["radii"].items():
        summary[f"sensitivity_{radius}"] = ratio_statistics["mean"]
        summary[f"over_pairs_{radius}"] = figures["sensitivity"]["over_pairs"][radius]
    between_images = figures["flips"].get(IMAGE_PAIRS, {})
    for deviation, rates in figures["flips"].items():
        summary[f"flips_{deviation}"] = 100 * statistics.fmean(rates.values())
        if deviation != IMAGE_PAIRS:
            relative_rates = [
                rate / between_images[name] for name, rate in rates.items() if between_images[name]
            ]  # layers whose signs are the same for all images are left out
            if relative_rates:
                summary[f"flips_over_pairs_{deviation}"] = statistics.fmean(relative_rates)
    if figures["ratios"] is not None:
        summary["ratio_eq8"] = mean_ratio_gap(r["eq8-unit"] for r in figures["ratios"].values())
    cosines = [maps["binary"]["cosine"] for maps in figures["activation_correlation"].values() if "binary" in maps]
    return summary | ({"cosine": statistics.fmean(cosines)} if cosines else {})


def _round_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _round_floats(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_round_floats(entry) for entry in value]
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if isinstance(value, float) else value
