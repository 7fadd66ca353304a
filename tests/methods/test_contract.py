"""What the contract of a method grew by: soft weights, bases, a loss and draws of its own, something to observe."""

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
from lcrbnn.analyze.cost import count
from lcrbnn.errors import InputError
from lcrbnn.layers import BinaryConv2d, BinaryLinear, advance, binary_layers, extra_loss, project, start_epoch
from lcrbnn.methods import METHODS, Method, method
from lcrbnn.methods.annealing import Schedule
from lcrbnn.methods.bwnh import hashed
from lcrbnn.methods.draws import uniform
from lcrbnn.methods.lns import unbiased_loss
from lcrbnn.methods.rad import distribution_loss
from lcrbnn.methods.slb import hardness
from lcrbnn.methods.sq import stage
from lcrbnn.retention.frozen import frozen_statistics
from lcrbnn.train import Spec
from lcrbnn.train.build import build
from lcrbnn.train.objective import objective


def tiny(name: str | Method, **options: object) -> nn.Module:
    return lcrbnn.network("resnet8-double", name, in_channels=1, **options)


# -- losses of a method ----------------------------------------------------------------------------------------------


def test_only_a_few_methods_add_to_the_loss() -> None:
    adding = set()
    for name in METHODS:
        net = tiny(name)
        assert name not in ("rad",) or extra_loss(net) is None  # nothing has passed yet
        net(torch.randn(4, 1, 8, 8))
        if extra_loss(net) is not None:
            adding.add(name)
    assert adding == {"bnn+", "proxybnn", "lns", "rad", "biper"}


def test_the_step_minimises_it() -> None:
    spec = Spec(method="bnn+", method_options=("penalty=0.01",))
    parts = build(spec, torch.device("cpu"))
    images, labels = torch.randn(8, 1, 8, 8), torch.arange(8) % 10
    with frozen_statistics(parts.model):
        plain = F.cross_entropy(parts.model(images), labels)
        found = objective(spec, parts, images, labels, 0.0)
    sums = sum(
        (layer.weight_binarizer.alpha - layer.weight.abs()).abs().sum() for _, layer in binary_layers(parts.model)
    )
    torch.testing.assert_close(found.loss, plain + 0.01 * sums)
    found.loss.backward()
    assert all(layer.weight_binarizer.alpha.grad.abs() > 0 for _, layer in binary_layers(parts.model))


@pytest.mark.parametrize(("power", "expected"), [(1, 0.5 + 0.1 + 0.3), (2, 0.25 + 0.01 + 0.09)])
def test_both_regularisers_of_bnn_plus(power: int, expected: float) -> None:
    weight = torch.tensor([[0.0, -0.6, 0.8]])
    binarizer = method("bnn+", power=power, penalty=2.0).weight_binarizer(weight)
    binarizer.alpha.data.fill_(0.5)
    assert binarizer.penalty(weight).item() == pytest.approx(2 * expected)


def test_the_distribution_loss_at_points_computed_by_hand() -> None:
    def loss(m: float, s: float) -> float:
        return float(distribution_loss(torch.tensor([m]), torch.tensor([s])))

    assert loss(0.0, 2.0) == 0  # neither narrow nor wide nor to one side
    assert loss(0.5, 1.0) == pytest.approx((2 - 0.5 - 1) ** 2)
    assert loss(-0.5, 1.0) == pytest.approx(loss(0.5, 1.0))
    assert loss(0.0, 5.0) == pytest.approx(1.0)
    assert loss(3.0, 1.0) == pytest.approx(9 - 1)
    both = distribution_loss(torch.tensor([0.5, 0.0]), torch.tensor([1.0, 2.0]))
    assert float(both) == pytest.approx(0.25 / 2)


def test_rads_loss_is_that_of_each_channel_before_the_sign_and_ends_early() -> None:
    x = torch.randn(6, 3, 4, 4, requires_grad=True)
    binarizer = METHODS["rad"].activation_binarizer(3)
    assert binarizer is not None
    binarizer(x)
    channels = x.detach().transpose(0, 1).flatten(1)
    expected = 2 * distribution_loss(channels.mean(1), channels.std(1, correction=0))
    torch.testing.assert_close(binarizer.penalty().detach(), expected)
    assert binarizer.penalty() is None  # handed over once
    binarizer.advance(59.9 / 65)
    binarizer(x)
    torch.testing.assert_close(binarizer.penalty().detach(), expected)
    binarizer.advance(60 / 65)
    binarizer(x)
    assert float(binarizer.penalty().detach()) == 0
    for quiet in (binarizer.eval(), binarizer.train()):
        with torch.no_grad():
            quiet(x)
        assert binarizer.penalty() is None
    linear = BinaryLinear(5, 2, method="rad")
    linear(torch.randn(7, 5))
    assert linear.input_binarizer.penalty() is not None


