"""BWNH: binary weights by hashing, chosen to keep what the layer computes (Hu et al. 2018; the paper's "BWHN")."""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn import ops
from lcrbnn.methods.annealing import Schedule
from lcrbnn.methods.contract import Binary, WeightBinarizer, mean_magnitude, per_filter, per_output

SWITCH = 0.5  # of training: until then weights are real
ROUNDS = 3  # sweeps of the descent over all channels
MEMORY = 0.99  # of the inputs' second moments, a step


def second_half(progress: float) -> float:
    """1 once weights are binary, before that 0."""
    return float(progress >= SWITCH)


@torch.no_grad()
def hashed(weight: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
    """Signs b and a scale s a filter with a small sum over kernel positions of (w - s b)^T M (w - s b).

    `weight` is (out, in, positions), `moments` M (in, in). Discrete coordinate descent: the best s for the signs, then
    each channel's best sign with all others held, ROUNDS times from sign(w).
    """
    target = torch.einsum("ij,ojp->oip", moments, weight)  # M w
    signs = ops.sign(weight)
    image = torch.einsum("ij,ojp->oip", moments, signs)  # M b, kept up to date
    scale = _best(signs, image, target)
    for _ in range(ROUNDS):
        for i in range(weight.shape[1]):
            old = signs[:, i].clone()
            others = image[:, i] - moments[i, i] * old
            new = ops.sign((target[:, i] - scale[:, None] * others) * scale[:, None])
            image += moments[:, i][None, :, None] * (new - old)[:, None]
            signs[:, i] = new
        scale = _best(signs, image, target)
    return signs, scale


def _best(signs: Tensor, image: Tensor, target: Tensor) -> Tensor:
    return (signs * target).sum((1, 2)) / (signs * image).sum((1, 2)).clamp_min(1e-12)


class BwnhWeight(WeightBinarizer):
    """Real weights until half of training; then the hash of them; then alpha sign(w) from there, alpha = mean |w|.

    The hash minimises |X^T W - X^T B diag(s)|^2 over signs B, X the inputs of the layer, by discrete coordinate
    descent. There is no code, and three choices are ours. The published method starts from a trained real network;
    here the first half of the run is that training. X enters by the second moments of the layer's input channels,
    gathered over training, the same for all positions of a kernel: those of whole patches would be 4608 x 4608 in a
    ResNet-18. The latent weight becomes s B, so that fine-tuning starts from the hash; its gradient passes straight to
    w. In evaluation mode weights are signs also in the first half.
    """

    observes = True
    moments: Tensor
    done: Tensor

    def __init__(self, weight: Tensor) -> None:
        """Know nothing of the inputs yet."""
        super().__init__(weight)
        self.begun = Schedule(second_half)
        self.register_buffer("moments", torch.eye(weight.shape[1]))
        self.register_buffer("done", torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def observe(self, x: Tensor, groups: int) -> None:
        """Remember the second moments of the input channels."""
        with torch.autocast(x.device.type, enabled=False):
            rows = (x.movedim(1, -1) if x.dim() == 4 else x).reshape(-1, self.moments.shape[0]).to(self.moments.dtype)
            self.moments.lerp_(rows.T @ rows / rows.shape[0], 1 - MEMORY)

    def observed(self) -> list[Tensor]:
        """The moments."""
        return [self.moments]

    @torch.no_grad()
    def start_epoch(self, weight: Tensor) -> None:
        """Hash once, at the first epoch of the second half."""
        if bool(self.done) or not bool(self.begun.value):
            return
        signs, scale = hashed(weight.reshape(*weight.shape[:2], -1), self.moments)
        scale = ops.sign(scale) * scale.abs().clamp_min(1e-6)
        weight.copy_(signs.reshape(weight.shape) * per_filter(scale, weight))
        self.done.fill_(True)

    def forward(self, weight: Tensor) -> Binary:
        """Real weights, or signs and a scale a filter."""
        alpha = mean_magnitude(weight.detach())
        inverse = per_filter(1 / alpha.clamp_min(1e-12), weight)
        signs = ops.surrogate_sign(weight, ops.straight, inverse)
        scale = per_output(alpha, weight)
        if not self.training:
            return Binary(signs, scale)
        real = weight * inverse  # times the scale it is the weight
        return Binary(torch.where(self.done, signs, real), scale, soft="in training its weights are real at first")
