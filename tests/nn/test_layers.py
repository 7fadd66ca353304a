from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import lcrbnn
from lcrbnn.errors import InputError
from lcrbnn.nn.layers import BinaryConv2d, BinaryLinear
from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.methods.method_registry import METHODS, get_method
from lcrbnn.nn.model_hooks import fit_output_shapes, project_weights, set_progress, start_epoch, use_latent_weights

METHODS_AND_BITS = [
    m.configure(f"1/{b}") for m in METHODS.values() for b in m.supported_activation_bits if b in (1, 2, 32)
]
METHODS_AND_BITS += [
    get_method("abc-net", weight_bases=3, activation_bases=2),
    get_method("abc-net", "1/32", weight_bases=2),
]


def compute_real_input(layer: BinaryConv2d | BinaryLinear, x: Tensor) -> Tensor:
    """Return the real tensor that the layer multiplies. Among methods with real activations, only RBNN changes x."""
    if layer.input_binarizer is not None:
        return layer.input_binarizer(x).dequantize()
    if layer.method.name != "rbnn":
        return x
    flat = x.flatten(1)
    return ((flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True)).view_as(x)


def convolve_real_tensors(layer: BinaryConv2d, x: Tensor) -> Tensor:
    """Return the expected output: convolve the padded real input with the real weight."""
    w = layer.weight_binarizer(layer.weight)
    real_input = compute_real_input(layer, x)
    left, right, top, bottom = layer._reversed_padding_repeated_twice
    real_input = F.pad(real_input, (left, right, top, bottom), value=layer.padding_value)
    y = torch.zeros(())
    for base in w.split_bases():
        part = F.conv2d(real_input, base.signs, None, layer.stride, 0, layer.dilation, layer.groups)
        part = part if base.scale is None else part * base.scale
        y = y + part
        if base.offset is not None:
            flat = base.offset.reshape(-1, 1, 1, 1).expand_as(base.signs)
            y = y + F.conv2d(real_input, flat, None, layer.stride, 0, layer.dilation, layer.groups)
    return y if layer.bias is None else y + layer.bias.reshape(-1, 1, 1)


@pytest.mark.parametrize("method", METHODS_AND_BITS, ids=lambda m: f"{m.name}-{m.activation_bits}")
@pytest.mark.parametrize("padding_value", [0.0, -1.0, 1.0])
def test_convolving_signs_equals_convolving_the_real_tensors(method: Method, padding_value: float) -> None:
    layer = BinaryConv2d(4, 6, 3, stride=2, padding=1, bias=True, method=method, padding_value=padding_value).double()
    x = torch.randn(2, 4, 7, 7, dtype=torch.float64)
    fit_output_shapes(layer, x)
    with torch.no_grad():
        for p in [*layer.weight_binarizer.parameters(), *list_input_parameters(layer)]:
            p.add_(0.2 * torch.rand_like(p))  # some parameters have no effect at their initial values
    torch.testing.assert_close(layer(x), convolve_real_tensors(layer, x))


def list_input_parameters(layer: BinaryConv2d) -> list[Tensor]:
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
def test_convolution_is_correct_for_all_shapes(
    groups: int, kernel: int, stride: int, padding: int, dilation: int, height: int, width: int, name: str
) -> None:
    layer = BinaryConv2d(4, 6, kernel, stride, padding, dilation, groups, method=name).double()
    x = torch.randn(2, 4, height, width, dtype=torch.float64)
    fit_output_shapes(layer, x)
    y = layer(x)
    torch.testing.assert_close(y, convolve_real_tensors(layer, x))
    assert y.shape[-2:] == layer.output_size(height, width)


def test_zero_padding_is_a_third_level_at_the_border() -> None:
    layer = BinaryConv2d(1, 1, 3, padding=1, method="bnn")
    layer.weight.data.fill_(1.0)
    assert layer(torch.ones(1, 1, 3, 3))[0, 0].tolist() == [[4, 6, 4], [6, 9, 6], [4, 6, 4]]
    layer.padding_value = -1.0
    assert layer(torch.ones(1, 1, 3, 3))[0, 0].tolist() == [[-1, 3, -1], [3, 9, 3], [-1, 3, -1]]


def test_outputs_without_a_scale_are_integers() -> None:
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


@pytest.mark.parametrize("method", METHODS_AND_BITS, ids=lambda m: f"{m.name}-{m.activation_bits}")
def test_a_linear_layer_on_signs_equals_one_on_the_real_tensors(method: Method) -> None:
    layer = BinaryLinear(6, 4, bias=True, method=method).double()
    x = torch.randn(3, 6, dtype=torch.float64)
    w = layer.weight_binarizer(layer.weight)
    real_input = compute_real_input(layer, x)
    assert layer.bias is not None
    y = layer.bias
    for base in w.split_bases():
        y = y + real_input @ base.signs.T * (1 if base.scale is None else base.scale)
        y = y if base.offset is None else y + real_input.sum(1, keepdim=True) * base.offset
    torch.testing.assert_close(layer(x), y)


def test_set_progress_reaches_every_binarizer_and_can_be_repeated() -> None:
    net = lcrbnn.create_model("resnet8-double", "irnet", in_channels=1)
    for _ in range(2):
        set_progress(net, 0.75)
    values = [b for name, b in net.named_buffers() if name.endswith("annealing.t")]
    assert len(values) == 12  # six binary convolutions, two binarizers each
    assert all(float(t) == pytest.approx(1.0) for t in values)


