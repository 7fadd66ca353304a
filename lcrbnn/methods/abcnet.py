"""ABC-Net: weights and activations as sums of several binary bases (Lin, Zhao & Pan 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn import ops
from lcrbnn.errors import number
from lcrbnn.methods.contract import ActivationBinarizer, Binary, WeightBinarizer

RIDGE = 1e-6  # of the number of weights, on the diagonal: two equal bases share their part


def spread(bases: int) -> list[float]:
    """The paper's u_m = -1 + 2 (m - 1) / (M - 1); a single base sits in the middle."""
    return [0.0] if bases == 1 else [-1 + 2 * m / (bases - 1) for m in range(bases)]


def least_squares(bases: Tensor, target: Tensor) -> Tensor:
    """The a, (M,), with the smallest |sum_m a_m bases_m - target|, for (M, n) and (n,); a CUDA graph can hold it."""
    count, n = bases.shape
    gram = bases @ bases.T + RIDGE * n * torch.eye(count, dtype=bases.dtype, device=bases.device)
    rows = [torch.cat([gram[i], (bases[i] @ target).reshape(1)]) for i in range(count)]
    for i in range(count):  # Gauss and Jordan; the matrix is positive, so no row has to move
        rows[i] = rows[i] / rows[i][i]
        rows = [row if j == i else row - row[i] * rows[i] for j, row in enumerate(rows)]
    return torch.stack([row[-1] for row in rows])


class AbcWeight(WeightBinarizer):
    """sum_m a_m B_m, B_m = sign(w - mean + u_m std) of the whole layer, a by least squares without gradient.

    `weight_bases` is M. The published tables' "1/1" is M = N = 1, the default; one base has u = 0, where the paper's
    formula divides by 0. Each base passes its gradient straight to w, as the paper says; a of a layer, not of a filter,
    since its formulas are those of a layer. The gradient keeps the factor a_m, as the paper's chain rule does: at SGD's
    usual rate few signs turn at first. Several bases cannot be exported as 1 bit.
    """

    def __init__(self, weight: Tensor, *, weight_bases: int = 1) -> None:
        """Take M."""
        super().__init__(weight)
        number(weight_bases, "the weight bases of abc-net", low=1, high=8, whole=True)
        self.bits = weight_bases

    def latent(self, weight: Tensor) -> Tensor:
        """The centred weight: what the bases approximate, but for the mean."""
        return weight - weight.mean()

    def forward(self, weight: Tensor) -> Binary:
        """Signs and a number a base."""
        centred = weight - weight.detach().mean()
        deviation = weight.detach().square().mean().sub(weight.detach().mean().square()).clamp_min(0).sqrt()
        signs = torch.stack([ops.surrogate_sign(centred + u * deviation, ops.straight) for u in spread(self.bits)])
        with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
            scale = least_squares(signs.detach().flatten(1), weight.detach().flatten())
        if self.bits == 1:
            return Binary(signs[0], scale[0])
        return Binary(signs, scale.reshape(-1, *[1] * (weight.dim() - 1)), bases=self.bits)


def _clip_half(x: Tensor, p: Tensor | None, q: Tensor | None) -> Tensor:
    return (x.abs() <= 0.5).to(x.dtype)


class AbcActivation(ActivationBinarizer):
    """sum_n b_n H(x + v_n), H = +1 where clip(x + v, 0, 1) >= 1/2, else -1; slope 1 where 0 <= x + v <= 1.

    `activation_bases` is N; b and v are learned a layer. Their start is a choice, no code being released: thresholds
    1/2 - v evenly inside (-1, 1), so that a single base starts as a sign, and b = 1/N. Their gradients are divided by
    the root of the map's size (`ops.slowed`), ours too.
    """

    real_border = True

    def __init__(self, channels: int, *, activation_bases: int = 1) -> None:
        """Make b and v of each base."""
        super().__init__(channels)
        number(activation_bases, "the activation bases of abc-net", low=1, high=8, whole=True)
        self.bits = count = activation_bases
        thresholds = torch.arange(1, count + 1) * (2 / (count + 1)) - 1
        self.shift = nn.Parameter(0.5 - thresholds)
        self.scale = nn.Parameter(torch.full((count,), 1 / count))

    def forward(self, x: Tensor) -> Binary:
        """One base a threshold."""
        shift, scale = (ops.slowed(p, x[0].numel()) for p in (self.shift - 0.5, self.scale))
        signs = [ops.surrogate_sign(x + shift[i], _clip_half) for i in range(self.bits)]
        if self.bits == 1:
            return Binary(signs[0], scale[0])
        return Binary(torch.stack(signs), scale.reshape(-1, *[1] * x.dim()), bases=self.bits)
