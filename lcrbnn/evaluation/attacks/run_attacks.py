"""Run attacks on a trained network: select the attacks, choose the settings, and collect the numbers for the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from lcrbnn.data.datasets import DataSet
from lcrbnn.device import find_device, use_full_float32
from lcrbnn.errors import InputError, lookup
from lcrbnn.evaluation.attacks.attack_registry import ATTACKS, Attack
from lcrbnn.evaluation.attacks.attack_suite import RobustAccuracy, run_all_attacks
from lcrbnn.evaluation.attacks.threat_model import wrap_model
from lcrbnn.train.setup.options import RunOptions

WORST = "worst"


def select_attacks(names: Sequence[str], changes: Mapping[str, int | None]) -> dict[str, Attack]:
    """Return the named attacks, or all attacks if there are no names.

    Steps, restarts and queries replace the values of attacks that have them.
    """
    overrides = {name: value for name, value in changes.items() if value is not None}
    attacks = [lookup(ATTACKS, name, "attack", "lcrbnn attack --help") for name in names or ATTACKS]
    settings_by_attack = {
        attack.name: {k: v for k, v in overrides.items() if k in attack.settings} for attack in attacks
    }
    return {
        attack.name: replace(attack, settings={**attack.settings, **settings_by_attack[attack.name]})
        for attack in attacks
    }


def parse_eps(text: str) -> float:
    """Return the number in a text such as 8/255 or 0.03."""
    numerator, _, denominator = text.partition("/")
    try:
        value = float(numerator) / float(denominator or 1)
    except (ValueError, ZeroDivisionError):
        value = -1.0
    if not 0 < value <= 1:
        raise InputError(f"eps must be greater than 0 and at most 1, such as 8/255; got {text!r}")
    return value


def build_attack_settings(
    model_settings: Mapping[str, Any],
    attacks: Mapping[str, Attack],
    eps_values: Sequence[str],
    num_images: int,
    seed: int,
) -> dict[str, Any]:
    """Return the settings on which the figures depend. The batch size is left out because it changes no result."""
    return {
        **model_settings,
        "split": "test",
        "images": num_images,
        "eps": list(eps_values),
        "norm": "Linf, pixels from 0 to 1",
        "attacks": {name: dict(row.settings) for name, row in attacks.items()},
        "seed": seed,
        "precision": "float32",
    }


def attack_model(
    model: nn.Module,
    dataset: DataSet,
    settings: Mapping[str, Any],
    attacks: Mapping[str, Attack],
    options: RunOptions,
    batch_size: int,
    report_progress: Callable[[str], None],
) -> dict[str, Any]:
    """Return the figures of a network on test images, by eps. `report_progress` is called after each attack."""
    device = find_device(options.device)
    test = dataset.load(options.data_folder).test
    num_images = settings["images"]
    if num_images > len(test.labels):
        raise InputError(f"{dataset.name} has {len(test.labels):,} test images; got --num-images {num_images:,}")
    split = dataset.sample_split(test, num_images)
    images = (torch.from_numpy(split.images).float() / dataset.max_pixel_value).to(device)
    labels = torch.from_numpy(split.labels).to(device)
    with use_full_float32(), wrap_model(model.to(device), dataset) as attacked_model:
        figures_by_eps = {}
        for eps in settings["eps"]:
            accuracy = run_all_attacks(
                attacked_model,
                images,
                labels,
                attacks,
                parse_eps(eps),
                seed=settings["seed"],
                batch_size=batch_size,
                report_progress=report_progress,
            )
            figures_by_eps[eps] = build_attack_figures(accuracy)
    return figures_by_eps


def build_attack_figures(accuracy: RobustAccuracy) -> dict[str, Any]:
    """Return the accuracies as figures of a record.

    `survived` tells which images survive, encoded as hexadecimal digits, first image first.
    """
    figures = {name: value for name, value in accuracy._asdict().items() if name != "survived"}
    bits = {name: _encode_hexadecimal(entries) for name, entries in accuracy.survived.items()}
    return {**figures, "masked": accuracy.has_masked_gradients, "survived": bits}


def _encode_hexadecimal(entries: Sequence[bool]) -> str:
    padded = [*entries, *[False] * (-len(entries) % 4)]
    return "".join(f"{int(''.join('01'[b] for b in padded[i : i + 4]), 2):x}" for i in range(0, len(padded), 4))


def summarize_attacks(figures_by_eps: Mapping[str, Any]) -> dict[str, float]:
    """Return the accuracies by eps and attack that are compared between groups of runs."""
    summary: dict[str, float] = {}
    for eps, figures in figures_by_eps.items():
        summary["clean"] = figures["clean"]
        summary |= {f"{eps} {name}": value for name, value in figures["accuracy"].items()}
        if figures["gradients"] is not None:
            summary[f"{eps} gradients"] = figures["gradients"]
        summary[f"{eps} {WORST}"] = figures["worst"]
    return summary