def test_start_epoch_rotates_and_project_weights_clamps_every_layer() -> None:
    net = lcrbnn.create_model("resnet8-double", "rbnn", in_channels=1)
    before = [b.clone() for name, b in net.named_buffers() if name.endswith("left")]
    start_epoch(net)
    after = [b for name, b in net.named_buffers() if name.endswith("left")]
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))

    net = lcrbnn.create_model("resnet8-double", "bnn", in_channels=1, limit=0.1)
    project_weights(net)
    assert all(m.weight.abs().max() <= 0.1 for m in net.modules() if isinstance(m, BinaryConv2d))


def test_use_latent_weights_ends_after_an_error() -> None:
    layer = BinaryConv2d(3, 2, 3, method="bnn")
    x = torch.randn(1, 3, 5, 5)
    binary = layer(x)
    with use_latent_weights(layer):
        torch.testing.assert_close(layer(x), F.conv2d(torch.where(x < 0, -1.0, 1.0), layer.weight))
    with pytest.raises(RuntimeError), use_latent_weights(layer):
        raise RuntimeError
    assert torch.equal(layer(x), binary)


def test_fit_output_shapes_keeps_modes_statistics_and_hooks() -> None:
    net = nn.Sequential(BinaryConv2d(3, 4, 3, method="xnor++"), nn.BatchNorm2d(4))
    net[1].eval()
    fit_output_shapes(net, (2, 3, 8, 8))
    assert net.training
    assert not net[1].training
    assert net[1].num_batches_tracked == 0
    assert not net[0]._forward_pre_hooks
    assert [tuple(p.shape) for p in net[0].weight_binarizer.parameters()] == [(4, 1, 1), (1, 6, 1), (1, 1, 6)]


def test_a_scale_of_another_image_size_raises_an_input_error() -> None:
    net = lcrbnn.create_model("resnet8-double", "xnor++", image_size=16)
    with pytest.raises(InputError, match=r"the scale was learned for outputs of size \(16, 16\); got \(8, 8\)"):
        net(torch.zeros(1, 3, 8, 8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BinaryConv2d(3, 3, 3, method="nope"), "no binarization method is called 'nope'"),
        (
            lambda: BinaryConv2d(3, 3, 3, method="bnn", padding_value=2),
            "padding_value must be 0, -1 or 1; got 2",
        ),
        (
            lambda: BinaryConv2d(3, 3, 3, method="bnn")(torch.ones(3, 8, 8)),
            r"takes a batch of images.*got shape \(3, 8, 8\)",
        ),
        (lambda: BinaryLinear(3, 3, method="bnn")(torch.ones(3)), r"BinaryLinear takes a batch.*got shape \(3,\)"),
        (lambda: fit_output_shapes(nn.Identity(), 5), "the example must be a batch of images or its shape"),
        (lambda: set_progress(nn.Identity(), 1.5), "progress must be a number from 0 to 1; got 1.5"),
    ],
)
def test_invalid_arguments_raise_an_input_error(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_repr_shows_method_bits_and_padding_value() -> None:
    assert "padding_value=-1, dorefa 1/2" in repr(
        BinaryConv2d(2, 2, 3, method=get_method("dorefa", "1/2"), padding_value=-1)
    )
    assert "irnet 1/1" in repr(BinaryLinear(2, 2, method="irnet"))


@pytest.mark.parametrize("row", METHODS.values(), ids=lambda m: m.name)
def test_autocast_keeps_the_signs_exact(row: Method) -> None:
    layer = BinaryConv2d(8, 4, 3, padding=1, method=row)
    fit_output_shapes(layer, (2, 8, 6, 6))
    x = torch.randn(2, 8, 6, 6)
    float32_signs = layer.weight_binarizer(layer.weight).signs
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.weight_binarizer(layer.weight).signs, float32_signs)
        if layer.input_binarizer is not None:
            assert torch.equal(layer.input_binarizer(x).signs, layer.input_binarizer(x.clone()).signs)
        bfloat16_output = layer(x)
    assert bfloat16_output.dtype == torch.bfloat16  # a float32 scale must not widen the output
    torch.testing.assert_close(bfloat16_output.float(), layer(x), rtol=1e-2, atol=3e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rbnn_updates_rotations_in_float32(dtype: torch.dtype) -> None:
    layer = BinaryConv2d(8, 4, 3, method="rbnn").to(dtype)
    start_epoch(layer)
    assert torch.isfinite(layer.weight_binarizer.left).all()
    assert layer.weight_binarizer.left.dtype == dtype


def test_a_channel_shift_applies_to_the_channel_axis_of_both_layers() -> None:
    linear = BinaryLinear(5, 2, method="reactnet")
    linear.input_binarizer.shift.data = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    signs = linear.input_binarizer(
        torch.zeros(2, 5, 5, 5)
    ).signs  # the channel axis is the last one for any number of axes
    assert signs[0, 0, 0].tolist() == [1, -1, 1, -1, 1]
    assert torch.equal(signs, signs[:1, :1, :1].expand_as(signs))
    conv = BinaryConv2d(2, 2, 3, method="reactnet")
    conv.input_binarizer.shift.data = torch.tensor([1.0, -1.0])
    assert conv.input_binarizer(torch.zeros(1, 2, 3, 3)).signs[0, :, 0, 0].tolist() == [1, -1]
