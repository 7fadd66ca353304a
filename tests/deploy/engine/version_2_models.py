"""Small models that need version 2 of the file format: every operator, broadcasting and several outputs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from lcrbnn.deploy.engine.graph import BnnModel, ModelOutput, Node
from tests.deploy.engine.small_models import Generator, draw_attributes, draw_normal, make_model, make_window

ACTIVATIONS = ("sigmoid", "tanh", "gelu", "gelu_tanh", "silu", "hardsigmoid", "hardswish")


def draw_indices(rng: Generator, count: int, size: int) -> np.ndarray:
    """Return random indices from −1 to size − 1."""
    return rng.integers(-1, size, count).astype(np.int32)


def draw_normalize(rng: Generator, channels: int, groups: int, *, spatial: bool) -> dict[str, Any]:
    scales = {"a": draw_normal(rng, channels), "b": draw_normal(rng, channels)}
    return {"groups": groups, "spatial": int(spatial), "eps": 1e-5, **scales}


def make_version_2_model(rng: Generator) -> BnnModel:
    """Return a model with each operator of version 2, with and without each optional attribute, and three outputs."""
    rows: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
        ("take", (0,), {"rows": draw_indices(rng, 9, 7), "channels": draw_indices(rng, 4, 3), "fill": 0.5}),
        ("take", (1,), {"columns": draw_indices(rng, 6, 6)}),
        ("constant", (), {"value": draw_normal(rng, 9, 1, 4)}),
        ("constant", (), {"value": draw_normal(rng, 1, 6, 1).astype(np.float16)}),
        ("add", (2, 3), {}),
        ("multiply", (4, 5), {}),
        ("normalize", (6,), draw_normalize(rng, 4, 2, spatial=True)),
        ("clamp", (7,), {"low": -1.5}),
        ("clamp", (8,), {"low": -1.0, "high": 1.25}),
        ("strided", (9,), {"shape": (4, 9, 6), "lengths": (4, 9, 6), "strides": (1, 24, 4), "offset": 0}),
        ("strided", (9,), {"shape": (4, 6, 2), "lengths": (48,), "strides": (-2,), "offset": 150}),
        ("matmul", (10, 11), {"transpose": 0}),
        ("matmul", (10, 10), {"transpose": 1}),
        ("softmax", (13,), {}),
        ("bilinear", (14,), {"size": (5, 3), "align_corners": 0}),
        ("bilinear", (12,), {"size": (5, 3), "align_corners": 1}),
        ("adaptive_avgpool", (15,), {"size": (3, 4)}),
        ("elu", (17,), {"alpha": 0.75}),
        *((op, (18 + index,), {}) for index, op in enumerate(ACTIVATIONS)),
        ("bconv", (25,), draw_attributes(rng, "bconv", 9, 3, make_window((3, 3), pad=(1, 1, 1, 1)))),
        ("mean", (26,), {}),
        ("mean", (16,), {}),
    ]
    model = make_model((7, 6, 3), *(Node(op, f"{op} {i}", inputs, keys) for i, (op, inputs, keys) in enumerate(rows)))
    outputs = (ModelOutput("logits", 27), ModelOutput("map", 26), ModelOutput("end", len(model.nodes)))
    return dataclasses.replace(model, outputs=outputs, classes=("a", "b", "c"))
