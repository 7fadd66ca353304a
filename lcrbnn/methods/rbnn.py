"""RBNN: weights rotated towards their signs, once an epoch (Lin et al. 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lcrbnn import ops
from lcrbnn.methods.annealing import Annealing
from lcrbnn.methods.contract import (
    ActivationBinarizer,
    Binary,
    WeightBinarizer,
    mean_magnitude,
    per_filter,
    per_output,
    standardize_filters,
    standardize_samples,
)

ROUNDS = 3  # alternations of an update of the rotation


def near_square(n: int) -> tuple[int, int]:
    """The factors (a, b) of n that are closest to each other, a <= b."""
    a = next(a for a in range(math.isqrt(n), 0, -1) if n % a == 0)
    return a, n // a


def random_rotation(n: int) -> Tensor:
    """A random orthogonal matrix, uniform (Haar), from torch's generator."""
    q, r = torch.linalg.qr(torch.randn(n, n))
    return q * torch.where(torch.diagonal(r) < 0, -1.0, 1.0)


def _nearest_rotation(x: Tensor) -> Tensor:
    """The orthogonal matrix nearest to x, found on the CPU: a GPU takes small decompositions one by one."""
    u, _, vh = torch.linalg.svd(x.cpu())
    return (u @ vh).to(x.device)


def _wide(x: Tensor) -> Tensor:
    """At least float32: a rotation in half precision turns weights across zero."""
    return x.float() if x.dtype.itemsize < 4 else x


class RbnnWeight(WeightBinarizer):
    """alpha sign(w3), w3 = w2 + |sin theta| (R1^T w2 R2 - w2), w2 the standardised filter as an a x b matrix.

    alpha is learned a filter, from the mean |w| of the fresh weight; theta is learned a filter, from pi/2. The rotated
    weight takes no gradient, so at theta = pi/2 no gradient at all reaches w: it is unlocked as theta drifts (weight
    decay, rounding). That is the released code's behaviour, kept on purpose.
    """

    training_only = ("theta",)
    left: Tensor
    right: Tensor

    def __init__(self, weight: Tensor, *, t_min: float = 1e-2, t_max: float = 1e1) -> None:
        """Draw the two rotations."""
        super().__init__(weight)
        self.annealing = Annealing(t_min, t_max)
        a, b = near_square(weight[0].numel())
        self.register_buffer("left", random_rotation(a))
        self.register_buffer("right", random_rotation(b))
        self.theta = nn.Parameter(torch.full((weight.shape[0],), math.pi / 2))
        self.alpha = nn.Parameter(mean_magnitude(weight.detach()).clone())

    def latent(self, weight: Tensor) -> Tensor:
        """The standardised weight, mixed with its rotation."""
        plain = standardize_filters(weight)
        with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
            rotated = _wide(self.left).T @ self._matrices(_wide(plain)) @ _wide(self.right)
            rotated = rotated.view_as(weight).to(weight.dtype)
        return plain + per_filter(torch.sin(self.theta).abs(), weight) * (rotated - plain)

    def forward(self, weight: Tensor) -> Binary:
        """Signs of the mixed weight and the learned scale."""
        signs = ops.surrogate_sign(self.latent(weight), ops.tent_slope, self.annealing.t, self.annealing.k)
        return Binary(signs, per_output(self.alpha, weight))

    @torch.no_grad()
    def start_epoch(self, weight: Tensor) -> None:
        """Turn both rotations towards the signs of the weights that they rotate."""
        with torch.autocast(weight.device.type, enabled=False):
            x = self._matrices(standardize_filters(_wide(weight)))
            left, right = _wide(self.left), _wide(self.right)
            for _ in range(ROUNDS):
                signs = ops.sign(left.T @ x @ right)
                left = _nearest_rotation((signs @ right.T @ x.mT).sum(0)).T
                right = _nearest_rotation((x.mT @ left @ signs).sum(0))
            self.left.copy_(left)
            self.right.copy_(right)

    def _matrices(self, weight: Tensor) -> Tensor:
        return weight.reshape(weight.shape[0], self.left.shape[0], self.right.shape[0])


class RbnnActivation(ActivationBinarizer):
    """sign of the sample minus its mean over its standard deviation, train and test; slope with k = 1 and t >= 1.

    With real activations (1/32) the standardised sample itself is multiplied, as in the released code.
    """

    sample_sums = 1

    def __init__(self, channels: int, *, t_min: float = 1e-2, t_max: float = 1e1) -> None:
        """Take the ends of the temperature's schedule."""
        super().__init__(channels)
        self.annealing = Annealing(t_min, t_max)

    def forward(self, x: Tensor) -> Binary:
        """Signs of each sample, standardised over all but its first axis."""
        t = self.annealing.t.clamp_min(1)
        return Binary(ops.surrogate_sign(standardize_samples(x), ops.tent_slope, t, torch.ones_like(t)))
