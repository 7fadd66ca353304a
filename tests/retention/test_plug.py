"""`Retention` on our own networks and on foreign ones: what it reads, what it leaves alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from lcrbnn import Retention, ops
from lcrbnn.data import load_digits
from lcrbnn.errors import InputError
from lcrbnn.layers import binary_layers, latent_weights
from lcrbnn.retention import PRESETS, retention_loss
from lcrbnn.retention.capture import Capture, Point
from tests.retention.foreign import BLOCKS, Foreign

DIGITS, _ = load_digits()
IMAGES, LABELS = torch.from_numpy(DIGITS.images), torch.from_numpy(DIGITS.labels)


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def small(method: str | None = "irnet", **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return lcrbnn.network("resnet8-double", method, in_channels=1, **options)


def steps(model: nn.Module, retention: Retention | None, count: int, *, weight: float | None = None) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    ratios = []
    for i in range(count):
        batch = torch.arange(i * 64, (i + 1) * 64) % len(LABELS)
        loss = F.cross_entropy(model(IMAGES[batch]), LABELS[batch])
        if retention is not None:
            loss = loss + retention.loss(weight)
            ratios.append(retention.ratios)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [r for r in ratios if r is not None]


# ---------------------------------------------------------------------------------------------------------------
# The promise to a user.


MAKERS = [Foreign, lambda: lcrbnn.binarize(Foreign(nn.Conv2d), skip=["begin.0", "end", "*.skip"])]


def gap(ratios: list[Tensor]) -> Tensor:
    """The mean distance from 1, a number a block."""
    return torch.stack(ratios).mean(0).sub(1).abs()


@pytest.mark.parametrize("make", MAKERS, ids=["own", "binarized"])
def test_in_three_lines_on_a_network_of_the_users_own(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    retention = Retention(model, blocks=BLOCKS, weight=100.0)
    model(IMAGES[:64])
    loss = retention.loss()
    assert loss.item() > 0
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in (model.flat.one.weight, model.down.one.weight))
    model.zero_grad()

    ratios = steps(model, retention, 50)
    assert (gap(ratios[-3:]) < gap(ratios[:3])).all()
    assert gap(ratios[-3:]).sum() < 0.6 * gap(ratios[:3]).sum()
    retention.close()
    assert hooks(model) == 0
    retention.close()  # a second time does nothing


@pytest.mark.parametrize("make", MAKERS, ids=["own", "binarized"])
def test_without_the_loss_the_ratios_do_not_come_closer(make: Callable[[], nn.Module]) -> None:
    """The control of the test above: fifty steps of cross-entropy alone."""
    torch.manual_seed(0)
    model = make()
    ratios = steps(model, Retention(model, blocks=BLOCKS), 50, weight=0.0)
    assert gap(ratios[-3:]).sum() > 0.8 * gap(ratios[:3]).sum()


# ---------------------------------------------------------------------------------------------------------------
# Which tensors it compares.


def test_blocks_of_our_own_networks_compare_what_the_next_layer_binarises() -> None:
    model = small()
    form = PRESETS["default"].but(matrix="batch")
    retention = Retention(model, form)
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Any], None]:
        return lambda module, args, out: seen.update({name: (args[0], out.signs)})

    for i in (1, 2, 3):
        model.get_submodule(f"layer{i}.0.conv1.input_binarizer").register_forward_hook(note(f"layer{i}"))
    model.get_submodule("pool").register_forward_hook(
        lambda m, args, out: seen.update(pool=(args[0], ops.sign(args[0])))
    )
    model(IMAGES[:16])
    got = float(retention.loss().detach())

    order = [seen[k] for k in ("layer1", "layer2", "layer3", "pool")]
    real = [(a[0], b[0]) for a, b in pairwise(order)]
    signs = [(a[1], b[1]) for a, b in pairwise(order)]
    expected = retention_loss(signs, real, form, retention.start).loss / 2
    assert got == pytest.approx(float(expected.detach()), rel=1e-6)


def test_the_layers_of_the_paper_preset_are_adjacent_binarised_maps() -> None:
    model = small()
    retention = Retention(model, "paper")
    assert [f.module for f, _ in retention.spans] == [
        "layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv1", "layer2.0.conv2", "layer3.0.conv1", "layer3.0.conv2",
    ]  # fmt: skip
    assert retention.spans[-1][1] == Point("pool", "in")
    assert retention._capture is not None
    model(IMAGES[:4])
    maps = retention._capture.take()
    assert set(maps.binary) == {f for f, _ in retention.spans}  # every map but the last is binarised by its layer


def test_the_sign_is_the_layers_own_and_not_computed_again() -> None:
    model = small()
    capture = Capture(model, [Point("layer2.0", "in"), Point("layer1.0", "out")], signs=True)
    shared: list[Tensor] = []
    model.get_submodule("layer2.0.conv1.input_binarizer").register_forward_hook(
        lambda m, a, out: shared.append(out.signs)
    )
    model(IMAGES[:4])
    maps = capture.take()
    for point in (Point("layer2.0", "in"), Point("layer1.0", "out")):
        assert maps.binarised(point, weights_only=False) is shared[0]


def test_a_dorefa_map_is_compared_as_zero_and_one() -> None:
    model = small("dorefa")
    capture = Capture(model, [Point("layer1.0", "in")], signs=True)
    model(IMAGES[:4])
    assert set(capture.take().binarised(Point("layer1.0", "in"), weights_only=False).unique().tolist()) == {0.0, 1.0}


def test_a_binary_shortcut_does_not_take_the_place_of_the_main_convolution() -> None:
    torch.manual_seed(0)
    model = lcrbnn.network("resnet18-binary-shortcut", "reactnet")
    block = model.get_submodule("layer2.0")
    block.conv1.input_binarizer.shift.data.fill_(0.4)  # the two binarise the same map, differently
    block.shortcut[0].input_binarizer.shift.data.fill_(-0.4)
    retention = Retention(model, "paper")
    assert len(retention.spans) == 16
    assert retention._capture is not None
    model(torch.randn(2, 3, 32, 32))
    maps, point = retention._capture.take(), Point("layer2.0.conv1", "in")
    assert torch.equal(maps.binary[point].signs, ops.sign(maps.real[point] + 0.4))


def test_the_weights_reference_runs_with_latent_weights_and_leaves_statistics_alone() -> None:
    model = small()
    form = PRESETS["default"].but(reference="weights")
    retention = Retention(model, form)
    twin = copy.deepcopy(model)
    capture = Capture(twin, [p for s in retention.spans for p in s], signs=True)
    images = IMAGES[:16]
    F.cross_entropy(model(images), LABELS[:16])
    got = float(retention.loss().detach())

    twin(images)
    signs = capture.take()
    statistics = {k: v.clone() for k, v in twin.state_dict().items() if "running" in k or "tracked" in k}
    capture.expects_latent = True
    with torch.no_grad(), latent_weights(twin):
        twin(images)
    real = capture.take()
    expected = retention_loss(
        [(signs.binarised(f, weights_only=False), signs.binarised(b, weights_only=False)) for f, b in retention.spans],
        [(real.real[f], real.real[b]) for f, b in retention.spans],
        form,
        retention.start,
    ).loss
    assert got == pytest.approx(float(expected.detach()) / 2, rel=1e-5)
    for name, value in statistics.items():
        assert torch.equal(model.state_dict()[name], value), name
    assert all(not layer.use_latent for _, layer in binary_layers(model))
    assert all(m.track_running_stats for m in model.modules() if isinstance(m, nn.BatchNorm2d))


def test_a_teacher_is_read_in_evaluation_mode_without_gradient_and_without_change() -> None:
    model, teacher = small(), small(None)
    teacher.train()
    retention = Retention(model, reference="teacher", teacher=teacher)
    before = copy.deepcopy(teacher.state_dict())
    teacher.train()  # somebody else's loop may do that
    model(IMAGES[:16])
    loss = retention.loss()
    loss.backward()
    assert all(torch.equal(v, teacher.state_dict()[k]) for k, v in before.items())
    assert all(p.grad is None for p in teacher.parameters())
    assert any(p.grad is not None for p in model.parameters())
    retention.close()
    assert hooks(teacher) == hooks(model) == 0


def test_a_teacher_may_name_its_blocks_otherwise() -> None:
    model, teacher = small(), Foreign(nn.Conv2d)
    with pytest.raises(InputError, match=r"no module of Foreign is called 'layer1\.0'; there are begin"):
        Retention(model, reference="teacher", teacher=teacher)
    with pytest.raises(InputError, match="the teacher has 2 blocks to compare and the model 3"):
        Retention(model, reference="teacher", teacher=teacher, teacher_blocks=BLOCKS)
    retention = Retention(
        model, blocks=["layer1.0", "layer2.0"], reference="teacher", teacher=teacher, teacher_blocks=BLOCKS
    )
    model(IMAGES[:8])
    assert retention.loss() > 0


def test_the_official_preset_takes_stage_pairs_and_learns_a_factor_a_stage() -> None:
    model, teacher = small(), small(None)
    retention = Retention(model, "official", teacher=teacher)
    assert [(f, b) for f, b in retention.spans] == [
        (Point("layer2", "in"), Point("layer2", "out")),
        (Point("layer3", "in"), Point("layer3", "out")),
    ]
    images = IMAGES[:16]
    statistics = {k: v.clone() for k, v in model.state_dict().items() if k.endswith("num_batches_tracked")}
    model(images)
    loss = retention.loss()
    loss.backward()
    (factors,) = retention.parameters()
    assert factors.tolist() == [1.0, 1.0, 1.0]
    assert factors.grad is not None
    assert factors.grad.abs().sum() > 0
    # One forward pass, hence one update of the batch norms' statistics; the published code makes two.
    for name, value in statistics.items():
        assert model.state_dict()[name] == value + 1
    factors.data = torch.tensor([1.0, 2.0, 3.0])  # one a stage: the map between two pairs has the same factor in both
    model(images)
    loss = retention.loss()
    maps = [m * f for m, f in zip(model.features(images), (1, 2, 3), strict=True)]
    with torch.no_grad():
        theirs = teacher.features(images)
    raw = retention_loss(list(pairwise(maps)), list(pairwise(theirs)), PRESETS["official"], retention.start).loss
    assert float(loss.detach()) == pytest.approx(8 / (16 * 1e4) * float(raw.detach()), rel=1e-4)


def test_weights_only_networks_compare_real_maps_and_refuse_the_latent_reference() -> None:
    model = small("irnet", bits="1/32")
    with pytest.raises(InputError, match=r"binarises weights only \(1/32\): the loss would be exactly 0"):
        Retention(model)
    retention = Retention(model, reference="weights")
    model(IMAGES[:16])
    loss = retention.loss()
    assert loss > 0
    loss.backward()
    assert model.get_submodule("layer1.0.conv1").weight.grad is not None
    capture = Capture(model, [Point("pool", "in")], signs=True)
    model(IMAGES[:4])
    maps = capture.take()
    assert maps.binarised(Point("pool", "in"), weights_only=True) is maps.real[Point("pool", "in")]


@pytest.mark.parametrize("name", ["bnn", "irnet"])
def test_the_quantisation_error_of_what_the_sign_sees_is_added_when_asked_for(name: str) -> None:
    model = small(name)
    plain, both = Retention(model), Retention(model, quantization=0.5)
    model(IMAGES[:8])
    error = 0.0
    for _, layer in binary_layers(model):
        w = layer.weight.detach()
        if name == "irnet":
            w = (w - w.mean((1, 2, 3), keepdim=True)) / w.std((1, 2, 3), keepdim=True)
        error += float((w - w.abs().mean((1, 2, 3), keepdim=True) * ops.sign(w)).square().sum())
    assert float((both.loss() - plain.loss()).detach()) == pytest.approx(0.5 * error, rel=1e-4)


# ---------------------------------------------------------------------------------------------------------------
# What it leaves alone.


def test_lambda_zero_is_bit_equal_to_no_retention() -> None:
    plain, zero = small(), small()
    steps(plain, None, 5)
    retention = Retention(zero, weight=0.0)
    assert hooks(zero) == 0
    steps(zero, retention, 5)
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), zero.state_dict().values(), strict=True))
    assert list(retention.parameters()) == []


@pytest.mark.parametrize("reference", ["latent", "weights", "teacher"])
def test_watching_without_weight_changes_no_bit_of_training(reference: str) -> None:
    plain, watched = small(), small()
    steps(plain, None, 5)
    teacher = small(None) if reference == "teacher" else None
    retention = Retention(watched, reference=reference, teacher=teacher)
    steps(watched, retention, 5, weight=0.0)
    assert all(
        torch.equal(a, b) for a, b in zip(plain.state_dict().values(), watched.state_dict().values(), strict=True)
    )


def test_neither_network_nor_teacher_is_part_of_it() -> None:
    model, teacher = small(), small(None)
    retention = Retention(model, reference="teacher", teacher=teacher)
    assert list(retention.state_dict()) == []
    assert list(retention.parameters()) == []


def test_a_ramp_scales_the_loss() -> None:
    model = small()
    retention = Retention(model, weight=4.0)
    values = []
    for weight in (None, 2.0, torch.tensor(1.0)):
        model(IMAGES[:16])
        values.append(float(retention.loss(weight).detach()))
    # batch norm in training mode sees the same batch, so the maps are the same each time
    assert values == pytest.approx([values[0], values[0] / 2, values[0] / 4])


def test_a_wrapped_model_is_watched_inside() -> None:
    model = small()
    retention = Retention(torch.compile(model, backend="eager"))
    model(IMAGES[:4])
    assert retention.loss() > 0


def test_autocast_gives_nearly_the_same_ratios() -> None:
    model = small()
    retention = Retention(model)
    model(IMAGES[:64])
    retention.loss()
    plain = retention.ratios
    with torch.autocast("cpu", torch.bfloat16):
        model(IMAGES[:64])
        assert retention.loss().dtype == torch.float32
    # bf16 moves some activations across their thresholds
    torch.testing.assert_close(retention.ratios, plain, atol=0.03, rtol=0)


@pytest.mark.parametrize(
    ("name", "bits"),
    [(m.name, f"1/{b}") for m in lcrbnn.METHODS.values() for b in m.activation_bits if b in (1, 2, 32)],
)
def test_every_method_takes_retention(name: str, bits: str) -> None:
    model = small(name, bits=bits)
    retention = Retention(model, reference="weights" if bits == "1/32" else "latent")
    model(IMAGES[:16])
    loss = retention.loss()
    assert torch.isfinite(loss)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


# ---------------------------------------------------------------------------------------------------------------
# Mistakes.


class Pairs(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.used, self.unused = Pairs(), nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.used(self.inner(x)[0])


class Inplace(nn.Module):
    """A pre-activation that overwrites the map before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act = nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.first(x))


