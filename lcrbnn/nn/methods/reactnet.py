"""ReActNet learns a shift per channel before the sign (Liu et al. 2020). ReActNet's RPReLU is in lcrbnn.nn.models."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.binarizer import ActivationBinarizer, BinaryTensor
from lcrbnn.nn.methods.bireal import BirealWeight


class ReactActivation(ActivationBinarizer):
    """Returns sign(x + b) with slope 2 - 2|x + b| (RSign). b is learned per channel and starts at 0."""

    learns_threshold = True

    def __init__(self, channels: int) -> None:
        """Create the learned shifts, one per channel."""
        super().__init__(channels)
        self.shift = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return the signs of the shifted input."""
        return BinaryTensor(ops.surrogate_sign(self.add_channel_shift(x, self.shift), ops.approx_sign_slope))


class ReactWeight(BirealWeight):
    """Returns alpha sign(w) as in Bi-Real's PyTorch code: clipped gradient without alpha, initially in [0, 0.001)."""
