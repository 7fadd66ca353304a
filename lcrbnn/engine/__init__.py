"""What a shipped network is: nodes that make values from earlier values, as docs/format.md says. NumPy only.

`check` says which models are right, `format` is the file, `reference` computes slowly what an engine must compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lcrbnn import __version__


class Bits(NamedTuple):
    """Rows of n signs, packed by lcrbnn.bits.pack: uint8 [rows, ceil(n / 8)]."""

    packed: np.ndarray
    n: int


@dataclass(frozen=True, eq=False)
class Node:
    """A step: it makes the next value from earlier ones.

    The keys are those of its op: whole numbers, lists of them, a word, tensors (arrays of float32 or float16, Bits).
    """

    op: str
    name: str
    inputs: tuple[int, ...]
    keys: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Model:
    """A network, and how pixels become its input: (pixel / top − mean) / std. `shape` is (h, w, c) of an image.

    Of a picture the middle is taken, after its shorter side has become `margin` times the input's.
    Two models are the same if their bytes are (lcrbnn.engine.format.to_bytes).
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
