"""Optional features of methods: extra losses, schedules, random draws, observed inputs, several bases."""

from __future__ import annotations

import copy
import math
import pickle
from itertools import product

import numpy as np
import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from lcrbnn.errors import InputError
from lcrbnn.evaluation.analysis.cost import count_cost
from lcrbnn.lcr.second_pass import freeze_running_statistics
from lcrbnn.nn.layers import BinaryConv2d, BinaryLinear
from lcrbnn.nn.methods.annealing import Schedule
from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.methods.bwnh import hash_weights
from lcrbnn.nn.methods.lns import unbiased_loss
from lcrbnn.nn.methods.method_registry import METHODS, get_method
from lcrbnn.nn.methods.rad import distribution_loss
from lcrbnn.nn.methods.slb import hardness_schedule
from lcrbnn.nn.methods.sq import counter_uniform, quantized_fraction_schedule
from lcrbnn.nn.model_hooks import extra_loss, iter_binary_layers, project_weights, set_progress, start_epoch
from lcrbnn.train.objective import compute_objective
from lcrbnn.train.setup.build import build_training_parts
from lcrbnn.train.setup.spec import TrainSpec


def make_tiny_network(name: str | Method, **options: object) -> nn.Module:
    return lcrbnn.create_model("resnet8-double", name, in_channels=1, **options)


# -- losses of a method ----------------------------------------------------------------------------------------------


def test_which_methods_have_an_extra_loss() -> None:
    methods_with_loss = set()
    for name in METHODS:
        net = make_tiny_network(name)
        assert name != "rad" or extra_loss(net) is None  # no forward pass yet
        net(torch.randn(4, 1, 8, 8))
        if extra_loss(net) is not None:
            methods_with_loss.add(name)
    assert methods_with_loss == {"bnn+", "proxybnn", "lns", "rad", "biper"}


def test_the_objective_contains_the_extra_loss() -> None:
    spec = TrainSpec(method="bnn+", method_options=("penalty=0.01",))
    parts = build_training_parts(spec, torch.device("cpu"))
    images, labels = torch.randn(8, 1, 8, 8), torch.arange(8) % 10
    with freeze_running_statistics(parts.model):
        plain = F.cross_entropy(parts.model(images), labels)
        objective = compute_objective(spec, parts, images, labels, 0.0)
    penalty_sum = sum(
        (layer.weight_binarizer.alpha - layer.weight.abs()).abs().sum() for _, layer in iter_binary_layers(parts.model)
    )
    torch.testing.assert_close(objective.loss, plain + 0.01 * penalty_sum)
    objective.loss.backward()
    assert all(layer.weight_binarizer.alpha.grad.abs() > 0 for _, layer in iter_binary_layers(parts.model))


@pytest.mark.parametrize(("power", "expected"), [(1, 0.5 + 0.1 + 0.3), (2, 0.25 + 0.01 + 0.09)])
def test_both_regularizers_of_bnn_plus(power: int, expected: float) -> None:
    weight = torch.tensor([[0.0, -0.6, 0.8]])
    binarizer = get_method("bnn+", power=power, penalty=2.0).create_weight_binarizer(weight)
    binarizer.alpha.data.fill_(0.5)
    assert binarizer.extra_loss(weight).item() == pytest.approx(2 * expected)


def test_distribution_loss_at_points_computed_by_hand() -> None:
    def loss(m: float, s: float) -> float:
        return float(distribution_loss(torch.tensor([m]), torch.tensor([s])))

    assert loss(0.0, 2.0) == 0  # centered, and neither too narrow nor too wide
    assert loss(0.5, 1.0) == pytest.approx((2 - 0.5 - 1) ** 2)
    assert loss(-0.5, 1.0) == pytest.approx(loss(0.5, 1.0))
    assert loss(0.0, 5.0) == pytest.approx(1.0)
    assert loss(3.0, 1.0) == pytest.approx(9 - 1)
    mean_over_channels = distribution_loss(torch.tensor([0.5, 0.0]), torch.tensor([1.0, 2.0]))
    assert float(mean_over_channels) == pytest.approx(0.25 / 2)


