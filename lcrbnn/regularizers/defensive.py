"""Defensive quantisation (Lin, Gan & Han 2019): weights near orthonormal rows, so that no layer amplifies."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn.layers import binary_layers


def orthogonality(model: nn.Module) -> Tensor:
    """The sum over binary layers of |W W^T - I|^2 / 2, W the latent weight as a matrix a row a filter.

    The paper's W^T W gives the same gradient, and differs by a constant: the smaller matrix of the two is taken. It is
    the latent weight that is constrained, since rows of signs all have one length. The paper's convex sums at skips are
    left out: they change the network, and what is compared here are losses. Its beta is the strength of the run, 1e-4
    unless set, which is our choice: there is no public code.
    """
    total = torch.zeros(())
    for _, layer in binary_layers(model):
        with torch.autocast(layer.weight.device.type, enabled=False):
            rows = layer.weight.flatten(1)
            rows = rows if rows.shape[0] <= rows.shape[1] else rows.T
            unit = torch.eye(rows.shape[0], dtype=rows.dtype, device=rows.device)
            total = total.to(rows) + (rows @ rows.T - unit).square().sum() / 2
    return total
