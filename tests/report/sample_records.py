"""Runs and records for tests: committed records of two groups, and invented measurements of their networks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from lcrbnn.evaluation.corruptions.corruption_registry import CORRUPTIONS
from lcrbnn.evaluation.robustness.mce import summarize_errors
from lcrbnn.runs.record import read_record, write_record

ROOT = Path(__file__).parents[2]
GROUP_RECORDS = {
    "none": ROOT / "paper/results/cifar10-double/none",
    "lcr": ROOT / "paper/results/cifar10-double/default",
}
LAYERS = ("conv1", "layer1.0.conv1", "layer3.2.conv2")


def copy_records(folder: Path, seeds: int = 3) -> list[str]:
    """Copy the records of two groups to `folder` and return the group folders as command-line arguments."""
    for name, source in GROUP_RECORDS.items():
        (folder / name).mkdir(parents=True)
        for seed in range(seeds):
            shutil.copy(source / f"seed-{seed}.json", folder / name)
    return [str(folder / name) for name in GROUP_RECORDS]


def make_errors(shift: float) -> dict[str, list[float]]:
    """Return invented errors that increase with severity and from one corruption to the next."""
    return {name: [20 + 2 * s + i + shift for s in range(1, 6)] for i, name in enumerate(CORRUPTIONS)}


def _make_robustness_figures(shift: float) -> dict[str, Any]:
    errors = make_errors(shift)
    means = summarize_errors(errors, 15 + shift, 32)._asdict()
    head = "as trained"
    return {"complete": True, "clean": {head: 15 + shift}, "means": {head: means}, "errors": {head: errors}}


def _make_attack_figures(shift: float) -> dict[str, Any]:
    return {
        eps: {
            "clean": 84.0 + shift,
            "accuracy": {"fgsm": 50.0 - k, "pgd": 40.0 - k + shift, "square": 30.0 - k},
            "worst": 25.0 - k + shift,
            "gradients": 40.0 - k,
            "masked": eps == "8/255",
        }
        for k, eps in ((0, "2/255"), (20, "8/255"))
    }


def _make_analyze_figures(shift: float) -> dict[str, Any]:
    correlations = {"real": {"correlation": 0.3}, "binary": {"correlation": 0.2}}
    return {
        "norms": {
            name: {"low": (2.5 + shift) / 10 * 15**i, "high": (3.5 + shift) / 10 * 15**i}
            for i, name in enumerate(LAYERS)
        },
        "surrogate_log10": 20.0 + shift,
        "eq5_log10": [15.0 + shift, 16.0],
        "sensitivity": {"radii": {"0.1": {"mean": 9.0}, "1": {"mean": 5.0}}, "over_pairs": {"0.1": 1.5, "1": 0.8}},
        "flips": {"0.08": dict.fromkeys(LAYERS, 0.1 + shift / 100), "pairs": dict.fromkeys(LAYERS, 0.4)},
        "ratios": {name: {"eq8": 0.7, "eq8-unit": 0.8 + shift / 10} for name in LAYERS[1:]},
        "likeness": dict.fromkeys(LAYERS, correlations),
    }


FIGURE_MAKERS = {
    "robustness": _make_robustness_figures,
    "attack": _make_attack_figures,
    "analyze": _make_analyze_figures,
}
GROUP_SHIFTS = {"none": 0.0, "lcr": -1.0}  # offset of a group's numbers; each seed adds a little more


def make_measurement_records(
    folder: Path, runs: list[str], *, images: int = 1000, kinds: tuple[str, ...] = tuple(FIGURE_MAKERS)
) -> Path:
    """Write records of these kinds for all runs and return their folder."""
    for run in map(Path, runs):
        for path in sorted(run.glob("seed-*.json")):
            stored = read_record(path)
            seed = stored["settings"]["seed"]
            settings = {
                "run": stored["settings"],
                "checkpoint_sha256": stored["figures"]["checkpoint_sha256"],
                "images": images,
                "corrupted_images": "invented",
            }
            shift = GROUP_SHIFTS[run.name] * (1 + 0.1 * seed) + 0.5 * seed
            for kind in kinds:
                target = folder / kind / run.name / path.name
                target.parent.mkdir(parents=True, exist_ok=True)
                record = {"schema": 1, "kind": kind, "settings": settings, "figures": FIGURE_MAKERS[kind](shift)}
                target.write_text(json.dumps(record))
    return folder


def make_cost_record(path: Path) -> None:
    """Write a cost record of the network."""
    figures = {
        "parameters": 269850,
        "binary_weights": 267264,
        "stored_bits": 380000,
        "file_bytes": 51234,
        "ops": 1069696.0,
    }
    write_record(path, "cost", {"model": "resnet20-double irnet", "shape": [3, 32, 32]}, figures)
