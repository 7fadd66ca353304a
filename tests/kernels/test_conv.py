import pytest
import torch
import torch.nn.functional as F

from lcrbnn.kernels import conv
from lcrbnn.models import network
from tests.kernels.interpreted import run_interpreted

# Input and output channels, height, width, images, stride: odd sides, more pixels than a block, weights not square.
CASES = [(16, 16, 8, 8, 3, 1), (16, 32, 4, 6, 2, 1), (32, 32, 5, 7, 4, 1), (64, 64, 3, 3, 2, 1), (64, 32, 9, 8, 2, 1)]
CASES += [(16, 32, 8, 6, 3, 2), (32, 16, 4, 10, 2, 2)]
CASES += [(3, 16, 9, 8, 2, 1)]  # an image


def largest_errors():
    """Of output and gradients, against float64, over their largest entry; for float32 maps stored either way."""
    torch.manual_seed(0)
    errors = {}
    for cin, cout, h, w, n, stride in CASES:
        for layout in (torch.channels_last, torch.contiguous_format):
            x = torch.randn(n, cin, h, w).contiguous(memory_format=layout).requires_grad_(cin != conv.THIN)
            weight = torch.randn(cout, cin, 3, 3).contiguous(memory_format=layout).requires_grad_()
            ours = conv.convolve(x, weight, stride)
            theirs = F.conv2d(x.double(), weight.double(), padding=1, stride=stride)
            g = torch.randn_like(ours)
            wanted = [t for t in (x, weight) if t.requires_grad]
            pairs = [
                (ours, theirs),
                *zip(
                    torch.autograd.grad(ours, wanted, g),
                    torch.autograd.grad(theirs, wanted, g.double()),
                    strict=True,
                ),
            ]
            errors[f"{cin} {cout} {stride} {layout}"] = [((a - b).abs().max() / b.abs().max()).item() for a, b in pairs]
    return errors


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
    for case, errors in run_interpreted(largest_errors).items():
        assert max(errors) < 1e-6, case


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
