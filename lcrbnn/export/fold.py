"""Batch norms move into the layer they follow: in float64, rounded once when all are in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lcrbnn.export.draft import Step, refuse, users

TAKING = ("conv", "bconv", "wconv")  # the ops that take a batch norm in


def fold(steps: Sequence[Step]) -> list[Step]:
    """Merge every affine step into the layer whose value nothing else reads; return the steps that are left."""
    reading = users(steps)
    left = []
    for step in steps:
        layer = step.inputs[0]
        if step.op != "affine" or layer.op not in TAKING or len(reading[layer]) != 1:
            left.append(step)
            continue
        _take(layer, step.keys["a"], step.keys["b"])
        layer.name += f" + {step.name}"
        layer.sources += step.sources
        for user in reading[step]:
            user.inputs = [layer if one is step else one for one in user.inputs]
        reading[layer] = reading[step]
    return left


def _take(layer: Step, a: np.ndarray, b: np.ndarray) -> None:
    keys = layer.keys
    if layer.op == "conv":
        keys["weight"] = keys["weight"] * a[:, None, None, None]
        keys["bias"] = a * keys.get("bias", 0.0) + b
    else:
        keys["a"], keys["b"] = a * keys["a"], a * keys["b"] + b


def round_once(steps: Sequence[Step]) -> None:
    """Turn every float64 tensor into float32."""
    for step in steps:
        for key, value in step.keys.items():
            if not isinstance(value, np.ndarray):
                continue
            with np.errstate(over="ignore"):
                step.keys[key] = np.ascontiguousarray(value, np.float32)
            if not np.isfinite(step.keys[key]).all():
                refuse(step.name, f"its {key} holds numbers that float32 does not")
