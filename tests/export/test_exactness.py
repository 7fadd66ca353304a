"""tools/exactness.py: what it finds is told as it is, and its records hold every pair of METHODS and MODELS."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch

import lcrbnn
from lcrbnn.engine import Model, Node
from lcrbnn.export import export_model
from lcrbnn.export.compare import answers, by_reference, compare_layers, misses
from lcrbnn.models import MODELS
from lcrbnn.runs.record import read_record
from lcrbnn.train.run import train
from lcrbnn.train.spec import Spec
from tests.export.nets import CHOICES, FIRST, input_of, stirred
from tools import exactness

FOLDER = Path(__file__).parents[2] / "results/engine/exactness"
RECORDS = sorted(FOLDER.glob("*.json"))
PAIRS = {f"{chosen.name} 1/{chosen.chosen_bits}" for chosen in CHOICES}


def rows_of(path: Path) -> dict[str, dict]:
    figures = read_record(path)["figures"]
    return figures["runs"] if path.stem.startswith("runs") else figures["pairs"]


@pytest.fixture
def small() -> tuple:
    images = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    net = stirred(lcrbnn.network("resnet8-double", "irnet"), images)
    return net, export_model(net, input_of(images, 10), "small"), images


def test_a_row_tells_layers_answers_and_misses(small: tuple) -> None:
    net, _, images = small
    row = exactness.measure(net, input_of(images, 10), images)
    assert (row["images"], row["agree"], row["misses"], row["faults"]) == (8, 8, [], [])
    assert row["sums"] > 0
    assert row["itself"] == [8, 8]


def changed(model: Model, index: int, key: str, value: np.ndarray) -> Model:
    nodes = list(model.nodes)
    nodes[index] = Node(nodes[index].op, nodes[index].name, nodes[index].inputs, {**nodes[index].keys, key: value})
    return Model(**{**vars(model), "nodes": tuple(nodes)})


def test_wrong_numbers_are_faults(small: tuple) -> None:
    """A threshold, a weight or a shift that is not the network's is seen where it stands."""
    net, model, images = small
    index, node = next((i, n) for i, n in enumerate(model.nodes) if n.op == "bconv")
    assert compare_layers(net, model, images, by_reference).faults == []
    moved = changed(model, index, "threshold", node.keys["threshold"] + np.float32(0.5))
    assert "signs of the same numbers" in compare_layers(net, moved, images, by_reference).faults[0]
    packed = node.keys["weight"].packed.copy()
    packed[0, 0] ^= 1
    flipped = changed(model, index, "weight", node.keys["weight"]._replace(packed=packed))
    assert "sums are not" in compare_layers(net, flipped, images, by_reference).faults[0]
    shifted = compare_layers(net, changed(model, index, "b", node.keys["b"] + np.float32(0.01)), images, by_reference)
    assert shifted.apart > 1e-3
    assert max(turned.distance for turned in shifted.turned) > 1e-3


def test_signs_that_depend_on_sums_alone_may_not_turn() -> None:
    images = torch.randn(8, 3, 8, 8)
    net = stirred(lcrbnn.network("vgg-small", "irnet", image=8), images)
    model = export_model(net, input_of(images, 10), "vgg")
    index, node = next((i, n) for i, n in enumerate(model.nodes) if n.op == "bconv")
    wrong = changed(model, index, "b", node.keys["b"] + np.float32(9))
    assert "signs that depend on sums alone" in compare_layers(net, wrong, images, by_reference).faults[0]


def test_a_miss_is_traced_to_the_first_signs_that_turned(small: tuple) -> None:
    net, model, images = small
    theirs = answers(net, images)
    assert misses(net, model, images, theirs, theirs) == []
    ours = theirs.copy()
    ours[3] = np.roll(ours[3], 1)  # another answer, and no sign turned
    (miss,) = misses(net, model, images, theirs, ours)
    assert (miss.image, miss.turned) == (3, None)
    assert exactness._miss(miss)["traced"] == (miss.gap <= exactness.EDGE)
    index = [i for i, n in enumerate(model.nodes) if n.op == "bconv"][1]
    far = changed(model, index, "threshold", model.nodes[index].keys["threshold"] + np.float32(0.2))
    (miss,) = misses(net, far, images, theirs, ours)
    assert miss.turned is not None
    assert miss.turned.node == model.nodes[index].name
    assert not exactness._miss(miss)["traced"]


def test_images_are_real_and_of_the_size_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, test, stir = exactness.images_for("resnet8-double", 600, tmp_path)
    assert (data, test.shape, stir.shape) == ("digits", (600, 1, 8, 8), (32, 1, 8, 8))
    data, test, _ = exactness.images_for("bireal18-imagenet", 1000, tmp_path)  # where there is no CIFAR-10
    assert (data, test.shape) == ("digits", (16, 1, 224, 224))
    assert "digits instead" in capsys.readouterr().err


def test_a_run_is_measured(tmp_path: Path) -> None:
    train(Spec(epochs=1), tmp_path / "run")
    figures = exactness.trained([tmp_path / "run"], Namespace(images=50, data=tmp_path))
    (row,) = figures["runs"].values()
    assert (row["images"], row["agree"], row["model"], row["epochs"]) == (50, 50, "resnet8-double", 1)
    assert row["faults"] == []


# --- the records ------------------------------------------------------------------------------------------------------


# The records of slow networks have the methods of their day; all are in a quick one.
QUICK = ("resnet8-double",)
# In all of the records RBNN's real activations are not standardised. They are now, and no file can hold that.
EARLIER = {"rbnn 1/32"}


def test_a_record_of_a_network_has_every_method() -> None:
    networks = [path for path in RECORDS if not path.stem.startswith("runs")]
    assert networks
    first = {pair for pair in PAIRS if pair.split()[0] in FIRST and "abc-net" not in pair}
    for path in networks:
        assert path.stem in MODELS
        assert set(rows_of(path)) <= PAIRS | EARLIER, path.stem
        assert set(rows_of(path)) >= (PAIRS if path.stem in QUICK else first), path.stem


@pytest.mark.parametrize("path", RECORDS, ids=[path.stem for path in RECORDS])
def test_a_record_is_of_exact_networks(path: Path) -> None:
    """Sums and signs without a fault; each image that is answered otherwise traced to a number at a threshold."""
    record = read_record(path)
    assert "+changes" not in record["environment"]["commit"]
    for name, row in rows_of(path).items():
        assert row["faults"] == [], name
        assert (row["sums"] > 0) == ("1/32" not in name and row.get("bits") != "1/32"), name
        assert row["images"] - row["agree"] == len(row["misses"]), name
        assert all(miss["traced"] and miss.get("distance", 0) <= exactness.EDGE for miss in row["misses"]), name
        assert row["apart"] < 1e-4, name
        assert all(distance <= exactness.EDGE for _, _, distance, _ in row["turned"]), name


def test_trained_networks_answer_as_pytorch_does() -> None:
    rows = rows_of(FOLDER / "runs.json")
    assert {row["data"] for row in rows.values()} == {"digits", "cifar10"}
    for name, row in rows.items():
        assert row["images"] == 1000, name
        assert row["agree"] >= 999, name


def test_fully_trained_networks_answer_as_pytorch_does() -> None:
    """Ten ResNet-20s of 400 epochs: all but one meet 999 of 1,000, and that one's two images are traced as all are."""
    agreed = sorted(row["agree"] for row in rows_of(FOLDER / "runs-cifar10-double.json").values())
    assert len(agreed) == 10
    assert agreed[0] >= 998
    assert agreed[1] >= 999
    assert sum(agreed) == 9996
