"""Which tensors `Retention` compares, for every reference and kind of network."""

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
from lcrbnn.errors import InputError
from lcrbnn.layers import binary_layers, latent_weights
from lcrbnn.retention import PRESETS, retention_loss
from lcrbnn.retention.capture import Capture, Point
from tests.retention.foreign import BLOCKS, Foreign
from tests.retention.helpers import IMAGES, LABELS, hooks, small


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