def closed() -> Retention:
    retention = Retention(small())
    retention.close()
    return retention


def call_then_loss(model: nn.Module, **settings: Any) -> Tensor:
    retention = Retention(model, **settings)
    model(torch.randn(2, 1, 8, 8))
    return retention.loss()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Retention("net"), "Retention takes a torch.nn.Module; got str"),
        (
            lambda: Retention(small(), "offical"),
            "no preset of the retention loss is called 'offical'.*did you mean 'official'",
        ),
        (lambda: Retention(small(), blocks=["layer9"]), "no module of Network is called 'layer9'; there are"),
        (
            lambda: Retention(small(), blocks="layer1"),
            "blocks is a list of names; got 'layer1'",
        ),
        (lambda: Retention(small(), blocks=[]), "retention needs at least one block"),
        (lambda: Retention(small(), layers=["layer1"]), "retention needs at least two layers"),
        (lambda: Retention(small(), blocks=["layer1"], layers=["layer1", "layer2"]), "name blocks or layers, not both"),
        (lambda: Retention(Foreign()), "Foreign is not a network of this package: name its blocks"),
        (
            lambda: Retention(small(), wieght=1.0),
            "no setting of the retention loss is called 'wieght'.*did you mean 'weight'",
        ),
        (lambda: Retention(small(), maps="real"), "with maps 'real' the loss is exactly 0"),
        (lambda: Retention(Foreign(), blocks=BLOCKS, reference="weights"), "it has no binary layer of this package"),
        (lambda: Retention(Foreign(), blocks=BLOCKS, quantization=1.0), "needs binary layers of this package"),
        (lambda: Retention(small(), "official"), "reference 'teacher' needs teacher=, a full-precision network"),
        (lambda: Retention(small(), blocks=5), "blocks is a list of names; got 5"),
        (lambda: Retention(m := small(), reference="teacher", teacher=m), "the teacher is the model itself"),
        (
            lambda: Retention(
                small(), layers=["layer1.0", "pool"], reference="teacher", teacher=small(None), teacher_blocks=["x"]
            ),
            "teacher_blocks go with blocks",
        ),
        (lambda: Retention(nn.DataParallel(small())), "use DistributedDataParallel"),
        (lambda: Retention(small()).loss(-1.0), "weight given to loss.. must be a number of at least 0; got -1.0"),
        (lambda: Retention(small(), scale="yes"), "scale is True or False; got 'yes'"),
        (lambda: closed().loss(), "this Retention is closed"),
        (lambda: call_then_loss(Inplace(), blocks=["first"]), "the map at 'first' was changed in place"),
        (lambda: Retention(small(), teacher=small(None)), "a teacher is given, and the form's reference is 'latent'"),
        (lambda: Retention(small(), seed=-1), "seed must be a whole number of at least 0"),
        (lambda: Retention(small()).loss(), "no maps to compare: call the model before each loss"),
        (lambda: call_then_loss(Two(), blocks=["inner"]), "retention needs a tensor at 'inner', which returns tuple"),
        (
            lambda: call_then_loss(Two(), blocks=["used", "unused"]),
            "no map at 'unused': that module was not called",
        ),
        (lambda: Retention(small(), weight=0.0).loss(1.0), "made with weight 0 and hooks nothing"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call()


def test_a_second_loss_of_the_same_pass_is_refused() -> None:
    model = small()
    retention = Retention(model)
    model(IMAGES[:4])
    retention.loss()
    with pytest.raises(InputError, match="call the model before each loss"):
        retention.loss()


def test_a_failed_construction_leaves_no_hook() -> None:
    model = small()
    for settings in ({"blocks": ["layer1.0", "nope"]}, {"reference": "teacher", "teacher": Foreign()}):
        with pytest.raises(InputError):
            Retention(model, **settings)
        assert hooks(model) == 0


# ---------------------------------------------------------------------------------------------------------------
# Other people's habits.


def test_a_pass_of_a_copy_does_not_reach_the_originals_maps() -> None:
    model = small()
    retention = Retention(model)
    model(IMAGES[:16])
    expected = retention.loss()
    model(IMAGES[:16])
    average = copy.deepcopy(model)  # as a running average of the weights does
    with torch.no_grad():
        average(IMAGES[16:32])
    assert torch.equal(retention.loss(), expected)


def test_two_of_them_on_one_model_do_not_disturb_each_other() -> None:
    model = small()
    alone = Retention(model)
    model(IMAGES[:16])
    expected = alone.loss()
    other = Retention(model, reference="weights")
    model(IMAGES[:16])
    other.loss()
    loss = alone.loss()
    assert loss.requires_grad
    assert torch.equal(loss, expected)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = lcrbnn.BinaryConv2d(4, 4, 3, padding=1, method="bnn")

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.block(x) - 1)


