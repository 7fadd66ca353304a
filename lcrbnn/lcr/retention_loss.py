"""Compute the LCR loss L_Lip as a pure function of the feature maps of a binary network and of its reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lcrbnn.device import is_eager
from lcrbnn.errors import InputError, RunFailed
from lcrbnn.lcr.lcr_variants import LcrVariant
from lcrbnn.lcr.retention_matrix import MATRIX_STACKS, Pair
from lcrbnn.lcr.spectral_norm import pick_longest_column, power_iterate, slice_start_vector
from lcrbnn.nn import functional as ops
from lcrbnn.nn.kernels.power_iteration import power_iteration, supports_power_iteration

MIN_SIGMA = 1e-12


class RetentionResult(NamedTuple):
    """L_Lip and the spectral norms sigma.

    The lists have one entry per retention matrix, of shape (1,) or (samples,).
    """

    loss: Tensor
    binary_sigmas: list[Tensor]
    reference_sigmas: list[Tensor]

    def sigma_ratios(self) -> Tensor:
        """Return sigma_B / sigma_F of each matrix, without gradient. Samples are averaged.

        The ratio is 1 where sigma_F is 0, and NaN for a pair that was left out.
        """
        rows = [
            _divide_sigmas(b, f).detach().mean() for b, f in zip(self.binary_sigmas, self.reference_sigmas, strict=True)
        ]
        return torch.stack(rows)


def retention_loss(
    binary: Sequence[Pair],
    reference: Sequence[Pair],
    variant: LcrVariant,
    start_vector: Tensor,
    *,
    check_overflow: bool = True,
    excluded: Collection[int] = (),
) -> RetentionResult:
    """Return L_Lip for the feature maps of a binary network and those of its reference, both in forward order.

    `excluded` are indices of pairs without a meaningful ratio: their sigmas are NaN, and their loss and their gradient
    are exactly 0. The weights of the other pairs do not change.

    Gradient flows only to the binary maps, and also to the reference maps if the variant has `reference_gradient`. The
    vectors of the power iteration are treated as constants. The loss is computed in float32, or in the type of the maps
    if that is wider, also under autocast. `start_vector` is the result of `draw_start_vector`. `check_overflow` raises
    RunFailed if the loss is not finite although all maps are (only in eager mode on the CPU: elsewhere the check would
    have to wait for the device).
    """
    if len(binary) != len(reference) or not binary:
        raise InputError(
            "the LCR loss needs at least one pair of binary maps and as many pairs of reference maps; "
            f"got {len(binary)} binary and {len(reference)} reference pairs"
        )
    if binary[0][0].shape[0] == 0:
        raise InputError("the LCR loss compares the samples of a batch, and this batch is empty")
    with torch.autocast(binary[0][0].device.type, enabled=False):
        if not variant.reference_gradient:
            reference = [(front.detach(), back.detach()) for front, back in reference]
        alternating_pairs = [pair for pairs in zip(binary, reference, strict=True) for pair in pairs]
        # Binary and reference pairs alternate, so that pairs of one shape are neighbors in a matrix stack.
        excluded_entries = {entry for index in excluded for entry in (2 * index, 2 * index + 1)}
        sigmas = compute_spectral_norms(alternating_pairs, variant, start_vector, excluded_entries)
        binary_sigmas, reference_sigmas = sigmas[::2], sigmas[1::2]
        loss = sum_weighted_distances(binary_sigmas, reference_sigmas, variant, excluded)
        if len(excluded) == len(binary):
            loss = _make_zero_with_gradient(loss, binary[0][1])
    result = RetentionResult(loss, binary_sigmas, reference_sigmas)
    if check_overflow and has_overflowed(result, [*binary, *reference]):
        raise RunFailed(describe_overflow(result.sigma_ratios(), variant, [f"pair {i}" for i in range(len(binary))]))
    return result


def has_overflowed(result: RetentionResult, pairs: Sequence[Pair]) -> bool:
    """Return whether the loss is not finite although all feature maps are.

    This is always False on a GPU and in a compiled step, where the check would have to wait for the device.
    """
    loss = result.loss.detach()
    if not is_eager() or loss.device.type != "cpu" or bool(loss.isfinite()):
        return False
    return all(bool(x.isfinite().all()) for pair in pairs for x in pair)


def describe_overflow(sigma_ratios: Tensor, variant: LcrVariant, places: Sequence[str]) -> str:
    """Return an error message with the first place whose ratio of spectral norms is infinite or NaN."""
    is_finite = (sigma_ratios / variant.beta).square().isfinite().tolist()
    overflowing = next((place for place, finite in zip(places, is_finite, strict=False) if not finite), None)
    location = f" at {overflowing}" if overflowing else ""
    return (
        f"the LCR loss overflows{location}: the feature maps are finite, but their spectral norms or the ratio of "
        'these is too large for the number type; normalization="l2" or "centered-l2" prevents this'
    )


def _make_zero_with_gradient(zero: Tensor, feature_map: Tensor) -> Tensor:
    """Return 0 with a gradient of 0 for the map, so that a caller can differentiate the loss as usual."""
    return torch.where(torch.ones_like(zero, dtype=torch.bool), zero, feature_map.flatten()[0].to(zero.dtype))


def compute_spectral_norms(
    pairs: Sequence[Pair], variant: LcrVariant, start_vector: Tensor, excluded: Collection[int] = ()
) -> list[Tensor]:
    """Return sigma of the retention matrix of each pair, differentiable in the maps, and NaN for an excluded pair.

    The power iteration processes all matrices of one size together.
    """
    sigma_by_pair = {i: start_vector.new_full((1,), math.nan) for i in excluded}
    for indices in _group_by_size(pairs, variant, excluded):
        stack = MATRIX_STACKS[variant.matrix]([pairs[i] for i in indices], variant.normalization)
        with torch.no_grad():
            matrices = stack.iteration_matrices()
            v, previous = _run_power_iteration(
                matrices,
                START_VECTORS[variant.power_iteration_init](matrices, start_vector.to(matrices)),
                variant,
                squared=stack.squared,
            )
        sigma_by_pair.update(zip(indices, stack.bilinear_forms(v, previous), strict=True))
    sigmas = [sigma_by_pair[i] for i in range(len(pairs))]
    return [sigma.clamp_min(MIN_SIGMA).sqrt() for sigma in sigmas] if variant.sqrt_eigenvalue else sigmas


def _group_by_size(pairs: Sequence[Pair], variant: LcrVariant, excluded: Collection[int]) -> list[list[int]]:
    """Return lists of indices of pairs whose matrices have the same size and type, without the excluded pairs."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, (front, back) in enumerate(pairs):
        if i in excluded:
            continue
        channels = (front.shape[1], back.shape[1]) if variant.matrix == "per-sample" else ()
        groups.setdefault((back.shape[0], back.dtype.itemsize > 4, *channels), []).append(i)
    return list(groups.values())


