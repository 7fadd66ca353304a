"""Networks for inference benchmarks, which are binary ResNets, full-precision ResNets and binary convolutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from lcrbnn.deploy.engine.bits import pack_signs
from lcrbnn.deploy.engine.graph import BnnModel, Node, PackedSigns
from lcrbnn.deploy.export.export_model import ModelInput, export_model
from lcrbnn.nn.models.model_registry import create_model
from lcrbnn.nn.models.network import Network


def make_realistic_network(name: str, method: str | None = None, image_size: int = 224) -> Network:
    """Return a network with random weights and batch-norm statistics like those of a trained network."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    net = create_model(name, method, image_size=image_size)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_(0, 0.5, generator=generator)
                module.running_var.uniform_(0.5, 2, generator=generator)
                module.bias.normal_(0, 0.3, generator=generator)
    return net.eval()


def _export(name: str, method: str | None, image_size: int, num_classes: int) -> BnnModel:
    model_input = ModelInput((image_size, image_size, 3), tuple(map(str, range(num_classes))))
    return export_model(make_realistic_network(name, method, image_size), model_input, name)


def make_binary_convolutions(image_size: int = 56) -> BnnModel:
    """Return a sequence of the 16 binary 3x3 convolutions of a ResNet-18, with only the signs taken in between."""
    rng, nodes, channels = np.random.default_rng(0), list[Node](), 64
    for i in range(16):
        is_strided = i in (4, 8, 12)
        out_channels = 2 * channels if is_strided else channels
        attributes = {
            "weight": PackedSigns(pack_signs(rng.integers(0, 2, (out_channels, 9 * channels)) > 0), 9 * channels),
            "a": rng.uniform(0.01, 0.1, out_channels).astype(np.float32),
            "b": rng.normal(0, 0.5, out_channels).astype(np.float32),
            "threshold": np.zeros(channels, np.float32),
            "pad_sign": 0,
            "kernel": (3, 3),
            "stride": (2, 2) if is_strided else (1, 1),
            "pad": (1, 1, 1, 1),
            "dilation": (1, 1),
            "groups": 1,
        }
        nodes.append(Node("bconv", f"convolution {i}", (i,), attributes))
        channels = out_channels
    nodes.append(Node("mean", "mean", (16,), {}))
    classes = tuple(map(str, range(channels)))
    return BnnModel(
        "binary convolutions", (image_size, image_size, 64), 255.0, (0.5,) * 64, (0.25,) * 64, classes, tuple(nodes)
    )


@dataclass(frozen=True)
class EngineCase:
    """A row of ENGINE_CASES with models, runtimes that run the models, numbers of threads and batch sizes."""

    model_makers: dict[str, Callable[[], BnnModel]]
    runtimes: tuple[
        tuple[str, str], ...
    ]  # each pair is a row of bench.deploy.runtime_worker and a model; the engine of this package runs the binary model
    threads: tuple[int, ...] = (1, 2)
    batch_sizes: tuple[int, ...] = (1, 8)
    torch_network: tuple[str, int] | None = None  # name and image size of the network that PyTorch runs
    # whether to time only the binary convolutions, with the profiler of each runtime
    times_convolutions_only: bool = False


_BIREAL = partial(_export, "bireal18-imagenet", "bireal", 224, 1000)
ENGINE_CASES = {
    "resnet18": EngineCase(
        {
            "binary": _BIREAL,
            "real": partial(_export, "resnet18-relu-imagenet", None, 224, 1000),
        },
        (
            ("openvino binary", "binary"),
            ("torch", "real"),
            ("onnxruntime", "real"),
            ("onnxruntime int8", "real"),
            ("openvino", "real"),
            ("openvino int8", "real"),
        ),
        torch_network=("resnet18-relu-imagenet", 224),
    ),
    "resnet18's convolutions": EngineCase(
        {"binary": _BIREAL},
        (("openvino binary", "binary"),),
        threads=(1,),
        batch_sizes=(1,),
        times_convolutions_only=True,
    ),
    "convolutions alone": EngineCase(
        {"binary": make_binary_convolutions}, (("openvino binary", "binary"),), batch_sizes=(1,)
    ),
    "resnet20": EngineCase(
        {
            "binary": partial(_export, "resnet20-double", "irnet", 32, 10),
            "real": partial(_export, "resnet20-relu", None, 32, 10),
        },
        (
            ("openvino binary", "binary"),
            ("onnxruntime", "real"),
            ("onnxruntime", "binary"),
            ("onnxruntime int8", "real"),
            ("openvino int8", "real"),
        ),
        batch_sizes=(1,),
    ),
}
