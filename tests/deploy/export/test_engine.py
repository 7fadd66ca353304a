"""Exported networks in the compiled engine: sums equal the reference exactly, values closely, fused or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import lcrbnn
from lcrbnn.deploy.engine import reference
from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.deploy.engine.runtime import Engine
from lcrbnn.deploy.export.export_model import export_model
from lcrbnn.deploy.export.graph.torch_activations import to_channels_last
from lcrbnn.nn.models.model_registry import MODELS
from tests.deploy.export.random_networks import EXPORTABLE_METHODS, METHOD_IDS, describe_input, randomize_parameters

# Each network with one method, and one small network with each method.
MODEL_AND_METHOD_PAIRS = [(name, i % len(EXPORTABLE_METHODS)) for i, name in enumerate(MODELS)]
MODEL_AND_METHOD_PAIRS += [("resnet8-double", i) for i in range(len(EXPORTABLE_METHODS))]


@pytest.mark.parametrize(
    ("name", "choice"), MODEL_AND_METHOD_PAIRS, ids=[f"{name} {METHOD_IDS[i]}" for name, i in MODEL_AND_METHOD_PAIRS]
)
def test_exported_networks_in_the_engine_equal_the_reference(name: str, choice: int) -> None:
    image_size = {8: 8, 32: 9, 64: 17, 224: 33}[MODELS[name].image_size]
    images = torch.randn(3, 3, image_size, image_size, generator=torch.Generator().manual_seed(3))
    net = randomize_parameters(
        lcrbnn.create_model(name, EXPORTABLE_METHODS[choice], num_classes=10, image_size=image_size), images
    )
    model = export_model(net, describe_input(images, 10), name)
    data, inputs = to_bytes(model), to_channels_last(images)
    with Engine(data) as fused, Engine(data, fuse=False) as unfused:
        logits = fused.run(inputs)
        assert np.array_equal(logits, unfused.run(inputs, threads=2))
        expected = reference.run_reference(model, inputs)
        with torch.no_grad():
            rounding = np.abs(net(images).numpy() - expected).max(1)  # deep networks amplify it
        is_close = np.abs(logits - expected).max(1) <= 1e-4 * max(1, np.abs(expected).max()) + 3 * rounding
        assert is_close.sum() >= 2  # of three: a number near a threshold can change a sign and all later values
        for index, node in enumerate(model.nodes):
            if node.op == "bconv":
                x = inputs if node.inputs[0] == 0 else unfused.value(inputs, node.inputs[0] - 1)
                is_equal = unfused.accumulators(inputs, index) == reference.compute_accumulators(node, x)
                if isinstance(node.attributes["threshold"], str):  # the order of the sum of a mean is not specified
                    assert is_equal.mean() > 0.99
                else:
                    assert is_equal.all(), node.name
