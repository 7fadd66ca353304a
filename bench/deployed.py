"""Networks as they are deployed: the binary one, its full-precision twin, and binary convolutions alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from lcrbnn.bits import pack
from lcrbnn.engine import Bits, Model, Node
from lcrbnn.export import Input, export_model
from lcrbnn.models import Network, network


def lively(name: str, method: str | None = None, side: int = 224) -> Network:
    """A network with random weights, and batch-norm statistics as a trained one might have them."""
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    net = network(name, method, image=side)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_(0, 0.5, generator=draw)
                module.running_var.uniform_(0.5, 2, generator=draw)
                module.bias.normal_(0, 0.3, generator=draw)
    return net.eval()


def _exported(name: str, method: str | None, side: int, classes: int) -> Model:
    seen = Input((side, side, 3), tuple(map(str, range(classes))))
    return export_model(lively(name, method, side), seen, name)


def binary_convolutions(side: int = 56) -> Model:
    """The 16 binary 3x3 convolutions of a ResNet-18, one behind the other: only signs pass between them."""
    draw, nodes, channels = np.random.default_rng(0), list[Node](), 64
    for i in range(16):
        halves = i in (4, 8, 12)
        out = 2 * channels if halves else channels
        keys = {
            "weight": Bits(pack(draw.integers(0, 2, (out, 9 * channels)) > 0), 9 * channels),
            "a": draw.uniform(0.01, 0.1, out).astype(np.float32),
            "b": draw.normal(0, 0.5, out).astype(np.float32),
            "threshold": np.zeros(channels, np.float32),
            "pad_sign": 0,
            "kernel": (3, 3),
            "stride": (2, 2) if halves else (1, 1),
            "pad": (1, 1, 1, 1),
            "dilation": (1, 1),
            "groups": 1,
        }
        nodes.append(Node("bconv", f"convolution {i}", (i,), keys))
        channels = out
    nodes.append(Node("mean", "mean", (16,), {}))
    classes = tuple(map(str, range(channels)))
    return Model("binary convolutions", (side, side, 64), 255.0, (0.5,) * 64, (0.25,) * 64, classes, tuple(nodes))


@dataclass(frozen=True)
class Deployed:
    """A row of DEPLOYED: files to make, and what runs which of them with how many threads and images a call."""

    models: dict[str, Callable[[], Model]]
    runtimes: tuple[tuple[str, str], ...]  # (a row of bench.one_runtime, which model); ours runs the binary one
    threads: tuple[int, ...] = (1, 2)
    batches: tuple[int, ...] = (1, 8)
    torch: tuple[str, int] | None = None  # the network that PyTorch runs, and its side
    part: bool = False  # time its binary convolutions, by each runtime's own clock


_BIREAL = partial(_exported, "bireal18-imagenet", "bireal", 224, 1000)
DEPLOYED = {
    "resnet18": Deployed(
        {
            "binary": _BIREAL,
            "real": partial(_exported, "resnet18-relu-imagenet", None, 224, 1000),
        },
        (
            ("openvino binary", "binary"),
            ("torch", "real"),
            ("onnxruntime", "real"),
            ("onnxruntime int8", "real"),
            ("openvino", "real"),
            ("openvino int8", "real"),
        ),
        torch=("resnet18-relu-imagenet", 224),
    ),
    "resnet18's convolutions": Deployed(
        {"binary": _BIREAL}, (("openvino binary", "binary"),), threads=(1,), batches=(1,), part=True
    ),
    "convolutions alone": Deployed({"binary": binary_convolutions}, (("openvino binary", "binary"),), batches=(1,)),
    "resnet20": Deployed(
        {
            "binary": partial(_exported, "resnet20-double", "irnet", 32, 10),
            "real": partial(_exported, "resnet20-relu", None, 32, 10),
        },
        (
            ("openvino binary", "binary"),
            ("onnxruntime", "real"),
            ("onnxruntime", "binary"),
            ("onnxruntime int8", "real"),
            ("openvino int8", "real"),
        ),
        batches=(1,),
    ),
}
