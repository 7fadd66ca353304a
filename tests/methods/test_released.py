"""What released codes settle beside levels and slopes: edges, parts of training, of what a number is the mean."""

from __future__ import annotations

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
