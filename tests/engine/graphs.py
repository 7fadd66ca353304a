"""Random graphs whose nodes fit, and the check of every node of one against the reference."""

from __future__ import annotations

import os

import numpy as np
import pytest

from lcrbnn.bits import pack
from lcrbnn.engine import Bits, Model, Node, lib, reference
from lcrbnn.engine.check import OPS as TABLE
from lcrbnn.engine.format import to_bytes
from lcrbnn.errors import InputError

Shape = tuple[int, int, int]


def need_engine() -> None:
    """Skip a module without the compiled engine; CI has a compiler."""
    try:
        lib.library()
    except InputError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing), allow_module_level=True)  # without a compiler


class Build:
    """A graph that grows by random nodes, each of which fits the value it takes."""

    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.shape: Shape = shape or (self.whole(1, 9), self.whole(1, 11), int(self.rng.choice([1, 3, 8, 20, 64])))
        self.shapes: list[Shape] = [self.shape]
        self.nodes: list[Node] = []

    def whole(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def floats(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * self.rng.standard_normal(shape)).astype(np.float32)

    def add(self, op: str, inputs: tuple[int, ...], shape: Shape, **keys: object) -> int:
        self.nodes.append(Node(op, f"{op} {len(self.nodes)}", inputs, keys))
        self.shapes.append(shape)
        return len(self.nodes)

    def window(self, h: int, w: int, *, simple: bool = False) -> tuple[dict[str, tuple[int, ...]], int, int]:
        """A random window over a map of h × w, and the pixels it makes."""
        while True:
            kernel = (self.whole(1, 3), self.whole(1, 3))
            stride, dilation = (self.whole(1, 2), self.whole(1, 2)), (self.whole(1, 2), self.whole(1, 2))
            pad = tuple(self.whole(0, 2) for _ in range(4))
            if simple:
                dilation, pad = (1, 1), (0, 0, min(pad[2], kernel[0] - 1), min(pad[3], kernel[1] - 1))
            sizes = [
                (size + pad[i] + pad[i + 2] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
                for i, size in enumerate((h, w))
            ]
            if simple and any((sizes[i] - 1) * stride[i] >= size for i, size in enumerate((h, w))):
                continue
            if min(sizes) >= 1:
                return {"kernel": kernel, "stride": stride, "pad": pad, "dilation": dilation}, sizes[0], sizes[1]

    def conv(self, op: str, value: int) -> int:
        h, w, c = self.shapes[value]
        keys, y, x = self.window(h, w)
        groups = int(self.rng.choice([g for g in (1, 2, 4) if c % g == 0]))
        out = groups * int(self.rng.choice([1, 3, 8, 17, 64 // groups]))
        taps = keys["kernel"][0] * keys["kernel"][1] * c // groups
        more: dict[str, object] = {}
        if op == "conv":
            half = self.rng.random() < 0.5
            weight = self.floats(out, *keys["kernel"], c // groups).astype(np.float16 if half else np.float32)
            more["weight"] = weight
            if self.rng.random() < 0.5:
                more["bias"] = self.floats(out)
        else:
            more["weight"] = Bits(pack(self.rng.random((out, taps)) < 0.5), taps)
            more |= {"a": self.floats(out, scale=0.2), "b": self.floats(out, scale=0.2)}
            if self.rng.random() < 0.3:
                more["spatial"] = self.floats(y, x, int(self.rng.choice([1, out])))
        if op == "bconv":
            more["threshold"] = "mean" if self.rng.random() < 0.2 else self.floats(c, scale=0.2)
            more["pad_sign"] = self.whole(-1, 1)
        return self.add(op, (value,), (y, x, out), **more, **keys, groups=groups)

    def random(self, op: str, value: int) -> int:
        h, w, c = shape = self.shapes[value]
        if op in ("conv", "bconv", "wconv"):
            return self.conv(op, value)
        if op == "affine":
            return self.add(op, (value,), shape, a=self.floats(c), b=self.floats(c))
        if op == "prelu":
            return self.add(op, (value,), shape, slope=self.floats(c))
        if op == "shift":
            return self.add(op, (value,), shape, b=self.floats(c))
        if op == "add":
            same = [i for i, other in enumerate(self.shapes) if other == shape]
            return self.add(op, (value, int(self.rng.choice(same))), shape)
        if op in ("maxpool", "avgpool"):
            keys, y, x = self.window(h, w, simple=True)
            del keys["dilation"]
            return self.add(op, (value,), (y, x, c), **keys)
        if op == "subsample":
            sy, sx = self.whole(1, 3), self.whole(1, 3)
            return self.add(op, (value,), (-(-h // sy), -(-w // sx), c), stride=(sy, sx))
        if op == "channels":
            before, after = self.whole(0, 5), self.whole(0, 5)
            return self.add(op, (value,), (h, w, before + c + after), before=before, after=after)
        made = {"mean": (1, 1, c), "flatten": (1, 1, h * w * c)}.get(op, shape)
        return self.add(op, (value,), made)

    def model(self, classes: int = 5) -> Model:
        """End the graph: what nobody used becomes a vector, and their sum is the answer."""
        used = {value for node in self.nodes for value in node.inputs}
        total = None
        for value in [v for v in range(len(self.shapes)) if v not in used]:
            c = self.shapes[value][2]
            mean = self.add("mean", (value,), (1, 1, c))
            keys = {"kernel": (1, 1), "stride": (1, 1), "pad": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
            weight = self.floats(classes, 1, 1, c)
            score = self.add("conv", (mean,), (1, 1, classes), weight=weight, **keys)
            total = score if total is None else self.add("add", (total, score), (1, 1, classes))
        c = self.shape[2]
        names = tuple(f"class {i}" for i in range(classes))
        return Model("test", self.shape, 255.0, (0.5,) * c, (0.25,) * c, names, tuple(self.nodes))

    def images(self, n: int) -> np.ndarray:
        return self.floats(n, *self.shape)


OPS = list(TABLE)
POINTWISE = ("affine", "add", "hardtanh", "relu", "prelu", "shift")
SUMS = {"conv", "wconv", "mean", "avgpool", "softmax"}  # where the order of a sum, or an exponential, is free


def grown(seed: int) -> Build:
    """A random graph: often the last value goes on, binary convolutions and what follows them come often."""
    build = Build(seed)
    weights = np.array([6 if op == "bconv" else 3 if op in POINTWISE else 0.3 if op == "flatten" else 1 for op in OPS])
    for _ in range(build.whole(3, 14)):
        last = len(build.shapes) - 1
        value = last if build.rng.random() < 0.75 else build.whole(0, last)
        build.random(str(build.rng.choice(OPS, p=weights / weights.sum())), value)
    return build


def close(op: str, got: np.ndarray, want: np.ndarray) -> bool:
    if op not in SUMS:
        return bool(np.array_equal(got, want, equal_nan=True))
    scale = np.abs(want).max(initial=1e-3)
    return bool(np.allclose(got, want, rtol=1e-4, atol=1e-5 * scale))


def agree(model: Model, images: np.ndarray, kernel: str | None = None) -> None:
    """Every node, given the engine's own inputs, makes what the reference makes; and all ways to run are one."""
    data = to_bytes(model)
    plain, fused = lib.Engine(data, fuse=False, kernel=kernel), lib.Engine(data, kernel=kernel)
    values = [images, *(fused.value(images, i) for i in range(len(model.nodes)))]
    for i, node in enumerate(model.nodes):
        inputs = [values[v] for v in node.inputs]
        if node.op == "bconv":
            want = reference.accumulators(node, inputs[0])
            assert np.array_equal(fused.accumulators(images, i), want), node.name
        with np.errstate(all="ignore"):
            want = reference._OPS[node.op](node, *inputs)
        assert values[i + 1].shape == want.shape
        assert close(node.op, values[i + 1], want), node.name
    answer = values[-1].reshape(len(images), -1)
    assert np.array_equal(fused.run(images), answer)
    assert np.array_equal(fused.run(images, threads=2), answer)
    assert np.array_equal(fused.run(images[:1], threads=2), answer[:1])
    assert np.array_equal(plain.run(images, threads=3), answer)


def chain(build: Build, *ops: str) -> None:
    for op in ops:
        build.random(op, len(build.shapes) - 1)
