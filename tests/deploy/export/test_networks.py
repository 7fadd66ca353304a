"""Exported networks equal PyTorch: sums and signs exactly, values closely, and almost all predictions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lcrbnn
from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.digits import load_digits
from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.deploy.engine.graph import BnnModel
from lcrbnn.deploy.engine.runtime import Engine
from lcrbnn.deploy.export.compare_outputs import (
    compare_layers,
    predict_with_torch,
    run_node_with_reference,
    trace_mismatches,
)
from lcrbnn.deploy.export.export_model import ModelInput, export_model
from lcrbnn.deploy.export.graph.torch_activations import to_channels_last
from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.model_hooks import fit_output_shapes
from lcrbnn.nn.models.blocks import ACTIVATIONS, BLOCKS, SHORTCUTS
from lcrbnn.nn.models.model_registry import MODELS
from lcrbnn.nn.models.resnet import HEADS, STEMS, ResNetConfig, build_resnet
from tests.deploy.export.random_networks import (
    DISTINCT_METHOD_NAMES,
    DISTINCT_METHODS,
    EXPORTABLE_METHODS,
    METHOD_IDS,
    describe_input,
    randomize_parameters,
)

MAX_RELATIVE_DIFFERENCE = 1e-4
MAX_THRESHOLD_DISTANCE = 1e-5


def assert_layers_equal_pytorch(net: nn.Module, model: BnnModel, images: Tensor) -> None:
    """Compare each node, given PyTorch's own inputs."""
    comparison = compare_layers(net, model, images, run_node_with_reference)
    assert comparison.faults == []
    assert comparison.num_nodes == len(model.nodes)
    assert comparison.max_relative_difference <= MAX_RELATIVE_DIFFERENCE
    assert all(
        turned.max_distance <= MAX_THRESHOLD_DISTANCE * turned.max_magnitude for turned in comparison.sign_mismatches
    )


def count_prediction_mismatches(net: nn.Module, model: BnnModel, images: Tensor) -> int:
    """Return the number of images with another prediction; assert that each has a number near a threshold."""
    engine_logits = Engine(to_bytes(model)).run(to_channels_last(images))
    mismatches = trace_mismatches(net, model, images, predict_with_torch(net, images), engine_logits)
    for mismatch in mismatches:
        if mismatch.first_sign_mismatch is None:  # no sign differs: the two largest logits are almost equal
            assert mismatch.logit_gap <= MAX_RELATIVE_DIFFERENCE
        else:
            assert (
                mismatch.first_sign_mismatch.max_distance
                <= MAX_THRESHOLD_DISTANCE * mismatch.first_sign_mismatch.max_magnitude
            )
    return len(mismatches)


PART_COMBINATIONS = list(product(ACTIVATIONS, SHORTCUTS, STEMS, HEADS))
SEEDS = range(3)


def select_parts(choice: int, block: int, draw: int) -> tuple[str, ...]:
    """Return activation, shortcut, stem and head; the combination varies with method, block and seed."""
    return PART_COMBINATIONS[(37 * choice + 101 * block + 53 * draw) % len(PART_COMBINATIONS)]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("chosen", EXPORTABLE_METHODS, ids=METHOD_IDS)
def test_every_method_in_every_block_equals_pytorch(chosen: Method, block: str) -> None:
    for draw in SEEDS if chosen.name in DISTINCT_METHOD_NAMES else SEEDS[:1]:
        parts = select_parts(EXPORTABLE_METHODS.index(chosen), list(BLOCKS).index(block), draw)
        plan = ResNetConfig((1, 1, 2), (8, 12, 16), block, *parts, use_kaiming_init=True)
        net = build_resnet(plan, chosen, 5, 3)
        images = torch.randn(6, 3, 15, 15)
        fit_output_shapes(net, images)
        randomize_parameters(net, images, draw)
        model = export_model(net, describe_input(images, 5), "small")
        assert_layers_equal_pytorch(net, model, images)


