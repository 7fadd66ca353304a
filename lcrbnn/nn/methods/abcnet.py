"""ABC-Net: weights and activations as sums of several binary bases (Lin, Zhao & Pan 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn.errors import check_number
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.binarizer import ActivationBinarizer, BinaryTensor, WeightBinarizer

# Ridge term of the least-squares fit, times the number of weights. With it, two equal bases get equal scales.
RIDGE_PER_WEIGHT = 1e-6


def base_offsets(bases: int) -> list[float]:
    """Return the paper's u_m = -1 + 2 (m - 1) / (M - 1). A single base has offset 0."""
    return [0.0] if bases == 1 else [-1 + 2 * m / (bases - 1) for m in range(bases)]


def fit_base_scales(bases: Tensor, target: Tensor) -> Tensor:
    """Return the a, (M,), that minimizes |sum_m a_m bases_m - target|, for (M, n) and (n,).

    Only operations that a CUDA graph can capture are used.
    """
    count, n = bases.shape
    gram = bases @ bases.T + RIDGE_PER_WEIGHT * n * torch.eye(count, dtype=bases.dtype, device=bases.device)
    rows = [torch.cat([gram[i], (bases[i] @ target).reshape(1)]) for i in range(count)]
    # Gauss-Jordan elimination. The matrix is positive definite, so no pivoting is needed.
    for i in range(count):
        rows[i] = rows[i] / rows[i][i]
        rows = [row if j == i else row - row[i] * rows[i] for j, row in enumerate(rows)]
    return torch.stack([row[-1] for row in rows])


class AbcWeight(WeightBinarizer):
    """sum_m a_m B_m, where B_m = sign(w - mean + u_m std) over the whole layer and a is a least-squares fit.

    `weight_bases` is M. The "1/1" of the published tables is M = N = 1, the default. For one base u is 0, where the
    paper's formula divides by 0. Each base passes its gradient straight to w, as in the paper. a has no gradient. It
    belongs to the layer and not to a filter, because the formulas of the paper do. The gradient contains the factor
    a_m, as the chain rule in the paper does. With the usual learning rate of SGD, few signs change at first. Several
    bases cannot be exported as 1 bit.
    """

    def __init__(self, weight: Tensor, *, weight_bases: int = 1) -> None:
        """Set M."""
        super().__init__(weight)
        check_number(weight_bases, "the weight bases of abc-net", low=1, high=8, integer=True)
        self.bits = weight_bases

    def pre_sign_weight(self, weight: Tensor) -> Tensor:
        """Return the centered weight. The bases approximate the weight, which differs from it only by its mean."""
        return weight - weight.mean()

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs and one number per base."""
        centred = weight - weight.detach().mean()
        deviation = weight.detach().square().mean().sub(weight.detach().mean().square()).clamp_min(0).sqrt()
        signs = torch.stack(
            [ops.surrogate_sign(centred + u * deviation, ops.identity_slope) for u in base_offsets(self.bits)]
        )
        with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
            scale = fit_base_scales(signs.detach().flatten(1), weight.detach().flatten())
        if self.bits == 1:
            return BinaryTensor(signs[0], scale[0])
        return BinaryTensor(signs, scale.reshape(-1, *[1] * (weight.dim() - 1)), num_bases=self.bits)


def _half_clip_slope(x: Tensor, p: Tensor | None, q: Tensor | None) -> Tensor:
    return (x.abs() <= 0.5).to(x.dtype)


class AbcActivation(ActivationBinarizer):
    """sum_n b_n H(x + v_n), where H is +1 if clip(x + v, 0, 1) >= 1/2, else -1. Slope: 1 where 0 <= x + v <= 1.

    `activation_bases` is N. b and v are learned per layer. There is no released code, so two details are choices of
    this package: the thresholds 1/2 - v start evenly spaced inside (-1, 1), so that a single base starts as a sign,
    with b = 1/N, and the gradients of b and v are divided by the square root of the size of the feature map
    (`functional.scale_gradient`).
    """

    has_real_padding = True
    learns_threshold = True

    def __init__(self, channels: int, *, activation_bases: int = 1) -> None:
        """Create b and v of each base."""
        super().__init__(channels)
        check_number(activation_bases, "the activation bases of abc-net", low=1, high=8, integer=True)
        self.bits = count = activation_bases
        thresholds = torch.arange(1, count + 1) * (2 / (count + 1)) - 1
        self.shift = nn.Parameter(0.5 - thresholds)
        self.scale = nn.Parameter(torch.full((count,), 1 / count))

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return one base per threshold."""
        shift, scale = (ops.scale_gradient(p, x[0].numel()) for p in (self.shift - 0.5, self.scale))
        signs = [ops.surrogate_sign(x + shift[i], _half_clip_slope) for i in range(self.bits)]
        if self.bits == 1:
            return BinaryTensor(signs[0], scale[0])
        return BinaryTensor(torch.stack(signs), scale.reshape(-1, *[1] * x.dim()), num_bases=self.bits)
