"""Details that follow the released code of methods: ties, phases of training, initial values, defaults."""

from __future__ import annotations

import inspect

import pytest
import torch

import lcrbnn
from lcrbnn.nn.layers import BinaryConv2d, BinaryLinear
from lcrbnn.nn.methods.method_registry import METHODS, get_method
from lcrbnn.nn.methods.rad import distribution_loss
from lcrbnn.nn.model_hooks import extra_loss, iter_binary_layers
from tests.nn.methods.test_values import FILTERS


def test_hwgq_thresholds_belong_to_the_lower_level() -> None:
    binarizer = METHODS["hwgq"].create_activation_binarizer(1)
    assert binarizer is not None
    edges = [-1.0, 0.0, 1e-6, 0.2, 0.807, 0.8071, 1.345, 1.3451, 9.0]
    value = binarizer(torch.tensor(edges, dtype=torch.float64).reshape(1, 1, 1, -1)).dequantize().flatten()
    assert value.tolist() == pytest.approx([0, 0, 0.538, 0.538, 0.538, 1.076, 1.076, 1.614, 1.614])


def test_ternary_filter_of_small_weights_is_0_unless_it_stays_real() -> None:
    weight = torch.stack([torch.tensor([1.0, -1.0, 1.0, -1.0]), torch.tensor([0.01, -0.02, 0.03, 0.02])])
    binarizer = METHODS["sq-twn"].create_weight_binarizer(weight)
    binary = binarizer.eval()(weight)
    assert (binary.signs * binary.scale[:, None]).tolist() == [[1, -1, 1, -1], [0, 0, 0, 0]]
    binarizer.train().real.fill_(True)
    binary = binarizer(weight)
    torch.testing.assert_close(binary.signs * binary.scale[:, None], weight)
    assert binary.signs.abs().max() <= 1  # so half precision can represent it


def test_sq_rounds_the_number_of_real_filters_down() -> None:
    weight = torch.randn(6, 8)
    binarizer = METHODS["sq-bwn"].create_weight_binarizer(weight)
    binarizer.set_progress(0.3)  # a quarter of 6 is 1.5
    binarizer.project(weight)
    assert int(binarizer.real.sum()) == 1


@pytest.mark.parametrize(("bits", "speed"), [("1/1", 1.03), ("1/32", 1.04)])
def test_slb_temperature_is_the_published_one_and_last_tenth_has_fixed_signs(bits: str, speed: float) -> None:
    binarizer = get_method("slb", bits).create_weight_binarizer(torch.from_numpy(FILTERS)).double()
    for progress, epochs in ((0.4, 0), (0.41, 5), (0.65, 125)):  # of the published 500
        binarizer.set_progress(progress)
        w = torch.from_numpy(FILTERS.copy()).requires_grad_()
        binary = binarizer(w)
        torch.testing.assert_close(binary.signs, torch.tanh(speed**epochs * w), rtol=1e-5, atol=1e-6)
        assert torch.autograd.grad(binary.signs.sum(), w)[0].abs().max() > 0
    binarizer.set_progress(0.9)
    w = torch.from_numpy(FILTERS * 1e-6).requires_grad_()  # too small for the last temperature to saturate
    binary = binarizer(w)
    assert torch.equal(binary.signs, torch.sign(torch.from_numpy(FILTERS)))
    binary.signs.sum().backward()
    assert w.grad.abs().max() == 0


def test_bwnh_hash_with_negative_scale_flips_the_signs() -> None:
    """If all channels are nearly equal, only the sum of a filter matters, and the sum of its signs differs in sign."""
    weight = torch.tensor([[5.0, -1.0, -1.0, -1.0]])
    binarizer = METHODS["bwnh"].create_weight_binarizer(weight)
    binarizer.moments.copy_(torch.ones(4, 4) + 0.01 * torch.eye(4))
    binarizer.set_progress(0.5)
    original_weight = weight.clone()
    binarizer.start_epoch(weight)
    assert float((weight.sum() - original_weight.sum()).abs()) < 0.1
    assert weight.abs().unique().numel() == 1


def test_rad_loss_is_the_mean_over_layers() -> None:
    net = torch.nn.Sequential(
        BinaryConv2d(2, 3, 1, method="rad"),
        torch.nn.Flatten(),
        BinaryLinear(12, 4, method=get_method("rad", penalty=5.0)),
    )
    x = torch.randn(8, 2, 2, 2)
    first = distribution_loss(x.mean((0, 2, 3)), x.std((0, 2, 3), correction=0))
    y = net[:2](x)
    second = distribution_loss(y.mean(0), y.std(0, correction=0))
    extra_loss(net)  # discard the losses recorded by this pass
    net(x)
    torch.testing.assert_close(extra_loss(net), (2 * first + 5 * second) / 2)


