"""XNOR-Net++ learns a scale over the channels, rows and columns of the output (Bulat et al. 2019).

There is no official training code. Forward pass, gradient and initial values are those of the author's library.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError, check_number
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.binarizer import BinaryTensor, WeightBinarizer
from lcrbnn.nn.methods.xnor import XnorActivation

# Shapes of the factors whose product is the scale, in the four cases of the paper, for an output of (c, h, w).
FACTOR_SHAPES = {
    1: lambda c, h, w: [(c, 1, 1)],
    2: lambda c, h, w: [(c, h, w)],
    3: lambda c, h, w: [(c, 1, 1), (1, h, w)],
    4: lambda c, h, w: [(c, 1, 1), (1, h, 1), (1, 1, w)],
}


class XnorPlusWeight(WeightBinarizer):
    """Returns Gamma sign(w), where w is centered over input channels (with gradient), with slope 1 where |w| < 1.

    The option `case` selects the shape of the scale Gamma. Case 1 has one number per channel, case 2 one per output
    value. Case 3 is channel x position. Case 4 is channel x row x column: the best in the paper, and the default. Cases
    2 to 4 fix the image size, so the layer must know its output size before the first forward pass.
    `lcrbnn.create_model` sets it. `lcrbnn.binarize` sets it if it gets an `example`. Otherwise call
    `lcrbnn.fit_output_shapes`. A linear layer only has case 1.
    """

    def __init__(self, weight: Tensor, *, case: int = 4) -> None:
        """Create the factors of the scale as ones. In cases 2 to 4, this needs the output size, so it is done later."""
        super().__init__(weight)
        check_number(case, "the case of xnor++", low=1, high=4, integer=True)
        self.case = case
        self.channels = weight.shape[0]
        self.factors = nn.ParameterList()
        self.needs_output_shape = weight.dim() == 4 and case > 1
        if weight.dim() == 2:
            self.factors.append(nn.Parameter(weight.new_ones(self.channels)))
        elif case == 1:
            self.fit_output_shape((1, 1))

    def fit_output_shape(self, output_shape: tuple[int, ...]) -> None:
        """Create the factors of the scale for outputs with this height and width."""
        if not self.factors:
            self.factors.extend(
                nn.Parameter(torch.ones(shape)) for shape in FACTOR_SHAPES[self.case](self.channels, *output_shape)
            )
            self.needs_output_shape = False

    def pre_sign_weight(self, weight: Tensor) -> Tensor:
        """Return the centered weight."""
        return weight - weight.mean(1, keepdim=True) if weight.shape[1] > 1 else weight

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs, and the product of the learned factors as the scale."""
        if not self.factors:
            raise InputError(
                f"xnor++ (case {self.case}) learns a scale per output position and needs the image size: pass an "
                "example to binarize, call lcrbnn.fit_output_shapes(model, example), or choose case=1"
            )
        scale = self.factors[0]
        for factor in list(self.factors)[1:]:
            scale = scale * factor
        return BinaryTensor(ops.surrogate_sign(self.pre_sign_weight(weight), ops.open_clip_slope), scale)


class XnorPlusActivation(XnorActivation):
    """Returns sign(x) with slope 1 where |x| < 1, as in XNOR-Net. The learned weight scale also scales activations."""
