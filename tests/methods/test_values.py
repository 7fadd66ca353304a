"""Levels and gradients of the later methods, against closed forms that are typed here from the papers and codes.

A slope is compared with the derivative of a real curve, its surrogate, by central differences: whoever changes a slope
has to change a formula that looks nothing like it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch

from lcrbnn.methods import METHODS, Binary, WeightBinarizer, method
from lcrbnn.methods.abcnet import spread

GRID = [-1.5, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 1.5]
HALF = 0.5  # of training: where schedules are read

CLIPPED = [0, 1, 1, 1, 1, 1, 1, 0]  # 1 where |x| <= 1
TRIANGLE = [0, 0, 1, 2, 1.5, 1, 0, 0]
SIGNS = [-1, -1, -1, 1, 1, 1, 1, 1]
ORDER_TWO = [1.5 + 1 + 0.5 + 0 + 0.25 + 0.5 + 1 + 1.5, 0]  # sums of |x| and of what a first sign leaves
ORDER_TWO[1] = sum(abs(abs(x) - ORDER_TWO[0] / 8) for x in GRID)
FIRST, SECOND = (total / 8 for total in ORDER_TWO)


def _swish(x: float, b: float = 5.0) -> float:
    return b * (2 - b * x * math.tanh(b * x / 2)) / (1 + math.cosh(b * x))


def _dsq(x: float, alpha: float = 0.2) -> float:
    k = math.log(2 / alpha - 1) / 2
    return k / (1 - alpha) * (1 - math.tanh(k * x) ** 2) if abs(x) <= 1 else 0.0


O_HALF = 3 - math.sqrt(2)  # 1 + 2 (1 - cos(pi / 4))


def _reste(x: float, o: float = O_HALF) -> float:
    return 0.1 ** (1 / o) / 0.1 if abs(x) <= 0.1 else abs(x) ** ((1 - o) / o) / o if abs(x) <= 1.5 else 0.0


SECOND_BRANCH = 5e-4  # the mean of the released code's start, uniform on [0, 0.001)


def _iee(x: float) -> float:
    return max(0.0, math.sqrt(3) - 1.5 * abs(x))


def _horq(x: float) -> float:
    first = FIRST if x >= 0 else -FIRST
    return first + (SECOND if x - first >= 0 else -SECOND)


# Level and slope at each point of the grid, in evaluation mode, at half of training.
ACTIVATIONS: dict[str, tuple[list[float], list[float]]] = {
    "abc-net": (SIGNS, [0, 0, 1, 1, 1, 1, 0, 0]),  # clip(x + 1/2, 0, 1)
    "bnn+": (SIGNS, [_swish(x) for x in GRID]),
    "proxybnn": (SIGNS, CLIPPED),
    "dsq": (SIGNS, [_dsq(x) for x in GRID]),
    "lns": (SIGNS, CLIPPED),
    "slb": (SIGNS, CLIPPED),
    "rad": (SIGNS, CLIPPED),
    "hwgq": ([0, 0, 0, 0, 0.538, 0.538, 1.076, 1.614], [0, 0, 0, 0, 1, 1, 1, 1]),
    "horq": ([_horq(x) for x in GRID], [0, 0, 1, 1, 1, 1, 0, 0]),
    "recu": (SIGNS, TRIANGLE),
    "biper": (SIGNS, TRIANGLE),
    "adabin": (SIGNS, TRIANGLE),
    "reste": (SIGNS, [_reste(x) for x in GRID]),
    "ie-net": ([s * (1 + SECOND_BRANCH) for s in SIGNS], [_iee(x) * (1 + SECOND_BRANCH) for x in GRID]),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_levels_and_slopes_of_activations(name: str) -> None:
    binarizer = METHODS[name].activation_binarizer(1)
    assert binarizer is not None
    binarizer.double().eval().advance(HALF)
    x = torch.tensor(GRID, dtype=torch.float64).reshape(1, 1, 1, -1).requires_grad_()
    value = binarizer(x).value()
    levels, slopes = (torch.tensor(v, dtype=torch.float64) for v in ACTIVATIONS[name])
    torch.testing.assert_close(value.detach().flatten(), levels, atol=1e-9, rtol=0)
    value.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.flatten(), slopes, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", ["recu", "biper", "ie-net"])
def test_in_training_the_deviation_of_a_sample_sets_the_width_of_the_slope_and_no_sign(name: str) -> None:
    binarizer = METHODS[name].activation_binarizer(1)
    assert binarizer is not None
    x = torch.tensor(GRID, dtype=torch.float64).reshape(1, 1, 1, -1).requires_grad_()
    binarizer.double().advance(HALF)
    assert torch.equal(binarizer(x).value(), binarizer.eval()(x).value())
    binarizer.train()
    # Along the sample itself sign(x / s) stands still: x / s does not move when x grows.
    (along,) = torch.autograd.grad((binarizer(x).value() * 1.0).sum(), x)
    n = len(GRID)
    s = math.sqrt(torch.tensor(GRID, dtype=torch.float64).var().item() + 1e-5)
    mean = sum(GRID) / n
    if name == "ie-net":
        slopes, moved = [[g * _iee(v / s) for v in GRID] for g in (1, SECOND_BRANCH)], [GRID, GRID]
    else:
        slopes, moved = [[max(0.0, 2 - 2 * abs(v / s)) for v in GRID]], [GRID]
    expected = [
        sum(row[i] / s - sum(p * y for p, y in zip(row, ys, strict=True)) * (v - mean) / (n - 1) / s**3
            for row, ys in zip(slopes, moved, strict=True))
        for i, v in enumerate(GRID)
    ]  # fmt: skip
    torch.testing.assert_close(along.flatten(), torch.tensor(expected, dtype=torch.float64))


# -- weights ---------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(7)
FILTERS = RNG.normal(0, 0.6, (2, 3, 2, 2))  # two filters of 12 weights, none of them near a kink
POINT = FILTERS.reshape(2, -1)
BASIS, ENTER, LEAVE = RNG.normal(0, 0.5, (3, 3)), RNG.normal(0, 0.5, (4, 16)), RNG.normal(0, 0.1, (16, 4))

Curve = Callable[[np.ndarray], np.ndarray]  # (2, 12) -> (2, 12)


def _even(w: np.ndarray, ddof: int = 1) -> np.ndarray:
    return (w - w.mean(1, keepdims=True)) / w.std(1, ddof=ddof, keepdims=True)


def _floored(w: np.ndarray) -> np.ndarray:
    """As the released codes of ReCU, SiMaN and IE-Net: 1e-5 is added to the variance."""
    return (w - w.mean(1, keepdims=True)) / np.sqrt(w.var(1, ddof=1, keepdims=True) + 1e-5)


def _swish_sign(x: np.ndarray, b: float = 5.0) -> np.ndarray:
    s = 1 / (1 + np.exp(-b * x))
    return 2 * s * (1 + b * x * (1 - s)) - 1


def _mixed(w: np.ndarray) -> np.ndarray:
    return np.einsum("oip,ij->ojp", w.reshape(2, 3, 4), BASIS).reshape(2, 12)


def _mapped(w: np.ndarray) -> np.ndarray:
    kernels = _even(w).reshape(2, 3, 4)
    return _even((kernels + np.tanh(kernels @ ENTER) @ LEAVE).reshape(2, 12))


def _size(w: np.ndarray) -> np.ndarray:
    return np.abs(_floored(w))


def _reste_curve(x: np.ndarray, o: float = O_HALF) -> np.ndarray:
    outside = np.sign(x) * np.minimum(np.abs(x), 1.5) ** (1 / o)
    return np.where(np.abs(x) <= 0.1, x * 0.1 ** (1 / o) / 0.1, outside)


def _reste_value(w: np.ndarray) -> np.ndarray:
    """The layer's scale times a sign that moves by its curve: both take gradient."""
    return np.abs(w).mean() * (np.sign(POINT) + _reste_curve(w) - _reste_curve(POINT))


