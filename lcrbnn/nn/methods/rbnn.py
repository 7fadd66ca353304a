"""RBNN rotates the weights towards their signs once per epoch (Lin et al. 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.annealing import Annealing
from lcrbnn.nn.methods.binarizer import (
    ActivationBinarizer,
    BinaryTensor,
    WeightBinarizer,
    broadcast_over_output,
    broadcast_over_weight,
    mean_magnitude,
    standardize_filters,
    standardize_samples,
)

# Number of rotation updates per epoch; each update changes the left and then the right rotation
ROTATION_UPDATES_PER_EPOCH = 3


def most_square_factors(n: int) -> tuple[int, int]:
    """Return the two factors (a, b) of n that are closest to each other, with a <= b."""
    a = next(a for a in range(math.isqrt(n), 0, -1) if n % a == 0)
    return a, n // a


def random_rotation(n: int) -> Tensor:
    """Return a random orthogonal matrix with the uniform (Haar) distribution, drawn with torch's default generator."""
    q, r = torch.linalg.qr(torch.randn(n, n))
    return q * torch.where(torch.diagonal(r) < 0, -1.0, 1.0)


def _nearest_rotation(x: Tensor) -> Tensor:
    """Return the orthogonal matrix nearest to x.

    It is computed on the CPU, because a GPU is slow for many small SVDs.
    """
    u, _, vh = torch.linalg.svd(x.cpu())
    return (u @ vh).to(x.device)


def _at_least_float32(x: Tensor) -> Tensor:
    """Return x in float32 or a wider type.

    In half precision, rounding in the rotation would change signs of weights.
    """
    return x.float() if x.dtype.itemsize < 4 else x


class RbnnWeight(WeightBinarizer):
    """Returns alpha sign(w3), where w3 is the standardized filter w2 moved towards its rotation.

    w3 = w2 + |sin theta| (R1^T w2 R2 - w2), where w2 is written as an a x b matrix. alpha is learned per filter, from
    the initial mean |w|. theta is learned per filter, from pi/2. The rotated weight has no gradient. So at theta = pi/2
    no gradient reaches w. Gradients appear once theta moves away, by weight decay or rounding. The released code
    behaves in this way, and this package keeps it.
    """

    training_only_parameters = ("theta",)
    left: Tensor
    right: Tensor

    def __init__(self, weight: Tensor, *, t_min: float = 1e-2, t_max: float = 1e1) -> None:
        """Draw the two random rotations, and create alpha and theta."""
        super().__init__(weight)
        self.annealing = Annealing(t_min, t_max)
        a, b = most_square_factors(weight[0].numel())
        self.register_buffer("left", random_rotation(a))
        self.register_buffer("right", random_rotation(b))
        self.theta = nn.Parameter(torch.full((weight.shape[0],), math.pi / 2))
        self.alpha = nn.Parameter(mean_magnitude(weight.detach()).clone())

    def pre_sign_weight(self, weight: Tensor) -> Tensor:
        """Return the standardized weight, mixed with its rotated version."""
        standardized = standardize_filters(weight)
        with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
            rotated = (
                _at_least_float32(self.left).T
                @ self._as_matrices(_at_least_float32(standardized))
                @ _at_least_float32(self.right)
            )
            rotated = rotated.view_as(weight).to(weight.dtype)
        return standardized + broadcast_over_weight(torch.sin(self.theta).abs(), weight) * (rotated - standardized)

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs of the mixed weight, and the learned scale."""
        signs = ops.surrogate_sign(self.pre_sign_weight(weight), ops.tent_slope, self.annealing.t, self.annealing.k)
        return BinaryTensor(signs, broadcast_over_output(self.alpha, weight))

    @torch.no_grad()
    def start_epoch(self, weight: Tensor) -> None:
        """Update both rotations, so that the rotated weights are closer to their signs."""
        with torch.autocast(weight.device.type, enabled=False):
            x = self._as_matrices(standardize_filters(_at_least_float32(weight)))
            left, right = _at_least_float32(self.left), _at_least_float32(self.right)
            for _ in range(ROTATION_UPDATES_PER_EPOCH):
                signs = ops.sign(left.T @ x @ right)
                left = _nearest_rotation((signs @ right.T @ x.mT).sum(0)).T
                right = _nearest_rotation((x.mT @ left @ signs).sum(0))
            self.left.copy_(left)
            self.right.copy_(right)

    def _as_matrices(self, weight: Tensor) -> Tensor:
        return weight.reshape(weight.shape[0], self.left.shape[0], self.right.shape[0])


class RbnnActivation(ActivationBinarizer):
    """Returns the sign of the standardized sample (minus its mean, divided by its deviation), also in evaluation.

    The slope has k = 1 and t >= 1. With real activations (1/32), the standardized sample itself is multiplied, as in
    the released code.
    """

    num_sample_reductions = 1

    def __init__(self, channels: int, *, t_min: float = 1e-2, t_max: float = 1e1) -> None:
        """Set the first and last temperature of the schedule."""
        super().__init__(channels)
        self.annealing = Annealing(t_min, t_max)

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return the signs of the samples, each standardized over all its numbers."""
        t = self.annealing.t.clamp_min(1)
        return BinaryTensor(ops.surrogate_sign(standardize_samples(x), ops.tent_slope, t, torch.ones_like(t)))
