"""Data classes of an exported network, whose nodes compute values from earlier values (docs/format.md).

`operators` checks a model (attributes and output shapes), `bnn_file` reads and writes it, and `reference` computes
slowly what an engine must compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lcrbnn import __version__


class ModelOutput(NamedTuple):
    """An output of a model, with its name and the index of its value (node i computes value i + 1)."""

    name: str
    value: int


class PackedSigns(NamedTuple):
    """Rows of n signs, packed by lcrbnn.deploy.engine.bits.pack_signs: uint8 [rows, ceil(n / 8)]."""

    packed: np.ndarray
    n: int


@dataclass(frozen=True, eq=False)
class Node:
    """A node of the graph, which computes the next value from earlier values.

    Its attributes depend on the operator: integers, lists of integers, numbers, a keyword, or tensors (arrays of
    float32, float16 or int32, PackedSigns).
    """

    op: str
    name: str
    inputs: tuple[int, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class BnnModel:
    """A network and its preprocessing, (pixel / top − mean) / std. `shape` is (h, w, c) of an image.

    A picture is resized until its shorter side is `margin` times that of the input. Then its centre is cropped.
    Without `outputs`, the last value is the only output. `classes` are the names for the channels of the first output;
    they may be empty if the model has `outputs`.
    Two models are equal if their files have the same bytes (lcrbnn.deploy.engine.bnn_file.to_bytes).
    """

    name: str
    shape: tuple[int, int, int]
    top: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    nodes: tuple[Node, ...]
    margin: float = 1.0
    writer: str = f"lcrbnn {__version__}"
    outputs: tuple[ModelOutput, ...] = ()
