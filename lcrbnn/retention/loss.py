"""The retention loss: a function of two lists of pairs of maps, and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lcrbnn import ops
from lcrbnn.errors import InputError
from lcrbnn.kernels.power import power, takes_power
from lcrbnn.retention.form import Form
from lcrbnn.retention.matrix import STACKS, Pair
from lcrbnn.retention.spectral import heaviest_column, iterate, start_of

_TINY = 1e-12


class Retained(NamedTuple):
    """L_Lip and what it came from: spectral norms, one list entry a matrix (each a number, or one a sample)."""

    loss: Tensor
    binary: list[Tensor]
    reference: list[Tensor]

    def ratios(self) -> Tensor:
        """sigma_B / sigma_F of each matrix (mean over samples), without gradient; 1 where the reference is 0."""
        rows = [_ratio(b.detach(), f).mean() for b, f in zip(self.binary, self.reference, strict=True)]
        return torch.stack(rows)


def retention_loss(binary: Sequence[Pair], reference: Sequence[Pair], form: Form, start: Tensor) -> Retained:
    """L_Lip of the maps of a binary network against those of its reference, in forward order.

    Gradient flows to the binary maps only, with the vectors of the power iteration held fixed. Computed in float32 (or
    wider, if the maps are), whatever autocast says. `start` is a drawn vector (spectral.random_start).
    """
    if len(binary) != len(reference) or not binary:
        raise InputError(
            f"retention needs as many reference as binary maps, and some; got {len(reference)} and {len(binary)}"
        )
    if binary[0][0].shape[0] == 0:
        raise InputError("retention compares the samples of a batch, and this one is empty")
    with torch.autocast(binary[0][0].device.type, enabled=False):
        still = [(front.detach(), back.detach()) for front, back in reference]
        both = [pair for pairs in zip(binary, still, strict=True) for pair in pairs]
        sigmas = spectral_norms(both, form, start)  # ours and theirs take turns: neighbours have one shape
        ours, theirs = sigmas[::2], sigmas[1::2]
        return Retained(weighted(ours, theirs, form), ours, theirs)


def spectral_norms(pairs: Sequence[Pair], form: Form, start: Tensor) -> list[Tensor]:
    """sigma of each pair's retention matrix, differentiable in the maps; matrices of one size iterate together."""
    found: dict[int, Tensor] = {}
    for members in _alike(pairs, form):
        stack = STACKS[form.matrix]([pairs[i] for i in members], form.normalization)
        with torch.no_grad():
            small = stack.small()
            v, before = _iterated(small, STARTS[form.start](small, start.to(small)), form, squared=stack.squared)
        found.update(zip(members, stack.values(v, before), strict=True))
    sigmas = [found[i] for i in range(len(pairs))]
    return [sigma.clamp_min(_TINY).sqrt() for sigma in sigmas] if form.root else sigmas


def _alike(pairs: Sequence[Pair], form: Form) -> list[list[int]]:
    """The places of pairs whose matrices have one size and type."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, (front, back) in enumerate(pairs):
        channels = (front.shape[1], back.shape[1]) if form.matrix == "channel" else ()
        groups.setdefault((back.shape[0], back.dtype.itemsize > 4, *channels), []).append(i)
    return list(groups.values())


def _iterated(small: Tensor, start: Tensor, form: Form, *, squared: bool) -> tuple[Tensor, Tensor]:
    if takes_power(small):
        return power(small, start.expand(small.shape[0], -1), form.iterations, squared)
    return iterate(small, start, form.iterations, squared=squared)


# The start of the iteration, for matrices (b, m, n) and a drawn vector: one vector for all, (n,), or one each, (b, n).
STARTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "random": lambda small, pool: start_of(pool, small.shape[2]),  # Algorithm 2
    "ones": lambda small, pool: small.new_ones(small.shape[2]),  # the official code's: not of unit length
    "heaviest": lambda small, pool: heaviest_column(small),
}


def weighted(ours: Sequence[Tensor], theirs: Sequence[Tensor], form: Form) -> Tensor:
    """Sum the distances of all matrices, k = 1 .. L-1, later ones weighing more."""
    last = len(ours) + 1
    distance = DISTANCES[form.distance]
    terms = [distance(b, f, form.beta ** (k - last)) for k, (b, f) in enumerate(zip(ours, theirs, strict=True), 1)]
    return torch.stack(terms).sum()


def _ratio(ours: Tensor, theirs: Tensor) -> Tensor:
    # A reference of 0 (all-zero maps) sets no target: its ratio is 1 by definition, without gradient. NaN stays NaN.
    usable = ~(theirs <= _TINY)
    return torch.where(usable, ours / torch.where(usable, theirs, 1.0), 1.0)


DISTANCES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "ratio": lambda ours, theirs, weight: ((_ratio(ours, theirs) - 1) * weight).square().mean(),  # Eq. 11
    "log": lambda ours, theirs, weight: (_ratio(ours, theirs).clamp_min(_TINY).log() * weight).square().mean(),
    "below": lambda ours, theirs, weight: ((_ratio(ours, theirs) - 1).clamp(max=0) * weight).square().mean(),
    "mse": lambda ours, theirs, weight: (ours - theirs).square().mean() * weight,  # the official code
}

# What multiplies L_Lip in the total loss, from lambda and the batch size.
COEFFICIENTS: dict[str, Callable[[int], float]] = {
    "half": lambda batch: 1 / 2,  # Eq. 12
    "batch": lambda batch: 1 / (batch * 1e4),  # the official code, whose alpha stands for lambda
}


def quantization_error(weights: Sequence[Tensor]) -> Tensor:
    """Algorithm 1's L_QE: the sum over layers of |W - alpha sgn W|^2, alpha = mean |w| of a filter (the minimiser).

    W is the tensor whose sign is taken: for a method that standardises its weights, the standardised one.
    """
    total = weights[0].new_zeros(())
    for weight in weights:
        flat = weight.flatten(1)
        alpha = flat.detach().abs().mean(1, keepdim=True)
        total = total + (flat - alpha * ops.sign(flat.detach())).square().sum()
    return total
