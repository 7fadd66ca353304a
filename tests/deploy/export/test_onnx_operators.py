"""ONNX files of version-2 models: every operator and the whole networks equal the reference in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lcrbnn import binarize
from lcrbnn.deploy.engine import reference
from lcrbnn.deploy.engine.operators import OPERATORS
from lcrbnn.deploy.export.graph.torch_activations import to_channels_last
from lcrbnn.deploy.export.onnx_operators import ONNX_RULES_2
from lcrbnn.deploy.export.onnx_writer import ONNX_RULES, name_onnx_outputs, to_onnx
from tests.deploy.export.random_networks import randomize_parameters
from tests.deploy.export.test_operators import ACTIVATIONS, FUNCTIONS, LAYERS, SHAPES, make_images, randomize
from tests.deploy.export.test_whole_networks import NETWORKS, make_random_network
from tests.deploy.export.torch_comparison import FunctionModule, export_network

TOLERANCE = 1e-4  # relative to the largest output


def assert_onnx_equals_reference(net: nn.Module, images: Tensor) -> set[str]:
    """Compare all outputs of the ONNX file with the reference, and return the operators of the model."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model = export_network(net, images)
    session = onnxruntime.InferenceSession(to_onnx(model), providers=["CPUExecutionProvider"])
    results = session.run(list(name_onnx_outputs(model)), {"images": images.numpy()})
    expected = reference.compute_outputs(model, to_channels_last(images))
    for result, value in zip(results, expected.values(), strict=True):
        channels_last = np.moveaxis(result.reshape(*result.shape[:2], *value.shape[1:3]), 1, -1)
        assert np.abs(channels_last - value).max() <= TOLERANCE * max(np.abs(value).max(), 1e-3)
    return {node.op for node in model.nodes}


def test_every_operator_equals_the_reference() -> None:
    operators: set[str] = set()
    for module in (*ACTIVATIONS, *SHAPES, *LAYERS):
        randomize(module)
        operators |= assert_onnx_equals_reference(nn.Sequential(module), make_images())
    for function in FUNCTIONS.values():
        net = FunctionModule(lambda module, x, f=function: f(module.conv(x)), conv=nn.Conv2d(4, 4, 3, padding=1))
        operators |= assert_onnx_equals_reference(randomize(net), make_images())
    assert {op for op, operator in OPERATORS.items() if operator.version == 2} <= operators


@pytest.mark.parametrize("name", NETWORKS)
def test_whole_networks_equal_the_reference(name: str) -> None:
    net, images = make_random_network(name), make_images(1, 4, 6, 8)
    assert_onnx_equals_reference(net, images)
    binarize(net, "irnet", skip=["0"] if name.startswith("attention") else None)
    randomize_parameters(net, images)
    assert_onnx_equals_reference(net, images)


def test_every_operator_has_one_rule() -> None:
    assert set(ONNX_RULES) | set(ONNX_RULES_2) == set(OPERATORS)
    assert not set(ONNX_RULES) & set(ONNX_RULES_2)


def test_output_names_do_not_collide_with_other_values() -> None:
    net = FunctionModule(lambda module, x: {"images": x * 2, "v0": torch.relu(x), "c0": x + 1, "b": [x.tanh()]})
    model = export_network(net, make_images())
    assert list(name_onnx_outputs(model)) == ["images_", "v0_", "c0_", "b.0"]
    assert_onnx_equals_reference(net, make_images())
