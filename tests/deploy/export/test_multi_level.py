"""Methods with several signs, bases or unequal levels: the exported sums of binary products equal PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.deploy.engine.reference import run_reference
from lcrbnn.deploy.engine.runtime import Engine
from lcrbnn.deploy.export.binary_layers.activation_levels import find_steps
from lcrbnn.deploy.export.export_model import ModelInput, export_model
from lcrbnn.nn.layers import BinaryConv2d, BinaryLinear
from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.methods.dorefa import DorefaActivation
from lcrbnn.nn.methods.hwgq import LEVEL_THRESHOLDS, HwgqActivation
from tests.deploy.export.random_networks import MULTI_LEVEL_METHODS

MAX_RELATIVE_ERROR = 1e-5  # of the largest output
METHOD_IDS = [f"{m.name}-{m.activation_bits}" for m in MULTI_LEVEL_METHODS]
every_method = pytest.mark.parametrize("method", MULTI_LEVEL_METHODS, ids=METHOD_IDS)


@torch.no_grad()
def shift_small_parameters(net: nn.Module) -> nn.Module:
    """Move biases, thresholds, centres and scales away from their initial values. A learned scale stays positive."""
    generator = torch.Generator().manual_seed(0)
    for parameter in net.parameters():
        if parameter.dim() <= 1:
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return net.eval()


def make_network(method: Method, **conv_settings: object) -> nn.Module:
    torch.manual_seed(0)
    return shift_small_parameters(
        nn.Sequential(
            BinaryConv2d(4, 6, 3, method=method, bias=True, **conv_settings),
            nn.BatchNorm2d(6),
            BinaryConv2d(6, 4, 1, method=method),
            nn.BatchNorm2d(4),  # without it, sums of exactly 0 would have a sign that depends on rounding
            nn.Flatten(),
            BinaryLinear(4 * 3 * 3, 5, method=method, bias=True),
            BinaryLinear(5, 3, method=method, bias=True),
        )
    )


def compare_with_torch(net: nn.Module, images: Tensor) -> float:
    """Return the largest difference between the exported model and PyTorch, relative to the largest output."""
    _, c, h, w = images.shape
    model = export_model(net, ModelInput((h, w, c), ("a", "b", "c")), "levels")
    with torch.no_grad():
        expected = net(images).numpy()
    pixels = np.ascontiguousarray(images.numpy().transpose(0, 2, 3, 1))
    outputs = [run_reference(model, pixels)]
    for fuse in (True, False):
        with Engine(to_bytes(model), fuse=fuse) as engine:
            outputs.append(engine.run(pixels))
    return max(float(np.abs(output - expected).max() / np.abs(expected).max()) for output in outputs)


@every_method
@pytest.mark.parametrize(
    ("conv_settings", "size"),
    [
        ({"padding": 1, "stride": 2}, 6),
        ({"padding": 1, "stride": 2, "groups": 2}, 5),
        ({}, 5),
        ({"padding": 2, "dilation": 2}, 3),
    ],
    ids=["stride", "groups", "no padding", "dilation"],
)
def test_layers_equal_pytorch(method: Method, conv_settings: dict[str, int], size: int) -> None:
    net = make_network(method, **conv_settings)
    images = torch.randn(4, 4, size, size, generator=torch.Generator().manual_seed(1))
    assert compare_with_torch(net, images) < MAX_RELATIVE_ERROR


@pytest.mark.parametrize("method", ["adabin", "hwgq", "ie-net"])
@pytest.mark.parametrize("padding_value", [-1, 1])
def test_a_real_border_equals_pytorch(method: str, padding_value: int) -> None:
    net = make_network(find_method(method), padding=1, stride=2, padding_value=padding_value)
    images = torch.randn(4, 4, 6, 6, generator=torch.Generator().manual_seed(1))
    assert compare_with_torch(net, images) < MAX_RELATIVE_ERROR


def find_method(name: str) -> Method:
    return next(method for method in MULTI_LEVEL_METHODS if method.name == name)


def test_a_negative_learned_scale_equals_pytorch() -> None:
    net = make_network(find_method("adabin"), padding=1, stride=2)
    net[0].input_binarizer.scale.data.fill_(-0.7)
    net[0].input_binarizer.center.data.fill_(0.25)
    images = torch.randn(4, 4, 6, 6, generator=torch.Generator().manual_seed(1))
    images[:, :, ::2] = 0.25  # exactly the threshold
    assert compare_with_torch(net, images) < MAX_RELATIVE_ERROR


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_inputs_at_the_thresholds_have_the_level_of_pytorch(bits: int) -> None:
    """Each threshold is the smallest float32 of its level: the number below it has the lower level."""
    binarizer = DorefaActivation(1, bits=bits)
    levels, thresholds = find_steps(binarizer)
    assert len(levels) == 2**bits
    for threshold, low, high in zip(thresholds, levels, levels[1:], strict=False):
        pair = torch.tensor([np.nextafter(threshold, np.float32(-1)), threshold])
        assert binarizer(pair).dequantize().tolist() == [pytest.approx(low), pytest.approx(high)]


def test_steps_of_hwgq_are_open_on_the_left() -> None:
    levels, thresholds = find_steps(HwgqActivation(1))
    assert levels == pytest.approx([0, 0.538, 1.076, 1.614])
    expected = [np.nextafter(np.float32(t), np.float32(9)) for t in LEVEL_THRESHOLDS]
    np.testing.assert_array_equal(thresholds, expected)
