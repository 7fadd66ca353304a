"""XNOR-Net++: a scale learned by back-propagation, over channels, rows and columns of the output (Bulat et al. 2019).

There is no official training code; forward, gradient and initial values are those of the author's library.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn import ops
from lcrbnn.errors import InputError, number
from lcrbnn.methods.contract import Binary, WeightBinarizer
from lcrbnn.methods.xnor import XnorActivation

# The factors of the scale in the paper's four cases, for an output of (c, h, w).
CASES = {
    1: lambda c, h, w: [(c, 1, 1)],
    2: lambda c, h, w: [(c, h, w)],
    3: lambda c, h, w: [(c, 1, 1), (1, h, w)],
    4: lambda c, h, w: [(c, 1, 1), (1, h, 1), (1, 1, w)],
}


class XnorPlusWeight(WeightBinarizer):
    """Gamma sign(w), w centred over input channels inside the graph, slope 1 where |w| < 1.

    `case` picks the shape of Gamma: 1 one number a channel, 2 one an output value, 3 channel x position, 4 channel x
    row x column (the paper's best, the default). Cases 2 to 4 fix the image size: the layer must hear its output
    size first (`lcrbnn.fit`; `lcrbnn.network` sees to it, and `lcrbnn.binarize` if it is given an `example`). A linear
    layer has case 1 only.
    """

    def __init__(self, weight: Tensor, *, case: int = 4) -> None:
        """Start from ones; without a spatial size where none is needed."""
        super().__init__(weight)
        number(case, "the case of xnor++", low=1, high=4, whole=True)
        self.case = case
        self.channels = weight.shape[0]
        self.factors = nn.ParameterList()
        self.needs_fit = weight.dim() == 4 and case > 1
        if weight.dim() == 2:
            self.factors.append(nn.Parameter(weight.new_ones(self.channels)))
        elif case == 1:
            self.fit((1, 1))

    def fit(self, output: tuple[int, ...]) -> None:
        """Make the factors of the scale for an output of this height and width."""
        if not self.factors:
            self.factors.extend(nn.Parameter(torch.ones(shape)) for shape in CASES[self.case](self.channels, *output))
            self.needs_fit = False

    def latent(self, weight: Tensor) -> Tensor:
        """The centred weight."""
        return weight - weight.mean(1, keepdim=True) if weight.shape[1] > 1 else weight

    def forward(self, weight: Tensor) -> Binary:
        """Signs and the product of the learned factors."""
        if not self.factors:
            raise InputError(
                f"xnor++ (case {self.case}) learns a scale for each output position and has not heard the image size: "
                "give binarize an example, call lcrbnn.fit(model, example), or choose case=1"
            )
        scale = self.factors[0]
        for factor in list(self.factors)[1:]:
            scale = scale * factor
        return Binary(ops.surrogate_sign(self.latent(weight), ops.clip_open), scale)


class XnorPlusActivation(XnorActivation):
    """As XNOR-Net: sign(x), slope 1 where |x| < 1. The learned scale stands in for the activations' too."""
