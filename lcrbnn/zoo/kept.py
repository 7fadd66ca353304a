"""Binary layers without their method's weights: the signs and the scale that it arrived at are all that is kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn import ops
from lcrbnn.errors import InputError
from lcrbnn.layers import BinaryLayer, binary_layers, evaluating
from lcrbnn.methods import Binary
from lcrbnn.methods.contract import WeightBinarizer

SIZE = 0.01  # with a learning rate of 0.05, forty steps on digits turn some 5 % of the signs over


class KeptWeight(WeightBinarizer):
    """scale sign(w) with a scale that stays as it is; the gradient of the sign is 1 where |w| <= 1."""

    scale: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor | None) -> None:
        """Take the scale of a method, if it has one."""
        super().__init__(weight)
        self.register_buffer("scale", None if scale is None else scale.detach().clone())

    def forward(self, weight: Tensor) -> Binary:
        """Signs of the weight as it is."""
        return Binary(ops.surrogate_sign(weight, ops.clip_closed), self.scale)


@torch.no_grad()
def keep(net: nn.Module) -> None:
    """Put the signs of each binary layer in place of its latent weight, which then needs nothing else of the method.

    All are as large as SIZE: how far a sign is from turning over if the network is trained on.
    """
    with evaluating(net):  # a method then gives what ships
        weights = {layer: _two_levels(name, layer) for name, layer in binary_layers(net)}
    for layer, w in weights.items():
        layer.weight.copy_(w.signs * SIZE)
        layer.weight_binarizer = KeptWeight(layer.weight, w.scale)
        layer.normalizer = None  # what a regulariser did to the weight is in the scale


def _two_levels(name: str, layer: BinaryLayer) -> Binary:
    """The weight of a layer, if one bit and a scale are all that there is to it."""
    w = layer.binary_weight()
    why = w.soft or ("its weights are real" if layer.method.real_weights else "")
    why = why or (f"{w.bases} bases" if w.bases > 1 else "" if w.offset is None else "its two levels are not opposite")
    if why:
        raise InputError(f"the weights of layer {name!r} cannot be kept as one bit: {why}")
    return w
