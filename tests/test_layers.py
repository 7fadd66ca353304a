from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import lcrbnn
from lcrbnn.errors import InputError
from lcrbnn.layers import BinaryConv2d, BinaryLinear, advance, fit, latent_weights, project, start_epoch
from lcrbnn.methods import METHODS, Method, method

EVERY_BITS = [m.configure(f"1/{b}") for m in METHODS.values() for b in m.activation_bits if b in (1, 2, 32)]
EVERY_BITS += [method("abc-net", weight_bases=3, activation_bases=2), method("abc-net", "1/32", weight_bases=2)]


def meant_input(layer: BinaryConv2d | BinaryLinear, x: Tensor) -> Tensor:
    """The real tensor that the layer multiplies by; of methods with real activations, RBNN alone changes it."""
    if layer.input_binarizer is not None:
        return layer.input_binarizer(x).value()
    if layer.method.name != "rbnn":
        return x
    flat = x.flatten(1)
    return ((flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True)).view_as(x)


def slow_convolution(layer: BinaryConv2d, x: Tensor) -> Tensor:
    """Form the two real tensors that are meant, pad, convolve: what the layer must equal."""
    w = layer.weight_binarizer(layer.weight)
    a = meant_input(layer, x)
    left, right, top, bottom = layer._reversed_padding_repeated_twice
    a = F.pad(a, (left, right, top, bottom), value=layer.padding_value)
    y = torch.zeros(())
    for base in w.each():
        part = F.conv2d(a, base.signs, None, layer.stride, 0, layer.dilation, layer.groups)
        part = part if base.scale is None else part * base.scale
        y = y + part
        if base.offset is not None:
            flat = base.offset.reshape(-1, 1, 1, 1).expand_as(base.signs)
            y = y + F.conv2d(a, flat, None, layer.stride, 0, layer.dilation, layer.groups)
    return y if layer.bias is None else y + layer.bias.reshape(-1, 1, 1)


@pytest.mark.parametrize("chosen", EVERY_BITS, ids=lambda m: f"{m.name}-{m.chosen_bits}")
@pytest.mark.parametrize("padding_value", [0.0, -1.0, 1.0])
def test_a_convolution_of_signs_equals_one_of_the_tensors_meant(chosen: Method, padding_value: float) -> None:
    layer = BinaryConv2d(4, 6, 3, stride=2, padding=1, bias=True, method=chosen, padding_value=padding_value).double()
    x = torch.randn(2, 4, 7, 7, dtype=torch.float64)
    fit(layer, x)
    with torch.no_grad():
        for p in [*layer.weight_binarizer.parameters(), *chosen_parameters(layer)]:
            p.add_(0.2 * torch.rand_like(p))  # off a start that hides what some of them do
    torch.testing.assert_close(layer(x), slow_convolution(layer, x))


def chosen_parameters(layer: BinaryConv2d) -> list[Tensor]:
    return [] if layer.input_binarizer is None else list(layer.input_binarizer.parameters())


@given(
    groups=st.sampled_from([1, 2]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    height=st.integers(5, 9),
    width=st.integers(5, 9),
    name=st.sampled_from(["irnet", "dorefa", "xnor++", "adabin", "hwgq", "ie-net"]),
)
def test_shapes_of_all_kinds(
    groups: int, kernel: int, stride: int, padding: int, dilation: int, height: int, width: int, name: str
) -> None:
    layer = BinaryConv2d(4, 6, kernel, stride, padding, dilation, groups, method=name).double()
    x = torch.randn(2, 4, height, width, dtype=torch.float64)
    fit(layer, x)
    y = layer(x)
    torch.testing.assert_close(y, slow_convolution(layer, x))
    assert y.shape[-2:] == layer.output_size(height, width)


def test_the_border_of_zero_padding_is_a_third_level() -> None:
    layer = BinaryConv2d(1, 1, 3, padding=1, method="bnn")
    layer.weight.data.fill_(1.0)
    assert layer(torch.ones(1, 1, 3, 3))[0, 0].tolist() == [[4, 6, 4], [6, 9, 6], [4, 6, 4]]
    layer.padding_value = -1.0
    assert layer(torch.ones(1, 1, 3, 3))[0, 0].tolist() == [[-1, 3, -1], [3, 9, 3], [-1, 3, -1]]


def test_sums_of_signs_are_whole_numbers() -> None:
    y = BinaryConv2d(8, 4, 3, padding=1, method="bnn")(torch.randn(2, 8, 6, 6))
    assert torch.equal(y, y.round())


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_other_padding_modes_pad_the_signs(mode: str) -> None:
    layer = BinaryConv2d(2, 3, 3, padding=1, padding_mode=mode, method="irnet")
    x = torch.randn(1, 2, 5, 5)
    assert layer.input_binarizer is not None
    signs = F.pad(layer.input_binarizer(x).signs, (1, 1, 1, 1), mode=mode)
    w = layer.weight_binarizer(layer.weight)
    torch.testing.assert_close(layer(x), F.conv2d(signs, w.signs) * w.scale)


@pytest.mark.parametrize("chosen", EVERY_BITS, ids=lambda m: f"{m.name}-{m.chosen_bits}")
def test_a_linear_layer_of_signs_equals_one_of_the_tensors_meant(chosen: Method) -> None:
    layer = BinaryLinear(6, 4, bias=True, method=chosen).double()
    x = torch.randn(3, 6, dtype=torch.float64)
    w = layer.weight_binarizer(layer.weight)
    a = meant_input(layer, x)
    assert layer.bias is not None
    y = layer.bias
    for base in w.each():
        y = y + a @ base.signs.T * (1 if base.scale is None else base.scale)
        y = y if base.offset is None else y + a.sum(1, keepdim=True) * base.offset
    torch.testing.assert_close(layer(x), y)


def test_advance_reaches_every_binarizer_and_can_be_repeated() -> None:
    net = lcrbnn.network("resnet8-double", "irnet", in_channels=1)
    for _ in range(2):
        advance(net, 0.75)
    values = [b for name, b in net.named_buffers() if name.endswith("annealing.t")]
    assert len(values) == 12  # six binary convolutions, two binarizers each
    assert all(float(t) == pytest.approx(1.0) for t in values)


def test_start_epoch_turns_rotations_and_project_clamps_in_every_layer() -> None:
    net = lcrbnn.network("resnet8-double", "rbnn", in_channels=1)
    before = [b.clone() for name, b in net.named_buffers() if name.endswith("left")]
    start_epoch(net)
    after = [b for name, b in net.named_buffers() if name.endswith("left")]
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))

    net = lcrbnn.network("resnet8-double", "bnn", in_channels=1, limit=0.1)
    project(net)
    assert all(m.weight.abs().max() <= 0.1 for m in net.modules() if isinstance(m, BinaryConv2d))


