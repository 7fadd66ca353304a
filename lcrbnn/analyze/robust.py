"""A network as `lcrbnn analyze` records it: norms, bounds, sensitivity, sign flips, ratios, likeness."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lcrbnn.analyze.flips import flip_rates
from lcrbnn.analyze.ratios import likeness, retention_ratios
from lcrbnn.analyze.sensitivity import DRAWS, RADII, sensitivity
from lcrbnn.analyze.surrogate import bounds
from lcrbnn.data import DataSet
from lcrbnn.errors import InputError
from lcrbnn.layers import binary_layers, evaluating
from lcrbnn.models import Network
from lcrbnn.train.augment import normalize
from lcrbnn.train.batches import Batches
from lcrbnn.train.noise import DEVIATIONS, noisy
from lcrbnn.train.numerics import all_digits, find_device
from lcrbnn.train.options import Options

BATCH = 128  # images of the ratios and likeness, as in training
DIGITS = 6
PARTS = 4  # that are told of
PAIRS = "pairs"  # beside the deviations of the noise: signs that differ between two images

# What of a run is compared between groups of runs: where it is in the figures, and what it is.
SUMMARY: dict[str, str] = {
    "surrogate_log10": "log10 of the surrogate's upper bound",
    "eq5_log10": "log10 of Eq. 5's product (lower ends)",
    **{f"sensitivity_{r:g}": f"mean |df| / |dx| at |dx| = {r:g}" for r in RADII},
    **{f"over_pairs_{r:g}": f"the same over that of image pairs, {r:g}" for r in RADII},
    **{f"flips_{d:g}": f"sign flips, mean over layers, noise {d:g} (%)" for d in DEVIATIONS},
    f"flips_{PAIRS}": "signs that differ between two images (%)",
    **{f"flips_over_pairs_{d:g}": f"sign flips over that, mean over layers, noise {d:g}" for d in DEVIATIONS},
    "ratio_eq8": "mean |sigma_B / sigma_F - 1|, Eq. 8, unit maps",
    "cosine": "mean off-diagonal cosine of binary maps",
}


def settings_of(said: Mapping[str, Any], count: int) -> dict[str, Any]:
    """What the figures of a network depend on, of which a record says so much: its spec and digest."""
    return {
        **said,
        "images": count,
        "batch": min(BATCH, count),
        "radii": list(RADII),
        "draws": DRAWS,
        "noise": list(DEVIATIONS),
    }


def analyze_some(
    model: Network, row: DataSet, options: Options, count: int, tick: Callable[[str], None]
) -> dict[str, Any]:
    """The figures of a network, from `count` training images that stand for all (no test image is looked at)."""
    device = find_device(options.device)
    shown = row.load(options.data_folder).train
    if count > len(shown.labels):
        raise InputError(f"{row.name} has {len(shown.labels):,} training images, and {count:,} are to be looked at")
    batches = Batches(row.some(shown, count), row, device)
    with all_digits():
        return analyze(model.to(device), batches, row, tick)


def analyze(
    model: Network, batches: Batches, row: DataSet, tick: Callable[[str], None] = lambda what: None
) -> dict[str, Any]:
    """Everything that is measured of a network on some images; `tick` hears of each of PARTS."""
    clean = next(batches.plain(len(batches))).images
    first = clean[:BATCH]
    found = bounds(model, first)
    figures: dict[str, Any] = {
        "norms": {name: interval._asdict() for name, interval in found.layers.items()},
        "surrogate_log10": found.surrogate_log10,
        "input_gain": 1 / min(row.std),  # of normalising pixels: what both products take on with respect to them
        "eq5_log10": list(found.eq5_log10),
    }
    tick("norms")
    figures["sensitivity"] = _sensitivity(model, batches, row)
    tick("sensitivity")
    figures["flips"] = _flips(model, clean, batches, row.top)
    tick("sign flips")
    figures |= {"ratios": retention_ratios(model, first), "likeness": likeness(model, first)}
    tick("retention ratios")
    return _rounded({**figures, "summary": summary(figures)})


def _sensitivity(model: Network, batches: Batches, row: DataSet) -> dict[str, Any]:
    def logits(pixels: Tensor) -> Tensor:
        return model(normalize(pixels * row.top, batches.scale, batches.shift))

    with evaluating(model):
        return sensitivity(logits, batches.images.float() / row.top)


def _flips(model: Network, clean: Tensor, batches: Batches, top: int) -> dict[str, dict[str, float]]:
    if not any(layer.input_binarizer is not None for _, layer in binary_layers(model)):
        return {}
    shown = [torch.cat([batch.images for batch in noisy(batches, d, top)]) for d in DEVIATIONS]
    found = flip_rates(model, clean, shown)
    table = {f"{d:g}": {name: flips.noise[i] for name, flips in found.items()} for i, d in enumerate(DEVIATIONS)}
    return table | {PAIRS: {name: flips.pairs for name, flips in found.items()}}


def summary(figures: dict[str, Any]) -> dict[str, float]:
    """The figures of SUMMARY that a network has: a real one has no flips and no ratios."""
    found = {"surrogate_log10": figures["surrogate_log10"], "eq5_log10": figures["eq5_log10"][0]}
    for radius, described in figures["sensitivity"]["radii"].items():
        found[f"sensitivity_{radius}"] = described["mean"]
        found[f"over_pairs_{radius}"] = figures["sensitivity"]["over_pairs"][radius]
    between = figures["flips"].get(PAIRS, {})
    for deviation, rates in figures["flips"].items():
        found[f"flips_{deviation}"] = 100 * statistics.fmean(rates.values())
        if deviation != PAIRS:
            shares = [rate / between[name] for name, rate in rates.items() if between[name]]  # signs that ever change
            if shares:
                found[f"flips_over_pairs_{deviation}"] = statistics.fmean(shares)
    if figures["ratios"] is not None:
        found["ratio_eq8"] = statistics.fmean(abs(r["eq8-unit"] - 1) for r in figures["ratios"].values())
    cosines = [maps["binary"]["cosine"] for maps in figures["likeness"].values() if "binary" in maps]
    return found | ({"cosine": statistics.fmean(cosines)} if cosines else {})


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
