"""REGULARIZERS: what can be set beside retention, a row each: what it does to a fresh network, and what it adds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from lcrbnn.regularizers.defensive import orthogonality
from lcrbnn.regularizers.spectral import normalize_after, normalize_before


class Regularizer(NamedTuple):
    """A row: `attach` changes a fresh network, `loss` is added to that of each step, times the run's strength."""

    name: str
    summary: str
    attach: Callable[[nn.Module], None] | None = None
    loss: Callable[[nn.Module], Tensor] | None = None


_ROWS = [
    Regularizer("none", "nothing beside retention"),
    Regularizer("spectral", "latent weights over their spectral norm, before the sign", attach=normalize_before),
    Regularizer("spectral-signs", "binary weights over their spectral norm, after the sign", attach=normalize_after),
    Regularizer("defensive", "latent weights drawn to orthonormal rows, by a loss", loss=orthogonality),
]

REGULARIZERS: dict[str, Regularizer] = {row.name: row for row in _ROWS}
