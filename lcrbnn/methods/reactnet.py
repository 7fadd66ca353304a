"""ReActNet: a learned shift a channel before the sign (Liu et al. 2020). Its RPReLU belongs to the network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn import ops
from lcrbnn.methods.bireal import BirealWeight
from lcrbnn.methods.contract import ActivationBinarizer, Binary


class ReactActivation(ActivationBinarizer):
    """RSign: sign(x + b), b learned a channel from 0, slope 2 - 2|x + b|."""

    def __init__(self, channels: int) -> None:
        """One shift a channel."""
        super().__init__(channels)
        self.shift = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Binary:
        """Signs of the shifted input."""
        return Binary(ops.surrogate_sign(self.shifted(x, self.shift), ops.triangle))


class ReactWeight(BirealWeight):
    """As Bi-Real's PyTorch code: alpha sign(w), unscaled clipped gradient, start uniform on [0, 0.001)."""
