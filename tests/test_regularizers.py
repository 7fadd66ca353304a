"""Spectral normalisation and defensive quantisation of binary layers: their numbers, and what a sign makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from bench import regularizers as bench
from lcrbnn.errors import InputError
from lcrbnn.layers import BinaryConv2d, binary_layers, project
from lcrbnn.methods import method
from lcrbnn.regularizers import REGULARIZERS
from lcrbnn.regularizers.defensive import orthogonality
from lcrbnn.runs.record import read_record
from lcrbnn.study.plan import read_plan
from lcrbnn.train import Spec
from lcrbnn.train import spec as spec_module
from lcrbnn.train.build import build, build_network
from lcrbnn.train.objective import objective

CPU = torch.device("cpu")
RECORD = Path(__file__).parents[1] / "results/bench/regularizers-cpu.json"


def test_the_settings_name_the_rows_of_the_table() -> None:
    assert list(spec_module.REGULARIZERS) == list(REGULARIZERS)


def small(name: str, chosen: str = "bnn") -> nn.Module:
    torch.manual_seed(3)
    net = nn.Sequential(BinaryConv2d(4, 6, 3, padding=1, method=chosen), nn.BatchNorm2d(6))
    attach = REGULARIZERS[name].attach
    if attach is not None:
        attach(net)
    return net


@pytest.mark.parametrize("name", ["spectral", "spectral-signs"])
def test_the_norm_is_taken_in_full_precision_under_autocast(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's autocast shortens the numbers of `mv`, and leaves `dot` as it is; a CPU's does neither."""
    plain = torch.mv

    def shortened(matrix: Tensor, vector: Tensor) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            return plain(matrix.bfloat16(), vector.bfloat16())
        return plain(matrix, vector)

    net = small(name, "bireal").eval()
    images = torch.randn(2, 4, 5, 5)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = net(images)
        monkeypatch.setattr(torch, "mv", shortened)
        torch.testing.assert_close(net(images), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["spectral", "spectral-signs"])
def test_the_norm_is_the_largest_singular_value_and_is_followed(name: str) -> None:
    net = small(name, "bireal")
    layer = net[0]

    def matrix() -> Tensor:
        binary = layer.weight_binarizer(layer.weight)
        meant = binary.signs.flatten(1) * binary.scale.reshape(-1, 1)
        return meant if name == "spectral-signs" else layer.weight.flatten(1)

    assert layer.normalizer.norm(matrix()).item() == pytest.approx(
        torch.linalg.matrix_norm(matrix(), 2).item(), rel=2e-2
    )
    layer.weight.data = torch.randn_like(layer.weight)
    for _ in range(60):
        project(net)
    top = torch.linalg.matrix_norm(matrix(), 2)
    torch.testing.assert_close(layer.normalizer.norm(matrix()), top, rtol=1e-4, atol=0)
    done = layer.normalizer.after(layer.weight_binarizer(layer.normalizer.before(layer.weight)))
    own = done.signs.flatten(1) * done.scale.reshape(-1, 1)
    if name == "spectral-signs":
        assert torch.linalg.matrix_norm(own, 2).item() == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("name", ["spectral", "spectral-signs"])
