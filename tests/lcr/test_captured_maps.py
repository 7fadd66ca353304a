"""The tensors that `Retention` compares, for every reference and kind of network."""

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
from lcrbnn import Retention
from lcrbnn.errors import InputError
from lcrbnn.lcr.capture import FeatureMapCapture, ModulePort
from lcrbnn.lcr.lcr_variants import LCR_VARIANTS
from lcrbnn.lcr.retention_loss import retention_loss
from lcrbnn.nn import functional as ops
from lcrbnn.nn.model_hooks import iter_binary_layers, use_latent_weights
from tests.lcr.helpers import IMAGES, LABELS, count_hooks, make_small_model
from tests.lcr.user_network import BLOCKS, UserNetwork


def test_default_variant_compares_block_inputs_after_the_sign_of_the_next_layer() -> None:
    model = make_small_model()
    variant = LCR_VARIANTS["default"].replace(matrix="cross-gram")
    retention = Retention(model, variant)
    maps_by_name: dict[str, tuple[Tensor, Tensor]] = {}

    def make_hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Any], None]:
        return lambda module, args, out: maps_by_name.update({name: (args[0], out.signs)})

    for i in (1, 2, 3):
        model.get_submodule(f"layer{i}.0.conv1.input_binarizer").register_forward_hook(make_hook(f"layer{i}"))
    model.get_submodule("pool").register_forward_hook(
        lambda m, args, out: maps_by_name.update(pool=(args[0], ops.sign(args[0])))
    )
    model(IMAGES[:16])
    loss = float(retention.loss().detach())

    order = [maps_by_name[k] for k in ("layer1", "layer2", "layer3", "pool")]
    real = [(a[0], b[0]) for a, b in pairwise(order)]
    signs = [(a[1], b[1]) for a, b in pairwise(order)]
    expected = retention_loss(signs, real, variant, retention.start_vector).loss / 2
    assert loss == pytest.approx(float(expected.detach()), rel=1e-6)


def test_paper_variant_compares_adjacent_convolution_inputs() -> None:
    model = make_small_model()
    retention = Retention(model, "paper")
    assert [f.module for f, _ in retention.spans] == [
        "layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv1", "layer2.0.conv2", "layer3.0.conv1", "layer3.0.conv2",
    ]  # fmt: skip
    assert retention.spans[-1][1] == ModulePort("pool", "in")
    assert retention._capture is not None
    model(IMAGES[:4])
    maps = retention._capture.take_maps()
    assert set(maps.binary) == {f for f, _ in retention.spans}  # every map but the last is binarized by its layer


def test_captured_sign_is_the_tensor_of_the_layer() -> None:
    model = make_small_model()
    capture = FeatureMapCapture(
        model, [ModulePort("layer2.0", "in"), ModulePort("layer1.0", "out")], capture_binary=True
    )
    layer_signs: list[Tensor] = []
    model.get_submodule("layer2.0.conv1.input_binarizer").register_forward_hook(
        lambda m, a, out: layer_signs.append(out.signs)
    )
    model(IMAGES[:4])
    maps = capture.take_maps()
    for port in (ModulePort("layer2.0", "in"), ModulePort("layer1.0", "out")):
        assert maps.get_binary_map(port, weights_only=False) is layer_signs[0]


def test_dorefa_map_has_values_0_and_1() -> None:
    model = make_small_model("dorefa")
    capture = FeatureMapCapture(model, [ModulePort("layer1.0", "in")], capture_binary=True)
    model(IMAGES[:4])
    assert set(
        capture.take_maps().get_binary_map(ModulePort("layer1.0", "in"), weights_only=False).unique().tolist()
    ) == {
        0.0,
        1.0,
    }


