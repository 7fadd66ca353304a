"""Collect the numbers for the record of a finished run: last epoch, sample of the log, and accuracy under noise."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from lcrbnn.train.loop import TrainingLoop

MAX_HISTORY_EPOCHS = 21  # maximum number of epochs in the history of a record
HISTORY_COLUMNS = ("epoch", "train_loss", "train_top1", "valid_top1", "lcr_gradient_ratio", "sigma_ratios")
SIGNIFICANT_DIGITS = 5  # number of significant digits of the values in the history
_NOT_IN_LAST_EPOCH = ("epoch", "steps", "seconds", "data_time_fraction")


def collect_run_figures(loop: TrainingLoop) -> dict[str, Any]:
    """Return the figures of a finished run for its record."""
    splits, lines = loop.splits, loop.folder.read_log()
    last_line = loop.folder.read_last_log_line()
    newest_checkpoint = loop.folder.find_newest_checkpoint()
    assert newest_checkpoint is not None
    lcr_modules = {kind: names for kind, names in loop.parts.lcr_modules._asdict().items() if names}
    return {
        "epochs": len(lines),
        "steps": loop.steps_done,
        "seconds": round(sum(line["seconds"] for line in lines), 1),
        "num_images": {"train": len(splits.train), "valid": 0 if splits.valid is None else len(splits.valid)},
        "last_epoch": {name: value for name, value in last_line.items() if name not in _NOT_IN_LAST_EPOCH},
        **({} if not splits.data_loading else {"data_loading": _describe_data_loading(loop, lines)}),
        **({} if loop.noise_top1 is None else {"noise_top1": loop.noise_top1}),
        **({"lcr_modules": lcr_modules} if lcr_modules else {}),
        "history": sample_log_lines(lines),
        "device": loop.context.device.type,
        "training_step": loop.context.describe_step(),
        "teacher_sha256": loop.parts.teacher_digest,
        "log_sha256": loop.folder.hash_log(),
        "checkpoint_sha256": hashlib.sha256(newest_checkpoint.read_bytes()).hexdigest(),
    }


def _describe_data_loading(loop: TrainingLoop, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how images were read, the time fraction spent waiting for them per epoch, and the broken images."""
    fractions = [line["data_time_fraction"] for line in lines if "data_time_fraction" in line]
    figures = {**loop.splits.data_loading, **({"data_time_fraction": fractions} if fractions else {})}
    if loop.spec.skip_broken_images:
        broken_images = loop.splits.broken_images
        figures |= {"num_broken_images": len(broken_images), "broken_images": broken_images}
    return figures


def sample_log_lines(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return HISTORY_COLUMNS of the measured epochs. At most MAX_HISTORY_EPOCHS evenly spaced epochs are included.

    An epoch is measured if its log line has sigma ratios. If no line has any, all epochs count as measured.
    """
    candidates = [line for line in lines if line["sigma_ratios"] is not None] or list(lines)
    sample = {line["epoch"]: line for line in candidates}
    if len(candidates) > MAX_HISTORY_EPOCHS:
        first, last = candidates[0]["epoch"], candidates[-1]["epoch"]
        targets = [first + (last - first) * i / (MAX_HISTORY_EPOCHS - 1) for i in range(MAX_HISTORY_EPOCHS)]
        nearest = (min(candidates, key=lambda line: abs(line["epoch"] - epoch)) for epoch in targets)
        sample = {line["epoch"]: line for line in nearest}
    return [{name: _round_numbers(line[name]) for name in HISTORY_COLUMNS} for line in sample.values()]


def _round_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_round_numbers(item) for item in value]
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if isinstance(value, float) else value
