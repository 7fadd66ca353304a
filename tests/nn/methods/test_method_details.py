"""Properties of single methods: ABC-Net, SLB, BiPer, BWNH, SiMaN, IE-Net and AdaBin."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lcrbnn.nn.methods.abcnet import base_offsets
from lcrbnn.nn.methods.method_registry import METHODS, get_method
from tests.nn.methods.test_values import FILTER_ROWS, FILTERS, GRID, RNG, dequantize_weight, make_evaluation_binarizer


@pytest.mark.parametrize("bases", [2, 3, 5])
def test_abc_net_bases_are_the_least_squares_fit_of_shifted_signs(bases: int) -> None:
    binary = make_evaluation_binarizer("abc-net", weight_bases=bases)(torch.from_numpy(FILTERS))
    assert (binary.num_bases, binary.signs.shape) == (bases, (bases, 2, 3, 2, 2))
    flat, centered = FILTER_ROWS.reshape(-1), FILTER_ROWS.reshape(-1) - FILTER_ROWS.mean()
    columns = np.stack([np.where(centered + u * FILTER_ROWS.std() < 0, -1, 1) for u in base_offsets(bases)], 1)
    expected_scale = np.linalg.lstsq(columns, flat, rcond=None)[0]
    assert np.array_equal(binary.signs.flatten(1).numpy().T, columns)
    torch.testing.assert_close(binary.scale.flatten(), torch.from_numpy(expected_scale), atol=1e-4, rtol=1e-4)
    single_base = make_evaluation_binarizer("abc-net")(torch.from_numpy(FILTERS))
    assert (dequantize_weight(binary) - torch.from_numpy(FILTER_ROWS)).norm() < (
        dequantize_weight(single_base) - torch.from_numpy(FILTER_ROWS)
    ).norm()


def test_abc_net_activations_are_a_staircase() -> None:
    binarizer = get_method("abc-net", activation_bases=3).create_activation_binarizer(1)
    assert binarizer is not None
    x = torch.tensor([-0.6, -0.4, 0.1, 0.7], requires_grad=True)
    value = binarizer(x.reshape(1, 1, 1, -1)).dequantize()  # thresholds -1/2, 0, 1/2, a third each
    torch.testing.assert_close(value.flatten(), torch.tensor([-1.0, -1 / 3, 1 / 3, 1.0]))
    value.sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([1, 2, 2, 1]) / 3)  # number of thresholds within 1/2


def test_slb_biper_and_bwnh_have_real_weights_early_in_training() -> None:
    w = torch.from_numpy(FILTERS)
    for name, early in (
        ("slb", np.tanh(FILTER_ROWS)),
        ("biper", 0.5 * np.sin(20 * FILTER_ROWS)),
        ("bwnh", FILTER_ROWS),
    ):
        binarizer = make_evaluation_binarizer(name).train()
        binarizer.set_progress(0.0)
        binary = binarizer(w)
        torch.testing.assert_close(dequantize_weight(binary), torch.from_numpy(early), atol=1e-9, rtol=1e-9)
        assert "in training" in binary.non_binary_reason
    binarizer = make_evaluation_binarizer("biper").train()
    binarizer.set_progress(0.7)
    assert set(binarizer(w).signs.unique().tolist()) == {-1.0, 1.0}


def test_biper_has_the_same_gradient_in_both_stages() -> None:
    gradients = []
    for progress in (0.0, 0.9):
        binarizer = make_evaluation_binarizer("biper").train()
        binarizer.set_progress(progress)
        w = torch.from_numpy(FILTERS.copy()).requires_grad_()
        dequantize_weight(binarizer(w)).sum().backward()
        gradients.append(w.grad)
    torch.testing.assert_close(gradients[0], gradients[1])
    torch.testing.assert_close(gradients[0].reshape(2, 12), torch.from_numpy(0.5 * 20 * np.cos(20 * FILTER_ROWS)))


def test_biper_switch_separates_the_two_stages() -> None:
    w = torch.from_numpy(FILTERS)
    for switch, progress, hard in ((0.0, 0.0, True), (1.0, 0.999, False), (0.25, 0.2, False), (0.25, 0.25, True)):
        binarizer = make_evaluation_binarizer("biper", switch=switch).train()
        binarizer.set_progress(progress)
        assert (binarizer(w).signs.unique().numel() == 2) == hard


def test_biper_penalty_is_the_mean_square_of_the_sines() -> None:
    penalty = make_evaluation_binarizer("biper", penalty=0.3).extra_loss(torch.from_numpy(FILTERS))
    assert float(penalty) == pytest.approx(0.3 * np.mean(0.5 - 0.5 * np.cos(40 * FILTER_ROWS)))


def test_siman_activations_are_signs_of_standardized_samples() -> None:
    """This holds in both modes, as in the released code. The slope is Bi-Real's, for the standardized sample."""
    binarizer = METHODS["siman"].create_activation_binarizer(1)
    assert binarizer is not None
    x = torch.tensor([GRID, [v + 3 for v in GRID]], dtype=torch.float64).reshape(2, 1, 1, -1).requires_grad_()
    std = math.sqrt(np.var(GRID, ddof=1) + 1e-5)
    standardized = [(v - sum(GRID) / len(GRID)) / std for v in GRID]
    for mode in (True, False):
        value = binarizer.train(mode)(x).dequantize()
        assert value.flatten().tolist() == [1.0 if v >= 0 else -1.0 for v in standardized] * 2
        (gradient,) = torch.autograd.grad(value[0, 0, 0, 2], x, retain_graph=True)
        slope, n, s = max(0.0, 2 - 2 * abs(standardized[2])), len(GRID), std
        expected = [slope / s * ((i == 2) - 1 / n - standardized[2] * standardized[i] / (n - 1)) for i in range(n)]
        torch.testing.assert_close(gradient[0].flatten(), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("progress", [0.0, 0.5, 0.9])
def test_siman_centers_weights_and_clamps_their_magnitudes(progress: float) -> None:
    binarizer = make_evaluation_binarizer("siman")
    binarizer.set_progress(progress)
    w = torch.from_numpy(FILTERS.copy())
    binarizer.project(w)
    centered = FILTER_ROWS - FILTER_ROWS.mean(1, keepdims=True)
    low, high = np.percentile(np.abs(centered), [15 * (1 - progress), 100 - 15 * (1 - progress)])  # of the layer
    expected = np.clip(np.abs(centered), low, high) * np.sign(centered)
    torch.testing.assert_close(w.reshape(2, 12), torch.from_numpy(expected), atol=1e-6, rtol=1e-6)


def test_siman_makes_half_of_a_filter_positive_rounded_down() -> None:
    weight = torch.tensor(RNG.normal(0, 1, (3, 1, 3, 3)))
    signs = METHODS["siman"].create_weight_binarizer(weight).double()(weight).signs
    assert (signs > 0).flatten(1).sum(1).tolist() == [4, 4, 4]


def test_ie_net_branches_have_their_own_shifts_and_scale() -> None:
    binarizer = METHODS["ie-net"].create_activation_binarizer(2)
    assert binarizer is not None
    binarizer.first.data.copy_(torch.tensor([0.5, 0.0]))
    binarizer.second.data.copy_(torch.tensor([0.0, -0.5]))
    binarizer.factor.data.fill_(0.25)
    value = binarizer.eval()(torch.tensor([[-0.2, 0.3]]).reshape(1, 2, 1, 1)).dequantize()
    assert value.flatten().tolist() == [1 - 0.25, 1 - 0.25]


def test_adabin_levels_receive_the_gradient_of_all_elements() -> None:
    binarizer = METHODS["adabin"].create_activation_binarizer(1)
    assert binarizer is not None
    binarizer.double()
    a, b = 2.0, 0.25
    binarizer.scale.data.fill_(a)
    binarizer.center.data.fill_(b)
    binarizer(torch.tensor(GRID, dtype=torch.float64).reshape(1, 1, 1, -1)).dequantize().sum().backward()
    standardized = [(x - b) / a for x in GRID]
    slope = [max(0.0, 2 - 2 * abs(v)) for v in standardized]
    signs = [1 if v >= 0 else -1 for v in standardized]
    assert float(binarizer.center.grad) == pytest.approx(sum(a - s for s in slope))
    by_scale = sum(sign + b - s * v for sign, s, v in zip(signs, slope, standardized, strict=True))
    assert float(binarizer.scale.grad) == pytest.approx(by_scale)


def test_adabin_activations_follow_the_released_code() -> None:
    binarizer = METHODS["adabin"].create_activation_binarizer(1)
    assert binarizer is not None
    binarizer.scale.data.fill_(2.0)
    binarizer.center.data.fill_(0.25)
    value = binarizer(torch.tensor([0.2, 0.3]).reshape(1, 1, 1, 2)).dequantize().flatten()
    torch.testing.assert_close(value, torch.tensor([2 * (-1 + 0.25), 2 * (1 + 0.25)]))  # paper: 2 (-1) + 0.25, ...
