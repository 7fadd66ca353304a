"""Small models for tests of the engine: single nodes, every operator at once, and a ResNet-20."""

from __future__ import annotations

from typing import Any

import numpy as np

from lcrbnn.deploy.engine.bits import pack_signs
from lcrbnn.deploy.engine.graph import BnnModel, Node, PackedSigns
from lcrbnn.deploy.engine.operators import OPERATORS, infer_shapes

Generator = np.random.Generator


def draw_normal(rng: Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def make_window(
    kernel: tuple[int, int] = (1, 1),
    stride: tuple[int, int] = (1, 1),
    pad: tuple[int, ...] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> dict[str, Any]:
    return {"kernel": kernel, "stride": stride, "pad": pad, "dilation": dilation, "groups": groups}


def draw_packed_signs(rng: Generator, rows: int, n: int) -> PackedSigns:
    return PackedSigns(pack_signs(rng.integers(0, 2, (rows, n)) > 0), n)


def draw_attributes(rng: Generator, op: str, channels: int, out: int, window: dict[str, Any]) -> dict[str, Any]:
    """Return random attributes of a conv, bconv or wconv, without `spatial`."""
    (kh, kw), depth = window["kernel"], channels // window["groups"]
    if op == "conv":
        return {"weight": draw_normal(rng, out, kh, kw, depth), "bias": draw_normal(rng, out), **window}
    attributes = {
        "weight": draw_packed_signs(rng, out, kh * kw * depth),
        "a": draw_normal(rng, out),
        "b": draw_normal(rng, out),
        **window,
    }
    if op == "bconv":
        attributes |= {"threshold": draw_normal(rng, channels) / 4, "pad_sign": int(rng.integers(-1, 2))}
    return attributes


_WINDOW_RANGES = ((1, 4, 2), (1, 4, 2), (0, 3, 4), (1, 3, 2))  # low, high, count of kernel, stride, pad, dilation


def draw_window(rng: Generator, channels: int) -> dict[str, Any]:
    groups = int(rng.choice([g for g in range(1, channels + 1) if channels % g == 0]))
    kernel, stride, pad, dilation = (
        tuple[Any, ...](int(v) for v in rng.integers(low, high, count)) for low, high, count in _WINDOW_RANGES
    )
    return make_window(kernel, stride, pad, dilation, groups)


def make_model(shape: tuple[int, int, int], *nodes: Node) -> BnnModel:
    """Return a model of these nodes, followed by a flatten, with one class per feature."""
    flatten = Node("flatten", "end", (len(nodes),), {})
    model = BnnModel("m", shape, 255.0, (0.5,) * shape[2], (0.25,) * shape[2], (), (*nodes, flatten))
    shapes = [shape]
    for node in nodes:  # infer_shapes needs the number of classes first
        shapes.append(OPERATORS[node.op].infer_shape(node.attributes, [shapes[i] for i in node.inputs]))
    return BnnModel(**{**vars(model), "classes": tuple(f"class {i}" for i in range(int(np.prod(shapes[-1]))))})


def make_model_with_every_op(rng: Generator) -> BnnModel:
    """Return a model with each operator, and with and without each optional attribute."""
    c = 5
    window = make_window((3, 3), (1, 1), (1, 1, 1, 1))
    pool = {"kernel": (2, 2), "stride": (2, 2), "pad": (0, 0, 1, 1)}
    float16_attributes = draw_attributes(rng, "conv", 3, c, window)
    float16_attributes = {
        **{k: v for k, v in float16_attributes.items() if k != "bias"},
        "weight": float16_attributes["weight"].astype(np.float16),
    }
    rows: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
        ("conv", (0,), draw_attributes(rng, "conv", 3, c, window)),
        ("conv", (0,), float16_attributes),
        ("add", (1, 2), {}),
        ("bconv", (3,), draw_attributes(rng, "bconv", c, c, window) | {"spatial": draw_normal(rng, 7, 6, c)}),
        (
            "bconv",
            (4,),
            draw_attributes(rng, "bconv", c, c, window) | {"threshold": "mean", "spatial": draw_normal(rng, 7, 6, 1)},
        ),
        ("wconv", (5,), draw_attributes(rng, "wconv", c, 10, window | {"groups": 5})),
        ("affine", (6,), {"a": draw_normal(rng, 10), "b": draw_normal(rng, 10)}),
        ("hardtanh", (7,), {}),
        ("shift", (8,), {"b": draw_normal(rng, 10)}),
        ("prelu", (9,), {"slope": draw_normal(rng, 10)}),
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
    return make_model((7, 6, 3), *(Node(op, f"{op} {i}", inputs, keys) for i, (op, inputs, keys) in enumerate(rows)))


def make_resnet20(rng: Generator) -> BnnModel:
    """Return a random model with the shape of ResNet-20 for 32 x 32 pixels."""
    nodes: list[Node] = []

    def add_node(op: str, inputs: tuple[int, ...], **attributes: Any) -> int:
        nodes.append(Node(op, f"{op} {len(nodes)}", inputs, attributes))
        return len(nodes)

    x = add_node("conv", (0,), **draw_attributes(rng, "conv", 3, 16, make_window((3, 3), pad=(1, 1, 1, 1))))
    channels = 16
    for out, stride in ((16, 1), (32, 2), (64, 2)):
        for block in range(3):
            block_stride = (stride, stride) if block == 0 else (1, 1)
            window = make_window((3, 3), block_stride, (1, 1, 1, 1))
            y = add_node("bconv", (x,), **draw_attributes(rng, "bconv", channels, out, window))
            y = add_node("hardtanh", (y,))
            y = add_node("bconv", (y,), **draw_attributes(rng, "bconv", out, out, window | {"stride": (1, 1)}))
            if block_stride != (1, 1):
                x = add_node("subsample", (x,), stride=block_stride)
                x = add_node("channels", (x,), before=(out - channels) // 2, after=(out - channels) // 2)
            x = add_node("hardtanh", (add_node("add", (x, y)),))
            channels = out
    x = add_node("mean", (x,))
    add_node("conv", (x,), **draw_attributes(rng, "conv", 64, 10, make_window()))
    model = make_model((32, 32, 3), *nodes)
    assert infer_shapes(model)[-1] == (1, 1, 10)
    return model