def test_a_network_can_be_copied_right_after_a_forward_pass() -> None:
    net = tiny("rad")
    net(torch.randn(4, 1, 8, 8))
    twin = copy.deepcopy(net)
    assert extra_loss(twin) is None
    assert extra_loss(net) is not None


def test_noisy_labels_are_corrected_without_bias() -> None:
    scores, truth, flips = torch.randn(200), torch.sign(torch.randn(200)), 0.2
    clean = F.softplus(-truth * scores).mean()
    # The mean over all flips, each with its probability, is the clean loss.
    mixed = (1 - flips) * unbiased_loss(scores, truth, flips) + flips * unbiased_loss(scores, -truth, flips)
    torch.testing.assert_close(mixed, clean)


# -- schedules -------------------------------------------------------------------------------------------------------


def test_schedules_are_pure_functions_of_progress() -> None:
    assert [hardness(p, 1600.0) for p in (0.0, 0.4, 0.9, 1.0)] == pytest.approx([1, 1, 1600, 1600])
    assert hardness(0.65, 1600.0) == pytest.approx(40)
    assert [stage(p) for p in (0.0, 0.24, 0.25, 0.5, 0.74, 0.75, 1.0)] == [0.5, 0.5, 0.75, 0.875, 0.875, 1.0, 1.0]
    values = {}
    for name, where in (("recu", "weight_binarizer.tau"), ("reste", "input_binarizer.power")):
        layer = BinaryConv2d(2, 2, 3, method=name)
        for progress in (0.0, 0.5, 1.0):
            advance(layer, progress)
            advance(layer, progress)
            values[name, progress] = float(layer.get_submodule(where).value)
    assert [values["recu", p] for p in (0.0, 0.5, 1.0)] == pytest.approx(
        [0.85, 0.85 + 0.14 * (math.sqrt(math.e) - 1) / (math.e - 1), 0.99]
    )
    assert [values["reste", p] for p in (0.0, 0.5, 1.0)] == pytest.approx([1, 3 - math.sqrt(2), 3])
    assert isinstance(layer.weight_binarizer.power, Schedule)


# -- draws -----------------------------------------------------------------------------------------------------------


def test_draws_are_uniform_and_differ_by_count_and_seed() -> None:
    def draw(seed: int, count: int) -> Tensor:
        return uniform(torch.tensor(seed), torch.tensor(count), 4000)

    rows = torch.stack([draw(s, c) for s, c in product((0, 1, 2**31 - 1), range(20))])
    assert rows.min() > 0
    assert rows.max() < 1
    assert torch.equal(draw(5, 9), draw(5, 9))
    assert abs(rows.mean() - 0.5) < 0.005
    assert abs(rows.var() - 1 / 12) < 0.002
    assert torch.corrcoef(rows).fill_diagonal_(0).abs().max() < 0.08  # 1 / sqrt 4000 is 0.016


@pytest.mark.parametrize("name", ["sq-bwn", "sq-twn"])
def test_so_many_filters_stay_real_and_all_are_quantised_in_the_end(name: str) -> None:
    weight = torch.randn(16, 3, 3, 3)
    binarizer = METHODS[name].weight_binarizer(weight)
    for progress, real in ((0.0, 8), (0.3, 4), (0.6, 2), (0.8, 0)):
        binarizer.advance(progress)
        binarizer.start_epoch(weight)
        seen = []
        for _ in range(3):
            seen.append(binarizer.real.clone())
            assert int(binarizer.real.sum()) == real
            binary = binarizer(weight)
            exact = (binary.signs * binary.scale.reshape(-1, 1, 1, 1) - weight).abs().flatten(1).amax(1) < 1e-6
            assert torch.equal(exact, binarizer.real)
            binarizer.project(weight)
        assert real == 0 or not all(torch.equal(seen[0], other) for other in seen[1:])


def test_a_filter_stays_real_the_more_often_the_larger_its_error() -> None:
    weight = torch.ones(4, 8)
    for i, level in enumerate((0.0, 0.2, 0.4, 0.8)):  # half of each filter is 1 - level: errors 0, 1/9, 1/4, 2/3
        weight[i, :4] -= level
    binarizer = METHODS["sq-bwn"].weight_binarizer(weight)
    expected = np.array([0, 1 / 9, 1 / 4, 2 / 3])
    np.testing.assert_allclose(binarizer.error(weight), expected, atol=1e-6)
    binarizer.advance(0.3)  # three quarters are quantised: one of four stays
    hits = torch.zeros(4)
    for _ in range(4000):
        binarizer.project(weight)
        hits += binarizer.real
    np.testing.assert_allclose(hits / 4000, expected / expected.sum(), atol=0.03)


