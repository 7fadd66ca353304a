"""ProxyBNN: the latent weight in a learned basis (He et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn import ops
from lcrbnn.errors import number
from lcrbnn.methods.bnn import BnnActivation
from lcrbnn.methods.contract import Binary, WeightBinarizer, mean_magnitude, per_filter, per_output


class ProxyWeight(WeightBinarizer):
    """alpha sign(Z P), Z the layer's latent weight, P a learned basis from the identity; alpha = mean |Z P| a filter.

    A penalty (`penalty` times |P P^T - I|^2) keeps the basis near an orthogonal one. There is no public code, and the
    size of P is a choice: it mixes input channels, the same at every position of the kernel. A basis of whole filters
    would hold 21 million numbers in the last layers of a ResNet-18. A choice too: the gradient of alpha sign(Z P) goes
    straight to Z P, unclipped, as in the other rows with a scale of mean magnitudes (times alpha, a run at the usual
    rate hardly turns a sign at first), then through the product to Z and P; alpha takes none. Evaluation multiplies
    once; the exported weight has no basis.
    """

    training_only = ("basis",)

    def __init__(self, weight: Tensor, *, penalty: float = 1e-3) -> None:
        """Start from the identity."""
        super().__init__(weight)
        number(penalty, "the penalty of proxybnn", low=0)
        self.strength = penalty
        self.basis = nn.Parameter(torch.eye(weight.shape[1]))

    def latent(self, weight: Tensor) -> Tensor:
        """Z P."""
        with torch.autocast(weight.device.type, enabled=False):
            return torch.movedim(torch.movedim(weight, 1, -1) @ self.basis, -1, 1)

    def forward(self, weight: Tensor) -> Binary:
        """Signs and a scale a filter."""
        mixed = self.latent(weight)
        alpha = mean_magnitude(mixed.detach())
        inverse = per_filter(1 / alpha.clamp_min(1e-12), weight)
        return Binary(ops.surrogate_sign(mixed, ops.straight, inverse), per_output(alpha, weight))

    def penalty(self, weight: Tensor) -> Tensor:
        """How far the basis is from an orthogonal one."""
        with torch.autocast(weight.device.type, enabled=False):
            unit = torch.eye(len(self.basis), dtype=self.basis.dtype, device=self.basis.device)
            return self.strength * (self.basis @ self.basis.T - unit).square().sum()


class ProxyActivation(BnnActivation):
    """As BNN: sign(x), slope 1 where |x| <= 1; the paper says nothing of its own about activations."""
