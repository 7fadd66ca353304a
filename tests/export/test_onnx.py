"""The ONNX file says what PyTorch computes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lcrbnn.engine import reference
from lcrbnn.engine.check import OPS
from lcrbnn.errors import InputError
from lcrbnn.export import Input, export_model
from lcrbnn.export.onnx import RULES, to_onnx, write_onnx
from lcrbnn.models import Network, network

NETWORKS = [
    ("resnet8-double", "irnet", "1/1", 8),
    ("resnet20", "rbnn", "1/1", 16),
    ("resnet18-binary-shortcut", "dorefa", "1/1", 16),
    ("resnet18-pool-shortcut", "xnor++", "1/1", 16),
    ("resnet20-relu", "irnet", "1/32", 16),
    ("vgg-small", "bnn", "1/1", 16),
    ("react18", "reactnet", "1/1", 16),
    ("bireal18-imagenet", "bireal", "1/1", 64),
]


def lively(net: Network) -> Network:
    """With statistics, shifts and slopes away from where a fresh network has them."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, torch.nn.BatchNorm2d | torch.nn.BatchNorm1d):
                module.running_mean.normal_(0, 0.5, generator=draw)
                module.running_var.uniform_(0.5, 2, generator=draw)
                module.weight.normal_(0, 1, generator=draw)
                module.bias.normal_(0, 0.5, generator=draw)
    return net.eval()


def answers(data: bytes, images: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return session.run(["logits"], {"images": images})[0]


@pytest.mark.parametrize(("name", "method", "bits", "side"), NETWORKS, ids=[f"{r[0]} {r[1]}" for r in NETWORKS])
def test_it_runs_in_onnxruntime_and_equals_pytorch(name: str, method: str, bits: str, side: int) -> None:
    torch.manual_seed(0)
    net = lively(network(name, method, bits=bits, classes=10, image=side))
    model = export_model(net, Input((side, side, 3), tuple("0123456789")), name)
    images = torch.randn(6, 3, side, side, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = net(images).numpy()
    found = answers(to_onnx(model), images.numpy())
    plain = reference.run(model, np.ascontiguousarray(images.numpy().transpose(0, 2, 3, 1)))
    assert found.shape == wanted.shape
    close = np.abs(found - wanted).max(1) < 1e-3 * np.abs(wanted).max()
    same = np.abs(found - plain).max(1) < 1e-3 * np.abs(wanted).max()
    assert (
        close | same
    ).all()  # a sign near its threshold may turn either way; then the reference must have turned too
    assert close.sum() >= 4


def test_every_op_has_a_rule() -> None:
    assert set(RULES) == set(OPS)


def test_a_file_appears_whole(tmp_path: Path) -> None:
    model = export_model(lively(network("resnet8-double", "bnn")), Input((8, 8, 3), tuple("0123456789")), "small")
    write_onnx(tmp_path / "a.onnx", model)
    assert (tmp_path / "a.onnx").read_bytes() == to_onnx(model)
    assert [p.name for p in tmp_path.iterdir()] == ["a.onnx"]


def test_without_the_package_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    model = export_model(lively(network("resnet8-double", "bnn")), Input((8, 8, 3), tuple("0123456789")), "small")
    with pytest.raises(InputError, match="pip install onnx"):
        to_onnx(model)