def _iee_curve(x: np.ndarray) -> np.ndarray:
    t, k = 10**-0.5, 10**0.5
    inside = np.clip(x, -2 / math.sqrt(3) / t, 2 / math.sqrt(3) / t)
    return k * (math.sqrt(3) * t * inside - 0.75 * t * t * inside * np.abs(inside))


def _adabin_curve(w: np.ndarray) -> np.ndarray:
    a, b = w.std(1, keepdims=True), w.mean(1, keepdims=True)
    t, k = 0.1, 10.0
    sign = np.sign(_even(POINT)) + k * (np.tanh(t * _even(w, ddof=0)) - np.tanh(t * _even(POINT, ddof=0)))
    return a * sign + b


def _mean_size(v: np.ndarray) -> np.ndarray:
    return np.abs(v).mean(1, keepdims=True)


RANKED = np.sort(POINT, 1)
ABC = np.sign(POINT - POINT.mean())
ABC_SCALE = (ABC * POINT).sum() / (24 * (1 + 1e-6))
TAU = 0.85 + 0.14 * (math.sqrt(math.e) - 1) / (math.e - 1)
Q = np.abs(math.sqrt(8) * _floored(POINT)).mean() * -math.log(2 - 2 * TAU)
DELTA = 0.7 * np.abs(POINT - POINT.mean()).mean()
TERNARY = np.where(np.abs(POINT) > DELTA, np.sign(POINT), 0)
TERNARY_SCALE = (np.abs(POINT) * np.abs(TERNARY)).sum(1, keepdims=True) / np.abs(TERNARY).sum(1, keepdims=True)
SIZE = _size(POINT)
DSQ_U = 3 * np.abs(POINT).mean()
DSQ_K = math.log(9) / (2 * DSQ_U)