def test_main_path_counts_if_a_binary_shortcut_has_the_same_input() -> None:
    torch.manual_seed(0)
    model = lcrbnn.create_model("resnet18-binary-shortcut", "reactnet")
    block = model.get_submodule("layer2.0")
    block.conv1.input_binarizer.shift.data.fill_(0.4)  # both binarize the same map, with different thresholds
    block.shortcut[0].input_binarizer.shift.data.fill_(-0.4)
    retention = Retention(model, "paper")
    assert len(retention.spans) == 16
    assert retention._capture is not None
    model(torch.randn(2, 3, 32, 32))
    maps, port = retention._capture.take_maps(), ModulePort("layer2.0.conv1", "in")
    assert torch.equal(maps.binary[port].signs, ops.sign(maps.real[port] + 0.4))


def test_latent_weights_reference_updates_no_statistics() -> None:
    model = make_small_model()
    variant = LCR_VARIANTS["default"].replace(reference="latent-weights")
    retention = Retention(model, variant)
    model_copy = copy.deepcopy(model)
    capture = FeatureMapCapture(model_copy, [p for s in retention.spans for p in s], capture_binary=True)
    images = IMAGES[:16]
    F.cross_entropy(model(images), LABELS[:16])
    loss = float(retention.loss().detach())

    model_copy(images)
    binary_maps = capture.take_maps()
    statistics = {k: v.clone() for k, v in model_copy.state_dict().items() if "running" in k or "tracked" in k}
    capture.expects_latent_pass = True
    with torch.no_grad(), use_latent_weights(model_copy):
        model_copy(images)
    latent_maps = capture.take_maps()
    expected = retention_loss(
        [
            (binary_maps.get_binary_map(f, weights_only=False), binary_maps.get_binary_map(b, weights_only=False))
            for f, b in retention.spans
        ],
        [(latent_maps.real[f], latent_maps.real[b]) for f, b in retention.spans],
        variant,
        retention.start_vector,
    ).loss
    assert loss == pytest.approx(float(expected.detach()) / 2, rel=1e-5)
    for name, value in statistics.items():
        assert torch.equal(model.state_dict()[name], value), name
    assert all(not layer.uses_latent_weight for _, layer in iter_binary_layers(model))
    assert all(m.track_running_stats for m in model.modules() if isinstance(m, nn.BatchNorm2d))


def test_teacher_runs_in_evaluation_mode_without_gradients() -> None:
    model, teacher = make_small_model(), make_small_model(None)
    teacher.train()
    retention = Retention(model, reference="teacher", teacher=teacher)
    before = copy.deepcopy(teacher.state_dict())
    teacher.train()  # the training loop of a user may do that
    model(IMAGES[:16])
    loss = retention.loss()
    loss.backward()
    assert all(torch.equal(v, teacher.state_dict()[k]) for k, v in before.items())
    assert all(p.grad is None for p in teacher.parameters())
    assert any(p.grad is not None for p in model.parameters())
    retention.close()
    assert count_hooks(teacher) == count_hooks(model) == 0


def test_teacher_may_have_other_block_names() -> None:
    model, teacher = make_small_model(), UserNetwork(nn.Conv2d)
    with pytest.raises(InputError, match=r"no module of UserNetwork is called 'layer1\.0'"):
        Retention(model, reference="teacher", teacher=teacher)
    with pytest.raises(
        InputError, match="teacher_blocks must name as many blocks as the model has; got 2 for the teacher and 3"
    ):
        Retention(model, reference="teacher", teacher=teacher, teacher_blocks=BLOCKS)
    retention = Retention(
        model, blocks=["layer1.0", "layer2.0"], reference="teacher", teacher=teacher, teacher_blocks=BLOCKS
    )
    model(IMAGES[:8])
    assert retention.loss() > 0


