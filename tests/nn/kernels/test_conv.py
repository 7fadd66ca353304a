import pytest
import torch
import torch.nn.functional as F

from lcrbnn.nn.kernels import conv
from lcrbnn.nn.models.model_registry import create_model
from tests.nn.kernels.interpreted import assert_interpreted_within_bounds, run_interpreted
from tools.gpu_kernels import check_convolutions


def compare_conv2d_with_torch():
    """Return, per case, whether conv2d used the kernel (its output is channels-last) and the error against torch."""
    torch.manual_seed(0)
    x, w = torch.randn(2, 16, 6, 6).half(), torch.randn(16, 16, 3, 3).half()
    rows = {}
    for name, (a, b, args) in {
        "suits": (x, w, ((1, 1), (1, 1), (1, 1), 1)),
        "stride": (x, w, ((2, 2), (1, 1), (1, 1), 1)),
        "odd": (x[:, :, :5], w, ((2, 2), (1, 1), (1, 1), 1)),
        "far": (x, w, ((3, 3), (1, 1), (1, 1), 1)),
        "padding": (x, w, ((1, 1), (0, 0), (1, 1), 1)),
        "same": (x, w, ((1, 1), "same", (1, 1), 1)),
        "dilation": (x, w, ((1, 1), (1, 1), (2, 2), 1)),
        "groups": (x, w[:, :8], ((1, 1), (1, 1), (1, 1), 2)),
        "kernel": (x, w[:, :, :1, :1].contiguous(), ((1, 1), (1, 1), (1, 1), 1)),
        "width": (x, w[:8], ((1, 1), (1, 1), (1, 1), 1)),
        "float32": (x.float(), w.float(), ((1, 1), (1, 1), (1, 1), 1)),
    }.items():
        y = conv.conv2d(a, b, None, *args)
        plain = F.conv2d(a.float(), b.float(), None, *args)
        rows[name] = [y.stride(1) == 1, (y.float() - plain).abs().max().item()]
    return rows


def test_kernel_agrees_with_float64():
    assert_interpreted_within_bounds(check_convolutions)


def test_conv2d_uses_the_kernel_only_for_supported_convolutions():
    rows = run_interpreted(compare_conv2d_with_torch)
    assert [name for name, (chosen, _) in rows.items() if chosen] == ["suits", "stride"]
    assert max(error for _, error in rows.values()) < 0.05


def test_conv2d_equals_torch_without_a_gpu():
    x, w = torch.randn(2, 16, 6, 6), torch.randn(16, 16, 3, 3)
    assert conv.conv2d(x, w, None, (1, 1), (1, 1), (1, 1), 1).equal(F.conv2d(x, w, padding=1))


@pytest.mark.parametrize("bits", ["1/1", "1/32"])
def test_networks_call_conv2d_for_every_3x3_convolution(monkeypatch, bits):
    weight_shapes = []

    def record_shapes(x, w, *args):
        weight_shapes.append(tuple(w.shape[:2]))
        return F.conv2d(x, w, *args)

    monkeypatch.setattr("lcrbnn.nn.layers.conv2d", record_shapes)
    monkeypatch.setattr("lcrbnn.nn.models.network.conv2d", record_shapes)
    create_model("resnet20", "irnet", bits=bits)(torch.randn(2, 3, 32, 32))
    assert len(weight_shapes) == 19
    assert weight_shapes[0] == (16, 3)
