"""Compare levels and gradients of methods with formulas from the papers and their code, written independently here.

The slope of a weight is compared with the derivative of a real surrogate function, computed by central differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch

from lcrbnn.nn.methods.binarizer import BinaryTensor, WeightBinarizer
from lcrbnn.nn.methods.method_registry import METHODS

GRID = [-1.5, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 1.5]
HALF_OF_TRAINING = 0.5  # training progress at which schedules are evaluated

CLIP_SLOPES = [0, 1, 1, 1, 1, 1, 1, 0]  # 1 where |x| <= 1
TRIANGLE_SLOPES = [0, 0, 1, 2, 1.5, 1, 0, 0]
SIGNS = [-1, -1, -1, 1, 1, 1, 1, 1]
HORQ_SUMS = [1.5 + 1 + 0.5 + 0 + 0.25 + 0.5 + 1 + 1.5, 0]  # sums of |x| and of the magnitude of the first residual
HORQ_SUMS[1] = sum(abs(abs(x) - HORQ_SUMS[0] / 8) for x in GRID)
HORQ_FIRST_SCALE, HORQ_SECOND_SCALE = (total / 8 for total in HORQ_SUMS)


def swish_slope(x: float, b: float = 5.0) -> float:
    return b * (2 - b * x * math.tanh(b * x / 2)) / (1 + math.cosh(b * x))


def dsq_slope(x: float, alpha: float = 0.2) -> float:
    k = math.log(2 / alpha - 1) / 2
    return k / (1 - alpha) * (1 - math.tanh(k * x) ** 2) if abs(x) <= 1 else 0.0


RESTE_EXPONENT = 3 - math.sqrt(2)  # 1 + 2 (1 - cos(pi / 4))


def reste_slope(x: float, o: float = RESTE_EXPONENT) -> float:
    return 0.1 ** (1 / o) / 0.1 if abs(x) <= 0.1 else abs(x) ** ((1 - o) / o) / o if abs(x) <= 1.5 else 0.0


IENET_SECOND_SCALE = 5e-4  # mean of the initial values in the released code, which are uniform on [0, 0.001)


def iee_slope(x: float) -> float:
    return max(0.0, math.sqrt(3) - 1.5 * abs(x))


def horq_value(x: float) -> float:
    first = HORQ_FIRST_SCALE if x >= 0 else -HORQ_FIRST_SCALE
    return first + (HORQ_SECOND_SCALE if x - first >= 0 else -HORQ_SECOND_SCALE)


# Level and slope at each point of GRID, in evaluation mode, at half of training.
ACTIVATIONS: dict[str, tuple[list[float], list[float]]] = {
    "abc-net": (SIGNS, [0, 0, 1, 1, 1, 1, 0, 0]),  # clip(x + 1/2, 0, 1)
    "bnn+": (SIGNS, [swish_slope(x) for x in GRID]),
    "proxybnn": (SIGNS, CLIP_SLOPES),
    "dsq": (SIGNS, [dsq_slope(x) for x in GRID]),
    "lns": (SIGNS, CLIP_SLOPES),
    "slb": (SIGNS, CLIP_SLOPES),
    "rad": (SIGNS, CLIP_SLOPES),
    "hwgq": ([0, 0, 0, 0, 0.538, 0.538, 1.076, 1.614], [0, 0, 0, 0, 1, 1, 1, 1]),
    "horq": ([horq_value(x) for x in GRID], [0, 0, 1, 1, 1, 1, 0, 0]),
    "recu": (SIGNS, TRIANGLE_SLOPES),
    "biper": (SIGNS, TRIANGLE_SLOPES),
    "adabin": (SIGNS, TRIANGLE_SLOPES),
    "reste": (SIGNS, [reste_slope(x) for x in GRID]),
    "ie-net": ([s * (1 + IENET_SECOND_SCALE) for s in SIGNS], [iee_slope(x) * (1 + IENET_SECOND_SCALE) for x in GRID]),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_levels_and_slopes_of_activations(name: str) -> None:
    binarizer = METHODS[name].create_activation_binarizer(1)
    assert binarizer is not None
    binarizer.double().eval().set_progress(HALF_OF_TRAINING)
    x = torch.tensor(GRID, dtype=torch.float64).reshape(1, 1, 1, -1).requires_grad_()
    value = binarizer(x).dequantize()
    levels, slopes = (torch.tensor(v, dtype=torch.float64) for v in ACTIVATIONS[name])
    torch.testing.assert_close(value.detach().flatten(), levels, atol=1e-9, rtol=0)
    value.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.flatten(), slopes, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", ["recu", "biper", "ie-net"])
def test_sample_deviation_sets_the_slope_width_but_no_sign(name: str) -> None:
    binarizer = METHODS[name].create_activation_binarizer(1)
    assert binarizer is not None
    x = torch.tensor(GRID, dtype=torch.float64).reshape(1, 1, 1, -1).requires_grad_()
    binarizer.double().set_progress(HALF_OF_TRAINING)
    assert torch.equal(binarizer(x).dequantize(), binarizer.eval()(x).dequantize())
    binarizer.train()
    # The gradient includes that of the deviation s: x / s does not change if the whole sample is scaled.
    (gradient,) = torch.autograd.grad((binarizer(x).dequantize() * 1.0).sum(), x)
    n = len(GRID)
    s = math.sqrt(torch.tensor(GRID, dtype=torch.float64).var().item() + 1e-5)
    mean = sum(GRID) / n
    if name == "ie-net":
        slopes, inputs = [[g * iee_slope(v / s) for v in GRID] for g in (1, IENET_SECOND_SCALE)], [GRID, GRID]
    else:
        slopes, inputs = [[max(0.0, 2 - 2 * abs(v / s)) for v in GRID]], [GRID]
    expected = [
        sum(row[i] / s - sum(p * y for p, y in zip(row, ys, strict=True)) * (v - mean) / (n - 1) / s**3
            for row, ys in zip(slopes, inputs, strict=True))
        for i, v in enumerate(GRID)
    ]  # fmt: skip
    torch.testing.assert_close(gradient.flatten(), torch.tensor(expected, dtype=torch.float64))


# -- weights ---------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(7)
FILTERS = RNG.normal(0, 0.6, (2, 3, 2, 2))  # two filters of 12 weights, none of them close to a kink
FILTER_ROWS = FILTERS.reshape(2, -1)
BASIS, ENTER, LEAVE = RNG.normal(0, 0.5, (3, 3)), RNG.normal(0, 0.5, (4, 16)), RNG.normal(0, 0.1, (16, 4))

Curve = Callable[[np.ndarray], np.ndarray]  # (2, 12) -> (2, 12)


def standardize(w: np.ndarray, ddof: int = 1) -> np.ndarray:
    return (w - w.mean(1, keepdims=True)) / w.std(1, ddof=ddof, keepdims=True)


def standardize_with_epsilon(w: np.ndarray) -> np.ndarray:
    """Standardize as in the released code of ReCU, SiMaN and IE-Net: 1e-5 is added to the variance."""
    return (w - w.mean(1, keepdims=True)) / np.sqrt(w.var(1, ddof=1, keepdims=True) + 1e-5)


def swish_sign_curve(x: np.ndarray, b: float = 5.0) -> np.ndarray:
    s = 1 / (1 + np.exp(-b * x))
    return 2 * s * (1 + b * x * (1 - s)) - 1


def apply_proxy_basis(w: np.ndarray) -> np.ndarray:
    return np.einsum("oip,ij->ojp", w.reshape(2, 3, 4), BASIS).reshape(2, 12)


def apply_lns_mapping(w: np.ndarray) -> np.ndarray:
    kernels = standardize(w).reshape(2, 3, 4)
    return standardize((kernels + np.tanh(kernels @ ENTER) @ LEAVE).reshape(2, 12))


def standardized_magnitude(w: np.ndarray) -> np.ndarray:
    return np.abs(standardize_with_epsilon(w))


def reste_curve(x: np.ndarray, o: float = RESTE_EXPONENT) -> np.ndarray:
    outside = np.sign(x) * np.minimum(np.abs(x), 1.5) ** (1 / o)
    return np.where(np.abs(x) <= 0.1, x * 0.1 ** (1 / o) / 0.1, outside)


def reste_value(w: np.ndarray) -> np.ndarray:
    """Return the scale of the layer times a sign with the gradient of its curve. Both have a gradient."""
    return np.abs(w).mean() * (np.sign(FILTER_ROWS) + reste_curve(w) - reste_curve(FILTER_ROWS))


def iee_curve(x: np.ndarray) -> np.ndarray:
    t, k = 10**-0.5, 10**0.5
    inside = np.clip(x, -2 / math.sqrt(3) / t, 2 / math.sqrt(3) / t)
    return k * (math.sqrt(3) * t * inside - 0.75 * t * t * inside * np.abs(inside))


def adabin_curve(w: np.ndarray) -> np.ndarray:
    a, b = w.std(1, keepdims=True), w.mean(1, keepdims=True)
    t, k = 0.1, 10.0
    sign = np.sign(standardize(FILTER_ROWS)) + k * (
        np.tanh(t * standardize(w, ddof=0)) - np.tanh(t * standardize(FILTER_ROWS, ddof=0))
    )
    return a * sign + b


def mean_magnitude(v: np.ndarray) -> np.ndarray:
    return np.abs(v).mean(1, keepdims=True)


RANKED = np.sort(FILTER_ROWS, 1)
ABC_SIGNS = np.sign(FILTER_ROWS - FILTER_ROWS.mean())
ABC_SCALE = (ABC_SIGNS * FILTER_ROWS).sum() / (24 * (1 + 1e-6))
RECU_TAU = 0.85 + 0.14 * (math.sqrt(math.e) - 1) / (math.e - 1)
RECU_BOUND = np.abs(math.sqrt(8) * standardize_with_epsilon(FILTER_ROWS)).mean() * -math.log(2 - 2 * RECU_TAU)
TERNARY_THRESHOLD = 0.7 * np.abs(FILTER_ROWS - FILTER_ROWS.mean()).mean()
TERNARY_LEVELS = np.where(np.abs(FILTER_ROWS) > TERNARY_THRESHOLD, np.sign(FILTER_ROWS), 0)
TERNARY_SCALE = (np.abs(FILTER_ROWS) * np.abs(TERNARY_LEVELS)).sum(1, keepdims=True) / np.abs(TERNARY_LEVELS).sum(
    1, keepdims=True
)
SIMAN_MAGNITUDES = standardized_magnitude(FILTER_ROWS)
DSQ_BOUND = 3 * np.abs(FILTER_ROWS).mean()
DSQ_SLOPE = math.log(9) / (2 * DSQ_BOUND)

# Method -> (expected weight, function whose derivative is the expected gradient), in evaluation mode at half of
# training. Learned scales per filter are 1/2.
SURROGATES: dict[str, tuple[np.ndarray, Curve]] = {
    "abc-net": (ABC_SCALE * ABC_SIGNS, lambda w: ABC_SCALE * w),
    "bnn+": (0.5 * np.sign(FILTER_ROWS), lambda w: 0.5 * swish_sign_curve(w)),
    "proxybnn": (
        mean_magnitude(apply_proxy_basis(FILTER_ROWS)) * np.sign(apply_proxy_basis(FILTER_ROWS)),
        apply_proxy_basis,
    ),
    "dsq": (
        DSQ_BOUND * np.sign(FILTER_ROWS),
        lambda w: DSQ_BOUND * np.tanh(DSQ_SLOPE * np.clip(w, -DSQ_BOUND, DSQ_BOUND)) / 0.8,
    ),
    "lns": (
        mean_magnitude(FILTER_ROWS) * np.sign(apply_lns_mapping(FILTER_ROWS)),
        lambda w: mean_magnitude(FILTER_ROWS) * np.clip(apply_lns_mapping(w), -1, 1),
    ),
    "slb": (np.sign(FILTER_ROWS), lambda w: np.tanh(1.03**50 * w)),
    "rad": (np.sign(FILTER_ROWS), lambda w: w),
    "hwgq": (mean_magnitude(FILTER_ROWS) * np.sign(FILTER_ROWS), lambda w: w),
    "horq": (mean_magnitude(FILTER_ROWS) * np.sign(FILTER_ROWS), lambda w: w),
    "sq-bwn": (mean_magnitude(FILTER_ROWS) * np.sign(FILTER_ROWS), lambda w: w),
    "sq-twn": (TERNARY_SCALE * TERNARY_LEVELS, lambda w: w),
    "bwnh": (mean_magnitude(FILTER_ROWS) * np.sign(FILTER_ROWS), lambda w: w),
    "recu": (
        0.5 * np.sign(standardize(FILTER_ROWS)),
        lambda w: 0.5 * np.clip(math.sqrt(8) * standardize_with_epsilon(w), -RECU_BOUND, RECU_BOUND),
    ),
    "siman": (
        0.5 * np.where(np.sort(SIMAN_MAGNITUDES, 1)[:, 6:7] <= SIMAN_MAGNITUDES, 1, -1),
        lambda w: 0.5 * standardized_magnitude(w),
    ),
    "adabin": (adabin_curve(FILTER_ROWS), adabin_curve),
    "reste": (np.abs(FILTER_ROWS).mean() * np.sign(FILTER_ROWS), reste_value),
    "biper": (0.5 * np.sign(np.sin(20 * FILTER_ROWS)), lambda w: 0.5 * np.sin(20 * w)),
    "ie-net": (0.5 * np.sign(standardize(FILTER_ROWS)), lambda w: 0.5 * iee_curve(standardize_with_epsilon(w))),
}


def make_evaluation_binarizer(name: str, **options: object) -> WeightBinarizer:
    binarizer = METHODS[name].configure(**options).create_weight_binarizer(torch.from_numpy(FILTERS)).double()
    binarizer.eval().set_progress(HALF_OF_TRAINING)
    parameter_values = {"alpha": 0.5, "basis": BASIS, "enter": ENTER, "leave": LEAVE}
    for key, parameter in binarizer.named_parameters():
        if key in parameter_values:
            parameter.data.copy_(torch.as_tensor(parameter_values[key]))
    return binarizer


def dequantize_weight(binary: BinaryTensor) -> torch.Tensor:
    total = torch.zeros(2, 12, dtype=torch.float64)
    for base in binary.split_bases():
        part = base.signs.reshape(2, 12)
        for numbers, tensor in ((base.scale, part), (base.offset, torch.ones_like(part))):
            if numbers is not None:
                total = total + tensor * numbers.reshape(-1, 1)
        total = total if base.scale is not None else total + part
    return total


def numerical_jacobian(curve: Curve, step: float = 1e-6) -> np.ndarray:
    """Return d value_i / d w_j, (24, 24), by central differences."""
    rows = []
    for j in range(24):
        values = []
        for sign in (1, -1):
            perturbed = FILTER_ROWS.copy().reshape(-1)
            perturbed[j] += sign * step
            values.append(curve(perturbed.reshape(2, 12)).reshape(-1))
        rows.append((values[0] - values[1]) / (2 * step))
    return np.stack(rows, 1)


@pytest.mark.parametrize("name", SURROGATES)
def test_levels_and_gradients_of_weights(name: str) -> None:
    binarizer = make_evaluation_binarizer(name)
    w = torch.from_numpy(FILTERS.copy()).requires_grad_()
    value = dequantize_weight(binarizer(w))
    level, curve = SURROGATES[name]
    torch.testing.assert_close(value.detach(), torch.from_numpy(level), atol=1e-7, rtol=1e-6)
    jacobian = torch.stack([torch.autograd.grad(v, w, retain_graph=True)[0].flatten() for v in value.flatten()])
    torch.testing.assert_close(jacobian, torch.from_numpy(numerical_jacobian(curve)), atol=2e-6, rtol=1e-5)


def test_expected_curves_differ_between_methods() -> None:
    results = {name: (level, numerical_jacobian(curve)) for name, (level, curve) in SURROGATES.items()}
    for a, b in product(results, results):
        if a < b and all(np.allclose(p, q, atol=1e-4) for p, q in zip(results[a], results[b], strict=True)):
            assert METHODS[a].equivalence_note or METHODS[b].equivalence_note, (a, b)