@pytest.mark.parametrize("name", MODELS)
def test_every_network_at_full_width_equals_pytorch(name: str) -> None:
    row = MODELS[name]
    image = min(row.image_size, 12 if row.image_size == 32 else 32)
    chosen = DISTINCT_METHODS[
        (list(MODELS).index(name) + 8) % len(DISTINCT_METHODS)
    ]  # test_all_methods_and_models has all pairs with few channels
    net = lcrbnn.create_model(name, chosen, image_size=image, num_classes=7)
    images = torch.randn(2, 3, image, image)
    randomize_parameters(net, images)
    assert_layers_equal_pytorch(net, export_model(net, describe_input(images, 7), name), images)


def test_all_parts_and_methods_are_covered() -> None:
    places = product(range(len(EXPORTABLE_METHODS)), range(len(BLOCKS)), SEEDS)
    met = [set(part) for part in zip(*(select_parts(*place) for place in places), strict=True)]
    assert met == [set(ACTIVATIONS), set(SHORTCUTS), set(STEMS), set(HEADS)]
    chosen = [DISTINCT_METHODS[(i + 8) % len(DISTINCT_METHODS)] for i in range(len(MODELS))]
    assert len({(m.name, m.activation_bits) for m in chosen}) == len(DISTINCT_METHODS)


@pytest.mark.parametrize("name", ["resnet8-double", "resnet20"])
@pytest.mark.parametrize("chosen", EXPORTABLE_METHODS, ids=METHOD_IDS)
def test_predictions_on_digits_equal_pytorch(chosen: Method, name: str) -> None:
    if name == "resnet20" and chosen.name not in DISTINCT_METHOD_NAMES:
        return
    images = torch.from_numpy(load_digits()[1].images[:64])
    net = randomize_parameters(lcrbnn.create_model(name, chosen, image_size=8, in_channels=1), images)
    assert count_prediction_mismatches(net, export_model(net, DATASETS["digits"], name), images) <= 2


@pytest.mark.parametrize("name", ["vgg-small", "react18"])
def test_predictions_on_noise_equal_pytorch(name: str) -> None:
    images = torch.randn(64, 3, 8, 8)
    net = randomize_parameters(lcrbnn.create_model(name, "reactnet", image_size=8), images)
    assert count_prediction_mismatches(net, export_model(net, describe_input(images, 10), name), images) <= 2


def test_full_precision_networks_are_exported() -> None:
    images = torch.randn(4, 3, 16, 16)
    net = randomize_parameters(lcrbnn.create_model("resnet20-relu", image_size=16), images)
    model = export_model(net, describe_input(images, 10), "real")
    assert "bconv" not in {node.op for node in model.nodes}
    assert_layers_equal_pytorch(net, model, images)


def test_batch_norms_are_folded_into_layers() -> None:
    net = lcrbnn.create_model("resnet18", "irnet")
    model = export_model(net, DATASETS["cifar10"], "resnet18")
    assert [node.name for node in model.nodes if node.op == "affine"] == ["head.0"]
    assert model.nodes[1].name == "layer1.0.conv1 + layer1.0.bn1"


def test_models_have_classes_and_normalisation_of_the_dataset() -> None:
    model = export_model(lcrbnn.create_model("resnet20", "irnet"), DATASETS["cifar10"], "a name")
    assert (model.name, model.shape, model.top) == ("a name", (32, 32, 3), 255)
    assert (model.mean, model.std) == (DATASETS["cifar10"].mean, DATASETS["cifar10"].std)
    assert len(model.classes) == 10


def test_resnet18_for_imagenet_has_the_documented_size() -> None:
    net = lcrbnn.create_model("resnet18-imagenet", "irnet")
    images = ModelInput((224, 224, 3), tuple(map(str, range(1000))), 255)
    full, half = (export_model(net, images, "resnet18", half=h) for h in (False, True))
    assert len(to_bytes(full)) <= 4.3e6
    assert len(to_bytes(half)) <= 2.9e6
    for a, b in zip(full.nodes, half.nodes, strict=True):
        if a.op == "conv":
            assert b.attributes["weight"].dtype == np.float16
            assert np.array_equal(a.attributes["weight"].astype(np.float16), b.attributes["weight"])


def test_export_does_not_change_the_network() -> None:
    net = lcrbnn.create_model("resnet8-double", "rbnn", image_size=8, in_channels=1).train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    export_model(net, DATASETS["digits"], "digits")
    assert net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
