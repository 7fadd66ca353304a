"""Every method, over the table: a new row is tested by being there, except for its numbers (test_methods_values.py)."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError
from lcrbnn.layers import BinaryConv2d, BinaryLinear
from lcrbnn.methods import METHODS, Binary, Method, WeightBinarizer, method
from lcrbnn.methods.annealing import temperature
from lcrbnn.methods.rbnn import near_square, random_rotation

every_method = pytest.mark.parametrize("row", METHODS.values(), ids=lambda m: m.name)
with_binary_inputs = pytest.mark.parametrize(
    "row", [m for m in METHODS.values() if 1 in m.activation_bits], ids=lambda m: m.name
)


def fitted(row: Method, weight: Tensor) -> WeightBinarizer:
    binarizer = row.weight_binarizer(weight)
    binarizer.fit((5, 6))
    return binarizer


def stir(module: nn.Module) -> nn.Module:
    """Move learned numbers off their start, which hides what some of them do."""
    generator = torch.Generator().manual_seed(1)
    for p in module.parameters():
        p.data += 0.3 * torch.rand(p.shape, generator=generator)
    return module


def image_of(binary: Binary) -> Tensor:
    """What a layer makes of an image of ones: (out, 1, 1) or (out, h, w)."""
    total = torch.zeros(())
    for base in binary.each():
        part = base.signs.sum((1, 2, 3)).reshape(-1, 1, 1)
        part = part if base.scale is None else part * base.scale
        total = total + (part if base.offset is None else part + base.offset * base.signs[0].numel())
    return total


@every_method
def test_weights_have_two_exact_levels_and_gradient_arrives(row: Method) -> None:
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    binarizer = stir(fitted(row, weight.detach())).eval()
    binary = binarizer(weight)
    assert binary.signs.shape == weight.shape
    assert set(binary.signs.unique().tolist()) == ({-1.0, 0.0, 1.0} if row.name == "sq-twn" else {-1.0, 1.0})
    assert bool(binary.soft) == (row.name == "sq-twn")
    assert binary.scale is None or torch.isfinite(binary.scale).all()
    (image_of(binary) * torch.randn(4, 5, 6)).sum().backward()
    assert weight.grad is not None
    assert torch.isfinite(weight.grad).all()
    assert weight.grad.abs().sum() > 0


@with_binary_inputs
def test_activations_have_two_exact_levels_and_gradient_arrives(row: Method) -> None:
    x = (0.5 * torch.randn(2, 3, 4, 4)).requires_grad_()
    binarizer = row.configure("1/1").activation_binarizer(3)
    assert binarizer is not None
    binary = stir(binarizer)(x)
    assert set(binary.signs.unique().tolist()) == {-1.0, 1.0}
    (binary.value() * torch.randn_like(x)).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert x.grad.abs().sum() > 0


@with_binary_inputs
def test_zero_has_a_side(row: Method) -> None:
    binarizer = row.configure("1/1").activation_binarizer(3)
    assert binarizer is not None
    signs = binarizer(torch.zeros(2, 3, 2, 2)).signs
    assert (signs == (-1 if row.name == "dorefa" else 1)).all()  # dorefa's threshold is 0.5, so 0 is its lower level


@every_method
@pytest.mark.parametrize("weight", [torch.zeros(2, 3, 3, 3), torch.full((2, 3, 3, 3), 0.7)], ids=["zero", "constant"])
def test_filters_without_spread_stay_finite(row: Method, weight: Tensor) -> None:
    for training in (True, False):
        weight = weight.detach().clone().requires_grad_()
        binarizer = fitted(row, weight.detach()).train(training)
        binarizer.start_epoch(weight)
        binary = binarizer(weight)
        image_of(binary).sum().backward()
        assert weight.grad is not None
        assert torch.isfinite(weight.grad).all()
        assert torch.isfinite(image_of(binary)).all()
        penalty = binarizer.penalty(weight)
        assert penalty is None or torch.isfinite(penalty)


@with_binary_inputs
def test_constant_inputs_stay_finite(row: Method) -> None:
    x = torch.full((1, 3, 4, 4), 0.25, requires_grad=True)
    binarizer = row.configure("1/1").activation_binarizer(3)
    assert binarizer is not None
    binarizer(x).value().sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


@every_method
def test_a_state_dict_brings_back_forward_and_gradient(row: Method) -> None:
    def outcome(layer: BinaryConv2d) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.linspace(-1, 1, 2 * 4 * 25).reshape(2, 4, 5, 5).requires_grad_()
        y = layer(x)
        gx, gw = torch.autograd.grad((y * torch.linspace(0, 1, y.numel()).view_as(y)).sum(), [x, layer.weight])
        return y.detach(), gx, gw

    def make(seed: int) -> BinaryConv2d:
        torch.manual_seed(seed)
        layer = BinaryConv2d(4, 3, 3, padding=1, method=row)
        layer.weight_binarizer.fit((5, 5))
        return layer

    first, second = make(1), make(2)
    stir(first)
    first.weight_binarizer.advance(0.7)
    if first.input_binarizer is not None:
        first.input_binarizer.advance(0.7)
    first.weight_binarizer.start_epoch(first.weight)
    second.load_state_dict(first.state_dict())
    for a, b in zip(outcome(first), outcome(second), strict=True):
        assert torch.equal(a, b)


def test_no_two_rows_share_forward_and_gradient_unless_a_row_says_why() -> None:
    def fingerprint(row: Method) -> tuple[Tensor, ...]:
        torch.manual_seed(3)
        layer = BinaryConv2d(4, 3, 3, padding=1, method=row)
        layer.weight.data = 0.8 * torch.randn(3, 4, 3, 3, generator=torch.Generator().manual_seed(5))
        layer.weight_binarizer.fit((5, 5))
        stir(layer.weight_binarizer)
        if layer.input_binarizer is not None:
            stir(layer.input_binarizer)
        x = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(4)).requires_grad_()
        y = layer(x)
        gx, gw = torch.autograd.grad((y * torch.linspace(0, 1, y.numel()).view_as(y)).sum(), [x, layer.weight])
        return y.detach(), gx, gw

    for bits in ("1/1", "1/2", "1/32"):
        rows = [m.configure(bits) for m in METHODS.values() if int(bits[2:]) in m.activation_bits]
        prints = {row.name: fingerprint(row) for row in rows}
        for a, b in combinations(rows, 2):
            same = all(torch.allclose(p, q, atol=1e-6) for p, q in zip(prints[a.name], prints[b.name], strict=True))
            assert not same or a.alike or b.alike, f"{a.name} and {b.name} are alike at {bits}"


def test_the_rows_that_claim_to_be_alike_are() -> None:
    weight = torch.randn(4, 3, 3, 3)
    for one, other in (("xnor", "bwn"), ("bireal", "reactnet")):
        a, b = (METHODS[n].weight_binarizer(weight)(weight) for n in (one, other))
        assert torch.equal(a.signs, b.signs)
        assert METHODS[other].alike


# ---------------------------------------------------------------------------------------------------------------
# Gradient values, typed from the published formulas (t and k of a schedule at its start, half way, near its end).


def test_the_temperature_goes_log_linearly_and_k_keeps_the_early_gradient_at_one() -> None:
    expected = {0.0: (1e-3, 1e3), 0.5: (1e-1, 1e1), 0.75: (1.0, 1.0), 0.9: (3.9810717, 1.0)}
    for progress, (t, k) in expected.items():
        assert temperature(progress, 1e-3, 1e1) == pytest.approx((t, k))


def test_irnet_starts_its_weights_only_schedule_at_a_tenth() -> None:
    weight = torch.randn(2, 3, 3, 3)
    t = {bits: float(method("irnet", bits).weight_binarizer(weight).annealing.t) for bits in ("1/1", "1/32")}
    assert t == {"1/1": pytest.approx(1e-3), "1/32": pytest.approx(1e-1)}


def test_xnor_keeps_its_latent_weight_centred_and_clamped() -> None:
    weight = torch.tensor([3.0, 0.5, 1.0, 0.1]).reshape(1, 4, 1, 1)
    METHODS["xnor"].weight_binarizer(weight).project(weight)
    torch.testing.assert_close(
        weight.flatten(), torch.tensor([1.0, -0.65, -0.15, -1.0])
    )  # mean 1.15; 1.85 and -1.05 clamped


def test_a_fresh_xnor_layer_starts_centred_and_a_given_weight_is_left_as_it_is() -> None:
    layer = BinaryConv2d(8, 4, 3, method="xnor")
    assert layer.weight.mean(1).abs().max() < 1e-6
    conv = nn.Conv2d(8, 4, 3)
    before = conv.weight.detach().clone()
    assert torch.equal(BinaryConv2d.of(conv, METHODS["xnor"]).weight, before)


def test_bnn_clamps_its_latent_weight_only_when_asked() -> None:
    weight = torch.tensor([[2.0, -3.0, 0.5]])
    METHODS["bnn"].weight_binarizer(weight).project(weight)
    assert weight.tolist() == [[2.0, -3.0, 0.5]]
    METHODS["bnn"].configure(limit=1.0).weight_binarizer(weight).project(weight)
    assert weight.tolist() == [[1.0, -1.0, 0.5]]


def test_dorefa_two_bit_activations_are_thirds_and_sum_their_bases() -> None:
    binarizer = method("dorefa", "1/2").activation_binarizer(1)
    assert binarizer is not None
    x = torch.tensor([-0.5, 0.1, 0.2, 0.5, 0.6, 0.9, 3.0], requires_grad=True)
    binary = binarizer(x)
    assert binary.bases == 2
    assert set(binary.signs.unique().tolist()) == {-1.0, 1.0}
    torch.testing.assert_close(binary.value(), torch.tensor([0, 0, 1, 2, 2, 3, 3]) / 3)  # 0.5 is a tie and rounds up
    binary.value().sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.tensor([0.0, 1, 1, 1, 1, 1, 0]))


def test_dorefa_one_bit_activations_are_zero_and_one_with_the_threshold_at_a_half() -> None:
    binarizer = METHODS["dorefa"].activation_binarizer(1)
    assert binarizer is not None
    assert binarizer(torch.tensor([-1.0, 0.49, 0.5, 0.51, 2.0])).value().tolist() == [0, 0, 1, 1, 1]


def test_bireal_and_reactnet_start_all_positive_and_irnet_does_not() -> None:
    for name, positive in (("bireal", True), ("reactnet", True), ("irnet", False)):
        weight = BinaryConv2d(8, 8, 3, method=name).weight
        assert bool((weight >= 0).all()) == positive
        assert bool((weight.abs() < 0.001).all()) == positive


@pytest.mark.parametrize(("n", "pair"), [(72, (8, 9)), (1152, (32, 36)), (144, (12, 12)), (7, (1, 7)), (1, (1, 1))])
def test_rbnn_factors_a_filter_as_near_to_square_as_it_goes(n: int, pair: tuple[int, int]) -> None:
    assert near_square(n) == pair


def test_rbnn_rotations_are_orthogonal_and_turn_towards_the_signs() -> None:
    rotation = random_rotation(9)
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(9), atol=1e-5, rtol=0)
    weight = torch.randn(16, 8, 3, 3)
    binarizer = METHODS["rbnn"].weight_binarizer(weight)

    def agreement() -> Tensor:  # at theta = pi/2 the latent weight is the rotated one
        latent = binarizer.latent(weight)
        return latent.abs().mean()  # largest when entries sit at +-1

    before = agreement()
    binarizer.start_epoch(weight)
    assert agreement() > before
    torch.testing.assert_close(binarizer.left @ binarizer.left.T, torch.eye(8), atol=1e-5, rtol=0)


def test_rbnn_passes_no_gradient_to_its_weight_at_the_published_start() -> None:
    weight = torch.randn(4, 8, 3, 3, requires_grad=True)
    METHODS["rbnn"].weight_binarizer(weight.detach())(weight).signs.sum().backward()
    assert weight.grad is not None
    assert weight.grad.abs().max() == 0


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: method("irnett"), "no binarisation method is called 'irnett'; there are bnn, .*did you mean 'irnet'"),
        (lambda: method("irnet", "1/2"), "irnet has no bit width '1/2'.*there are 1/1, 1/32"),
        (lambda: method("bwn", "1/1"), "bwn has no bit width '1/1'.*there are 1/32"),
        (lambda: method("irnet", 32), 'bits are written "weights/activations"'),
        (lambda: method("irnet", tmin=1), "no option of irnet is called 'tmin'; there are t_max, t_min"),
        (
            lambda: method("irnet", t_min=-1.0).activation_binarizer(1),
            "t_min must be a number of at least 1e-12; got -1.0",
        ),
        (lambda: method("bnn", limit=-1).weight_binarizer(torch.ones(1, 2)), "limit of latent weights must be"),
        (
            lambda: method("xnor++", case=5).weight_binarizer(torch.ones(1, 2)),
            "case of xnor.. must be a whole number from 1 to 4",
        ),
        (
            lambda: method("xnor").weight_binarizer(torch.ones(2, 1, 3, 3)),
            "centre weights over input channels, .* has one",
        ),
        (lambda: method("irnet").weight_binarizer(torch.ones(2, 1))(torch.ones(2, 1)), "standardises each filter"),
        (lambda: method("siman").activation(1)(torch.ones(2, 1)), "standardises each sample"),
        (
            lambda: method("xnor++").weight_binarizer(torch.ones(2, 2, 3, 3))(torch.ones(2, 2, 3, 3)),
            "has not heard the image size",
        ),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(call: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call()


@every_method
def test_linear_layers_take_every_method(row: Method) -> None:
    layer = BinaryLinear(6, 4, method=row)
    x = torch.randn(5, 6, requires_grad=True)
    layer(x).square().sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


# ---------------------------------------------------------------------------------------------------------------
# Halves of two methods.


def test_two_methods_give_a_half_each() -> None:
    mixed = method("irnet/recu", t_max=1.0)
    weight, x = torch.randn(4, 3, 3, 3), torch.randn(2, 3, 5, 5)
    ours, theirs = mixed.weight_binarizer(weight), METHODS["irnet"].configure(t_max=1.0).weight_binarizer(weight)
    assert type(ours) is type(theirs)
    assert type(mixed.activation_binarizer(3)) is type(METHODS["recu"].activation_binarizer(3))
    layer = BinaryConv2d.of(nn.Conv2d(3, 4, 3), mixed)
    assert layer(x).shape == (2, 4, 3, 3)
    assert method("recu/dorefa").bit_widths == method("dorefa").bit_widths
    assert method("irnet/recu", "1/32").activation_binarizer(3) is None
    assert method("irnet/rbnn", "1/32").standardizes_real_input
    assert not method("rbnn/irnet", "1/32").standardizes_real_input
    assert method("irnet/irnet").configure("1/32").weight_binarizer(weight).annealing.t == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("irnet/recuu", "no binarisation method is called 'recuu'"),
        ("irnet/bwn", "bwn leaves activations real: it cannot be the second half of irnet/bwn"),
        ("a/b/c", "no binarisation method is called 'a/b/c'"),
    ],
)
def test_halves_that_there_are_not(name: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        method(name)
