"""ABC-Net represents weights and activations as sums of several binary bases (Lin, Zhao & Pan 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn.errors import check_number
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.binarizer import ActivationBinarizer, BinaryTensor, WeightBinarizer

# Ridge term of the least-squares fit, in units of the number of weights. It gives equal scales to equal bases.
RIDGE_PER_WEIGHT = 1e-6


def base_offsets(bases: int) -> list[float]:
    """Return the offsets u_m = -1 + 2 (m - 1) / (M - 1) of the paper. A single base has offset 0."""
    return [0.0] if bases == 1 else [-1 + 2 * m / (bases - 1) for m in range(bases)]


def fit_base_scales(bases: Tensor, target: Tensor) -> Tensor:
    """Return the scales a, (M,), that minimize |sum_m a_m bases_m - target|, for bases (M, n) and target (n,).

    The function only uses operations that a CUDA graph can capture.
    """
    count, n = bases.shape
    gram = bases @ bases.T + RIDGE_PER_WEIGHT * n * torch.eye(count, dtype=bases.dtype, device=bases.device)
    rows = [torch.cat([gram[i], (bases[i] @ target).reshape(1)]) for i in range(count)]
    # Gauss-Jordan elimination needs no pivoting here, because the matrix is positive definite.
    for i in range(count):
        rows[i] = rows[i] / rows[i][i]
        rows = [row if j == i else row - row[i] * rows[i] for j, row in enumerate(rows)]
    return torch.stack([row[-1] for row in rows])


class AbcWeight(WeightBinarizer):
    """Returns sum_m a_m B_m with the bases B_m = sign(w - mean + u_m std) of the whole layer. a is a least-squares fit.

    The option `weight_bases` is M. The default M = N = 1 is the "1/1" of the published tables. For one base u is 0,
    where the formula of the paper divides by 0. As in the paper, each base passes its gradient straight to w, times a_m
    (chain rule). a has no gradient and is shared by the whole layer. With the usual learning rate of SGD, few signs
    change at first. Several bases are exported as a sum of binary products.
    """

    def __init__(self, weight: Tensor, *, weight_bases: int = 1) -> None:
        """Set M."""
        super().__init__(weight)
        check_number(weight_bases, "the weight bases of abc-net", low=1, high=8, integer=True)
        self.bits = weight_bases

    def pre_sign_weight(self, weight: Tensor) -> Tensor:
        """Return the centered weight, whose sign is the single base. The bases approximate the weight itself."""
        return weight - weight.mean()

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs of each base and one scale per base."""
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
    """Returns sum_n b_n H(x + v_n). H(y) is +1 if clip(y, 0, 1) >= 1/2, else -1. Its slope is 1 where 0 <= y <= 1.

    The option `activation_bases` is N. b and v are learned per layer. There is no released code, so two details are
    choices of this package. First, the thresholds 1/2 - v start evenly spaced inside (-1, 1), and b starts at 1/N. So a
    single base starts as a sign. Second, the gradients of b and v are divided by the square root of the size of the
    feature map (`functional.scale_gradient`).
    """

    has_real_padding = True
    learns_threshold = True

    def __init__(self, channels: int, *, activation_bases: int = 1) -> None:
        """Create the learned b and v of each base."""
        super().__init__(channels)
        check_number(activation_bases, "the activation bases of abc-net", low=1, high=8, integer=True)
        self.bits = count = activation_bases
        thresholds = torch.arange(1, count + 1) * (2 / (count + 1)) - 1
        self.shift = nn.Parameter(0.5 - thresholds)
        self.scale = nn.Parameter(torch.full((count,), 1 / count))

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return the signs and the learned scale of each base. Each base has its own threshold."""
        shift, scale = (ops.scale_gradient(p, x[0].numel()) for p in (self.shift - 0.5, self.scale))
        signs = [ops.surrogate_sign(x + shift[i], _half_clip_slope) for i in range(self.bits)]
        if self.bits == 1:
            return BinaryTensor(signs[0], scale[0])
        return BinaryTensor(torch.stack(signs), scale.reshape(-1, *[1] * x.dim()), num_bases=self.bits)
