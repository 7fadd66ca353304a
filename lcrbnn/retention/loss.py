"""The retention loss: a function of two lists of pairs of maps, and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lcrbnn import ops
from lcrbnn.errors import InputError
from lcrbnn.retention.form import Form
from lcrbnn.retention.matrix import MATRICES
from lcrbnn.retention.spectral import heaviest_column, iterate, start_of, value

Pair = tuple[Tensor, Tensor]  # the maps before and after a layer or block

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
        ours = spectral_norms([_wide(p) for p in binary], form, start)
        theirs = spectral_norms([(a.detach(), b.detach()) for a, b in map(_wide, reference)], form, start)
        return Retained(weighted(ours, theirs, form), ours, theirs)


def spectral_norms(pairs: Sequence[Pair], form: Form, start: Tensor) -> list[Tensor]:
    """sigma of each pair's retention matrix, differentiable in the maps; matrices of one shape iterate together."""
    matrices = [MATRICES[form.matrix](front, back, form.normalization) for front, back in pairs]
    squared = matrices[0].squared
    with torch.no_grad():
        smalls = [m.small() for m in matrices]
        vectors = _iterate_together(smalls, form, start, squared=squared)
    sigmas = []
    for (front, back), matrix, small, (v, before) in zip(pairs, matrices, smalls, vectors, strict=True):
        needed = front.requires_grad or back.requires_grad
        sigma = matrix.quadratic(v, before) if needed else value(small, v, before, squared=squared)
        sigmas.append(sigma.clamp_min(_TINY).sqrt() if form.root else sigma)
    return sigmas


def _iterate_together(smalls: list[Tensor], form: Form, start: Tensor, *, squared: bool) -> list[Pair]:
    shapes: dict[tuple[int, ...], list[int]] = {}
    for i, small in enumerate(smalls):
        shapes.setdefault(tuple(small.shape), []).append(i)
    vectors: dict[int, Pair] = {}
    for (count, _, _), members in shapes.items():
        stacked = torch.cat([smalls[i] for i in members])
        v, before = iterate(stacked, STARTS[form.start](stacked, start.to(stacked)), form.iterations, squared=squared)
        for i, a, b in zip(members, v.split(count), before.split(count), strict=True):
            vectors[i] = (a, b)
    return [vectors[i] for i in range(len(smalls))]


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


def _wide(pair: Pair) -> Pair:
    front, back = pair
    return (front.float() if front.dtype.itemsize < 4 else front, back.float() if back.dtype.itemsize < 4 else back)