def test_rad_loss_uses_statistics_per_channel_and_ends_early() -> None:
    x = torch.randn(6, 3, 4, 4, requires_grad=True)
    binarizer = METHODS["rad"].create_activation_binarizer(3)
    assert binarizer is not None
    binarizer(x)
    channels = x.detach().transpose(0, 1).flatten(1)
    expected = 2 * distribution_loss(channels.mean(1), channels.std(1, correction=0))
    torch.testing.assert_close(binarizer.pop_extra_loss().detach(), expected)
    assert binarizer.pop_extra_loss() is None  # the loss is returned only once
    binarizer.set_progress(59.9 / 65)
    binarizer(x)
    torch.testing.assert_close(binarizer.pop_extra_loss().detach(), expected)
    binarizer.set_progress(60 / 65)
    binarizer(x)
    assert float(binarizer.pop_extra_loss().detach()) == 0
    for quiet in (binarizer.eval(), binarizer.train()):
        with torch.no_grad():
            quiet(x)
        assert binarizer.pop_extra_loss() is None
    linear = BinaryLinear(5, 2, method="rad")
    linear(torch.randn(7, 5))
    assert linear.input_binarizer.pop_extra_loss() is not None


def test_a_deep_copy_after_a_forward_pass_has_no_recorded_loss() -> None:
    net = make_tiny_network("rad")
    net(torch.randn(4, 1, 8, 8))
    copied_net = copy.deepcopy(net)
    assert extra_loss(copied_net) is None
    assert extra_loss(net) is not None


def test_unbiased_loss_has_the_mean_of_the_clean_loss() -> None:
    scores, truth, flips = torch.randn(200), torch.sign(torch.randn(200)), 0.2
    clean = F.softplus(-truth * scores).mean()
    # The expectation over all flips is the clean loss.
    mixed = (1 - flips) * unbiased_loss(scores, truth, flips) + flips * unbiased_loss(scores, -truth, flips)
    torch.testing.assert_close(mixed, clean)


# -- schedules -------------------------------------------------------------------------------------------------------


def test_schedules_are_pure_functions_of_progress() -> None:
    assert [hardness_schedule(p, 1600.0) for p in (0.0, 0.4, 0.9, 1.0)] == pytest.approx([1, 1, 1600, 1600])
    assert hardness_schedule(0.65, 1600.0) == pytest.approx(40)
    assert [quantized_fraction_schedule(p) for p in (0.0, 0.24, 0.25, 0.5, 0.74, 0.75, 1.0)] == [
        0.5,
        0.5,
        0.75,
        0.875,
        0.875,
        1.0,
        1.0,
    ]
    values = {}
    for name, submodule_name in (("recu", "weight_binarizer.tau"), ("reste", "input_binarizer.power")):
        layer = BinaryConv2d(2, 2, 3, method=name)
        for progress in (0.0, 0.5, 1.0):
            set_progress(layer, progress)
            set_progress(layer, progress)
            values[name, progress] = float(layer.get_submodule(submodule_name).value)
    assert [values["recu", p] for p in (0.0, 0.5, 1.0)] == pytest.approx(
        [0.85, 0.85 + 0.14 * (math.sqrt(math.e) - 1) / (math.e - 1), 0.99]
    )
    assert [values["reste", p] for p in (0.0, 0.5, 1.0)] == pytest.approx([1, 3 - math.sqrt(2), 3])
    assert isinstance(layer.weight_binarizer.power, Schedule)


# -- draws -----------------------------------------------------------------------------------------------------------


