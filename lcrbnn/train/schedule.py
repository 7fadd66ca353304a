"""Compute learning rate and LCR weight (lambda) from the position in training, so no state has to be stored."""

from __future__ import annotations

import math
from collections.abc import Callable

from lcrbnn.train.setup.spec import TrainSpec


def compute_learning_rate(spec: TrainSpec, epoch: int, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step. Epochs and steps are counted from 0.

    The learning rate is updated once per epoch or once per step. If it is updated once per epoch, epoch e of the
    warm-up has (e + 1) / lr_warmup_epochs of the full rate. The last epoch of the warm-up is then also the first one of
    the decay, as in RBNN's code. If it is updated once per step, both warm-up and decay are continuous.
    """
    is_per_epoch = spec.lr_update_interval == "epoch"
    # Time in epochs, as a whole number if the schedule changes once per epoch
    time = epoch if is_per_epoch else epoch + step / steps_per_epoch
    if time < spec.lr_warmup_epochs:
        return spec.lr * min(1.0, (time + (1 if is_per_epoch else 1 / steps_per_epoch)) / spec.lr_warmup_epochs)
    return spec.lr * LR_SCHEDULES[spec.lr_schedule](spec, time)


def _decay_progress(spec: TrainSpec, time: float) -> float:
    """Return the finished fraction of the decay at a time in epochs, from 0 at the start to 1 at the end."""
    start = max(0.0, spec.lr_warmup_epochs - 1) if spec.lr_update_interval == "epoch" else spec.lr_warmup_epochs
    return (time - start) / max(spec.epochs - start, 1e-9)


# Functions that return the factor of the learning rate after the warm-up, for a time in epochs.
LR_SCHEDULES: dict[str, Callable[[TrainSpec, float], float]] = {
    "cosine": lambda spec, time: 0.5 * (1 + math.cos(math.pi * _decay_progress(spec, time))),
    "linear": lambda spec, time: 1 - _decay_progress(spec, time),
    "linear-last-epoch-zero": lambda spec, time: max(0.0, 1 - _decay_progress(spec, time + 1)),
    "multistep": lambda spec, time: spec.lr_gamma ** sum(time >= m for m in spec.lr_milestones),
    "constant": lambda spec, time: 1.0,
}


def compute_lcr_weight(spec: TrainSpec, full_lcr_weight: float, epoch: int, step: int, steps_per_epoch: int) -> float:
    """Return lambda at a step.

    It grows linearly from 0 to its full value during the first `lcr_warmup_epochs` epochs.
    """
    if spec.lcr_warmup_epochs == 0:
        return full_lcr_weight
    return full_lcr_weight * min(1.0, (epoch + step / steps_per_epoch) / spec.lcr_warmup_epochs)


def is_measured_epoch(spec: TrainSpec, epoch: int) -> bool:
    """Return whether the sigma ratios and the gradient ratio are measured in this epoch.

    They are measured 20 to 50 times per run: more often in the first epochs, and always in the last one.
    """
    return epoch in (1, 2, 4, 8) or epoch % math.ceil(spec.epochs / 40) == 0 or epoch == spec.epochs - 1
