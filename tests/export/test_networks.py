"""Exported networks against PyTorch: sums and signs exactly, values closely, answers all but always."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lcrbnn
from lcrbnn.data import DATASETS, load_digits
from lcrbnn.engine import Model
from lcrbnn.engine.format import to_bytes
from lcrbnn.engine.lib import Engine
from lcrbnn.export import Input, export_model
from lcrbnn.export.compare import answers, by_reference, compare_layers, misses
from lcrbnn.export.watch import last
from lcrbnn.layers import fit
from lcrbnn.methods import Method
from lcrbnn.models import MODELS
from lcrbnn.models.blocks import ACTIVATIONS, BLOCKS, SHORTCUTS
from lcrbnn.models.resnet import HEADS, STEMS, ResNetPlan, build_resnet
from tests.export.nets import CHOICES, FIRST, IDS, TELLING, input_of, stirred

CLOSE = 1e-4
EDGE = 1e-5


def check_layers(net: nn.Module, model: Model, images: Tensor) -> None:
    """Each node on PyTorch's own inputs."""
    found = compare_layers(net, model, images, by_reference)
    assert found.faults == []
    assert found.nodes == len(model.nodes)
    assert found.apart <= CLOSE
    assert all(turned.distance <= EDGE * turned.largest for turned in found.turned)


def check_answers(net: nn.Module, model: Model, images: Tensor) -> int:
    """Count the images that are answered otherwise; each has a number at a threshold, before which all was the same."""
    ours = Engine(to_bytes(model)).run(last(images))
    missed = misses(net, model, images, answers(net, images), ours)
    for miss in missed:
        if miss.turned is None:  # no sign differs: the two best answers are as good as equal
            assert miss.gap <= CLOSE
        else:
            assert miss.turned.distance <= EDGE * miss.turned.largest
    return len(missed)


PARTS = list(product(ACTIVATIONS, SHORTCUTS, STEMS, HEADS))
DRAWS = range(3)


def parts_of(choice: int, block: int, draw: int) -> tuple[str, ...]:
    """Some activation, shortcut, stem and head: others for each method and block."""
    return PARTS[(37 * choice + 101 * block + 53 * draw) % len(PARTS)]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("chosen", CHOICES, ids=IDS)
def test_every_method_in_every_block_is_exact_layer_by_layer(chosen: Method, block: str) -> None:
    for draw in DRAWS if chosen.name in FIRST else DRAWS[:1]:
        parts = parts_of(CHOICES.index(chosen), list(BLOCKS).index(block), draw)
        plan = ResNetPlan((1, 1, 2), (8, 12, 16), block, *parts, kaiming=True)
        net = build_resnet(plan, chosen, 5, 3)
        images = torch.randn(6, 3, 15, 15)
        fit(net, images)
        stirred(net, images, draw)
        model = export_model(net, input_of(images, 5), "small")
        check_layers(net, model, images)


@pytest.mark.parametrize("name", MODELS)
def test_every_network_is_exact_layer_by_layer(name: str) -> None:
    row = MODELS[name]
    image = min(row.image, 12 if row.image == 32 else 32)
    chosen = TELLING[(list(MODELS).index(name) + 8) % len(TELLING)]  # test_product has every other pair, narrower
    net = lcrbnn.network(name, chosen, image=image, classes=7)
    images = torch.randn(2, 3, image, image)
    stirred(net, images)
    check_layers(net, export_model(net, input_of(images, 7), name), images)


def test_parts_and_methods_are_all_met() -> None:
    places = product(range(len(CHOICES)), range(len(BLOCKS)), DRAWS)
    met = [set(part) for part in zip(*(parts_of(*place) for place in places), strict=True)]
    assert met == [set(ACTIVATIONS), set(SHORTCUTS), set(STEMS), set(HEADS)]
    chosen = [TELLING[(i + 8) % len(TELLING)] for i in range(len(MODELS))]
    assert len({(m.name, m.chosen_bits) for m in chosen}) == len(TELLING)


@pytest.mark.parametrize("name", ["resnet8-double", "resnet20"])
@pytest.mark.parametrize("chosen", CHOICES, ids=IDS)
def test_answers_are_pytorchs(chosen: Method, name: str) -> None:
    if name == "resnet20" and chosen.name not in FIRST:
        return
    images = torch.from_numpy(load_digits()[1].images[:64])
    net = stirred(lcrbnn.network(name, chosen, image=8, in_channels=1), images)
    assert check_answers(net, export_model(net, DATASETS["digits"], name), images) <= 2


@pytest.mark.parametrize("name", ["vgg-small", "react18"])
def test_answers_are_pytorchs_for_noise(name: str) -> None:
    images = torch.randn(64, 3, 8, 8)
    net = stirred(lcrbnn.network(name, "reactnet", image=8), images)
    assert check_answers(net, export_model(net, input_of(images, 10), name), images) <= 2


def test_a_full_precision_network_is_exported_too() -> None:
    images = torch.randn(4, 3, 16, 16)
    net = stirred(lcrbnn.network("resnet20-relu", image=16), images)
    model = export_model(net, input_of(images, 10), "real")
    assert "bconv" not in {node.op for node in model.nodes}
    check_layers(net, model, images)


def test_batch_norms_leave_no_nodes_behind_layers() -> None:
    net = lcrbnn.network("resnet18", "irnet")
    model = export_model(net, DATASETS["cifar10"], "resnet18")
    assert [node.name for node in model.nodes if node.op == "affine"] == ["head.0"]
    assert model.nodes[1].name == "layer1.0.conv1 + layer1.0.bn1"


def test_classes_are_numbered_and_pixels_normalised_as_the_data_set_has_them() -> None:
    model = export_model(lcrbnn.network("resnet20", "irnet"), DATASETS["cifar10"], "a name")
    assert (model.name, model.shape, model.top) == ("a name", (32, 32, 3), 255)
    assert (model.mean, model.std) == (DATASETS["cifar10"].mean, DATASETS["cifar10"].std)
    assert len(model.classes) == 10


def test_resnet18_for_imagenet_is_as_small_as_promised() -> None:
    net = lcrbnn.network("resnet18-imagenet", "irnet")
    images = Input((224, 224, 3), tuple(map(str, range(1000))), 255)
    full, half = (export_model(net, images, "resnet18", half=h) for h in (False, True))
    assert len(to_bytes(full)) <= 4.3e6
    assert len(to_bytes(half)) <= 2.9e6
    for a, b in zip(full.nodes, half.nodes, strict=True):
        if a.op == "conv":
            assert b.keys["weight"].dtype == np.float16
            assert np.array_equal(a.keys["weight"].astype(np.float16), b.keys["weight"])


def test_a_network_keeps_its_mode_and_its_numbers() -> None:
    net = lcrbnn.network("resnet8-double", "rbnn", image=8, in_channels=1).train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    export_model(net, DATASETS["digits"], "digits")
    assert net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
