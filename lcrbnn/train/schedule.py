"""Learning rate and lambda as pure functions of where training is, so that nothing has to be stored."""

from __future__ import annotations

import math
from collections.abc import Callable

from lcrbnn.train.spec import Spec


def learning_rate(spec: Spec, epoch: int, step: int, steps: int) -> float:
    """The learning rate of a step (counted from 0) in an epoch of so many steps.

    By epoch, the warm-up takes (epoch + 1) / warmup of it and its last epoch is the first of the fall, as in RBNN's
    code; by step, both go on smoothly.
    """
    at = epoch if spec.pace == "epoch" else epoch + step / steps
    if at < spec.warmup:
        return spec.lr * min(1.0, (at + (1 if spec.pace == "epoch" else 1 / steps)) / spec.warmup)
    return spec.lr * FALLS[spec.schedule](spec, at)


def _share(spec: Spec, at: float) -> float:
    begun = max(0.0, spec.warmup - 1) if spec.pace == "epoch" else spec.warmup
    return (at - begun) / max(spec.epochs - begun, 1e-9)


FALLS: dict[str, Callable[[Spec, float], float]] = {
    "cosine": lambda spec, at: 0.5 * (1 + math.cos(math.pi * _share(spec, at))),
    "linear": lambda spec, at: 1 - _share(spec, at),
    "linear-ahead": lambda spec, at: max(0.0, 1 - _share(spec, at + 1)),
    "step": lambda spec, at: spec.gamma ** sum(at >= m for m in spec.milestones),
    "constant": lambda spec, at: 1.0,
}


def retention_weight(spec: Spec, full: float, epoch: int, step: int, steps: int) -> float:
    """Lambda of a step: it rises to its full size in a straight line over the first `ramp` epochs."""
    at = epoch + step / steps
    return full * min(1.0, at / spec.ramp) if spec.ramp > 0 else full


def looked_at(spec: Spec, epoch: int) -> bool:
    """Whether ratios and gradients are looked at in this epoch: 20 to 50 times a run, often early, and in the last."""
    return epoch in (1, 2, 4, 8) or epoch % math.ceil(spec.epochs / 40) == 0 or epoch == spec.epochs - 1
