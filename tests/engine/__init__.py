"""Small models for tests of the engine: a node alone, every op at once, and a network of a usual shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from lcrbnn.bits import pack
from lcrbnn.engine.check import OPS, shapes
from lcrbnn.engine.format import Bits, Model, Node

Generator = np.random.Generator


def normal(rng: Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def window(
    kernel: tuple[int, int] = (1, 1),
    stride: tuple[int, int] = (1, 1),
    pad: tuple[int, ...] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> dict[str, Any]:
    return {"kernel": kernel, "stride": stride, "pad": pad, "dilation": dilation, "groups": groups}


def random_bits(rng: Generator, rows: int, n: int) -> Bits:
    return Bits(pack(rng.integers(0, 2, (rows, n)) > 0), n)


def random_keys(rng: Generator, op: str, channels: int, out: int, slide: dict[str, Any]) -> dict[str, Any]:
    """Keys of a conv, bconv or wconv without spatial."""
    (kh, kw), depth = slide["kernel"], channels // slide["groups"]
    if op == "conv":
        return {"weight": normal(rng, out, kh, kw, depth), "bias": normal(rng, out), **slide}
    keys = {"weight": random_bits(rng, out, kh * kw * depth), "a": normal(rng, out), "b": normal(rng, out), **slide}
    if op == "bconv":
        keys |= {"threshold": normal(rng, channels) / 4, "pad_sign": int(rng.integers(-1, 2))}
    return keys


_DRAWS = ((1, 4, 2), (1, 4, 2), (0, 3, 4), (1, 3, 2))  # of kernel, stride, pad, dilation: from, to, how many


def random_window(rng: Generator, channels: int) -> dict[str, Any]:
    groups = int(rng.choice([g for g in range(1, channels + 1) if channels % g == 0]))
    kernel, stride, pad, dilation = (
        tuple[Any, ...](int(v) for v in rng.integers(low, high, count)) for low, high, count in _DRAWS
    )
    return window(kernel, stride, pad, dilation, groups)


def made(shape: tuple[int, int, int], *nodes: Node) -> Model:
    """A model of these nodes, with a flatten behind them and as many classes as that makes."""
    last = Node("flatten", "end", (len(nodes),), {})
    model = Model("m", shape, 255.0, (0.5,) * shape[2], (0.25,) * shape[2], (), (*nodes, last))
    sizes = [shape]
    for node in nodes:  # the shape of each value, found before the number of classes is known
        sizes.append(OPS[node.op].shape(node.keys, [sizes[i] for i in node.inputs]))
    return Model(**{**vars(model), "classes": tuple(f"class {i}" for i in range(int(np.prod(sizes[-1]))))})


def every_op(rng: Generator) -> Model:
    """A model with each op at least once, each optional key there and not there."""
    c = 5
    slide = window((3, 3), (1, 1), (1, 1, 1, 1))
    pool = {"kernel": (2, 2), "stride": (2, 2), "pad": (0, 0, 1, 1)}
    half = random_keys(rng, "conv", 3, c, slide)
    half = {**{k: v for k, v in half.items() if k != "bias"}, "weight": half["weight"].astype(np.float16)}
    rows: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
        ("conv", (0,), random_keys(rng, "conv", 3, c, slide)),
        ("conv", (0,), half),
        ("add", (1, 2), {}),
        ("bconv", (3,), random_keys(rng, "bconv", c, c, slide) | {"spatial": normal(rng, 7, 6, c)}),
        (
            "bconv",
            (4,),
            random_keys(rng, "bconv", c, c, slide) | {"threshold": "mean", "spatial": normal(rng, 7, 6, 1)},
        ),
        ("wconv", (5,), random_keys(rng, "wconv", c, 10, slide | {"groups": 5})),
        ("affine", (6,), {"a": normal(rng, 10), "b": normal(rng, 10)}),
        ("hardtanh", (7,), {}),
        ("shift", (8,), {"b": normal(rng, 10)}),
        ("prelu", (9,), {"slope": normal(rng, 10)}),
        ("relu", (10,), {}),
        ("add", (11, 10), {}),
        ("maxpool", (12,), pool | {"pad": (1, 1, 1, 1), "kernel": (3, 2)}),
        ("avgpool", (12,), pool),
        ("subsample", (12,), {"stride": (2, 2)}),
        ("add", (14, 15), {}),
        ("mean", (16,), {}),
        ("mean", (13,), {}),
        ("add", (17, 18), {}),
        ("channels", (19,), {"before": 1, "after": 2}),
        ("flatten", (20,), {}),
        ("softmax", (21,), {}),
    ]
    return made((7, 6, 3), *(Node(op, f"{op} {i}", inputs, keys) for i, (op, inputs, keys) in enumerate(rows)))


def resnet20(rng: Generator) -> Model:
    """The shape of ResNet-20 for 32 x 32 pixels: binary convolutions, shortcuts that subsample and add channels."""
    nodes: list[Node] = []

    def put(op: str, inputs: tuple[int, ...], **keys: Any) -> int:
        nodes.append(Node(op, f"{op} {len(nodes)}", inputs, keys))
        return len(nodes)

    x = put("conv", (0,), **random_keys(rng, "conv", 3, 16, window((3, 3), pad=(1, 1, 1, 1))))
    channels = 16
    for out, stride in ((16, 1), (32, 2), (64, 2)):
        for block in range(3):
            step = (stride, stride) if block == 0 else (1, 1)
            slide = window((3, 3), step, (1, 1, 1, 1))
            y = put("bconv", (x,), **random_keys(rng, "bconv", channels, out, slide))
            y = put("hardtanh", (y,))
            y = put("bconv", (y,), **random_keys(rng, "bconv", out, out, slide | {"stride": (1, 1)}))
            if step != (1, 1):
                x = put("subsample", (x,), stride=step)
                x = put("channels", (x,), before=(out - channels) // 2, after=(out - channels) // 2)
            x = put("hardtanh", (put("add", (x, y)),))
            channels = out
    x = put("mean", (x,))
    put("conv", (x,), **random_keys(rng, "conv", 64, 10, window()))
    model = made((32, 32, 3), *nodes)
    assert shapes(model)[-1] == (1, 1, 10)
    return model
