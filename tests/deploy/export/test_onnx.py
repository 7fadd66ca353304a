"""Exported ONNX files equal PyTorch in other runtimes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lcrbnn.deploy.engine import reference
from lcrbnn.deploy.engine.graph import BnnModel
from lcrbnn.deploy.engine.operators import OPERATORS
from lcrbnn.deploy.export.export_model import ModelInput, export_model
from lcrbnn.deploy.export.onnx_writer import ONNX_RULES, to_onnx, write_onnx
from lcrbnn.errors import InputError
from lcrbnn.nn.layers import BinaryConv2d
from lcrbnn.nn.models.model_registry import create_model
from lcrbnn.nn.models.network import Network

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


def randomize_batch_norms(net: Network) -> Network:
    """Randomize the statistics and parameters of all batch norms."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, torch.nn.BatchNorm2d | torch.nn.BatchNorm1d):
                module.running_mean.normal_(0, 0.5, generator=draw)
                module.running_var.uniform_(0.5, 2, generator=draw)
                module.weight.normal_(0, 1, generator=draw)
                module.bias.normal_(0, 0.5, generator=draw)
    return net.eval()


def run_onnxruntime(data: bytes, images: np.ndarray, level: str = "") -> np.ndarray:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if level:
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(["logits"], {"images": images})[0]


@pytest.mark.parametrize(("name", "method", "bits", "side"), NETWORKS, ids=[f"{r[0]} {r[1]}" for r in NETWORKS])
def test_onnxruntime_equals_pytorch(name: str, method: str, bits: str, side: int) -> None:
    torch.manual_seed(0)
    net = randomize_batch_norms(create_model(name, method, bits=bits, num_classes=10, image_size=side))
    model = export_model(net, ModelInput((side, side, 3), tuple("0123456789")), name)
    images = torch.randn(6, 3, side, side, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = net(images).numpy()
    logits = run_onnxruntime(to_onnx(model), images.numpy())
    reference_logits = reference.run_reference(model, np.ascontiguousarray(images.numpy().transpose(0, 2, 3, 1)))
    assert logits.shape == expected.shape
    equals_torch = np.abs(logits - expected).max(1) < 1e-3 * np.abs(expected).max()
    equals_reference = np.abs(logits - reference_logits).max(1) < 1e-3 * np.abs(expected).max()
    assert (
        equals_torch | equals_reference
    ).all()  # if a sign near its threshold differs from PyTorch, it must equal the reference
    assert equals_torch.sum() >= 4


OPTIMIZATION_LEVELS = ["", "ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"]


def make_model_with_zero_sums() -> tuple[BnnModel, torch.Tensor, np.ndarray]:
    """Return a model with sums of 0, whose sign must be that of 0, with images and PyTorch's logits."""
    torch.manual_seed(0)
    layers = [BinaryConv2d(16, 16, 3, padding=1, method="xnor") for _ in range(2)]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)).eval()
    model, images = export_model(net, ModelInput((8, 8, 16), tuple("abcde")), "zeros"), torch.randn(50, 16, 8, 8)
    with torch.no_grad():
        return model, images, net(images).numpy()


@pytest.mark.parametrize("level", OPTIMIZATION_LEVELS)
def test_sums_stay_integers_at_every_optimization_level(level: str) -> None:
    model, images, expected = make_model_with_zero_sums()
    assert np.abs(run_onnxruntime(to_onnx(model), images.numpy(), level) - expected).max() < 1e-6


OPENVINO_SCRIPT = """
import sys, numpy, openvino
given = numpy.load(sys.argv[2])
model = openvino.Core().compile_model(sys.argv[1], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
sys.exit(int(numpy.abs(model(given["images"])[0] - given["wanted"]).max() >= 1e-6))
"""


def test_sums_stay_integers_in_openvino(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    model, images, expected = make_model_with_zero_sums()
    write_onnx(tmp_path / "a.onnx", model)
    np.savez(tmp_path / "a.npz", images=images.numpy(), wanted=expected)
    words = [sys.executable, "-c", OPENVINO_SCRIPT, str(tmp_path / "a.onnx"), str(tmp_path / "a.npz")]
    subprocess.run(words, check=True, timeout=120)  # OpenVINO can end its process with a signal


def test_every_op_of_version_1_has_a_rule() -> None:
    assert {op for op, operator in OPERATORS.items() if operator.version == 1} <= set(ONNX_RULES) <= set(OPERATORS)


def test_onnx_files_are_written_atomically(tmp_path: Path) -> None:
    model = export_model(
        randomize_batch_norms(create_model("resnet8-double", "bnn")),
        ModelInput((8, 8, 3), tuple("0123456789")),
        "small",
    )
    write_onnx(tmp_path / "a.onnx", model)
    assert (tmp_path / "a.onnx").read_bytes() == to_onnx(model)
    assert [p.name for p in tmp_path.iterdir()] == ["a.onnx"]


def test_the_missing_onnx_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    model = export_model(
        randomize_batch_norms(create_model("resnet8-double", "bnn")),
        ModelInput((8, 8, 3), tuple("0123456789")),
        "small",
    )
    with pytest.raises(InputError, match="pip install onnx"):
        to_onnx(model)
