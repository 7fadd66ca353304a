"""ProxyBNN expresses the latent weight in a learned basis (He et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn.errors import check_number
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.binarizer import (
    BinaryTensor,
    WeightBinarizer,
    broadcast_over_output,
    broadcast_over_weight,
    mean_magnitude,
)
from lcrbnn.nn.methods.bnn import BnnActivation


class ProxyWeight(WeightBinarizer):
    """Returns alpha sign(Z P).

    Z is the latent weight, P a learned basis that starts as the identity, and alpha = mean |Z P|. A penalty (`penalty`
    times |P P^T - I|^2) keeps the basis close to an orthogonal one. There is no public code, and two details are
    choices of this package. First, P mixes the input channels, in the same way at every position of the kernel. A basis
    of whole filters would have 21 million numbers in the last layers of a ResNet-18. Second, the gradient of alpha
    sign(Z P) passes straight to Z P, unclipped, and then through the product to Z and P. The other methods with a
    mean-magnitude scale do the same. If the gradient were multiplied by alpha, hardly any sign would change at first
    with the usual learning rate. alpha has no gradient and is one number per filter. Evaluation computes the product
    once, and the exported weight has no basis.
    """

    training_only_parameters = ("basis",)

    def __init__(self, weight: Tensor, *, penalty: float = 1e-3) -> None:
        """Create the basis, which starts as the identity."""
        super().__init__(weight)
        check_number(penalty, "the penalty of proxybnn", low=0)
        self.penalty_weight = penalty
        self.basis = nn.Parameter(torch.eye(weight.shape[1]))

    def pre_sign_weight(self, weight: Tensor) -> Tensor:
        """Return Z P, the weight in the learned basis."""
        with torch.autocast(weight.device.type, enabled=False):
            return torch.movedim(torch.movedim(weight, 1, -1) @ self.basis, -1, 1)

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs and a scale per filter."""
        mixed = self.pre_sign_weight(weight)
        alpha = mean_magnitude(mixed.detach())
        inverse_alpha = broadcast_over_weight(1 / alpha.clamp_min(1e-12), weight)
        return BinaryTensor(
            ops.surrogate_sign(mixed, ops.identity_slope, inverse_alpha), broadcast_over_output(alpha, weight)
        )

    def extra_loss(self, weight: Tensor) -> Tensor:
        """Return |P P^T - I|^2, multiplied by the weight of the penalty."""
        with torch.autocast(weight.device.type, enabled=False):
            unit = torch.eye(len(self.basis), dtype=self.basis.dtype, device=self.basis.device)
            return self.penalty_weight * (self.basis @ self.basis.T - unit).square().sum()


class ProxyActivation(BnnActivation):
    """Returns sign(x) with slope 1 where |x| <= 1, as in BNN. The paper does not describe activations."""
