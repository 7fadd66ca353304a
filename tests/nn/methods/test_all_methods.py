"""Tests that run for every row of METHODS. Expected numbers of each method are in test_slopes.py and test_values.py."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError
from lcrbnn.nn.layers import BinaryConv2d, BinaryLinear
from lcrbnn.nn.methods.annealing import anneal_temperature
from lcrbnn.nn.methods.binarizer import BinaryTensor, Method, WeightBinarizer
from lcrbnn.nn.methods.method_registry import METHODS, get_method
from lcrbnn.nn.methods.rbnn import most_square_factors, random_rotation

every_method = pytest.mark.parametrize("row", METHODS.values(), ids=lambda m: m.name)
with_binary_inputs = pytest.mark.parametrize(
    "row", [m for m in METHODS.values() if 1 in m.supported_activation_bits], ids=lambda m: m.name
)


def make_weight_binarizer(row: Method, weight: Tensor) -> WeightBinarizer:
    binarizer = row.create_weight_binarizer(weight)
    binarizer.fit_output_shape((5, 6))
    return binarizer


def perturb_parameters(module: nn.Module) -> nn.Module:
    """Change the parameters, because some of them have no effect at their initial values."""
    generator = torch.Generator().manual_seed(1)
    for p in module.parameters():
        p.data += 0.3 * torch.rand(p.shape, generator=generator)
    return module


def convolve_ones(binary_weight: BinaryTensor) -> Tensor:
    """Return the output of a layer for an image of ones, (out, 1, 1) or (out, h, w)."""
    total = torch.zeros(())
    for base in binary_weight.split_bases():
        part = base.signs.sum((1, 2, 3)).reshape(-1, 1, 1)
        part = part if base.scale is None else part * base.scale
        total = total + (part if base.offset is None else part + base.offset * base.signs[0].numel())
    return total


@every_method
def test_weights_have_two_exact_levels_and_gradient_arrives(row: Method) -> None:
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    binarizer = perturb_parameters(make_weight_binarizer(row, weight.detach())).eval()
    binary = binarizer(weight)
    assert binary.signs.shape == weight.shape
    assert set(binary.signs.unique().tolist()) == ({-1.0, 0.0, 1.0} if row.name == "sq-twn" else {-1.0, 1.0})
    assert bool(binary.non_binary_reason) == (row.name == "sq-twn")
    assert binary.scale is None or torch.isfinite(binary.scale).all()
    (convolve_ones(binary) * torch.randn(4, 5, 6)).sum().backward()
    assert weight.grad is not None
    assert torch.isfinite(weight.grad).all()
    assert weight.grad.abs().sum() > 0


@with_binary_inputs
def test_activations_have_two_exact_levels_and_gradient_arrives(row: Method) -> None:
    x = (0.5 * torch.randn(2, 3, 4, 4)).requires_grad_()
    binarizer = row.configure("1/1").create_activation_binarizer(3)
    assert binarizer is not None
    binary = perturb_parameters(binarizer)(x)
    assert set(binary.signs.unique().tolist()) == {-1.0, 1.0}
    (binary.dequantize() * torch.randn_like(x)).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert x.grad.abs().sum() > 0


@with_binary_inputs
def test_activation_zero_becomes_a_sign(row: Method) -> None:
    binarizer = row.configure("1/1").create_activation_binarizer(3)
    assert binarizer is not None
    signs = binarizer(torch.zeros(2, 3, 2, 2)).signs
    assert (
        signs == (-1 if row.name == "dorefa" else 1)
    ).all()  # the threshold of dorefa is 0.5, so 0 is its lower level


@every_method
@pytest.mark.parametrize("weight", [torch.zeros(2, 3, 3, 3), torch.full((2, 3, 3, 3), 0.7)], ids=["zero", "constant"])
def test_constant_filters_give_finite_results(row: Method, weight: Tensor) -> None:
    for training in (True, False):
        weight = weight.detach().clone().requires_grad_()
        binarizer = make_weight_binarizer(row, weight.detach()).train(training)
        binarizer.start_epoch(weight)
        binary = binarizer(weight)
        convolve_ones(binary).sum().backward()
        assert weight.grad is not None
        assert torch.isfinite(weight.grad).all()
        assert torch.isfinite(convolve_ones(binary)).all()
        penalty = binarizer.extra_loss(weight)
        assert penalty is None or torch.isfinite(penalty)


@with_binary_inputs
def test_constant_inputs_give_finite_gradients(row: Method) -> None:
    x = torch.full((1, 3, 4, 4), 0.25, requires_grad=True)
    binarizer = row.configure("1/1").create_activation_binarizer(3)
    assert binarizer is not None
    binarizer(x).dequantize().sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


@every_method
def test_a_state_dict_restores_forward_pass_and_gradient(row: Method) -> None:
    def run_layer(layer: BinaryConv2d) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.linspace(-1, 1, 2 * 4 * 25).reshape(2, 4, 5, 5).requires_grad_()
        y = layer(x)
        gx, gw = torch.autograd.grad((y * torch.linspace(0, 1, y.numel()).view_as(y)).sum(), [x, layer.weight])
        return y.detach(), gx, gw

    def make_layer(seed: int) -> BinaryConv2d:
        torch.manual_seed(seed)
        layer = BinaryConv2d(4, 3, 3, padding=1, method=row)
        layer.weight_binarizer.fit_output_shape((5, 5))
        return layer

    first, second = make_layer(1), make_layer(2)
    perturb_parameters(first)
    first.weight_binarizer.set_progress(0.7)
    if first.input_binarizer is not None:
        first.input_binarizer.set_progress(0.7)
    first.weight_binarizer.start_epoch(first.weight)
    second.load_state_dict(first.state_dict())
    for a, b in zip(run_layer(first), run_layer(second), strict=True):
        assert torch.equal(a, b)


def test_methods_differ_unless_an_equivalence_note_explains_it() -> None:
    def run_method(row: Method) -> tuple[Tensor, ...]:
        torch.manual_seed(3)
        layer = BinaryConv2d(4, 3, 3, padding=1, method=row)
        layer.weight.data = 0.8 * torch.randn(3, 4, 3, 3, generator=torch.Generator().manual_seed(5))
        layer.weight_binarizer.fit_output_shape((5, 5))
        perturb_parameters(layer.weight_binarizer)
        if layer.input_binarizer is not None:
            perturb_parameters(layer.input_binarizer)
        x = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(4)).requires_grad_()
        y = layer(x)
        gx, gw = torch.autograd.grad((y * torch.linspace(0, 1, y.numel()).view_as(y)).sum(), [x, layer.weight])
        return y.detach(), gx, gw

    for bits in ("1/1", "1/2", "1/32"):
        rows = [m.configure(bits) for m in METHODS.values() if int(bits[2:]) in m.supported_activation_bits]
        results = {row.name: run_method(row) for row in rows}
        for a, b in combinations(rows, 2):
            same = all(torch.allclose(p, q, atol=1e-6) for p, q in zip(results[a.name], results[b.name], strict=True))
            assert not same or a.equivalence_note or b.equivalence_note, f"{a.name} and {b.name} are alike at {bits}"


def test_methods_with_the_same_weights_have_an_equivalence_note() -> None:
    weight = torch.randn(4, 3, 3, 3)
    for first_name, second_name in (("xnor", "bwn"), ("bireal", "reactnet")):
        a, b = (METHODS[n].create_weight_binarizer(weight)(weight) for n in (first_name, second_name))
        assert torch.equal(a.signs, b.signs)
        assert METHODS[second_name].equivalence_note


# ---------------------------------------------------------------------------------------------------------------
# Expected values computed by hand from the published formulas.


def test_temperature_is_log_linear_and_k_keeps_the_gradient_at_least_one() -> None:
    expected = {0.0: (1e-3, 1e3), 0.5: (1e-1, 1e1), 0.75: (1.0, 1.0), 0.9: (3.9810717, 1.0)}
    for progress, (t, k) in expected.items():
        assert anneal_temperature(progress, 1e-3, 1e1) == pytest.approx((t, k))


def test_irnet_with_real_activations_starts_at_temperature_01() -> None:
    weight = torch.randn(2, 3, 3, 3)
    t = {bits: float(get_method("irnet", bits).create_weight_binarizer(weight).annealing.t) for bits in ("1/1", "1/32")}
    assert t == {"1/1": pytest.approx(1e-3), "1/32": pytest.approx(1e-1)}


def test_xnor_projects_to_centered_and_clamped_weights() -> None:
    weight = torch.tensor([3.0, 0.5, 1.0, 0.1]).reshape(1, 4, 1, 1)
    METHODS["xnor"].create_weight_binarizer(weight).project(weight)
    torch.testing.assert_close(
        weight.flatten(), torch.tensor([1.0, -0.65, -0.15, -1.0])
    )  # mean 1.15; 1.85 and -1.05 clamped


def test_xnor_centers_new_weights_but_not_weights_of_a_converted_layer() -> None:
    layer = BinaryConv2d(8, 4, 3, method="xnor")
    assert layer.weight.mean(1).abs().max() < 1e-6
    conv = nn.Conv2d(8, 4, 3)
    before = conv.weight.detach().clone()
    assert torch.equal(BinaryConv2d.from_conv(conv, METHODS["xnor"]).weight, before)


def test_bnn_clamps_weights_only_with_a_limit() -> None:
    weight = torch.tensor([[2.0, -3.0, 0.5]])
    METHODS["bnn"].create_weight_binarizer(weight).project(weight)
    assert weight.tolist() == [[2.0, -3.0, 0.5]]
    METHODS["bnn"].configure(limit=1.0).create_weight_binarizer(weight).project(weight)
    assert weight.tolist() == [[1.0, -1.0, 0.5]]


def test_dorefa_2_bit_activations_are_multiples_of_a_third() -> None:
    binarizer = get_method("dorefa", "1/2").create_activation_binarizer(1)
    assert binarizer is not None
    x = torch.tensor([-0.5, 0.1, 0.2, 0.5, 0.6, 0.9, 3.0], requires_grad=True)
    binary = binarizer(x)
    assert binary.num_bases == 2
    assert set(binary.signs.unique().tolist()) == {-1.0, 1.0}
    torch.testing.assert_close(binary.dequantize(), torch.tensor([0, 0, 1, 2, 2, 3, 3]) / 3)  # the tie 0.5 rounds up
    binary.dequantize().sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.tensor([0.0, 1, 1, 1, 1, 1, 0]))


def test_dorefa_1_bit_activations_are_0_and_1_with_threshold_05() -> None:
    binarizer = METHODS["dorefa"].create_activation_binarizer(1)
    assert binarizer is not None
    assert binarizer(torch.tensor([-1.0, 0.49, 0.5, 0.51, 2.0])).dequantize().tolist() == [0, 0, 1, 1, 1]


def test_initial_weights_of_bireal_and_reactnet_are_positive() -> None:
    for name, positive in (("bireal", True), ("reactnet", True), ("irnet", False)):
        weight = BinaryConv2d(8, 8, 3, method=name).weight
        assert bool((weight >= 0).all()) == positive
        assert bool((weight.abs() < 0.001).all()) == positive


@pytest.mark.parametrize(("n", "pair"), [(72, (8, 9)), (1152, (32, 36)), (144, (12, 12)), (7, (1, 7)), (1, (1, 1))])
def test_most_square_factors(n: int, pair: tuple[int, int]) -> None:
    assert most_square_factors(n) == pair


def test_rbnn_rotations_are_orthogonal_and_move_weights_towards_signs() -> None:
    rotation = random_rotation(9)
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(9), atol=1e-5, rtol=0)
    weight = torch.randn(16, 8, 3, 3)
    binarizer = METHODS["rbnn"].create_weight_binarizer(weight)

    def mean_rotated_magnitude() -> Tensor:  # at theta = pi/2 the latent weight is the rotated one
        latent = binarizer.pre_sign_weight(weight)
        return latent.abs().mean()  # largest when entries sit at +-1

    before = mean_rotated_magnitude()
    binarizer.start_epoch(weight)
    assert mean_rotated_magnitude() > before
    torch.testing.assert_close(binarizer.left @ binarizer.left.T, torch.eye(8), atol=1e-5, rtol=0)


def test_rbnn_weight_has_no_gradient_at_the_published_initial_theta() -> None:
    weight = torch.randn(4, 8, 3, 3, requires_grad=True)
    METHODS["rbnn"].create_weight_binarizer(weight.detach())(weight).signs.sum().backward()
    assert weight.grad is not None
    assert weight.grad.abs().max() == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: get_method("irnett"),
            "no binarization method is called 'irnett'",
        ),
        (lambda: get_method("irnet", "1/2"), "irnet has no bit width '1/2'.*there are 1/1, 1/32"),
        (lambda: get_method("bwn", "1/1"), "bwn has no bit width '1/1'.*there are 1/32"),
        (lambda: get_method("irnet", 32), 'bits must have the form "weights/activations"'),
        (lambda: get_method("irnet", tmin=1), "no option of irnet is called 'tmin'"),
        (
            lambda: get_method("irnet", t_min=-1.0).create_activation_binarizer(1),
            "t_min must be a number of at least 1e-12; got -1.0",
        ),
        (
            lambda: get_method("bnn", limit=-1).create_weight_binarizer(torch.ones(1, 2)),
            "limit of latent weights must be",
        ),
        (
            lambda: get_method("xnor++", case=5).create_weight_binarizer(torch.ones(1, 2)),
            "case of xnor.. must be a whole number from 1 to 4",
        ),
        (
            lambda: get_method("xnor").create_weight_binarizer(torch.ones(2, 1, 3, 3)),
            "center weights over input channels and need at least 2",
        ),
        (
            lambda: get_method("irnet").create_weight_binarizer(torch.ones(2, 1))(torch.ones(2, 1)),
            "standardizes each filter",
        ),
        (lambda: get_method("siman").activation_class(1)(torch.ones(2, 1)), "standardizes each sample"),
        (
            lambda: get_method("xnor++").create_weight_binarizer(torch.ones(2, 2, 3, 3))(torch.ones(2, 2, 3, 3)),
            "needs the image size",
        ),
    ],
)
def test_invalid_arguments_raise_an_input_error(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


@every_method
def test_linear_layers_support_every_method(row: Method) -> None:
    layer = BinaryLinear(6, 4, method=row)
    x = torch.randn(5, 6, requires_grad=True)
    layer(x).square().sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


# ---------------------------------------------------------------------------------------------------------------
# Combinations of two methods.


def test_two_methods_can_be_combined() -> None:
    combined = get_method("irnet/recu", t_max=1.0)
    weight, x = torch.randn(4, 3, 3, 3), torch.randn(2, 3, 5, 5)
    weight_binarizer, irnet_binarizer = (
        combined.create_weight_binarizer(weight),
        METHODS["irnet"].configure(t_max=1.0).create_weight_binarizer(weight),
    )
    assert type(weight_binarizer) is type(irnet_binarizer)
    assert type(combined.create_activation_binarizer(3)) is type(METHODS["recu"].create_activation_binarizer(3))
    layer = BinaryConv2d.from_conv(nn.Conv2d(3, 4, 3), combined)
    assert layer(x).shape == (2, 4, 3, 3)
    assert get_method("recu/dorefa").supported_bit_widths == get_method("dorefa").supported_bit_widths
    assert get_method("irnet/recu", "1/32").create_activation_binarizer(3) is None
    assert get_method("irnet/rbnn", "1/32").standardizes_real_inputs
    assert not get_method("rbnn/irnet", "1/32").standardizes_real_inputs
    assert get_method("irnet/irnet").configure("1/32").create_weight_binarizer(weight).annealing.t == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("irnet/recuu", "no binarization method is called 'recuu'"),
        ("irnet/bwn", "bwn has real activations, so it cannot follow the slash in irnet/bwn"),
        ("a/b/c", "no binarization method is called 'a/b/c'"),
    ],
)
def test_invalid_combinations_raise_an_input_error(name: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        get_method(name)