@pytest.mark.parametrize("chosen", ["bnn", "irnet", "bireal", "adabin", "xnor++"])
def test_a_sign_or_a_batch_norm_undoes_it(name: str, chosen: str) -> None:
    """Why spectral normalisation does nothing for a binary network."""
    x = torch.randn(8, 4, 6, 6, dtype=torch.float64)
    found = []
    for one in ("none", name):
        net = small("none", chosen).double()
        # Bi-Real's start is so small that the eps of a batch norm counts beside it.
        net[0].weight.data = torch.randn(6, 4, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        net[0].weight_binarizer.fit((6, 6))
        if REGULARIZERS[one].attach is not None:
            REGULARIZERS[one].attach(net.double())
        found.append(net.double()(x))
    torch.testing.assert_close(found[0], found[1], atol=2e-3, rtol=2e-3)  # a batch norm's eps is left


def test_defensive_quantisation_draws_rows_to_an_orthonormal_set() -> None:
    net = nn.Sequential(BinaryConv2d(2, 3, 3, method="bnn"), BinaryConv2d(3, 40, 1, method="bnn"))
    wide, tall = (layer.weight.detach().flatten(1) for _, layer in binary_layers(net))
    expected = (wide @ wide.T - torch.eye(3)).square().sum() / 2 + (tall.T @ tall - torch.eye(3)).square().sum() / 2
    torch.testing.assert_close(orthogonality(net).detach(), expected)
    other = (wide.T @ wide - torch.eye(18)).square().sum() / 2  # the paper's form: 15 more dimensions, a constant
    torch.testing.assert_close(other - (wide @ wide.T - torch.eye(3)).square().sum() / 2, torch.tensor(7.5))
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(300):
        loss = orthogonality(net)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 1e-3


def test_a_run_takes_it() -> None:
    images, labels = torch.randn(8, 1, 8, 8), torch.arange(8) % 10
    spec = Spec(method="bireal", regularizer="defensive", strength=0.5)
    parts = build(spec, CPU)
    found = objective(spec, parts, images, labels, 0.0).loss
    plain = build(spec.but(regularizer="none"), CPU)
    expected = F.cross_entropy(plain.model(images), labels) + 0.5 * orthogonality(plain.model)
    torch.testing.assert_close(found, expected)
    assert not any(layer.normalizer for _, layer in binary_layers(parts.model))
    net = build_network(Spec(regularizer="spectral"))
    assert all(layer.normalizer is not None for _, layer in binary_layers(net))
    assert sum("normalizer" in key for key in net.state_dict()) == 12  # u and v of six layers are kept with a run


def test_a_mistake_is_answered_with_a_sentence() -> None:
    with pytest.raises(InputError, match="a full-precision network has no binary layers for a regularizer"):
        build_network(Spec(method="real", regularizer="spectral"))
    with pytest.raises(InputError, match="no choice for regularizer is called 'spectrall'"):
        Spec(regularizer="spectrall")
    net = nn.Sequential(BinaryConv2d(4, 6, 3, method=method("abc-net", weight_bases=2)))
    with pytest.raises(InputError, match="layer '0' has several binary bases"):
        REGULARIZERS["spectral-signs"].attach(net)


def test_an_exported_layer_has_its_norm_in_it() -> None:
    from lcrbnn.engine.reference import run
    from lcrbnn.export import export_model
    from lcrbnn.export.watch import last
    from tests.export.nets import input_of, stirred

    images = torch.randn(4, 3, 8, 8)
    net = lcrbnn.network("resnet8-double", "bireal")
    REGULARIZERS["spectral-signs"].attach(net)
    stirred(net, images)
    found = run(export_model(net, input_of(images, 10), "normalised"), last(images))
    torch.testing.assert_close(torch.from_numpy(found), net(images).detach(), atol=1e-3, rtol=1e-3)


def test_the_comparison_counts_what_a_step_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "BATCH", 4)
    kept = {name: bench.Trainer(*how).kept_bytes() for name, how in bench.VARIANTS.items()}
    assert kept["none"] > 0
    assert kept["spectral, before the sign"] >= kept["none"]
    assert min(bench.times({"none": bench.Trainer("none", False)}, 1)["none"]) > 0


def test_the_plan_of_accuracies_has_the_same_variants() -> None:
    plan = read_plan(Path(__file__).parents[1] / "studies" / "cifar10-regularizers.toml")
    arms = [spec for name, spec in plan.arms.items() if not name.startswith("decay")]  # which is a control, and no step
    assert [(spec.regularizer, spec.retains) for spec in arms] == list(bench.VARIANTS.values())


def test_the_record_has_every_variant_and_shows_what_is_undone() -> None:
    figures = read_record(RECORD)["figures"]
    assert set(figures) == set(bench.VARIANTS)
    for row in figures.values():
        assert row["ratio"] > 0
        assert row["kept_bytes"] > 0
        assert all(50 < score <= 100 for score in row["accuracy"])
    assert figures["spectral, before the sign"]["layers_move"] < 1e-4
    assert figures["spectral, after the sign"]["layers_move"] < 1e-4


def test_the_documents_have_the_ratios_of_a_gpu() -> None:
    docs = RECORD.parents[2] / "docs"
    figures = read_record(RECORD.with_name("regularizers-h200.json"))["figures"]
    lcr, before, after, loss = (f"{row['ratio']:.2f}" for name, row in figures.items() if name != "none")
    assert f"{lcr}, {before}, {after} and {loss} times" in (docs / "claims.md").read_text()
    said = (
        f"retention takes {lcr} times the step without, spectral normalisation {before} (before the sign) and {after} "
        f"(after it), defensive quantisation {loss}"
    )
    assert said in (docs / "LOG.md").read_text()