# Name -> (the value meant, the real curve whose derivative is the gradient), in evaluation mode at half of training,
# with learned scales a filter of 1/2.
SURROGATES: dict[str, tuple[np.ndarray, Curve]] = {
    "abc-net": (ABC_SCALE * ABC, lambda w: ABC_SCALE * w),
    "bnn+": (0.5 * np.sign(POINT), lambda w: 0.5 * _swish_sign(w)),
    "proxybnn": (_mean_size(_mixed(POINT)) * np.sign(_mixed(POINT)), _mixed),
    "dsq": (DSQ_U * np.sign(POINT), lambda w: DSQ_U * np.tanh(DSQ_K * np.clip(w, -DSQ_U, DSQ_U)) / 0.8),
    "lns": (_mean_size(POINT) * np.sign(_mapped(POINT)), lambda w: _mean_size(POINT) * np.clip(_mapped(w), -1, 1)),
    "slb": (np.sign(POINT), lambda w: np.tanh(1.03**50 * w)),
    "rad": (np.sign(POINT), lambda w: w),
    "hwgq": (_mean_size(POINT) * np.sign(POINT), lambda w: w),
    "horq": (_mean_size(POINT) * np.sign(POINT), lambda w: w),
    "sq-bwn": (_mean_size(POINT) * np.sign(POINT), lambda w: w),
    "sq-twn": (TERNARY_SCALE * TERNARY, lambda w: w),
    "bwnh": (_mean_size(POINT) * np.sign(POINT), lambda w: w),
    "recu": (0.5 * np.sign(_even(POINT)), lambda w: 0.5 * np.clip(math.sqrt(8) * _floored(w), -Q, Q)),
    "siman": (0.5 * np.where(np.sort(SIZE, 1)[:, 6:7] <= SIZE, 1, -1), lambda w: 0.5 * _size(w)),
    "adabin": (_adabin_curve(POINT), _adabin_curve),
    "reste": (np.abs(POINT).mean() * np.sign(POINT), _reste_value),
    "biper": (0.5 * np.sign(np.sin(20 * POINT)), lambda w: 0.5 * np.sin(20 * w)),
    "ie-net": (0.5 * np.sign(_even(POINT)), lambda w: 0.5 * _iee_curve(_floored(w))),
}


def prepared(name: str, **options: object) -> WeightBinarizer:
    binarizer = METHODS[name].configure(**options).weight_binarizer(torch.from_numpy(FILTERS)).double()
    binarizer.eval().advance(HALF)
    given = {"alpha": 0.5, "basis": BASIS, "enter": ENTER, "leave": LEAVE}
    for key, parameter in binarizer.named_parameters():
        if key in given:
            parameter.data.copy_(torch.as_tensor(given[key]))
    return binarizer


def meant(binary: Binary) -> torch.Tensor:
    total = torch.zeros(2, 12, dtype=torch.float64)
    for base in binary.each():
        part = base.signs.reshape(2, 12)
        for numbers, tensor in ((base.scale, part), (base.offset, torch.ones_like(part))):
            if numbers is not None:
                total = total + tensor * numbers.reshape(-1, 1)
        total = total if base.scale is not None else total + part
    return total


def slopes(curve: Curve, step: float = 1e-6) -> np.ndarray:
    """d value_i / d w_j, (24, 24), by central differences."""
    rows = []
    for j in range(24):
        ends = []
        for sign in (1, -1):
            moved = POINT.copy().reshape(-1)
            moved[j] += sign * step
            ends.append(curve(moved.reshape(2, 12)).reshape(-1))
        rows.append((ends[0] - ends[1]) / (2 * step))
    return np.stack(rows, 1)