def _run_power_iteration(
    matrices: Tensor, start_vectors: Tensor, variant: LcrVariant, *, squared: bool
) -> tuple[Tensor, Tensor]:
    if supports_power_iteration(matrices):
        return power_iteration(matrices, start_vectors.expand(matrices.shape[0], -1), variant.power_iterations, squared)
    return power_iterate(matrices, start_vectors, variant.power_iterations, squared=squared)


# Functions that return the start vector of the power iteration for matrices (b, m, n) and a drawn vector. The result is
# one vector (n,) for all matrices, or one per matrix (b, n).
START_VECTORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    # Random start vector, as in Algorithm 2 of the paper
    "random": lambda matrices, drawn: slice_start_vector(drawn, matrices.shape[2]),
    # the official code does not scale this vector to length 1
    "ones": lambda matrices, drawn: matrices.new_ones(matrices.shape[2]),
    "longest-column": lambda matrices, drawn: pick_longest_column(matrices),
}


def sum_weighted_distances(
    binary_sigmas: Sequence[Tensor],
    reference_sigmas: Sequence[Tensor],
    variant: LcrVariant,
    excluded: Collection[int] = (),
) -> Tensor:
    """Return the weighted sum of the distances of the matrices k = 1 .. L-1. The weights are powers of beta^(k - L).

    The sum leaves out the pairs with the `excluded` indices, k - 1.
    """
    num_layers = len(binary_sigmas) + 1
    distance = DISTANCES[variant.distance]
    terms = [
        distance(b, f, variant.beta ** (k - num_layers))
        for k, (b, f) in enumerate(zip(binary_sigmas, reference_sigmas, strict=True), 1)
        if k - 1 not in excluded
    ]
    return torch.stack(terms).sum() if terms else binary_sigmas[0].new_zeros(())


def _divide_sigmas(binary_sigma: Tensor, reference_sigma: Tensor) -> Tensor:
    # If sigma_F is 0 (all feature maps are zero), there is no target. The ratio is then 1 by definition and has no
    # gradient. The comparison keeps NaN as NaN.
    is_usable = ~(reference_sigma <= MIN_SIGMA)
    return torch.where(is_usable, binary_sigma / torch.where(is_usable, reference_sigma, 1.0), 1.0)


DISTANCES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "ratio": lambda sigma_b, sigma_f, weight: (
        ((_divide_sigmas(sigma_b, sigma_f) - 1) * weight).square().mean()
    ),  # distance in Eq. 11 of the paper
    "log-ratio": lambda sigma_b, sigma_f, weight: (
        (_divide_sigmas(sigma_b, sigma_f).clamp_min(MIN_SIGMA).log() * weight).square().mean()
    ),
    # mean squared difference of the norms, as in the official code
    "mse": lambda sigma_b, sigma_f, weight: (sigma_b - sigma_f).square().mean() * weight,
}

# Functions of the batch size that return the factor of lambda * L_Lip in the total loss.
COEFFICIENTS: dict[str, Callable[[int], float]] = {
    "half": lambda batch_size: 1 / 2,  # factor in Eq. 12 of the paper
    # factor in the published code, in which lambda has the name alpha
    "inverse-batch-size": lambda batch_size: 1 / (batch_size * 1e4),
}


def quantization_error(weights: Sequence[Tensor]) -> Tensor:
    """Return L_QE of Algorithm 1, the sum over layers of |W - alpha sgn W|^2.

    Here alpha is the mean |w| of each filter. This alpha minimizes the error. W is the tensor whose sign is taken. So
    if a method standardizes its weights, W is the standardized weight.
    """
    total = weights[0].new_zeros(())
    for weight in weights:
        flat = weight.flatten(1)
        alpha = flat.detach().abs().mean(1, keepdim=True)
        total = total + (flat - alpha * ops.sign(flat.detach())).square().sum()
    return total
