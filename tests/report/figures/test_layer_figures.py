"""Latent weights and map correlations: values computed by hand, and figures of several kinds of networks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import lcrbnn
from lcrbnn.cli.main import main
from lcrbnn.errors import InputError
from lcrbnn.evaluation.analysis.latent_weights import compute_histograms, compute_spread, sample_weights
from lcrbnn.evaluation.analysis.layer_report import measure_layers
from lcrbnn.evaluation.analysis.map_similarity import (
    capture_layer_maps,
    expected_correlation,
    mean_similarity,
    pairwise_correlations,
    pairwise_cosines,
)
from lcrbnn.report.figures.layer_figures import draw_weights
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.setup.weights_file import write_weights
from lcrbnn.train.train import train


def test_spread_of_known_distributions() -> None:
    x = torch.tensor([-1.0, 1.0, -1.0, 1.0])
    assert compute_spread(x) == (4, 1.0, -2.0)  # two values have the smallest possible kurtosis
    normal = compute_spread(3 * torch.randn(200_000) + 5)
    assert normal.std == pytest.approx(3, rel=0.01)
    assert normal.kurtosis == pytest.approx(0, abs=0.05)
    assert compute_spread(torch.full((5,), 2.0)) == (5, 0.0, 0.0)


def test_samples_take_the_same_ten_thousand_positions_in_every_network() -> None:
    net, negated = (lcrbnn.create_model("resnet20-double", "irnet") for _ in range(2))
    negated.load_state_dict({name: -value if "conv" in name else value for name, value in net.state_dict().items()})
    samples = [sample_weights(net) for net in (net, negated)]
    assert {name: len(w) for name, w in samples[0].items()} == {
        name: min(m.weight.numel(), 10_000) for name, m in net.named_modules() if isinstance(m, lcrbnn.BinaryConv2d)
    }
    assert len(samples[0]) == 18
    assert all(torch.equal(samples[0][name], -samples[1][name]) for name in samples[0])
    third = samples[0]["layer3.1.conv1"]
    assert third.unique().numel() > 9_000  # drawn without replacement
    assert third.std() == pytest.approx(net.layer3[1].conv1.weight.std().item(), rel=0.03)


def test_a_histogram_is_symmetric_around_zero() -> None:
    (histogram,) = compute_histograms({"a": {"l": torch.tensor([-3.0, -0.1, 0.1, 0.9])}}, 3)["a"].values()
    assert (histogram.low, histogram.high, histogram.counts) == (-3.0, 3.0, [1, 3, 0])


def test_histograms_of_one_layer_have_the_same_bins() -> None:
    histograms = compute_histograms(
        {"b": {"l": torch.tensor([-2.0, 0.1, 2.0])}, "a": {"l": torch.tensor([-1.0, 0.0, 1.0])}}, 5
    )
    assert (
        (histograms["a"]["l"].low, histograms["a"]["l"].high)
        == (histograms["b"]["l"].low, histograms["b"]["l"].high)
        == (-2.0, 2.0)
    )
    assert histograms["a"]["l"].counts == [0, 1, 1, 1, 0]
    assert histograms["b"]["l"].counts == [1, 0, 1, 0, 1]


def test_correlations_match_numpy_and_cosines_keep_the_mean() -> None:
    rows = torch.randn(5, 40) + torch.arange(5)[:, None]
    assert np.allclose(pairwise_correlations(rows).numpy(), np.corrcoef(rows.numpy()), atol=1e-6)
    assert torch.allclose(pairwise_correlations(rows + 7), pairwise_correlations(rows), atol=1e-6)
    ones = torch.ones(2, 8)
    assert pairwise_cosines(ones)[0, 1] == pytest.approx(1)
    assert pairwise_correlations(ones)[0, 1] == 0  # constant rows have no correlation


def test_similarity_of_known_rows_and_of_independent_signs() -> None:
    rows = torch.tensor([[1.0, -1, 1, -1], [1.0, -1, 1, -1], [-1.0, 1, -1, 1]])
    assert mean_similarity(rows) == pytest.approx((1.0, 1.0, -1 / 3))
    signs = torch.randint(0, 2, (64, 4096)).float() * 2 - 1
    assert mean_similarity(signs).correlation == pytest.approx(expected_correlation(4096), rel=0.05)


@pytest.mark.parametrize(("model", "bits"), [("resnet20-double", "1/1"), ("resnet20-relu", "1/32"), ("resnet20", None)])
def test_captured_maps_are_the_inputs_of_each_convolution(model: str, bits: str | None) -> None:
    net = lcrbnn.create_model(model, None if bits is None else lcrbnn.get_method("irnet", bits))
    net.layer1[0].bn1.momentum = 0.5
    before = {name: value.clone() for name, value in net.state_dict().items()}
    layer_maps = capture_layer_maps(net, torch.randn(4, 3, 32, 32))
    assert len(layer_maps) == 19
    assert [layer_maps[name].real.shape[1] for name in ("layer1.0.conv1", "layer2.0.conv2", "pool")] == [
        16384,
        8192,
        4096,
    ]
    for maps in layer_maps.values():
        if bits == "1/1":
            assert maps.binary is not None
            assert torch.equal(maps.binary, torch.where(maps.real >= 0, 1.0, -1.0))
        else:
            assert maps.binary is None
    assert net.training
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in before.items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_layer_measurements_are_json_values() -> None:
    net = lcrbnn.create_model("resnet20-relu", None)
    measurements = measure_layers(net, torch.randn(6, 3, 32, 32))
    assert json.loads(json.dumps(measurements)) == measurements
    assert len(measurements["weights"]) == 19  # includes the stem: all convolutions of a real network
    assert set(measurements["activations"]["pool"]) == {"size", "chance", "real"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshots")
    torch.set_num_threads(1)
    for name, weight in (("none", 0.0), ("kept", 10.0)):
        spec = TrainSpec(epochs=1, batch_size=250, lcr_weight=weight)
        train(spec, folder / name / "seed-0", RunOptions(device="cpu"))
    write_weights(folder / "kept" / "seed-0", folder / "kept.safetensors")
    return folder


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_command_draws_two_figures_and_writes_their_numbers(
    kind: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    networks = [str(runs / "none" / "seed-0"), f"with={runs / 'kept.safetensors'}"]
    arguments = ["layers", *networks, "-o", str(tmp_path), "--num-images", "24", "--device", "cpu", "--format", kind]
    assert main(arguments) == 0
    paths = [tmp_path / name for name in (f"weights.{kind}", f"maps.{kind}", "layers.json")]
    assert capsys.readouterr().out.split() == [str(path) for path in paths]
    assert all(path.stat().st_size > 5_000 for path in paths)
    figures = json.loads(paths[2].read_text())["figures"]
    assert list(figures) == ["none", "with"]
    assert figures["none"]["images"] == 24
    layer = figures["with"]["weights"]["layer3.0.conv2"]
    assert sum(layer["histogram"]["counts"]) == layer["size"]
    if kind == "svg":
        contents = [path.read_bytes() for path in paths[:2]]
        assert main(arguments) == 0
        assert [path.read_bytes() for path in paths[:2]] == contents  # equal numbers give equal files


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a={}/none/seed-0", "a={}/none/seed-0"], "two networks are called 'a'; give them names with NAME=NETWORK"),
        (["{}/nothing"], "nothing cannot be read: No such file or directory"),
        (["{}/none/seed-0", "--format", "gif"], "no figure format is called 'gif'"),
        (["{}/none/seed-0", "--num-images", "1"], "--num-images must be a whole number from 2 to 10000; got 1"),
    ],
)
def test_bad_layers_arguments_are_rejected(
    arguments: list[str], message: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["layers", *(argument.format(runs) for argument in arguments), "-o", str(tmp_path), "--device", "cpu"])
        == 2
    )
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_networks_with_different_layers_are_rejected(tmp_path: Path) -> None:
    layer = {"histogram": {"low": -1.0, "high": 1.0, "counts": [1]}, "std": 1.0}
    with pytest.raises(InputError, match="have the same layers"):
        draw_weights({"a": {"x": layer}, "b": {"y": layer}}, tmp_path / "a.svg")


def test_labels_are_not_parsed_as_formulas_or_hidden(tmp_path: Path) -> None:
    from lcrbnn.report.figures.figure import draw_figure, escape_label

    with draw_figure(tmp_path / "a.svg", 1, 1, 3, 2) as (_, grid):
        for name in ("_hidden", r"$\frac$", "x^2"):
            grid[0, 0].plot([0, 1], [0, 1], label=escape_label(name))
        grid[0, 0].legend()
        labels = [text.get_text() for text in grid[0, 0].get_legend().get_texts()]
    assert len(labels) == 3
    assert (tmp_path / "a.svg").exists()
