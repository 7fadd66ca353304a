"""Latent weights and likeness of maps: numbers by hand, and the figures of networks of each kind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import lcrbnn
from lcrbnn.analyze.correlation import alike, chance, correlations, cosines, layer_maps
from lcrbnn.analyze.latent import histograms, sample_weights, spread
from lcrbnn.analyze.layers import describe
from lcrbnn.cli import main
from lcrbnn.errors import InputError
from lcrbnn.study.snapshots import draw_weights
from lcrbnn.study.weights import write_weights
from lcrbnn.train import Spec
from lcrbnn.train.options import Options
from lcrbnn.train.run import train


def test_spread_of_known_distributions() -> None:
    x = torch.tensor([-1.0, 1.0, -1.0, 1.0])
    assert spread(x) == (4, 1.0, -2.0)  # two values: the least kurtosis there is
    normal = spread(3 * torch.randn(200_000) + 5)
    assert normal.std == pytest.approx(3, rel=0.01)
    assert normal.kurtosis == pytest.approx(0, abs=0.05)
    assert spread(torch.full((5,), 2.0)) == (5, 0.0, 0.0)


def test_a_sample_is_of_ten_thousand_weights_at_the_same_places_in_every_network() -> None:
    one, two = (lcrbnn.network("resnet20-double", "irnet") for _ in range(2))
    two.load_state_dict({name: -value if "conv" in name else value for name, value in one.state_dict().items()})
    samples = [sample_weights(net) for net in (one, two)]
    assert {name: len(w) for name, w in samples[0].items()} == {
        name: min(m.weight.numel(), 10_000) for name, m in one.named_modules() if isinstance(m, lcrbnn.BinaryConv2d)
    }
    assert len(samples[0]) == 18
    assert all(torch.equal(samples[0][name], -samples[1][name]) for name in samples[0])
    third = samples[0]["layer3.1.conv1"]
    assert third.unique().numel() > 9_000  # drawn without putting back
    assert third.std() == pytest.approx(one.layer3[1].conv1.weight.std().item(), rel=0.03)


def test_a_histogram_reaches_as_far_below_0_as_above() -> None:
    (found,) = histograms({"a": {"l": torch.tensor([-3.0, -0.1, 0.1, 0.9])}}, 3)["a"].values()
    assert (found.low, found.high, found.counts) == (-3.0, 3.0, [1, 3, 0])


def test_histograms_of_a_layer_share_their_bins() -> None:
    found = histograms({"b": {"l": torch.tensor([-2.0, 0.1, 2.0])}, "a": {"l": torch.tensor([-1.0, 0.0, 1.0])}}, 5)
    assert (found["a"]["l"].low, found["a"]["l"].high) == (found["b"]["l"].low, found["b"]["l"].high) == (-2.0, 2.0)
    assert found["a"]["l"].counts == [0, 1, 1, 1, 0]
    assert found["b"]["l"].counts == [1, 0, 1, 0, 1]


def test_correlations_are_those_of_numpy_and_cosines_keep_the_mean() -> None:
    rows = torch.randn(5, 40) + torch.arange(5)[:, None]
    assert np.allclose(correlations(rows).numpy(), np.corrcoef(rows.numpy()), atol=1e-6)
    assert torch.allclose(correlations(rows + 7), correlations(rows), atol=1e-6)
    ones = torch.ones(2, 8)
    assert cosines(ones)[0, 1] == pytest.approx(1)
    assert correlations(ones)[0, 1] == 0  # nothing varies


def test_likeness_by_hand_and_of_independent_signs() -> None:
    rows = torch.tensor([[1.0, -1, 1, -1], [1.0, -1, 1, -1], [-1.0, 1, -1, 1]])
    assert alike(rows) == pytest.approx((1.0, 1.0, -1 / 3))
    signs = torch.randint(0, 2, (64, 4096)).float() * 2 - 1
    assert alike(signs).correlation == pytest.approx(chance(4096), rel=0.05)


@pytest.mark.parametrize(("model", "bits"), [("resnet20-double", "1/1"), ("resnet20-relu", "1/32"), ("resnet20", None)])
def test_maps_are_those_in_front_of_each_convolution(model: str, bits: str | None) -> None:
    net = lcrbnn.network(model, None if bits is None else lcrbnn.method("irnet", bits))
    net.layer1[0].bn1.momentum = 0.5
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = layer_maps(net, torch.randn(4, 3, 32, 32))
    assert len(found) == 19
    assert [found[name].real.shape[1] for name in ("layer1.0.conv1", "layer2.0.conv2", "pool")] == [16384, 8192, 4096]
    for maps in found.values():
        if bits == "1/1":
            assert maps.binary is not None
            assert torch.equal(maps.binary, torch.where(maps.real >= 0, 1.0, -1.0))
        else:
            assert maps.binary is None
    assert net.training
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in before.items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_a_network_is_described_in_plain_values() -> None:
    net = lcrbnn.network("resnet20-relu", None)
    found = describe(net, torch.randn(6, 3, 32, 32))
    assert json.loads(json.dumps(found)) == found
    assert len(found["weights"]) == 19  # the stem too: every convolution of a real network
    assert set(found["maps"]["pool"]) == {"size", "chance", "real"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshots")
    torch.set_num_threads(1)
    for name, weight in (("none", 0.0), ("kept", 10.0)):
        spec = Spec(epochs=1, batch=250, weight=weight)
        train(spec, folder / name / "seed-0", Options(device="cpu"))
    write_weights(folder / "kept" / "seed-0", folder / "kept.safetensors")
    return folder


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_command_draws_two_figures_and_writes_their_numbers(
    kind: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    networks = [str(runs / "none" / "seed-0"), f"with={runs / 'kept.safetensors'}"]
    words = ["layers", *networks, "-o", str(tmp_path), "--images", "24", "--device", "cpu", "--kind", kind]
    assert main(words) == 0
    paths = [tmp_path / name for name in (f"weights.{kind}", f"maps.{kind}", "layers.json")]
    assert capsys.readouterr().out.split() == [str(path) for path in paths]
    assert all(path.stat().st_size > 5_000 for path in paths)
    found = json.loads(paths[2].read_text())["figures"]
    assert list(found) == ["none", "with"]
    assert found["none"]["images"] == 24
    layer = found["with"]["weights"]["layer3.0.conv2"]
    assert sum(layer["histogram"]["counts"]) == layer["size"]
    if kind == "svg":
        first = [path.read_bytes() for path in paths[:2]]
        assert main(words) == 0
        assert [path.read_bytes() for path in paths[:2]] == first  # the same numbers give the same file


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (["a={}/none/seed-0", "a={}/none/seed-0"], "two networks are called 'a': say NAME=NETWORK"),
        (["{}/nothing"], "nothing cannot be read: No such file or directory"),
        (["{}/none/seed-0", "--kind", "gif"], "no kind of figure is called 'gif'; there are svg, png"),
        (["{}/none/seed-0", "--images", "1"], "--images must be a whole number from 2 to 10000; got 1"),
    ],
)
def test_what_cannot_be_drawn(
    change: list[str], sentence: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["layers", *(word.format(runs) for word in change), "-o", str(tmp_path), "--device", "cpu"]) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_networks_of_other_layers_are_not_drawn_together(tmp_path: Path) -> None:
    one = {"histogram": {"low": -1.0, "high": 1.0, "counts": [1]}, "std": 1.0}
    with pytest.raises(InputError, match="have the same layers"):
        draw_weights({"a": {"x": one}, "b": {"y": one}}, tmp_path / "a.svg")


def test_names_are_no_formulas_and_are_not_hidden(tmp_path: Path) -> None:
    from lcrbnn.study.figure import drawing, named

    with drawing(tmp_path / "a.svg", 1, 1, 3, 2) as (_, grid):
        for name in ("_hidden", r"$\frac$", "x^2"):
            grid[0, 0].plot([0, 1], [0, 1], label=named(name))
        grid[0, 0].legend()
        shown = [text.get_text() for text in grid[0, 0].get_legend().get_texts()]
    assert len(shown) == 3
    assert (tmp_path / "a.svg").exists()
