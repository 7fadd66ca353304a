"""Spectral normalization and Defensive Quantization of binary layers, and the effect of the sign on them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from bench.training import regularizer_comparison as bench
from lcrbnn.errors import InputError
from lcrbnn.lcr.regularizers import REGULARIZERS, orthogonality_loss
from lcrbnn.nn.layers import BinaryConv2d
from lcrbnn.nn.methods.method_registry import get_method
from lcrbnn.nn.model_hooks import iter_binary_layers, project_weights
from lcrbnn.runs.record import read_record
from lcrbnn.study.plan import read_plan
from lcrbnn.train.objective import compute_objective
from lcrbnn.train.setup.build import build_training_parts
from lcrbnn.train.setup.build_network import build_network
from lcrbnn.train.setup.spec import REGULARIZER_CHOICES, TrainSpec

CPU = torch.device("cpu")
RECORD = Path(__file__).parents[2] / "bench/records/regularizers-cpu.json"


def test_allowed_values_of_the_setting_are_the_rows_of_the_table() -> None:
    assert list(REGULARIZER_CHOICES) == list(REGULARIZERS)


def make_regularized_layer(name: str, method: str = "bnn") -> nn.Module:
    torch.manual_seed(3)
    net = nn.Sequential(BinaryConv2d(4, 6, 3, padding=1, method=method), nn.BatchNorm2d(6))
    attach = REGULARIZERS[name].attach
    if attach is not None:
        attach(net)
    return net


@pytest.mark.parametrize("name", ["spectral-norm-latent", "spectral-norm-binary"])
def test_norm_is_computed_in_full_precision_under_autocast(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, autocast computes `mv` in bfloat16 but not `dot`. On a CPU it changes neither."""
    original_mv = torch.mv

    def bfloat16_mv(matrix: Tensor, vector: Tensor) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            return original_mv(matrix.bfloat16(), vector.bfloat16())
        return original_mv(matrix, vector)

    net = make_regularized_layer(name, "bireal").eval()
    images = torch.randn(2, 4, 5, 5)
    with torch.autocast("cpu", torch.bfloat16):
        expected = net(images)
        monkeypatch.setattr(torch, "mv", bfloat16_mv)
        torch.testing.assert_close(net(images), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["spectral-norm-latent", "spectral-norm-binary"])
def test_norm_follows_the_largest_singular_value(name: str) -> None:
    net = make_regularized_layer(name, "bireal")
    layer = net[0]

    def current_matrix() -> Tensor:
        binary = layer.weight_binarizer(layer.weight)
        binary_matrix = binary.signs.flatten(1) * binary.scale.reshape(-1, 1)
        return binary_matrix if name == "spectral-norm-binary" else layer.weight.flatten(1)

    assert layer.normalizer.norm(current_matrix()).item() == pytest.approx(
        torch.linalg.matrix_norm(current_matrix(), 2).item(), rel=2e-2
    )
    layer.weight.data = torch.randn_like(layer.weight)
    for _ in range(60):
        project_weights(net)
    largest_singular_value = torch.linalg.matrix_norm(current_matrix(), 2)
    torch.testing.assert_close(layer.normalizer.norm(current_matrix()), largest_singular_value, rtol=1e-4, atol=0)
    normalized_weight = layer.normalizer.normalize_binary(
        layer.weight_binarizer(layer.normalizer.normalize_latent(layer.weight))
    )
    normalized_matrix = normalized_weight.signs.flatten(1) * normalized_weight.scale.reshape(-1, 1)
    if name == "spectral-norm-binary":
        assert torch.linalg.matrix_norm(normalized_matrix, 2).item() == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("name", ["spectral-norm-latent", "spectral-norm-binary"])
