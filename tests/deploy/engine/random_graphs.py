"""Random valid graphs, and a comparison of the engine with the reference for every node."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from lcrbnn.deploy.engine import reference
from lcrbnn.deploy.engine import runtime as lib
from lcrbnn.deploy.engine.bits import pack_signs
from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.deploy.engine.graph import BnnModel, ModelOutput, Node, PackedSigns
from lcrbnn.deploy.engine.operators import OPERATORS as TABLE
from lcrbnn.deploy.engine.operators import list_outputs
from lcrbnn.errors import InputError
from tests.deploy.engine.version_2_models import draw_version_2_node

Shape = tuple[int, int, int]


def skip_without_engine() -> None:
    """Skip the module if the engine is not built; on CI, raise instead."""
    try:
        lib.load_library()
    except InputError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error), allow_module_level=True)  # without a compiler there is no engine


class RandomGraph:
    """A graph to which random nodes are added; each fits the shape of its input."""

    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.shape: Shape = shape or (
            self.draw_integer(1, 9),
            self.draw_integer(1, 11),
            int(self.rng.choice([1, 3, 8, 20, 64])),
        )
        self.shapes: list[Shape] = [self.shape]
        self.nodes: list[Node] = []
        self.version = 1

    def draw_integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def draw_floats(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * self.rng.standard_normal(shape)).astype(np.float32)

    def add_node(self, op: str, inputs: tuple[int, ...], shape: Shape, /, **attributes: object) -> int:
        self.nodes.append(Node(op, f"{op} {len(self.nodes)}", inputs, attributes))
        self.shapes.append(shape)
        return len(self.nodes)

    def draw_window(self, h: int, w: int, *, for_pool: bool = False) -> tuple[dict[str, tuple[int, ...]], int, int]:
        """Return a random window for a map of h × w, and the height and width of its output."""
        while True:
            kernel = (self.draw_integer(1, 3), self.draw_integer(1, 3))
            stride, dilation = (
                (self.draw_integer(1, 2), self.draw_integer(1, 2)),
                (self.draw_integer(1, 2), self.draw_integer(1, 2)),
            )
            pad = tuple(self.draw_integer(0, 2) for _ in range(4))
            if for_pool:
                dilation, pad = (1, 1), (0, 0, min(pad[2], kernel[0] - 1), min(pad[3], kernel[1] - 1))
            sizes = [
                (size + pad[i] + pad[i + 2] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
                for i, size in enumerate((h, w))
            ]
            if for_pool and any((sizes[i] - 1) * stride[i] >= size for i, size in enumerate((h, w))):
                continue
            if min(sizes) >= 1:
                return {"kernel": kernel, "stride": stride, "pad": pad, "dilation": dilation}, sizes[0], sizes[1]

    def add_convolution(self, op: str, value: int) -> int:
        h, w, c = self.shapes[value]
        window, y, x = self.draw_window(h, w)
        groups = int(self.rng.choice([g for g in (1, 2, 4) if c % g == 0]))
        out = groups * int(self.rng.choice([1, 3, 8, 17, 64 // groups]))
        num_terms = window["kernel"][0] * window["kernel"][1] * c // groups
        attributes: dict[str, object] = {}
        if op == "conv":
            is_float16 = self.rng.random() < 0.5
            weight = self.draw_floats(out, *window["kernel"], c // groups).astype(
                np.float16 if is_float16 else np.float32
            )
            attributes["weight"] = weight
            if self.rng.random() < 0.5:
                attributes["bias"] = self.draw_floats(out)
        else:
            attributes["weight"] = PackedSigns(pack_signs(self.rng.random((out, num_terms)) < 0.5), num_terms)
            attributes |= {"a": self.draw_floats(out, scale=0.2), "b": self.draw_floats(out, scale=0.2)}
            if self.rng.random() < 0.3:
                attributes["spatial"] = self.draw_floats(y, x, int(self.rng.choice([1, out])))
        if op == "bconv":
            attributes["threshold"] = "mean" if self.rng.random() < 0.2 else self.draw_floats(c, scale=0.2)
            attributes["pad_sign"] = self.draw_integer(-1, 1)
        return self.add_node(op, (value,), (y, x, out), **attributes, **window, groups=groups)

    def add_random_node(self, op: str, value: int) -> int:
        h, w, c = shape = self.shapes[value]
        if op in ("conv", "bconv", "wconv"):
            return self.add_convolution(op, value)
        if op == "affine":
            return self.add_node(op, (value,), shape, a=self.draw_floats(c), b=self.draw_floats(c))
        if op == "prelu":
            return self.add_node(op, (value,), shape, slope=self.draw_floats(c))
        if op == "shift":
            return self.add_node(op, (value,), shape, b=self.draw_floats(c))
        if op == "add" and self.version == 2:
            _, inputs, output_shape = draw_version_2_node(self, "multiply", value)  # broadcasting
            return self.add_node(op, inputs, output_shape)
        if op == "add":
            values_of_same_shape = [i for i, other_shape in enumerate(self.shapes) if other_shape == shape]
            return self.add_node(op, (value, int(self.rng.choice(values_of_same_shape))), shape)
        if op in ("maxpool", "avgpool"):
            keys, y, x = self.draw_window(h, w, for_pool=True)
            del keys["dilation"]
            return self.add_node(op, (value,), (y, x, c), **keys)
        if op == "subsample":
            sy, sx = self.draw_integer(1, 3), self.draw_integer(1, 3)
            return self.add_node(op, (value,), (-(-h // sy), -(-w // sx), c), stride=(sy, sx))
        if op == "channels":
            before, after = self.draw_integer(0, 5), self.draw_integer(0, 5)
            return self.add_node(op, (value,), (h, w, before + c + after), before=before, after=after)
        if TABLE[op].version == 2:
            attributes, inputs, output_shape = draw_version_2_node(self, op, value)
            return self.add_node(op, inputs, output_shape, **attributes)
        output_shape = {"mean": (1, 1, c), "flatten": (1, 1, h * w * c)}.get(op, shape)
        return self.add_node(op, (value,), output_shape)

    def build_model(self, classes: int = 5, *, num_outputs: int = 0) -> BnnModel:
        """Return the model; its logits are the sum of a linear layer for the mean of each unused value.

        With `num_outputs`, the logits and so many random values are the outputs.
        """
        used = {value for node in self.nodes for value in node.inputs}
        total = None
        for value in [v for v in range(len(self.shapes)) if v not in used]:
            c = self.shapes[value][2]
            mean = self.add_node("mean", (value,), (1, 1, c))
            keys = {"kernel": (1, 1), "stride": (1, 1), "pad": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
            weight = self.draw_floats(classes, 1, 1, c)
            score = self.add_node("conv", (mean,), (1, 1, classes), weight=weight, **keys)
            total = score if total is None else self.add_node("add", (total, score), (1, 1, classes))
        c = self.shape[2]
        names = tuple(f"class {i}" for i in range(classes))
        model = BnnModel("test", self.shape, 255.0, (0.5,) * c, (0.25,) * c, names, tuple(self.nodes))
        if not num_outputs:
            return model
        values = [len(self.nodes), *(self.draw_integer(1, len(self.nodes)) for _ in range(num_outputs))]
        return replace(model, outputs=tuple(ModelOutput(f"output {i}", value) for i, value in enumerate(values)))

    def draw_images(self, n: int) -> np.ndarray:
        return self.draw_floats(n, *self.shape)


OP_NAMES = list(TABLE)
VERSION_1_OPS = [op for op, row in TABLE.items() if row.version == 1]
ELEMENTWISE_OPS = ("affine", "add", "hardtanh", "relu", "prelu", "shift")
INEXACT_OPS = {
    "conv",
    "wconv",
    "mean",
    "avgpool",
    "softmax",
    "matmul",
    "normalize",
    "adaptive_avgpool",
}  # the order of float sums and the exponential are not specified


def grow_random_graph(seed: int, version: int = 1) -> RandomGraph:
    """Return a random graph with many binary convolutions and elementwise nodes; most nodes read the last value.

    Version 2 allows all operators.
    """
    graph = RandomGraph(seed)
    graph.version = version
    op_names = VERSION_1_OPS if version == 1 else OP_NAMES
    weights = np.array(
        [6 if op == "bconv" else 3 if op in ELEMENTWISE_OPS else 0.3 if op == "flatten" else 1 for op in op_names]
    )
    for _ in range(graph.draw_integer(3, 14)):
        last = len(graph.shapes) - 1
        value = last if graph.rng.random() < 0.75 else graph.draw_integer(0, last)
        graph.add_random_node(str(graph.rng.choice(op_names, p=weights / weights.sum())), value)
    return graph


def is_close_enough(op: str, value: np.ndarray, expected: np.ndarray) -> bool:
    if op not in INEXACT_OPS:
        return bool(np.array_equal(value, expected, equal_nan=True))
    scale = np.abs(expected).max(initial=1e-3)
    return bool(np.allclose(value, expected, rtol=1e-4, atol=1e-5 * scale))


def assert_engine_equals_reference(model: BnnModel, images: np.ndarray, kernel: str | None = None) -> None:
    """Assert that each node equals the reference for the engine's own inputs, and that all modes give equal logits."""
    data = to_bytes(model)
    unfused, fused = lib.Engine(data, fuse=False, kernel=kernel), lib.Engine(data, kernel=kernel)
    values = [images, *(fused.value(images, i) for i in range(len(model.nodes)))]
    for i, node in enumerate(model.nodes):
        inputs = [values[v] for v in node.inputs]
        if node.op == "bconv":
            expected = reference.compute_accumulators(node, inputs[0])
            assert np.array_equal(fused.accumulators(images, i), expected), node.name
        expected = reference.compute_node(node, inputs, len(images))
        assert values[i + 1].shape == expected.shape
        assert is_close_enough(node.op, values[i + 1], expected), node.name
    for output in list_outputs(model):
        value = values[output.value]
        assert np.array_equal(fused.run_outputs(images)[output.name], value, equal_nan=True)
        assert np.array_equal(fused.run_outputs(images, threads=2)[output.name], value, equal_nan=True)
        assert np.array_equal(fused.run_outputs(images[:1], threads=2)[output.name], value[:1], equal_nan=True)
        assert np.array_equal(unfused.run_outputs(images, threads=3)[output.name], value, equal_nan=True)


def add_chain(graph: RandomGraph, *ops: str) -> None:
    for op in ops:
        graph.add_random_node(op, len(graph.shapes) - 1)
