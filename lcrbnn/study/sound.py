"""Whether the record of a run holds what tables take from it: one sentence about the first thing that is wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError

TEST = {"cifar10": 10_000, "cifar10-small": 10_000, "digits": 500}  # images, of data sets that are always whole


def check_run(record: dict[str, Any], path: Path) -> dict[str, Any]:
    """The record itself, if it is of a run and its figures are numbers."""
    if record.get("kind") != "train":
        raise InputError(f"{path} is a record of {record.get('kind')!r}, not of a run")
    last = record["figures"].get("last")
    if not isinstance(last, dict):
        raise InputError(f"{path} has no figures of the last epoch")
    for name in ("train", "valid"):
        _percent(last.get(name), f"{path}: last {name}", absent=name == "valid")
    if not _number(last.get("share")) and last.get("share") is not None:
        raise InputError(f"{path}: the last share is no number; got {last['share']!r}")
    ratios = last.get("ratios")
    if ratios is not None and not (isinstance(ratios, list) and all(isinstance(r, int | float) for r in ratios)):
        raise InputError(f"{path}: the last ratios are no list of numbers; got {ratios!r}")
    noise = record["figures"].get("noise")
    if noise is not None and not (isinstance(noise, dict) and all(map(_number, noise.values()))):
        raise InputError(f"{path}: the accuracies under noise are no numbers; got {noise!r}")
    for reading in record.get("readings", []):
        _check_reading(reading, record["settings"].get("data"), path)
    return record


def _check_reading(reading: Any, data: Any, path: Path) -> None:
    if not isinstance(reading, dict) or reading.get("split") != "test":
        raise InputError(f"{path} has a reading that is not of test images: {reading!r}")
    _percent(reading.get("top1"), f"{path}: a reading's top1")
    _percent(reading.get("top5"), f"{path}: a reading's top5", absent=True)
    images = reading.get("images")
    if not isinstance(images, int) or images < 1 or images != TEST.get(data, images):
        want = f"; {data} has {TEST[data]:,}" if data in TEST else ""
        raise InputError(f"{path}: a reading is of {images!r} images{want}")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _percent(value: Any, what: str, *, absent: bool = False) -> None:
    if not (absent and value is None) and not (_number(value) and 0 <= value <= 100):
        raise InputError(f"{what} is a percentage; got {value!r}")