@pytest.mark.parametrize("name", SURROGATES)
def test_levels_and_gradients_of_weights(name: str) -> None:
    binarizer = prepared(name)
    w = torch.from_numpy(FILTERS.copy()).requires_grad_()
    value = meant(binarizer(w))
    level, curve = SURROGATES[name]
    torch.testing.assert_close(value.detach(), torch.from_numpy(level), atol=1e-7, rtol=1e-6)
    own = torch.stack([torch.autograd.grad(v, w, retain_graph=True)[0].flatten() for v in value.flatten()])
    torch.testing.assert_close(own, torch.from_numpy(slopes(curve)), atol=2e-6, rtol=1e-5)


def test_the_curves_tell_the_methods_apart() -> None:
    tables = {name: (level, slopes(curve)) for name, (level, curve) in SURROGATES.items()}
    for a, b in product(tables, tables):
        if a < b and all(np.allclose(p, q, atol=1e-4) for p, q in zip(tables[a], tables[b], strict=True)):
            assert METHODS[a].alike or METHODS[b].alike, (a, b)


@pytest.mark.parametrize("bases", [2, 3, 5])
def test_abc_nets_bases_are_the_best_sum_of_shifted_signs(bases: int) -> None:
    binary = prepared("abc-net", weight_bases=bases)(torch.from_numpy(FILTERS))
    assert (binary.bases, binary.signs.shape) == (bases, (bases, 2, 3, 2, 2))
    flat, centred = POINT.reshape(-1), POINT.reshape(-1) - POINT.mean()
    columns = np.stack([np.where(centred + u * POINT.std() < 0, -1, 1) for u in spread(bases)], 1)
    best = np.linalg.lstsq(columns, flat, rcond=None)[0]
    assert np.array_equal(binary.signs.flatten(1).numpy().T, columns)
    torch.testing.assert_close(binary.scale.flatten(), torch.from_numpy(best), atol=1e-4, rtol=1e-4)
    one = prepared("abc-net")(torch.from_numpy(FILTERS))
    assert (meant(binary) - torch.from_numpy(POINT)).norm() < (meant(one) - torch.from_numpy(POINT)).norm()


def test_abc_nets_activations_are_a_staircase() -> None:
    binarizer = method("abc-net", activation_bases=3).activation_binarizer(1)
    assert binarizer is not None
    x = torch.tensor([-0.6, -0.4, 0.1, 0.7], requires_grad=True)
    value = binarizer(x.reshape(1, 1, 1, -1)).value()  # thresholds -1/2, 0, 1/2, a third each
    torch.testing.assert_close(value.flatten(), torch.tensor([-1.0, -1 / 3, 1 / 3, 1.0]))
    value.sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([1, 2, 2, 1]) / 3)  # how many thresholds lie within 1/2


def test_in_training_slb_is_an_expectation_and_biper_and_bwnh_are_real_at_first() -> None:
    w = torch.from_numpy(FILTERS)
    for name, early in (("slb", np.tanh(POINT)), ("biper", 0.5 * np.sin(20 * POINT)), ("bwnh", POINT)):
        binarizer = prepared(name).train()
        binarizer.advance(0.0)
        binary = binarizer(w)
        torch.testing.assert_close(meant(binary), torch.from_numpy(early), atol=1e-9, rtol=1e-9)
        assert "in training" in binary.soft
    binarizer = prepared("biper").train()
    binarizer.advance(0.7)
    assert set(binarizer(w).signs.unique().tolist()) == {-1.0, 1.0}


def test_the_gradient_of_bipers_first_stage_is_that_of_its_second() -> None:
    found = []
    for progress in (0.0, 0.9):
        binarizer = prepared("biper").train()
        binarizer.advance(progress)
        w = torch.from_numpy(FILTERS.copy()).requires_grad_()
        meant(binarizer(w)).sum().backward()
        found.append(w.grad)
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0].reshape(2, 12), torch.from_numpy(0.5 * 20 * np.cos(20 * POINT)))


def test_bipers_two_stages_can_be_two_runs() -> None:
    w = torch.from_numpy(FILTERS)
    for switch, progress, hard in ((0.0, 0.0, True), (1.0, 0.999, False), (0.25, 0.2, False), (0.25, 0.25, True)):
        binarizer = prepared("biper", switch=switch).train()
        binarizer.advance(progress)
        assert (binarizer(w).signs.unique().numel() == 2) == hard


def test_bipers_penalty_is_the_mean_square_of_its_sines() -> None:
    found = prepared("biper", penalty=0.3).penalty(torch.from_numpy(FILTERS))
    assert float(found) == pytest.approx(0.3 * np.mean(0.5 - 0.5 * np.cos(40 * POINT)))