def test_counter_uniform_is_uniform_and_depends_on_count_and_seed() -> None:
    def draw(seed: int, count: int) -> Tensor:
        return counter_uniform(torch.tensor(seed), torch.tensor(count), 4000)

    rows = torch.stack([draw(s, c) for s, c in product((0, 1, 2**31 - 1), range(20))])
    assert rows.min() > 0
    assert rows.max() < 1
    assert torch.equal(draw(5, 9), draw(5, 9))
    assert abs(rows.mean() - 0.5) < 0.005
    assert abs(rows.var() - 1 / 12) < 0.002
    assert torch.corrcoef(rows).fill_diagonal_(0).abs().max() < 0.08  # 1 / sqrt 4000 is 0.016


@pytest.mark.parametrize("name", ["sq-bwn", "sq-twn"])
def test_sq_quantizes_the_scheduled_number_of_filters(name: str) -> None:
    weight = torch.randn(16, 3, 3, 3)
    binarizer = METHODS[name].create_weight_binarizer(weight)
    for progress, num_real in ((0.0, 8), (0.3, 4), (0.6, 2), (0.8, 0)):
        binarizer.set_progress(progress)
        binarizer.start_epoch(weight)
        drawn_filters = []
        for _ in range(3):
            drawn_filters.append(binarizer.real.clone())
            assert int(binarizer.real.sum()) == num_real
            binary = binarizer(weight)
            exact = (binary.signs * binary.scale.reshape(-1, 1, 1, 1) - weight).abs().flatten(1).amax(1) < 1e-6
            assert torch.equal(exact, binarizer.real)
            binarizer.project(weight)
        assert num_real == 0 or not all(torch.equal(drawn_filters[0], filters) for filters in drawn_filters[1:])


def test_sq_keeps_filters_real_in_proportion_to_their_error() -> None:
    weight = torch.ones(4, 8)
    # Half of the weights of each filter are 1 - level, which gives the errors 0, 1/9, 1/4 and 2/3.
    for i, level in enumerate((0.0, 0.2, 0.4, 0.8)):
        weight[i, :4] -= level
    binarizer = METHODS["sq-bwn"].create_weight_binarizer(weight)
    expected = np.array([0, 1 / 9, 1 / 4, 2 / 3])
    np.testing.assert_allclose(binarizer.quantization_error(weight), expected, atol=1e-6)
    binarizer.set_progress(0.3)  # three quarters of the filters are quantized, so one of four stays real
    hits = torch.zeros(4)
    for _ in range(4000):
        binarizer.project(weight)
        hits += binarizer.real
    np.testing.assert_allclose(hits / 4000, expected / expected.sum(), atol=0.03)


def test_a_state_dict_restores_the_next_draws() -> None:
    torch.manual_seed(1)
    weight = torch.randn(16, 3, 3, 3)
    first, second = (METHODS["sq-bwn"].create_weight_binarizer(weight) for _ in range(2))
    for _ in range(3):
        first.project(weight)
    second.load_state_dict(first.state_dict())
    for _ in range(3):
        assert torch.equal(first.real, second.real)
        first.project(weight)
        second.project(weight)


# -- hashing ---------------------------------------------------------------------------------------------------------


def test_hashing_preserves_layer_outputs_better_than_signs() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 8, generator=generator) @ torch.randn(8, 8, generator=generator)  # correlated channels
    moments = x.T @ x / 500
    weight = torch.randn(6, 8, 1, generator=generator)

    def output_error(signs: Tensor, scale: Tensor) -> Tensor:
        difference = weight - scale[:, None, None] * signs
        return torch.einsum("oip,ij,ojp->o", difference, moments, difference)

    def optimal_scale(signs: Tensor) -> Tensor:
        image = torch.einsum("ij,ojp->oip", moments, signs)
        return (weight * image).sum((1, 2)) / (signs * image).sum((1, 2))

    hash_error = output_error(*hash_weights(weight, moments))
    plain_signs = torch.where(weight < 0, -1.0, 1.0)
    assert (hash_error <= output_error(plain_signs, optimal_scale(plain_signs)) + 1e-5).all()
    assert hash_error.sum() < 0.9 * output_error(plain_signs, optimal_scale(plain_signs)).sum()
    all_sign_vectors = torch.tensor(list(product((-1.0, 1.0), repeat=8)))[:, None, :, None]
    smallest_error = torch.stack(
        [output_error(s.expand_as(weight), optimal_scale(s.expand_as(weight))) for s in all_sign_vectors]
    ).amin(0)
    assert (hash_error < 2 * smallest_error + 1e-6).all()  # coordinate descent may miss the best of 256 vectors


