"""Every method in every network of MODELS, with few channels: the exported layers equal PyTorch's.

Each network is exported with a different method in each of its binary layers, so that a few networks per model contain
all methods. bench/records/engine/exactness has networks of one method at full width, with end-to-end predictions
(python -m tools.export_exactness).
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from math import ceil

import pytest
import torch

from lcrbnn.deploy.export.compare_outputs import (
    compare_recorded_layers,
    run_node_with_engine,
    run_node_with_reference,
)
from lcrbnn.deploy.export.export_model import export_model
from lcrbnn.deploy.export.graph.torch_activations import record_activations
from lcrbnn.nn.layers import BinaryConv2d
from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.methods.method_registry import get_method
from lcrbnn.nn.model_hooks import iter_binary_layers
from lcrbnn.nn.models.model_registry import MODELS
from tests.deploy.export.random_networks import (
    EXPORTABLE_METHODS,
    create_narrow_network,
    describe_input,
    randomize_parameters,
)

MAX_RELATIVE_DIFFERENCE = 1e-4
MAX_THRESHOLD_DISTANCE = 1e-5
IMAGE_SIZES = {8: 8, 32: 9, 64: 17, 224: 33}  # by the image size that a network was made for
# The last two combine what no single row of METHODS has: learned thresholds with the deviation and weights of ReCU.
METHODS = [*EXPORTABLE_METHODS, get_method("recu", shift=True), get_method("recu/reactnet")]
LayerKind = tuple[tuple[int, ...], tuple[int, ...], bool]  # kernel size, stride, in a shortcut


@cache
def list_layer_kinds(name: str) -> list[LayerKind]:
    """Return the kind of each binary layer of a model."""
    layers = iter_binary_layers(create_narrow_network(name, METHODS[:1], 33, 5))
    return [
        (layer.kernel_size, layer.stride, "shortcut" in layer_name)
        for layer_name, layer in layers
        if isinstance(layer, BinaryConv2d)
    ]


@cache
def assign_methods() -> dict[str, list[list[Method]]]:
    """Return for each model the methods of the layers of several networks.

    The layers of one kind take the methods in turn, across networks and models. Each model has enough networks for
    every method, and for two methods per layer on average.
    """
    num_assigned: Counter[LayerKind] = Counter()
    assigned = {}
    for name in MODELS:
        kinds = list_layer_kinds(name)
        num_networks = max(2 * len(METHODS) / len(kinds), len(METHODS) / max(Counter(kinds).values()))
        if any(is_shortcut for _, _, is_shortcut in kinds):  # few models have these layers
            num_networks = max(num_networks, 8)
        assigned[name] = []
        for _ in range(ceil(num_networks)):
            methods = []
            for kind in kinds:
                methods.append(METHODS[num_assigned[kind] % len(METHODS)])
                num_assigned[kind] += 1
            assigned[name].append(methods)
    return assigned


@pytest.mark.parametrize("name", MODELS)
def test_all_methods_in_a_network_equal_pytorch(name: str) -> None:
    image_size = IMAGE_SIZES[MODELS[name].image_size]
    images = torch.randn(6, 3, image_size, image_size, generator=torch.Generator().manual_seed(3))
    for methods in assign_methods()[name]:
        net = randomize_parameters(create_narrow_network(name, methods, image_size, 5), images)
        model = export_model(net, describe_input(images, 5), name)
        layers = [layer_name for layer_name, _ in iter_binary_layers(net)]
        context = [f"{layer} {m.name}-{m.activation_bits}" for layer, m in zip(layers, methods, strict=True)]
        assert sum(node.op == "bconv" for node in model.nodes) == sum(m.activation_bits == 1 for m in methods), context
        assert sum(node.op == "wconv" for node in model.nodes) == sum(m.activation_bits == 32 for m in methods), context
        with record_activations(net) as recorded:
            logits = net(images)
        for run_node in (run_node_with_reference, run_node_with_engine):
            comparison = compare_recorded_layers(recorded, logits, model, images, run_node)
            assert comparison.faults == [], context
            assert comparison.num_nodes == len(model.nodes)
            assert comparison.num_sums > 0
            assert comparison.num_signs > 0
            assert comparison.max_relative_difference <= MAX_RELATIVE_DIFFERENCE, context
            for mismatch in comparison.sign_mismatches:
                assert mismatch.max_distance <= MAX_THRESHOLD_DISTANCE * mismatch.max_magnitude, context


def test_every_method_is_tested_in_every_model_and_kind_of_layer() -> None:
    pairs = {(name, METHODS.index(m)) for name, networks in assign_methods().items() for ms in networks for m in ms}
    assert len(pairs) == len(MODELS) * len(METHODS)
    tested = {
        (kind, METHODS.index(method))
        for name, networks in assign_methods().items()
        for methods in networks
        for kind, method in zip(list_layer_kinds(name), methods, strict=True)
    }
    assert len(tested) == 4 * len(METHODS)  # 3 x 3 with stride 1 and 2, 1 x 1, shortcuts