@pytest.mark.parametrize("method", ["bnn", "irnet", "bireal", "adabin", "xnor++"])
def test_sign_or_batch_norm_removes_the_effect_of_spectral_normalization(name: str, method: str) -> None:
    """Spectral normalization does not change the outputs of a binary network."""
    x = torch.randn(8, 4, 6, 6, dtype=torch.float64)
    outputs = []
    for regularizer in ("none", name):
        net = make_regularized_layer("none", method).double()
        # The initial weights of Bi-Real are so small that the eps of a batch norm matters.
        net[0].weight.data = torch.randn(6, 4, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        net[0].weight_binarizer.fit_output_shape((6, 6))
        if REGULARIZERS[regularizer].attach is not None:
            REGULARIZERS[regularizer].attach(net.double())
        outputs.append(net.double()(x))
    torch.testing.assert_close(
        outputs[0], outputs[1], atol=2e-3, rtol=2e-3
    )  # the eps of a batch norm makes a small difference


def test_orthogonality_loss_makes_rows_orthonormal() -> None:
    net = nn.Sequential(BinaryConv2d(2, 3, 3, method="bnn"), BinaryConv2d(3, 40, 1, method="bnn"))
    wide_weight, tall_weight = (layer.weight.detach().flatten(1) for _, layer in iter_binary_layers(net))
    expected = (wide_weight @ wide_weight.T - torch.eye(3)).square().sum() / 2 + (
        tall_weight.T @ tall_weight - torch.eye(3)
    ).square().sum() / 2
    torch.testing.assert_close(orthogonality_loss(net).detach(), expected)
    loss_of_the_paper = (
        wide_weight.T @ wide_weight - torch.eye(18)
    ).square().sum() / 2  # W^T W of the paper: a constant for 15 more dimensions
    torch.testing.assert_close(
        loss_of_the_paper - (wide_weight @ wide_weight.T - torch.eye(3)).square().sum() / 2, torch.tensor(7.5)
    )
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(300):
        loss = orthogonality_loss(net)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 1e-3


def test_training_adds_the_regularizer_to_the_loss() -> None:
    images, labels = torch.randn(8, 1, 8, 8), torch.arange(8) % 10
    spec = TrainSpec(method="bireal", regularizer="defensive-quantization", regularizer_weight=0.5)
    parts = build_training_parts(spec, CPU)
    loss = compute_objective(spec, parts, images, labels, 0.0).loss
    plain = build_training_parts(spec.replace(regularizer="none"), CPU)
    expected = F.cross_entropy(plain.model(images), labels) + 0.5 * orthogonality_loss(plain.model)
    torch.testing.assert_close(loss, expected)
    assert not any(layer.normalizer for _, layer in iter_binary_layers(parts.model))
    net = build_network(TrainSpec(regularizer="spectral-norm-latent"))
    assert all(layer.normalizer is not None for _, layer in iter_binary_layers(net))
    assert sum("normalizer" in key for key in net.state_dict()) == 12  # u and v of six layers


def test_invalid_regularizers_are_rejected() -> None:
    with pytest.raises(InputError, match="a full-precision network has no binary layers for a regularizer"):
        build_network(TrainSpec(method="real", regularizer="spectral-norm-latent"))
    with pytest.raises(InputError, match="no choice for regularizer is called 'spectrall'"):
        TrainSpec(regularizer="spectrall")
    net = nn.Sequential(BinaryConv2d(4, 6, 3, method=get_method("abc-net", weight_bases=2)))
    with pytest.raises(InputError, match="needs one binary base per layer; layer '0' has several"):
        REGULARIZERS["spectral-norm-binary"].attach(net)


def test_exported_layer_contains_its_norm() -> None:
    from lcrbnn.deploy.engine.reference import run_reference
    from lcrbnn.deploy.export.export_model import export_model
    from lcrbnn.deploy.export.graph.torch_activations import to_channels_last
    from tests.deploy.export.random_networks import describe_input, randomize_parameters

    images = torch.randn(4, 3, 8, 8)
    net = lcrbnn.create_model("resnet8-double", "bireal")
    REGULARIZERS["spectral-norm-binary"].attach(net)
    randomize_parameters(net, images)
    logits = run_reference(export_model(net, describe_input(images, 10), "normalised"), to_channels_last(images))
    torch.testing.assert_close(torch.from_numpy(logits), net(images).detach(), atol=1e-3, rtol=1e-3)


def test_comparison_measures_the_saved_bytes_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "BATCH_SIZE", 4)
    saved_bytes = {
        name: bench.VariantTrainer(*settings).measure_saved_bytes() for name, settings in bench.VARIANTS.items()
    }
    assert saved_bytes["none"] > 0
    assert saved_bytes["spectral, before the sign"] >= saved_bytes["none"]
    assert min(bench.time_variants({"none": bench.VariantTrainer("none", False)}, 1)["none"]) > 0


def test_study_plan_has_the_variants_of_the_comparison() -> None:
    plan = read_plan(Path(__file__).parents[2] / "paper" / "studies" / "cifar10-regularizers.toml")
    # The variants with another weight decay are a baseline and not part of the comparison.
    specs = [spec for name, spec in plan.variants.items() if not name.startswith("decay")]
    assert [(spec.regularizer, spec.uses_lcr) for spec in specs] == list(bench.VARIANTS.values())


def test_record_has_every_variant() -> None:
    figures = read_record(RECORD)["figures"]
    assert set(figures) == set(bench.VARIANTS)
    for row in figures.values():
        assert row["ratio"] > 0
        assert row["kept_bytes"] > 0
        assert all(50 < score <= 100 for score in row["accuracy"])
    assert figures["spectral, before the sign"]["layers_move"] < 1e-4
    assert figures["spectral, after the sign"]["layers_move"] < 1e-4
