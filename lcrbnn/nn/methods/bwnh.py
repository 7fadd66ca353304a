"""BWNH hashes weights to signs that preserve the outputs of the layer (Hu et al. 2018, "BWHN" in the paper)."""

from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.annealing import Schedule
from lcrbnn.nn.methods.binarizer import (
    BinaryTensor,
    WeightBinarizer,
    broadcast_over_output,
    broadcast_over_weight,
    mean_magnitude,
)

HASHING_PROGRESS = 0.5  # training progress (0 to 1) at which the weights become binary; before, weights are real
DESCENT_SWEEPS = 3  # number of passes of coordinate descent over all channels
MOMENT_DECAY_PER_STEP = 0.99  # decay per training step of the running second moments of the inputs


def binary_stage_schedule(progress: float) -> float:
    """Return 1 once weights are binary, and 0 before."""
    return float(progress >= HASHING_PROGRESS)


@torch.no_grad()
def hash_weights(weight: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return signs b and scales s per filter that minimize the sum over kernel positions of (w - s b)^T M (w - s b).

    `weight` is (out, in, positions), and `moments` is M, (in, in). The minimum is approximate. It is found by discrete
    coordinate descent that starts at sign(w). Each of the DESCENT_SWEEPS sweeps computes the best s for the signs, then
    the best sign of each channel while all others are fixed.
    """
    mapped_weight = torch.einsum("ij,ojp->oip", moments, weight)  # the product M w
    signs = ops.sign(weight)
    mapped_signs = torch.einsum("ij,ojp->oip", moments, signs)  # the product M b, updated whenever b changes
    scale = _optimal_scale(signs, mapped_signs, mapped_weight)
    for _ in range(DESCENT_SWEEPS):
        for channel in range(weight.shape[1]):
            old_signs = signs[:, channel].clone()
            other_channels = mapped_signs[:, channel] - moments[channel, channel] * old_signs
            new_signs = ops.sign((mapped_weight[:, channel] - scale[:, None] * other_channels) * scale[:, None])
            mapped_signs += moments[:, channel][None, :, None] * (new_signs - old_signs)[:, None]
            signs[:, channel] = new_signs
        scale = _optimal_scale(signs, mapped_signs, mapped_weight)
    return signs, scale


def _optimal_scale(signs: Tensor, mapped_signs: Tensor, mapped_weight: Tensor) -> Tensor:
    return (signs * mapped_weight).sum((1, 2)) / (signs * mapped_signs).sum((1, 2)).clamp_min(1e-12)


class BwnhWeight(WeightBinarizer):
    """Returns real weights in the first half of training.

    Then they are hashed, and the second half trains alpha sign(w). The hash minimizes |X^T W - X^T B diag(s)|^2 over
    signs B by discrete coordinate descent, where X is the input of the layer. alpha is the mean |w| of the filter.
    There is no public code, so three details are choices of this package. First, the published method starts from a
    trained real network. Here the first half of the run is that training. Second, X is represented by the second
    moments of the input channels, averaged over training. They are the same for all positions of a kernel, because the
    moments of whole patches would be 4608 x 4608 in a ResNet-18. Third, the latent weight becomes s B, so that
    fine-tuning starts from the hash. Its gradient passes straight to w. In evaluation mode, weights are signs in the
    first half too.
    """

    observes_inputs = True
    moments: Tensor
    done: Tensor

    def __init__(self, weight: Tensor) -> None:
        """Create the second moments, which start as the identity."""
        super().__init__(weight)
        self.begun = Schedule(binary_stage_schedule)
        self.register_buffer("moments", torch.eye(weight.shape[1]))
        self.register_buffer("done", torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def observe_input(self, x: Tensor, groups: int) -> None:
        """Update the running second moments of the input channels."""
        with torch.autocast(x.device.type, enabled=False):
            rows = (x.movedim(1, -1) if x.dim() == 4 else x).reshape(-1, self.moments.shape[0]).to(self.moments.dtype)
            self.moments.lerp_(rows.T @ rows / rows.shape[0], 1 - MOMENT_DECAY_PER_STEP)

    def observation_buffers(self) -> list[Tensor]:
        """Return the buffer of the second moments."""
        return [self.moments]

    @torch.no_grad()
    def start_epoch(self, weight: Tensor) -> None:
        """Replace the weight by its hash once, at the first epoch of the second half."""
        if bool(self.done) or not bool(self.begun.value):
            return
        signs, scale = hash_weights(weight.reshape(*weight.shape[:2], -1), self.moments)
        scale = ops.sign(scale) * scale.abs().clamp_min(1e-6)
        weight.copy_(signs.reshape(weight.shape) * broadcast_over_weight(scale, weight))
        self.done.fill_(True)

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return real weights in the first half of training. After that, return signs and one scale per filter."""
        alpha = mean_magnitude(weight.detach())
        inverse_alpha = broadcast_over_weight(1 / alpha.clamp_min(1e-12), weight)
        signs = ops.surrogate_sign(weight, ops.identity_slope, inverse_alpha)
        scale = broadcast_over_output(alpha, weight)
        if not self.training:
            return BinaryTensor(signs, scale)
        real = weight * inverse_alpha  # the layer multiplies this tensor by the scale, which gives the latent weight
        return BinaryTensor(
            torch.where(self.done, signs, real), scale, non_binary_reason="in training its weights are real at first"
        )