def test_extra_losses_of_weights_are_summed_over_layers() -> None:
    net = torch.nn.Sequential(*(BinaryLinear(3, 3, method=get_method("bnn+", penalty=0.5)) for _ in range(2)))
    single = [layer.weight_binarizer.extra_loss(layer.weight) for _, layer in iter_binary_layers(net)]
    torch.testing.assert_close(extra_loss(net), single[0] + single[1])


@pytest.mark.parametrize(("name", "factor"), [("bnn+", 1.0), ("dsq", 3.0)])
def test_learned_levels_start_from_the_initial_weights_of_the_network(name: str, factor: float) -> None:
    """torch's own initial weights, which the network overwrites, are half as large. Levels must not start from them."""
    net = lcrbnn.create_model("resnet20", name)
    for _, layer in iter_binary_layers(net):
        parameters = dict(layer.weight_binarizer.named_parameters())
        level = parameters["alpha"] if name == "bnn+" else parameters["soft.bound"]
        assert float(level.detach()) == pytest.approx(factor * float(layer.weight.detach().abs().mean()), rel=1e-5)
    conv = torch.nn.Conv2d(4, 6, 3)
    torch.nn.init.normal_(conv.weight, std=7)
    layer = BinaryConv2d.from_conv(conv, METHODS[name])
    level = layer.weight_binarizer.alpha if name == "bnn+" else layer.weight_binarizer.soft.bound
    assert float(level.detach()) == pytest.approx(factor * float(conv.weight.detach().abs().mean()), rel=1e-5)


def test_a_negative_dsq_bound_acts_as_its_magnitude() -> None:
    """A training step can make the bound negative. This must not exchange the levels."""
    x = torch.linspace(-2, 2, 9).reshape(1, 1, 1, -1)
    values, slopes = [], []
    for bound in (0.7, -0.7):
        binarizer = METHODS["dsq"].create_activation_binarizer(1)
        assert binarizer is not None
        torch.nn.init.constant_(binarizer.soft.bound, bound)
        x_with_gradient = x.clone().requires_grad_()
        value = binarizer(x_with_gradient).dequantize()
        values.append(value.detach())
        slopes.append(torch.autograd.grad(value.sum(), x_with_gradient)[0])
    assert values[0].flatten().tolist() == pytest.approx([-0.7] * 4 + [0.7] * 5)
    assert torch.equal(values[1], values[0])
    assert torch.equal(slopes[1], slopes[0])


def test_abc_net_shift_moves_the_threshold_in_the_opposite_direction() -> None:
    binarizer = get_method("abc-net", activation_bases=2).create_activation_binarizer(1)
    assert binarizer is not None
    with torch.no_grad():
        binarizer.shift.copy_(torch.tensor([0.9, 0.7]))  # +1 from -0.4 and from -0.2 on
        binarizer.scale.copy_(torch.tensor([1.0, 4.0]))
    value = binarizer(torch.tensor([-0.5, -0.3, 0.0]).reshape(1, 1, 1, -1)).dequantize()
    assert value.flatten().tolist() == [-5, -3, 5]


def test_rad_statistics_are_computed_in_float32() -> None:
    binarizer = METHODS["rad"].create_activation_binarizer(3)
    assert binarizer is not None
    x = torch.randn(6, 3, 4, 4).bfloat16().requires_grad_()
    penalties = []
    for inputs in (x, x.detach().float().requires_grad_()):
        binarizer(inputs)
        penalties.append(binarizer.pop_extra_loss().detach())
    torch.testing.assert_close(*penalties, rtol=1e-6, atol=0)


METHODS_WITH_FIXED_SCALE = (
    "xnor",
    "bireal",
    "hwgq",
    "horq",
    "dorefa",
    "irnet",
    "lns",
    "proxybnn",
    "abc-net",
    "sq-bwn",
    "bwnh",
)


@pytest.mark.parametrize("name", METHODS_WITH_FIXED_SCALE)
def test_a_computed_scale_has_no_gradient(name: str) -> None:
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    binary = METHODS[name].create_weight_binarizer(weight.detach())(weight)
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
def test_default_options_are_those_of_papers_and_released_code(name: str) -> None:
    row = METHODS[name]
    for binarizer_class in (row.weight_class, row.activation_class):
        defaults = {
            p.name: p.default
            for p in inspect.signature(binarizer_class).parameters.values()
            if p.kind is p.KEYWORD_ONLY
        }
        assert defaults == {option: DEFAULTS[name][option] for option in defaults}
    assert set(DEFAULTS[name]) == set(row.option_names())