def test_hashing_equals_signs_without_correlation() -> None:
    weight = torch.randn(5, 4, 9)
    signs, scale = hash_weights(weight, torch.eye(4))
    assert torch.equal(signs, torch.where(weight < 0, -1.0, 1.0))
    torch.testing.assert_close(scale, weight.abs().mean((1, 2)))


def test_bwnh_observes_inputs_hashes_once_and_continues() -> None:
    layer = BinaryConv2d(6, 4, 3, padding=1, groups=2, method="bwnh")
    binarizer = layer.weight_binarizer
    x = torch.randn(8, 6, 5, 5) * torch.tensor([1.0, 2, 3, 1, 2, 3]).reshape(-1, 1, 1)
    with freeze_running_statistics(layer):
        layer(x)
    assert torch.equal(binarizer.moments, torch.eye(3))
    layer(x)
    rows = x.permute(0, 2, 3, 1).reshape(-1, 3)  # both groups share the moments
    torch.testing.assert_close(binarizer.moments, 0.99 * torch.eye(3) + 0.01 * rows.T @ rows / len(rows))
    before = layer.weight.detach().clone()
    start_epoch(layer)
    assert torch.equal(layer.weight, before)
    real = layer(x)
    torch.testing.assert_close(real, F.conv2d(x, before, padding=1, groups=2), atol=1e-5, rtol=1e-5)
    set_progress(layer, 0.5)
    start_epoch(layer)
    after = layer.weight.detach().clone()
    assert not torch.equal(after, before)
    assert (after.abs().flatten(1).amax(1) - after.abs().flatten(1).amin(1)).max() < 1e-6  # s B
    assert set(binarizer(layer.weight).signs.unique().tolist()) == {-1.0, 1.0}
    layer.weight.data.add_(0.01)
    start_epoch(layer)
    assert torch.equal(layer.weight, after + 0.01)  # not hashed a second time


# -- counting, compiling, mistakes -----------------------------------------------------------------------------------


def test_count_cost_includes_bases_bits_and_offsets() -> None:
    def count_layer_cost(method: str | Method) -> object:
        return count_cost(nn.Sequential(BinaryConv2d(4, 6, 3, padding=1, method=method)), (4, 5, 5))

    plain, abc = count_layer_cost("bnn"), count_layer_cost(get_method("abc-net", weight_bases=2, activation_bases=3))
    assert abc.bit_operations == 6 * plain.bit_operations
    assert abc.stored_bits == 2 * 216 + 32 * 6  # two bits per weight, and b and v of three bases
    assert abc.element_wise == 3 * 100 + 2 * 150 + 150  # signs, scales of two bases, their sum
    assert count_layer_cost("ie-net").bit_operations == 2 * plain.bit_operations
    assert count_layer_cost("sq-twn").stored_bits == count_layer_cost("sq-twn").weight_bits == 2 * 216
    assert count_layer_cost("adabin").binary_macs == plain.binary_macs + 36 * 25  # a filter of ones for the offset


