"""REGULARIZERS contains the weight regularizers with which LCR is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lcrbnn.lcr.spectral_normalization import normalize_binary_weights, normalize_latent_weights
from lcrbnn.nn.model_hooks import iter_binary_layers


def orthogonality_loss(model: nn.Module) -> Tensor:
    """Return |W W^T - I|^2 / 2, summed over binary layers. W is the latent weight with one row per filter.

    This is the loss of Defensive Quantization (Lin et al. 2019). That paper uses W^T W, which gives the same gradient
    and a loss that differs by a constant. Here the smaller of the two matrices is used. The latent weight is
    regularized, because all rows of a sign matrix have the same length. The paper also has convex combinations at skip
    connections. They are left out, because they change the network and this project compares losses. The paper's beta
    is the setting regularizer_weight. Its default of 1e-4 is our choice, because there is no public code.
    """
    total = torch.zeros(())
    for _, layer in iter_binary_layers(model):
        with torch.autocast(layer.weight.device.type, enabled=False):
            rows = layer.weight.flatten(1)
            rows = rows if rows.shape[0] <= rows.shape[1] else rows.T
            unit = torch.eye(rows.shape[0], dtype=rows.dtype, device=rows.device)
            total = total.to(rows) + (rows @ rows.T - unit).square().sum() / 2
    return total


class Regularizer(NamedTuple):
    """A weight regularizer. `attach` changes a new network.

    The value of `loss` times regularizer_weight is added to the task loss.
    """

    name: str
    summary: str
    attach: Callable[[nn.Module], None] | None = None
    loss: Callable[[nn.Module], Tensor] | None = None


_ROWS = [
    Regularizer("none", "no regularizer in addition to LCR"),
    Regularizer(
        "spectral-norm-latent",
        "latent weights divided by their spectral norm, before the sign",
        attach=normalize_latent_weights,
    ),
    Regularizer(
        "spectral-norm-binary",
        "binary weights divided by their spectral norm, after the sign",
        attach=normalize_binary_weights,
    ),
    Regularizer(
        "defensive-quantization", "a loss that pulls latent weights towards orthonormal rows", loss=orthogonality_loss
    ),
]

REGULARIZERS: dict[str, Regularizer] = {row.name: row for row in _ROWS}


__all__ = ["REGULARIZERS", "Regularizer"]
