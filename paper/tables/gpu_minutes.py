"""Estimate the GPU minutes for the unfinished runs of a table from measured training speeds."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from paper.tables.table_spec import PaperTable, PaperTables

SPEED_RECORDS = Path(__file__).parents[2] / "bench" / "records"
# Dictionary: start of a network's name -> training speed of parallel runs in bfloat16 on one H200, without LCR.
SPEED_RECORD_NAMES = {
    "resnet20": "gpu-steps-resnet20-five-lean.json",
    "resnet18": "gpu-steps-resnet18-three-lean.json",
    "react18": "gpu-steps-resnet18-three-lean.json",
}
NUM_TRAIN_IMAGES = {("cifar10", "train+valid"): 50_000, ("cifar10", "train"): 40_000}


def estimate_gpu_minutes(paper_tables: PaperTables, table: PaperTable) -> float | None:
    """Return the minutes on one H200 for the unfinished runs of a table, or None if a speed is not known."""
    minutes = 0.0
    for variant, num_seeds in paper_tables.count_seeds(table).items():
        spec = paper_tables.get_plan(variant.study).variants.get(variant.name)
        if spec is None:  # the settings of this variant are not decided yet
            return None
        num_missing = num_seeds - len(paper_tables.read_runs(variant, num_seeds))
        speed, num_images = find_training_speed(spec.model), NUM_TRAIN_IMAGES.get((spec.dataset, spec.train_split))
        if speed is None or num_images is None:
            return None
        minutes += num_missing * spec.epochs * num_images / speed / 60
    return minutes


@cache
def find_training_speed(model: str) -> float | None:
    """Return the images per second of a network on one H200, or None without a record of this speed."""
    name = next((record for start, record in SPEED_RECORD_NAMES.items() if model.startswith(start)), None)
    if name is None:
        return None
    return float(json.loads((SPEED_RECORDS / name).read_text())["figures"]["images_per_second"])
