import pytest
import torch
import torch.nn.functional as F

from lcrbnn.kernels import conv
from lcrbnn.models import network
from tests.kernels.interpreted import check_interpreted, run_interpreted
from tools.gpu import convolutions


def dispatched():
    """What conv2d chose: whether its answer is the kernel's (stored channels last) and how far it is from torch's."""
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
    check_interpreted(convolutions)


def test_only_what_the_kernel_can_do_goes_to_it():
    rows = run_interpreted(dispatched)
    assert [name for name, (chosen, _) in rows.items() if chosen] == ["suits", "stride"]
    assert max(error for _, error in rows.values()) < 0.05


def test_without_a_gpu_torch_does_it():
    x, w = torch.randn(2, 16, 6, 6), torch.randn(16, 16, 3, 3)
    assert conv.conv2d(x, w, None, (1, 1), (1, 1), (1, 1), 1).equal(F.conv2d(x, w, padding=1))


@pytest.mark.parametrize("bits", ["1/1", "1/32"])
def test_networks_ask_for_it(monkeypatch, bits):
    seen = []

    def watch(x, w, *args):
        seen.append(tuple(w.shape[:2]))
        return F.conv2d(x, w, *args)

    monkeypatch.setattr("lcrbnn.layers.conv2d", watch)
    monkeypatch.setattr("lcrbnn.models.skeleton.conv2d", watch)
    network("resnet20", "irnet", bits=bits)(torch.randn(2, 3, 32, 32))
    assert len(seen) == 19
    assert seen[0] == (16, 3)