@pytest.mark.parametrize(
    ("name", "num_stored"),
    [("bnn", 0), ("proxybnn", 0), ("lns", 0), ("rbnn", 6), ("dsq", 2), ("recu", 6), ("adabin", 2)],
)
def test_training_only_parameters_are_not_stored(name: str, num_stored: int) -> None:
    """A file has the final signs, but not the basis, mapping network or angle that they were computed from."""
    cost = count_cost(nn.Sequential(BinaryConv2d(4, 6, 3, padding=1, method=name)), (4, 5, 5))
    assert cost.stored_bits == 216 + 32 * num_stored
    layer = BinaryConv2d(4, 6, 3, method=name)
    for binarizer in (layer.weight_binarizer, layer.input_binarizer):
        parameters = dict(binarizer.named_parameters())
        assert set(binarizer.training_only_parameters) <= set(parameters)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_layer_can_be_pickled(method: Method) -> None:
    layer = BinaryConv2d(3, 4, 3, padding=1, method=method)
    layer.weight_binarizer.fit_output_shape((5, 5))
    set_progress(layer, 0.5)
    unpickled = pickle.loads(pickle.dumps(layer)).eval()
    x = torch.randn(2, 3, 5, 5)
    set_progress(unpickled, 0.7)
    set_progress(layer, 0.7)
    assert torch.equal(unpickled(x), layer.eval()(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize(
    "method",
    [*METHODS.values(), get_method("abc-net", weight_bases=2, activation_bases=2)],
    ids=lambda m: m.name + "".join(f" {v}" for v in m.options.values()),
)
def test_a_compiled_step_is_one_graph(method: Method) -> None:
    """The extra loss and a schedule that changes between two steps do not break the graph of a compiled step."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = BinaryConv2d(3, 4, 3, padding=1, method=method)
    layer.weight_binarizer.fit_output_shape((5, 5))
    x = torch.randn(4, 3, 5, 5)

    def step(x: Tensor) -> Tensor:
        loss = layer(x).square().mean()
        extra = extra_loss(layer)
        return loss if extra is None else loss + extra

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for progress in (0.0, 0.9):
        set_progress(layer, progress)
        start_epoch(layer)
        with freeze_running_statistics(layer):
            gradients = []
            for run in (step, compiled):
                layer.zero_grad()
                run(x).backward()
                gradients.append(torch.cat([p.grad.flatten() for p in layer.parameters() if p.grad is not None]))
        torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5, rtol=1e-4)
        project_weights(layer)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: get_method("abc-net", weight_bases=0).create_weight_binarizer(w), "weight bases of abc-net must be"),
        (
            lambda w: get_method("abc-net", activation_bases=9).create_activation_binarizer(1),
            "activation bases of abc-net must",
        ),
        (lambda w: get_method("bnn+", power=3).create_weight_binarizer(w), "power of bnn.'s regularizer must be"),
        (lambda w: get_method("bnn+", beta=0.0).create_activation_binarizer(1), "beta of bnn. must be"),
        (lambda w: get_method("bnn+", penalty=-1).create_weight_binarizer(w), "penalty of bnn. must be"),
        (lambda w: get_method("lns", penalty=-1).create_weight_binarizer(w), "penalty of lns must be"),
        (lambda w: get_method("siman", cut=0.6).create_weight_binarizer(w), "cut of siman must be"),
        (lambda w: get_method("proxybnn", penalty=-1).create_weight_binarizer(w), "penalty of proxybnn must be"),
        (
            lambda w: get_method("lns", flips=0.5).create_weight_binarizer(w),
            "fraction of flipped labels of lns must be",
        ),
        (lambda w: get_method("slb", growth=0.5).create_weight_binarizer(w), "growth of slb must be"),
        (lambda w: get_method("rad", penalty=-1).create_activation_binarizer(1), "penalty of rad must be"),
        (lambda w: get_method("reste", o_end=0.5).create_activation_binarizer(1), "o_end of reste must be"),
        (lambda w: get_method("biper", frequency=0).create_weight_binarizer(w), "frequency of biper must be"),
        (lambda w: get_method("biper", switch=1.5).create_weight_binarizer(w), "switch of biper must be"),
        (lambda w: get_method("biper", penalty=-1).create_weight_binarizer(w), "penalty of biper must be"),
        (lambda w: get_method("horq", "1/5"), "horq has no bit width '1/5'"),
    ],
)
def test_invalid_options_raise_an_input_error(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(torch.randn(4, 3, 3, 3))