def test_simans_activations_are_signs_of_what_is_above_the_mean_of_a_sample() -> None:
    """In both modes, as in the released code; the slope is Bi-Real's, of the standardised sample."""
    binarizer = METHODS["siman"].activation_binarizer(1)
    assert binarizer is not None
    x = torch.tensor([GRID, [v + 3 for v in GRID]], dtype=torch.float64).reshape(2, 1, 1, -1).requires_grad_()
    spread = math.sqrt(np.var(GRID, ddof=1) + 1e-5)
    even = [(v - sum(GRID) / len(GRID)) / spread for v in GRID]
    for mode in (True, False):
        value = binarizer.train(mode)(x).value()
        assert value.flatten().tolist() == [1.0 if v >= 0 else -1.0 for v in even] * 2
        (own,) = torch.autograd.grad(value[0, 0, 0, 2], x, retain_graph=True)
        slope, n, s = max(0.0, 2 - 2 * abs(even[2])), len(GRID), spread
        wanted = [slope / s * ((i == 2) - 1 / n - even[2] * even[i] / (n - 1)) for i in range(n)]
        torch.testing.assert_close(own[0].flatten(), torch.tensor(wanted, dtype=torch.float64))


@pytest.mark.parametrize("progress", [0.0, 0.5, 0.9])
def test_siman_centres_its_latent_weights_and_cuts_their_magnitudes(progress: float) -> None:
    binarizer = prepared("siman")
    binarizer.advance(progress)
    w = torch.from_numpy(FILTERS.copy())
    binarizer.project(w)
    centred = POINT - POINT.mean(1, keepdims=True)
    low, high = np.percentile(np.abs(centred), [15 * (1 - progress), 100 - 15 * (1 - progress)])  # of the layer
    wanted = np.clip(np.abs(centred), low, high) * np.sign(centred)
    torch.testing.assert_close(w.reshape(2, 12), torch.from_numpy(wanted), atol=1e-6, rtol=1e-6)


def test_half_of_a_filter_of_siman_is_positive_of_an_odd_one_the_smaller_half() -> None:
    weight = torch.tensor(RNG.normal(0, 1, (3, 1, 3, 3)))
    signs = METHODS["siman"].weight_binarizer(weight).double()(weight).signs
    assert (signs > 0).flatten(1).sum(1).tolist() == [4, 4, 4]


def test_the_branches_of_ie_net_have_shifts_and_a_factor_of_their_own() -> None:
    binarizer = METHODS["ie-net"].activation_binarizer(2)
    assert binarizer is not None
    binarizer.first.data.copy_(torch.tensor([0.5, 0.0]))
    binarizer.second.data.copy_(torch.tensor([0.0, -0.5]))
    binarizer.factor.data.fill_(0.25)
    value = binarizer.eval()(torch.tensor([[-0.2, 0.3]]).reshape(1, 2, 1, 1)).value()
    assert value.flatten().tolist() == [1 - 0.25, 1 - 0.25]


def test_adabins_levels_take_the_whole_gradient_of_a_map() -> None:
    binarizer = METHODS["adabin"].activation_binarizer(1)
    assert binarizer is not None
    binarizer.double()
    a, b = 2.0, 0.25
    binarizer.scale.data.fill_(a)
    binarizer.center.data.fill_(b)
    binarizer(torch.tensor(GRID, dtype=torch.float64).reshape(1, 1, 1, -1)).value().sum().backward()
    even = [(x - b) / a for x in GRID]
    slope = [max(0.0, 2 - 2 * abs(v)) for v in even]
    signs = [1 if v >= 0 else -1 for v in even]
    assert float(binarizer.center.grad) == pytest.approx(sum(a - s for s in slope))
    by_scale = sum(sign + b - s * v for sign, s, v in zip(signs, slope, even, strict=True))
    assert float(binarizer.scale.grad) == pytest.approx(by_scale)


def test_adabins_activations_are_those_of_its_code_and_not_of_its_paper() -> None:
    binarizer = METHODS["adabin"].activation_binarizer(1)
    assert binarizer is not None
    binarizer.scale.data.fill_(2.0)
    binarizer.center.data.fill_(0.25)
    value = binarizer(torch.tensor([0.2, 0.3]).reshape(1, 1, 1, 2)).value().flatten()
    torch.testing.assert_close(value, torch.tensor([2 * (-1 + 0.25), 2 * (1 + 0.25)]))  # paper: 2 (-1) + 0.25, ...
