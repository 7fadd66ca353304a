"""Layers of sequences and tokens, attention with several arguments, and binary layers with every padding mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError
from lcrbnn.nn.layers import BinaryConv2d, BinaryLinear
from tests.deploy.export.test_operators import make_images, randomize
from tests.deploy.export.torch_comparison import FunctionModule, assert_export_equals_torch

SEQUENCE_MODULES: list[nn.Module] = [
    nn.Conv1d(4, 6, 3, padding=1), nn.Conv1d(4, 6, 4, 2, padding=3, dilation=2, groups=2, bias=False),
    nn.Conv1d(4, 4, 3, padding="same", padding_mode="reflect"), nn.MaxPool1d(3, 2, 1), nn.AvgPool1d(4, 3, 1),
    nn.AvgPool1d(3, ceil_mode=True), nn.AdaptiveAvgPool1d(5), nn.AdaptiveMaxPool1d(6), nn.BatchNorm1d(4),
    nn.GroupNorm(2, 4), nn.LayerNorm(48), nn.ReflectionPad1d((2, 3)), nn.ConstantPad1d(2, 1.5), nn.PReLU(4),
    nn.Linear(48, 3), nn.Softmax(1), nn.Dropout1d(),
]  # fmt: skip


@pytest.mark.parametrize("module", SEQUENCE_MODULES, ids=str)
def test_modules_of_sequences_equal_pytorch(module: nn.Module) -> None:
    randomize(module)
    net = FunctionModule(lambda s, x: s.module(x.flatten(2)), module=module)
    assert_export_equals_torch(net, make_images())


def make_mask() -> Tensor:
    return torch.full((48, 48), -torch.inf).triu(1)


ATTENTION_OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"bias": False}, {"need_weights": False}),
    ({"kdim": 6, "vdim": 8}, {"average_attn_weights": False}),
    ({}, {"attn_mask": make_mask()}),
    ({}, {"attn_mask": make_mask().isinf()}),
]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", ATTENTION_OPTIONS, ids=["plain", "no bias", "sizes", "mask", "boolean mask"])
def test_multihead_attention_equals_pytorch(options: tuple[dict[str, Any], dict[str, Any]], batch_first: bool) -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=batch_first, **options[0])
    keys, values = (nn.Linear(4, options[0].get(key, 4)) for key in ("kdim", "vdim"))

    def run(s: FunctionModule, x: Tensor) -> tuple[Tensor, ...]:
        tokens = x.flatten(2).transpose(1, 2) if s.attention.batch_first else x.flatten(2).permute(2, 0, 1)
        y, weights = s.attention(tokens, s.keys(tokens), s.values(tokens), **options[1])
        y = y if s.attention.batch_first else y.transpose(0, 1)
        return (y,) if weights is None else (y, weights)

    net = FunctionModule(run, attention=attention, keys=keys, values=values)
    torch.manual_seed(0)
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    assert_export_equals_torch(net, make_images())


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("method", ["irnet", "reactnet", "dorefa", "xnor", "dsq"])
def test_binary_convolutions_with_padding_modes_equal_pytorch(method: str, mode: Any) -> None:
    conv = BinaryConv2d(4, 6, 3, padding=(2, 1), padding_mode=mode, method=method)
    assert_export_equals_torch(nn.Sequential(conv), make_images())


@pytest.mark.parametrize("method", ["irnet", "reactnet", "rbnn", "dorefa"])
def test_binary_linear_layers_of_tokens_equal_pytorch(method: str) -> None:
    norm = randomize(nn.LayerNorm(6))  # without a shift, sums that equal the mean would have an arbitrary sign
    last = BinaryLinear(6, 5, bias=True, method=method)
    assert_export_equals_torch(nn.Sequential(BinaryLinear(8, 6, method=method), norm, last), make_images())
    tokens = FunctionModule(
        lambda s, x: s.layers(x.transpose(1, 3)[:, :, 1]).mean(1), layers=BinaryLinear(4, 3, method=method)
    )
    assert_export_equals_torch(tokens, make_images())


def test_binary_linear_layers_with_a_mean_per_sample_need_the_images_first() -> None:
    net = FunctionModule(
        lambda s, x: s.layer(x[:, :, 0].permute(2, 0, 1)).transpose(0, 1), layer=BinaryLinear(4, 3, method="rbnn")
    )
    with pytest.raises(InputError, match="compares each sample with its mean, so the images must be first"):
        assert_export_equals_torch(net, make_images())


class MergeMaps(nn.Module):
    def forward(self, maps: list[Tensor], scale: Tensor | None = None, *rest: Tensor, sign: float = 1.0) -> Tensor:
        y = torch.cat(maps, 1)
        for x in rest:
            y = y + x
        return sign * y if scale is None else y * scale


def test_modules_get_lists_options_and_defaults() -> None:
    def run(s: FunctionModule, x: Tensor) -> Tensor:
        y = s.merge([x, x.tanh()]) + s.merge([x, x], x.mean((1, 2, 3), keepdim=True), x[:, :1], x[:, 1:2])
        return y - s.merge(scale=x[:, :1], maps=[x, -x]) + s.merge(maps=[x, x], sign=0.5)

    assert_export_equals_torch(FunctionModule(run, merge=MergeMaps()), make_images())


def test_buffers_and_constants_are_not_changed() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(1))
            self.register_buffer("scale", torch.tensor([2.0, 0.5, 1.0, -1.0]))

        def forward(self, x: Tensor) -> Tensor:
            return x * (self.scale.abs() + 1).view(1, -1, 1, 1) + self.scale[:, None, None].expand(4, 6, 8)

    net = Counts()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    assert_export_equals_torch(net, make_images())
    assert set(net.state_dict()) == set(before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert set(vars(net)) == set(vars(Counts()))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_the_signs_of_a_gelu_equal_those_of_pytorch(approximate: str) -> None:
    """PyTorch rounds the GELU of a large negative number to 0, whose sign is +1, and a product of it keeps the 0."""
    torch.manual_seed(0)
    layer = BinaryConv2d(4, 6, 1, method="irnet")
    net = FunctionModule(lambda s, x: s.layer(s.gelu(4 * x) * -x), gelu=nn.GELU(approximate), layer=layer)
    images = (4 * make_images(3, 4, 30, 30)).round() / 4  # whole numbers for the GELU, as sums of signs are
    assert_export_equals_torch(net, images)