def test_latent_weights_are_used_inside_and_put_back_after_an_error() -> None:
    layer = BinaryConv2d(3, 2, 3, method="bnn")
    x = torch.randn(1, 3, 5, 5)
    binary = layer(x)
    with latent_weights(layer):
        torch.testing.assert_close(layer(x), F.conv2d(torch.where(x < 0, -1.0, 1.0), layer.weight))
    with pytest.raises(RuntimeError), latent_weights(layer):
        raise RuntimeError
    assert torch.equal(layer(x), binary)


def test_fit_leaves_modes_statistics_and_hooks_alone() -> None:
    net = nn.Sequential(BinaryConv2d(3, 4, 3, method="xnor++"), nn.BatchNorm2d(4))
    net[1].eval()
    fit(net, (2, 3, 8, 8))
    assert net.training
    assert not net[1].training
    assert net[1].num_batches_tracked == 0
    assert not net[0]._forward_pre_hooks
    assert [tuple(p.shape) for p in net[0].weight_binarizer.parameters()] == [(4, 1, 1), (1, 6, 1), (1, 1, 6)]


def test_an_image_of_another_size_than_the_scale_is_refused() -> None:
    net = lcrbnn.network("resnet8-double", "xnor++", image=16)
    with pytest.raises(InputError, match=r"a scale was learned for outputs of \(16, 16\) and this one has \(8, 8\)"):
        net(torch.zeros(1, 3, 8, 8))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: BinaryConv2d(3, 3, 3, method="nope"), "no binarisation method is called 'nope'"),
        (
            lambda: BinaryConv2d(3, 3, 3, method="bnn", padding_value=2),
            "padding_value is 0, -1 or 1; got 2",
        ),
        (
            lambda: BinaryConv2d(3, 3, 3, method="bnn")(torch.ones(3, 8, 8)),
            r"takes a batch of images.*got shape \(3, 8, 8\)",
        ),
        (lambda: BinaryLinear(3, 3, method="bnn")(torch.ones(3)), r"BinaryLinear takes a batch.*got shape \(3,\)"),
        (lambda: fit(nn.Identity(), 5), "an example is a batch of images or its shape"),
        (lambda: advance(nn.Identity(), 1.5), "progress must be a number from 0 to 1; got 1.5"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(call: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call()


def test_a_layer_says_what_it_is() -> None:
    assert "padding_value=-1, dorefa 1/2" in repr(
        BinaryConv2d(2, 2, 3, method=method("dorefa", "1/2"), padding_value=-1)
    )
    assert "irnet 1/1" in repr(BinaryLinear(2, 2, method="irnet"))


@pytest.mark.parametrize("row", METHODS.values(), ids=lambda m: m.name)
def test_autocast_keeps_the_signs_exact(row: Method) -> None:
    layer = BinaryConv2d(8, 4, 3, padding=1, method=row)
    fit(layer, (2, 8, 6, 6))
    x = torch.randn(2, 8, 6, 6)
    plain = layer.weight_binarizer(layer.weight).signs
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.weight_binarizer(layer.weight).signs, plain)
        if layer.input_binarizer is not None:
            assert torch.equal(layer.input_binarizer(x).signs, layer.input_binarizer(x.clone()).signs)
        rough = layer(x)
    assert rough.dtype == torch.bfloat16  # a wider scale would widen all that follows
    torch.testing.assert_close(rough.float(), layer(x), rtol=1e-2, atol=3e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_precision_rbnn_turns_its_rotations_in_full(dtype: torch.dtype) -> None:
    layer = BinaryConv2d(8, 4, 3, method="rbnn").to(dtype)
    start_epoch(layer)
    assert torch.isfinite(layer.weight_binarizer.left).all()
    assert layer.weight_binarizer.left.dtype == dtype


def test_a_shift_a_channel_finds_its_axis_in_both_layers() -> None:
    linear = BinaryLinear(5, 2, method="reactnet")
    linear.input_binarizer.shift.data = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    signs = linear.input_binarizer(torch.zeros(2, 5, 5, 5)).signs  # channels last, whatever the number of axes
    assert signs[0, 0, 0].tolist() == [1, -1, 1, -1, 1]
    assert torch.equal(signs, signs[:1, :1, :1].expand_as(signs))
    conv = BinaryConv2d(2, 2, 3, method="reactnet")
    conv.input_binarizer.shift.data = torch.tensor([1.0, -1.0])
    assert conv.input_binarizer(torch.zeros(1, 2, 3, 3)).signs[0, :, 0, 0].tolist() == [1, -1]
