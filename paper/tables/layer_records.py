"""Measure the layers of the tables' runs for the records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lcrbnn.evaluation.analysis.layer_report import load_first_images, measure_layers
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.dataset import read_picture_split
from lcrbnn.train.setup.load import load_network
from lcrbnn.train.setup.options import RunOptions


def measure_run_layers(run: Path, options: RunOptions) -> dict[str, Any]:
    """Return the layer measurements of a finished run, for its record."""
    folder = RunFolder(run)
    spec, model, _ = load_network(folder)
    return measure_layers(
        model,
        load_first_images(
            spec,
            options,
            broken_images=folder.read_broken_images(),
            class_names=folder.read_classes(),
            picture_split=read_picture_split(folder),
        ),
    )
