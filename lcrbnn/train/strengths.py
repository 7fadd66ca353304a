"""STRENGTHS: how much of each form of retention a run takes, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lcrbnn.errors import choose
from lcrbnn.train.spec import Spec

STRENGTHS: dict[str, Callable[[Spec], dict[str, Any]]] = {
    # Chosen on validation images (studies/cifar10-late.toml): from the first epoch on it does harm, late it does not.
    "default": lambda spec: {"form": "default", "share": 0.03, "ramp": float(spec.epochs)},
    # The best of the paper's Table 3. Here it ends training (docs/LOG.md): the form has no scale of its own.
    "paper": lambda spec: {"form": "paper", "weight": 4.0},
    # As published; it needs a teacher.
    "official": lambda spec: {"form": "official", "weight": 8.0},
}


def retaining(spec: Spec, name: str) -> Spec:
    """The same run with retention of this form, at the strength that it goes with."""
    return spec.but(**({"weight": 0.0, "share": 0.0, "ramp": 0.0} | choose(STRENGTHS, name, "retention")(spec)))
