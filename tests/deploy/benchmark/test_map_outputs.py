"""Other runtimes run models of version 2, or refuse them with one sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lcrbnn.deploy.benchmark.runtimes import RUNTIMES
from lcrbnn.deploy.engine import reference
from lcrbnn.deploy.export.compare_outputs import compare_layers, run_node_with_reference
from lcrbnn.deploy.export.graph.torch_activations import to_channels_last
from lcrbnn.errors import InputError
from tests.deploy.export.test_operators import make_images
from tests.deploy.export.test_whole_networks import make_random_network
from tests.deploy.export.torch_comparison import export_network


def test_onnxruntime_runs_a_unet() -> None:
    pytest.importorskip("onnxruntime")
    images = make_images(2, 4, 8, 8)
    model = export_network(make_random_network("U-Net, bilinear"), images)
    inputs = to_channels_last(images)
    (expected,) = reference.compute_outputs(model, inputs).values()
    result = RUNTIMES["onnxruntime"].make_call(model, 1, 2)(inputs)
    assert np.abs(result.transpose(0, 2, 3, 1) - expected).max() < 1e-4


def test_the_binary_convolution_of_openvino_refuses_a_unet() -> None:
    pytest.importorskip("openvino")
    model = export_network(make_random_network("U-Net, bilinear"), make_images(2, 4, 8, 8))
    with pytest.raises(InputError, match="cannot run this model: it has the operators bilinear"):
        RUNTIMES["openvino binary"].make_call(model, 1, 2)


def test_a_comparison_by_layer_refuses_models_of_version_2() -> None:
    net, images = make_random_network("ViT"), make_images(2, 4, 6, 8)
    with pytest.raises(InputError, match="only models of version 1 can be compared layer by layer"), torch.no_grad():
        compare_layers(net, export_network(net, images), images, run_node_with_reference)
