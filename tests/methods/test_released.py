"""What released codes settle beside levels and slopes: edges, parts of training, of what a number is the mean."""

from __future__ import annotations

import inspect

import pytest
import torch

import lcrbnn
from lcrbnn.layers import BinaryConv2d, BinaryLinear, binary_layers, extra_loss
from lcrbnn.methods import METHODS, method
from lcrbnn.methods.rad import distribution_loss
from tests.methods.test_values import FILTERS


def test_hwgqs_lowest_level_is_that_of_what_is_not_positive_and_a_middle_belongs_to_the_level_below() -> None:
    binarizer = METHODS["hwgq"].activation_binarizer(1)
    assert binarizer is not None
    edges = [-1.0, 0.0, 1e-6, 0.2, 0.807, 0.8071, 1.345, 1.3451, 9.0]
    value = binarizer(torch.tensor(edges, dtype=torch.float64).reshape(1, 1, 1, -1)).value().flatten()
    assert value.tolist() == pytest.approx([0, 0, 0.538, 0.538, 0.538, 1.076, 1.076, 1.614, 1.614])


def test_a_ternary_filter_without_large_weights_is_0_in_evaluation_and_itself_where_it_stays_real() -> None:
    weight = torch.stack([torch.tensor([1.0, -1.0, 1.0, -1.0]), torch.tensor([0.01, -0.02, 0.03, 0.02])])
    binarizer = METHODS["sq-twn"].weight_binarizer(weight)
    binary = binarizer.eval()(weight)
    assert (binary.signs * binary.scale[:, None]).tolist() == [[1, -1, 1, -1], [0, 0, 0, 0]]
    binarizer.train().real.fill_(True)
    binary = binarizer(weight)
    torch.testing.assert_close(binary.signs * binary.scale[:, None], weight)
    assert binary.signs.abs().max() <= 1  # half precision holds it


def test_of_filters_that_do_not_divide_the_smaller_number_stays_real() -> None:
    weight = torch.randn(6, 8)
    binarizer = METHODS["sq-bwn"].weight_binarizer(weight)
    binarizer.advance(0.3)  # a quarter of 6 is 1.5
    binarizer.project(weight)
    assert int(binarizer.real.sum()) == 1


@pytest.mark.parametrize(("bits", "speed"), [("1/1", 1.03), ("1/32", 1.04)])
def test_slb_hardens_as_fast_as_published_and_its_last_tenth_trains_with_signs_that_stand_still(
    bits: str, speed: float
) -> None:
    binarizer = method("slb", bits).weight_binarizer(torch.from_numpy(FILTERS)).double()
    for progress, epochs in ((0.4, 0), (0.41, 5), (0.65, 125)):  # of the published 500
        binarizer.advance(progress)
        w = torch.from_numpy(FILTERS.copy()).requires_grad_()
        binary = binarizer(w)
        torch.testing.assert_close(binary.signs, torch.tanh(speed**epochs * w), rtol=1e-5, atol=1e-6)
        assert torch.autograd.grad(binary.signs.sum(), w)[0].abs().max() > 0
    binarizer.advance(0.9)
    w = torch.from_numpy(FILTERS * 1e-6).requires_grad_()  # that not even the last temperature would make signs of
    binary = binarizer(w)
    assert torch.equal(binary.signs, torch.sign(torch.from_numpy(FILTERS)))
    binary.signs.sum().backward()
    assert w.grad.abs().max() == 0


def test_a_hash_with_a_negative_scale_is_taken_with_its_signs_turned() -> None:
    """Inputs that are nearly alike in all channels: what counts is the sum of a filter, and its signs' sum differs."""
    weight = torch.tensor([[5.0, -1.0, -1.0, -1.0]])
    binarizer = METHODS["bwnh"].weight_binarizer(weight)
    binarizer.moments.copy_(torch.ones(4, 4) + 0.01 * torch.eye(4))
    binarizer.advance(0.5)
    given = weight.clone()
    binarizer.start_epoch(weight)
    assert float((weight.sum() - given.sum()).abs()) < 0.1
    assert weight.abs().unique().numel() == 1


def test_rads_loss_is_the_mean_over_layers_and_not_their_sum() -> None:
    net = torch.nn.Sequential(
        BinaryConv2d(2, 3, 1, method="rad"), torch.nn.Flatten(), BinaryLinear(12, 4, method=method("rad", penalty=5.0))
    )
    x = torch.randn(8, 2, 2, 2)
    first = distribution_loss(x.mean((0, 2, 3)), x.std((0, 2, 3), correction=0))
    y = net[:2](x)
    second = distribution_loss(y.mean(0), y.std(0, correction=0))
    extra_loss(net)  # what this pass noted
    net(x)
    torch.testing.assert_close(extra_loss(net), (2 * first + 5 * second) / 2)