def test_a_state_dict_brings_back_the_draws_to_come() -> None:
    torch.manual_seed(1)
    weight = torch.randn(16, 3, 3, 3)
    first, second = (METHODS["sq-bwn"].weight_binarizer(weight) for _ in range(2))
    for _ in range(3):
        first.project(weight)
    second.load_state_dict(first.state_dict())
    for _ in range(3):
        assert torch.equal(first.real, second.real)
        first.project(weight)
        second.project(weight)


# -- hashing ---------------------------------------------------------------------------------------------------------


def test_hashing_keeps_what_the_layer_computes_better_than_signs_do() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 8, generator=generator) @ torch.randn(8, 8, generator=generator)  # correlated channels
    moments = x.T @ x / 500
    weight = torch.randn(6, 8, 1, generator=generator)

    def error(signs: Tensor, scale: Tensor) -> Tensor:
        apart = weight - scale[:, None, None] * signs
        return torch.einsum("oip,ij,ojp->o", apart, moments, apart)

    def best(signs: Tensor) -> Tensor:
        image = torch.einsum("ij,ojp->oip", moments, signs)
        return (weight * image).sum((1, 2)) / (signs * image).sum((1, 2))

    found = error(*hashed(weight, moments))
    plain = torch.where(weight < 0, -1.0, 1.0)
    assert (found <= error(plain, best(plain)) + 1e-5).all()
    assert found.sum() < 0.9 * error(plain, best(plain)).sum()
    every = torch.tensor(list(product((-1.0, 1.0), repeat=8)))[:, None, :, None]
    least = torch.stack([error(s.expand_as(weight), best(s.expand_as(weight))) for s in every]).amin(0)
    assert (found < 2 * least + 1e-6).all()  # descent need not find the best of 256, but comes near


def test_without_correlation_hashing_is_taking_signs() -> None:
    weight = torch.randn(5, 4, 9)
    signs, scale = hashed(weight, torch.eye(4))
    assert torch.equal(signs, torch.where(weight < 0, -1.0, 1.0))
    torch.testing.assert_close(scale, weight.abs().mean((1, 2)))


def test_bwnh_observes_hashes_once_and_goes_on_from_there() -> None:
    layer = BinaryConv2d(6, 4, 3, padding=1, groups=2, method="bwnh")
    binarizer = layer.weight_binarizer
    x = torch.randn(8, 6, 5, 5) * torch.tensor([1.0, 2, 3, 1, 2, 3]).reshape(-1, 1, 1)
    with frozen_statistics(layer):
        layer(x)
    assert torch.equal(binarizer.moments, torch.eye(3))
    layer(x)
    rows = x.permute(0, 2, 3, 1).reshape(-1, 3)  # both groups alike
    torch.testing.assert_close(binarizer.moments, 0.99 * torch.eye(3) + 0.01 * rows.T @ rows / len(rows))
    before = layer.weight.detach().clone()
    start_epoch(layer)
    assert torch.equal(layer.weight, before)
    real = layer(x)
    torch.testing.assert_close(real, F.conv2d(x, before, padding=1, groups=2), atol=1e-5, rtol=1e-5)
    advance(layer, 0.5)
    start_epoch(layer)
    after = layer.weight.detach().clone()
    assert not torch.equal(after, before)
    assert (after.abs().flatten(1).amax(1) - after.abs().flatten(1).amin(1)).max() < 1e-6  # s B
    assert set(binarizer(layer.weight).signs.unique().tolist()) == {-1.0, 1.0}
    layer.weight.data.add_(0.01)
    start_epoch(layer)
    assert torch.equal(layer.weight, after + 0.01)  # once


# -- counting, compiling, mistakes -----------------------------------------------------------------------------------


def test_bases_bits_and_offsets_are_counted() -> None:
    def cost(chosen: str | Method) -> object:
        return count(nn.Sequential(BinaryConv2d(4, 6, 3, padding=1, method=chosen)), (4, 5, 5))

    plain, abc = cost("bnn"), cost(method("abc-net", weight_bases=2, activation_bases=3))
    assert abc.bit_operations == 6 * plain.bit_operations
    assert abc.stored_bits == 2 * 216 + 32 * 6  # two bits a weight; b and v of three bases
    assert abc.element_wise == 3 * 100 + 2 * 150 + 150  # signs, scales of two bases, their sum
    assert cost("ie-net").bit_operations == 2 * plain.bit_operations
    assert cost("sq-twn").stored_bits == cost("sq-twn").weight_bits == 2 * 216
    assert cost("adabin").binary_macs == plain.binary_macs + 36 * 25  # a filter of ones for the offset