def test_a_block_that_is_called_twice_keeps_its_latest_call_whole() -> None:
    model = Twice()
    capture = Capture(model, [Point("block", "in")], signs=True)
    model(torch.randn(2, 4, 5, 5))
    maps, point = capture.take(), Point("block", "in")
    assert torch.equal(maps.binary[point].signs, ops.sign(maps.real[point]))


def test_a_model_that_takes_keywords_is_read_at_its_first_tensor() -> None:
    class Keyed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Loud()

        def forward(self, image: Tensor) -> Tensor:
            return self.inner(loud=True, image=image)

    class Loud(nn.Module):
        def forward(self, loud: bool, image: Tensor) -> Tensor:
            return image + loud

    model = Keyed()
    capture = Capture(model, [Point("inner", "in")], signs=False)
    image = torch.randn(2, 3)
    model(image=image)
    assert capture.take().real[Point("inner", "in")] is image


def test_a_part_of_the_teacher_left_in_training_mode_is_put_right() -> None:
    model, teacher = small(), small(None)
    retention = Retention(model, reference="teacher", teacher=teacher)
    teacher.layer1.train()
    before = copy.deepcopy(teacher.state_dict())
    model(IMAGES[:16])
    retention.loss()
    assert all(torch.equal(v, teacher.state_dict()[k]) for k, v in before.items())


def test_the_quantisation_error_stands_without_retention_too() -> None:
    model = small("bnn")
    loss = Retention(model, weight=0.0, quantization=0.5).loss()
    assert loss > 0
    loss.backward()
    assert model.get_submodule("layer1.0.conv1").weight.grad is not None


def test_a_reference_that_is_not_a_number_does_not_look_retained() -> None:
    model = small()
    retention = Retention(model)
    model.stem[0].weight.data.fill_(float("nan"))
    model(IMAGES[:16])
    assert not torch.isfinite(retention.loss())


def test_another_seed_is_another_start() -> None:
    assert not torch.equal(Retention(small(), seed=0).start, Retention(small(), seed=1).start)