def test_losses_of_weights_are_sums_over_layers() -> None:
    net = torch.nn.Sequential(*(BinaryLinear(3, 3, method=method("bnn+", penalty=0.5)) for _ in range(2)))
    single = [layer.weight_binarizer.penalty(layer.weight) for _, layer in binary_layers(net)]
    torch.testing.assert_close(extra_loss(net), single[0] + single[1])


@pytest.mark.parametrize(("name", "factor"), [("bnn+", 1.0), ("dsq", 3.0)])
def test_learned_levels_start_from_the_weights_that_the_network_starts_from(name: str, factor: float) -> None:
    """Not from torch's own start, which the network overwrites: half as large, and some weights had no gradient."""
    net = lcrbnn.network("resnet20", name)
    for _, layer in binary_layers(net):
        found = dict(layer.weight_binarizer.named_parameters())
        level = found["alpha"] if name == "bnn+" else found["soft.bound"]
        assert float(level.detach()) == pytest.approx(factor * float(layer.weight.detach().abs().mean()), rel=1e-5)
    given = torch.nn.Conv2d(4, 6, 3)
    torch.nn.init.normal_(given.weight, std=7)
    layer = BinaryConv2d.of(given, METHODS[name])
    level = layer.weight_binarizer.alpha if name == "bnn+" else layer.weight_binarizer.soft.bound
    assert float(level.detach()) == pytest.approx(factor * float(given.weight.detach().abs().mean()), rel=1e-5)


def test_a_learned_bound_below_0_counts_by_its_size() -> None:
    """A step of training may take it there: levels must not trade places."""
    x = torch.linspace(-2, 2, 9).reshape(1, 1, 1, -1)
    values, slopes = [], []
    for bound in (0.7, -0.7):
        binarizer = METHODS["dsq"].activation_binarizer(1)
        assert binarizer is not None
        torch.nn.init.constant_(binarizer.soft.bound, bound)
        given = x.clone().requires_grad_()
        value = binarizer(given).value()
        values.append(value.detach())
        slopes.append(torch.autograd.grad(value.sum(), given)[0])
    assert values[0].flatten().tolist() == pytest.approx([-0.7] * 4 + [0.7] * 5)
    assert torch.equal(values[1], values[0])
    assert torch.equal(slopes[1], slopes[0])


def test_abc_nets_learned_shift_moves_the_threshold_the_other_way() -> None:
    binarizer = method("abc-net", activation_bases=2).activation_binarizer(1)
    assert binarizer is not None
    with torch.no_grad():
        binarizer.shift.copy_(torch.tensor([0.9, 0.7]))  # +1 from -0.4 and from -0.2 on
        binarizer.scale.copy_(torch.tensor([1.0, 4.0]))
    value = binarizer(torch.tensor([-0.5, -0.3, 0.0]).reshape(1, 1, 1, -1)).value()
    assert value.flatten().tolist() == [-5, -3, 5]


def test_rads_statistics_are_as_wide_as_float32() -> None:
    binarizer = METHODS["rad"].activation_binarizer(3)
    assert binarizer is not None
    x = torch.randn(6, 3, 4, 4).bfloat16().requires_grad_()
    penalties = []
    for given in (x, x.detach().float().requires_grad_()):
        binarizer(given)
        penalties.append(binarizer.penalty().detach())
    torch.testing.assert_close(*penalties, rtol=1e-6, atol=0)


FIXED = ("xnor", "bireal", "hwgq", "horq", "dorefa", "irnet", "lns", "proxybnn", "abc-net", "sq-bwn", "bwnh")


@pytest.mark.parametrize("name", FIXED)
def test_a_scale_that_is_measured_takes_no_gradient(name: str) -> None:
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    binary = METHODS[name].weight_binarizer(weight.detach())(weight)
    assert binary.signs.requires_grad
    assert binary.scale is not None
    assert not binary.scale.requires_grad


DEFAULTS = {
    "bnn+": {"beta": 5.0, "power": 1, "penalty": 1e-6},
    "lns": {"penalty": 0.1, "flips": 0.1},
    "proxybnn": {"penalty": 1e-3},
    "biper": {"frequency": 20.0, "penalty": 0.037, "switch": 2 / 3, "shift": False},
    "rad": {"limit": 1.0, "penalty": 2.0},
    "siman": {"cut": 0.15},
    "slb": {"growth": pytest.approx(1.03**250)},
    "reste": {"o_end": 3.0},
    "irnet": {"t_min": 1e-3, "t_max": 1e1},
    "rbnn": {"t_min": 1e-2, "t_max": 1e1},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_options_that_are_not_said_are_those_of_the_papers_and_codes(name: str) -> None:
    row = METHODS[name]
    for make in (row.weight, row.activation):
        taken = {p.name: p.default for p in inspect.signature(make).parameters.values() if p.kind is p.KEYWORD_ONLY}
        assert taken == {option: DEFAULTS[name][option] for option in taken}
    assert set(DEFAULTS[name]) == set(row.option_names())