@pytest.mark.parametrize(
    ("name", "numbers"), [("bnn", 0), ("proxybnn", 0), ("lns", 0), ("rbnn", 6), ("dsq", 2), ("recu", 6), ("adabin", 2)]
)
def test_what_only_training_needs_is_not_stored(name: str, numbers: int) -> None:
    """A basis, a mapping network, an angle: a file has the signs that they lead to."""
    cost = count(nn.Sequential(BinaryConv2d(4, 6, 3, padding=1, method=name)), (4, 5, 5))
    assert cost.stored_bits == 216 + 32 * numbers
    layer = BinaryConv2d(4, 6, 3, method=name)
    for binarizer in (layer.weight_binarizer, layer.input_binarizer):
        known = dict(binarizer.named_parameters())
        assert set(binarizer.training_only) <= set(known)


@pytest.mark.parametrize("chosen", METHODS.values(), ids=METHODS)
def test_a_layer_can_be_pickled(chosen: Method) -> None:
    layer = BinaryConv2d(3, 4, 3, padding=1, method=chosen)
    layer.weight_binarizer.fit((5, 5))
    advance(layer, 0.5)
    twin = pickle.loads(pickle.dumps(layer)).eval()
    x = torch.randn(2, 3, 5, 5)
    advance(twin, 0.7)
    advance(layer, 0.7)
    assert torch.equal(twin(x), layer.eval()(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize(
    "chosen",
    [*METHODS.values(), method("abc-net", weight_bases=2, activation_bases=2)],
    ids=lambda m: m.name + "".join(f" {v}" for v in m.options.values()),
)
def test_a_step_is_one_graph(chosen: Method) -> None:
    """No method breaks the graph of a compiled step, with its loss and a schedule that moves between two steps."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = BinaryConv2d(3, 4, 3, padding=1, method=chosen)
    layer.weight_binarizer.fit((5, 5))
    x = torch.randn(4, 3, 5, 5)

    def step(x: Tensor) -> Tensor:
        loss = layer(x).square().mean()
        extra = extra_loss(layer)
        return loss if extra is None else loss + extra

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for progress in (0.0, 0.9):
        advance(layer, progress)
        start_epoch(layer)
        with frozen_statistics(layer):
            found = []
            for run in (step, compiled):
                layer.zero_grad()
                run(x).backward()
                found.append(torch.cat([p.grad.flatten() for p in layer.parameters() if p.grad is not None]))
        torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)
        project(layer)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda w: method("abc-net", weight_bases=0).weight_binarizer(w), "weight bases of abc-net must be"),
        (lambda w: method("abc-net", activation_bases=9).activation_binarizer(1), "activation bases of abc-net must"),
        (lambda w: method("bnn+", power=3).weight_binarizer(w), "power of bnn.'s regulariser must be"),
        (lambda w: method("bnn+", beta=0.0).activation_binarizer(1), "beta of bnn. must be"),
        (lambda w: method("bnn+", penalty=-1).weight_binarizer(w), "penalty of bnn. must be"),
        (lambda w: method("lns", penalty=-1).weight_binarizer(w), "penalty of lns must be"),
        (lambda w: method("siman", cut=0.6).weight_binarizer(w), "cut of siman must be"),
        (lambda w: method("proxybnn", penalty=-1).weight_binarizer(w), "penalty of proxybnn must be"),
        (lambda w: method("lns", flips=0.5).weight_binarizer(w), "share of flipped labels of lns must be"),
        (lambda w: method("slb", growth=0.5).weight_binarizer(w), "growth of slb must be"),
        (lambda w: method("rad", penalty=-1).activation_binarizer(1), "penalty of rad must be"),
        (lambda w: method("reste", o_end=0.5).activation_binarizer(1), "o_end of reste must be"),
        (lambda w: method("biper", frequency=0).weight_binarizer(w), "frequency of biper must be"),
        (lambda w: method("biper", switch=1.5).weight_binarizer(w), "switch of biper must be"),
        (lambda w: method("biper", penalty=-1).weight_binarizer(w), "penalty of biper must be"),
        (lambda w: method("horq", "1/5"), "horq has no bit width '1/5'"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(call: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call(torch.randn(4, 3, 3, 3))
