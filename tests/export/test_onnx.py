"""The ONNX file says what PyTorch computes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lcrbnn.engine import Model, reference
from lcrbnn.engine.check import OPS
from lcrbnn.errors import InputError
from lcrbnn.export import Input, export_model
from lcrbnn.export.onnx import RULES, to_onnx, write_onnx
from lcrbnn.layers import BinaryConv2d
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


def answers(data: bytes, images: np.ndarray, level: str = "") -> np.ndarray:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if level:
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
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


LEVELS = ["", "ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"]


def zeros() -> tuple[Model, torch.Tensor, np.ndarray]:
    """A layer of even sums behind another: where they are 0, its sign must be that of 0. With images and answers."""
    torch.manual_seed(0)
    layers = [BinaryConv2d(16, 16, 3, padding=1, method="xnor") for _ in range(2)]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)).eval()
    model, images = export_model(net, Input((8, 8, 16), tuple("abcde")), "zeros"), torch.randn(50, 16, 8, 8)
    with torch.no_grad():
        return model, images, net(images).numpy()


@pytest.mark.parametrize("level", LEVELS)
def test_sums_of_signs_stay_whole_however_a_runtime_optimizes(level: str) -> None:
    model, images, wanted = zeros()
    assert np.abs(answers(to_onnx(model), images.numpy(), level) - wanted).max() < 1e-6


OPENVINO = """
import sys, numpy, openvino
given = numpy.load(sys.argv[2])
model = openvino.Core().compile_model(sys.argv[1], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
sys.exit(int(numpy.abs(model(given["images"])[0] - given["wanted"]).max() >= 1e-6))
"""


def test_openvino_keeps_them_whole_too(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    model, images, wanted = zeros()
    write_onnx(tmp_path / "a.onnx", model)
    np.savez(tmp_path / "a.npz", images=images.numpy(), wanted=wanted)
    words = [sys.executable, "-c", OPENVINO, str(tmp_path / "a.onnx"), str(tmp_path / "a.npz")]
    subprocess.run(words, check=True, timeout=120)  # apart: once loaded and left, it may end its process by a signal


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