def test_official_variant_compares_stages_with_learnable_factors() -> None:
    model, teacher = make_small_model(), make_small_model(None)
    retention = Retention(model, "official", teacher=teacher)
    assert [(f, b) for f, b in retention.spans] == [
        (ModulePort("layer2", "in"), ModulePort("layer2", "out")),
        (ModulePort("layer3", "in"), ModulePort("layer3", "out")),
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
    # One forward pass updates the batch-norm statistics once. The published code updates them twice.
    for name, value in statistics.items():
        assert model.state_dict()[name] == value + 1
    factors.data = torch.tensor([1.0, 2.0, 3.0])  # one per stage: a map between two pairs has the same factor in both
    model(images)
    loss = retention.loss()
    maps = [m * f for m, f in zip(model.extract_stage_outputs(images), (1, 2, 3), strict=True)]
    with torch.no_grad():
        teacher_maps = teacher.extract_stage_outputs(images)
    expected = retention_loss(
        list(pairwise(maps)), list(pairwise(teacher_maps)), LCR_VARIANTS["official"], retention.start_vector
    ).loss
    assert float(loss.detach()) == pytest.approx(8 / (16 * 1e4) * float(expected.detach()), rel=1e-4)


def test_weights_only_network_compares_real_maps() -> None:
    model = make_small_model("irnet", bits="1/32")
    with pytest.raises(InputError, match=r"binarizes weights only \(1/32\), so the loss would be exactly 0"):
        Retention(model)
    retention = Retention(model, reference="latent-weights")
    model(IMAGES[:16])
    loss = retention.loss()
    assert loss > 0
    loss.backward()
    assert model.get_submodule("layer1.0.conv1").weight.grad is not None
    capture = FeatureMapCapture(model, [ModulePort("pool", "in")], capture_binary=True)
    model(IMAGES[:4])
    maps = capture.take_maps()
    assert maps.get_binary_map(ModulePort("pool", "in"), weights_only=True) is maps.real[ModulePort("pool", "in")]


@pytest.mark.parametrize("name", ["bnn", "irnet"])
def test_quantization_error_of_the_pre_sign_weights_is_added(name: str) -> None:
    model = make_small_model(name)
    plain, with_quantization_error = Retention(model), Retention(model, quantization_error_weight=0.5)
    model(IMAGES[:8])
    error = 0.0
    for _, layer in iter_binary_layers(model):
        w = layer.weight.detach()
        if name == "irnet":
            w = (w - w.mean((1, 2, 3), keepdim=True)) / w.std((1, 2, 3), keepdim=True)
        error += float((w - w.abs().mean((1, 2, 3), keepdim=True) * ops.sign(w)).square().sum())
    assert float((with_quantization_error.loss() - plain.loss()).detach()) == pytest.approx(0.5 * error, rel=1e-4)


def test_granularity_convolutions_compares_the_input_of_a_convolution_with_its_output_before_batch_norm() -> None:
    """Algorithm 1: A_F is W_B A_B of the layer, before its batch norm, and A_B is the sign of A_F."""
    model = make_small_model()
    outputs: list[Tensor] = []
    convolution = model.get_submodule("layer3.0.conv2")
    convolution.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach()))
    variant = LCR_VARIANTS["default"].replace(granularity="convolutions", normalization="none", power_iterations=200)
    with Retention(model, variant, num_last_matrices=1) as retention:
        model(IMAGES[:8])
        retention.loss()
    assert retention.spans == [(ModulePort("layer3.0.conv2", "in"), ModulePort("layer3.0.conv2", "out"))]
    (real,) = outputs
    rows, signs = real.flatten(1).double(), torch.where(real < 0, -1.0, 1.0).flatten(1).double()
    expected = torch.linalg.eigvalsh(signs @ signs.T)[-1] / torch.linalg.eigvalsh(rows @ rows.T)[-1]
    assert retention.sigma_ratios is not None
    assert float(retention.sigma_ratios[0]) == pytest.approx(float(expected), rel=1e-3)


def test_a_reference_without_gradient_is_refused_with_reference_gradient() -> None:
    with pytest.raises(InputError, match="reference_gradient needs the reference 'pre-binarization'"):
        Retention(make_small_model(), reference="latent-weights", reference_gradient=True)
    with Retention(make_small_model(), reference_gradient=True) as retention:
        model = retention.model
        model(IMAGES[:8])
        gradient = torch.autograd.grad(retention.loss(), model.get_submodule("layer2.0.conv1").weight)[0]
    assert gradient.isfinite().all()
    assert bool(gradient.any())
