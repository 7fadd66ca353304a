"""Compare an exported model with its PyTorch network, first layer by layer, then prediction by prediction.

Each layer gets PyTorch's own input. Its integer sums must equal PyTorch's, and so must every later sign that depends on
these sums alone. Other signs depend on float sums, which PyTorch adds in another order. Such a sign may differ if its
number is close to the threshold. This module measures the distance; the caller decides whether it is acceptable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lcrbnn.deploy.engine import reference
from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.deploy.engine.graph import BnnModel, Node
from lcrbnn.deploy.engine.operators import OPERATORS, find_version_2_feature, infer_shapes
from lcrbnn.deploy.engine.runtime import Engine
from lcrbnn.deploy.export.graph.adjust_rounding import ELEMENTWISE_OPS, SELECTION_OPS
from lcrbnn.deploy.export.graph.graph_builder import channels_first_index
from lcrbnn.deploy.export.graph.torch_activations import (
    RecordedActivations,
    find_torch_value,
    record_activations,
    source_module_name,
    to_channels_last,
    to_format_order,
)
from lcrbnn.errors import InputError

LAYER_OPS = ("conv", "bconv", "wconv")
TORCH_BATCH_SIZE = 50  # number of images per forward pass of PyTorch

# Function that returns the value of a node for its inputs, and the integer sums if the node is a bconv.
RunNode = Callable[[Node, Sequence[np.ndarray]], tuple[np.ndarray, np.ndarray | None]]


class SignMismatch(NamedTuple):
    """Signs of a layer's input that differ from PyTorch's, and the largest distance of their numbers to the threshold.

    `max_magnitude` is the largest absolute value of the map, at least 1. Rounding errors are relative to it.
    """

    node: str
    num_signs: int
    max_distance: float
    max_magnitude: float


@dataclass
class LayerComparison:
    """Result of a comparison layer by layer. `faults` must be empty. The caller judges the other differences."""

    num_nodes: int = 0
    num_sums: int = 0  # number of compared integer sums
    num_signs: int = 0  # number of compared signs, including those that depend on integer sums alone
    faults: list[str] = field(default_factory=list)
    sign_mismatches: list[SignMismatch] = field(default_factory=list)
    # Maximum difference of real values, relative to the largest magnitude (at least 1)
    max_relative_difference: float = 0.0


class PredictionMismatch(NamedTuple):
    """An image with another predicted class, and the first layer with differing signs, if any."""

    image: int
    first_sign_mismatch: SignMismatch | None
    logit_gap: float  # difference between the two largest logits of the exported model


def run_node_with_reference(node: Node, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
    """Return a node's value by the reference implementation, and the integer sums if the node is a bconv."""
    sums = reference.compute_accumulators(node, inputs[0]) if node.op == "bconv" else None
    with np.errstate(all="ignore"):
        return reference.OPERATOR_FUNCTIONS[node.op](node, *inputs), sums


def run_node_with_engine(node: Node, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
    """Return a node's value by the compiled engine, which runs it as a model. `add` uses the reference."""
    if len(inputs) > 1:
        return run_node_with_reference(node, inputs)
    (h, w, c), nodes = (
        inputs[0].shape[1:],
        (Node(node.op, node.name, (0,), node.attributes), Node("mean", "mean", (1,), {})),
    )
    output_shape = OPERATORS[node.op].infer_shape(node.attributes, [(h, w, c)])
    model = BnnModel("layer", (h, w, c), 1.0, (0.0,) * c, (1.0,) * c, ("",) * output_shape[2], nodes)
    with Engine(to_bytes(model)) as engine:
        sums = engine.accumulators(inputs[0], 0) if node.op == "bconv" else None
        return engine.value(inputs[0], 0), sums


def compare_layers(net: nn.Module, model: BnnModel, images: Tensor, run_node: RunNode) -> LayerComparison:
    """Compare each layer of the exported model with PyTorch up to the next signs. The inputs are those of PyTorch."""
    with record_activations(net) as recorded:
        logits = net(images)
    return compare_recorded_layers(recorded, logits, model, images, run_node)


def compare_recorded_layers(
    recorded: RecordedActivations, logits: Tensor, model: BnnModel, images: Tensor, run_node: RunNode
) -> LayerComparison:
    """Compare each layer with PyTorch's recorded activations for the same images, as compare_layers does."""
    check_version_1(model)
    comparison = LayerComparison()
    # Values of PyTorch; if no module computes a value, the value of the exported model
    torch_values = [to_channels_last(images)]
    model_values = list(torch_values)  # values that the exported model computes from PyTorch's input of the last layer
    feature_orders: list[np.ndarray | None] = [None]
    source_ops = [""]  # operator that computes each value, traced back through elementwise and selection operators
    for node in model.nodes:
        input_index = node.inputs[0]
        if node.op == "bconv":
            _compare_signs(
                node,
                model_values[input_index],
                recorded,
                feature_orders[input_index],
                source_ops[input_index] == "bconv",
                comparison,
            )
        keeps_source = node.op in (*ELEMENTWISE_OPS, *SELECTION_OPS, "flatten", "channels")
        uses_model_value = [keeps_source or (node.op == "add" and source_ops[i] in LAYER_OPS) for i in node.inputs]
        inputs = [
            (model_values if from_model else torch_values)[i]
            for i, from_model in zip(node.inputs, uses_model_value, strict=True)
        ]
        value, sums = run_node(node, inputs)
        if sums is not None:
            _compare_sums(node, inputs[0], sums, recorded, feature_orders[input_index], comparison)
        feature_order = None if "kernel" in node.attributes else feature_orders[input_index]
        feature_orders.append(channels_first_index(inputs[0].shape[1:]) if node.op == "flatten" else feature_order)
        source_ops.append(source_ops[input_index] if keeps_source else node.op)
        torch_value = find_torch_value(node, recorded, feature_orders[-1], value.shape)
        if torch_value is not None:
            comparison.max_relative_difference = max(
                comparison.max_relative_difference,
                float(np.abs(value - torch_value).max() / max(1, np.abs(torch_value).max())),
            )
        model_values.append(value)
        torch_values.append(value if torch_value is None else torch_value)
        comparison.num_nodes += 1
    if not np.array_equal(torch_values[-1], to_channels_last(logits)):
        comparison.faults.append("the last value of the model does not correspond to the output of the network")
    return comparison


def check_version_1(model: BnnModel) -> None:
    """Raise InputError for a model that version 1 of the format cannot store: its values are not those of modules."""
    feature = find_version_2_feature(model, infer_shapes(model))
    if feature is not None:
        raise InputError(
            f"only models of version 1 can be compared layer by layer, but this one has {feature}; compare its outputs"
        )


def _compare_signs(
    node: Node,
    x: np.ndarray,
    recorded: RecordedActivations,
    feature_order: np.ndarray | None,
    depends_on_sums_only: bool,
    comparison: LayerComparison,
) -> None:
    """Compare the signs that a layer takes of the exported model's value with PyTorch's signs."""
    mismatch = find_sign_mismatch(
        node, x, to_format_order(recorded.signs[source_module_name(node)], feature_order, x.shape)
    )
    comparison.num_signs += x.size
    if mismatch and depends_on_sums_only and not isinstance(node.attributes["threshold"], str):
        comparison.faults.append(
            f"{node.name}: {mismatch.num_signs} signs that depend on sums alone differ from PyTorch's"
        )
    elif mismatch:
        comparison.sign_mismatches.append(mismatch)


def _compare_sums(
    node: Node,
    x: np.ndarray,
    sums: np.ndarray,
    recorded: RecordedActivations,
    feature_order: np.ndarray | None,
    comparison: LayerComparison,
) -> None:
    """Compare the signs of PyTorch's own input, and the integer sums, with PyTorch's."""
    module_name = source_module_name(node)
    torch_signs = to_format_order(recorded.signs[module_name], feature_order, x.shape)
    mismatch = find_sign_mismatch(node, x, torch_signs)
    has_equal_signs = np.ones(len(x), bool)
    # A threshold "mean" may differ, because PyTorch computes the mean in float32
    if mismatch and isinstance(node.attributes["threshold"], str):
        comparison.sign_mismatches.append(mismatch)
        has_equal_signs = (reference.compute_signs(node, x) == torch_signs).reshape(len(x), -1).all(1)
    elif mismatch:
        comparison.faults.append(f"{node.name}: {mismatch.num_signs} signs of the same numbers differ from PyTorch's")
    comparison.num_sums += sums[has_equal_signs].size
    if not np.array_equal(
        sums[has_equal_signs], to_channels_last(recorded.sums[module_name]).reshape(sums.shape)[has_equal_signs]
    ):
        comparison.faults.append(f"{node.name}: sums differ from PyTorch's")


def find_sign_mismatch(node: Node, x: np.ndarray, torch_signs: np.ndarray) -> SignMismatch | None:
    """Return how a layer's signs of x differ from PyTorch's signs, or None if all signs are equal."""
    differs = reference.compute_signs(node, x) != torch_signs
    if not differs.any():
        return None
    threshold = node.attributes["threshold"]
    if isinstance(threshold, str):
        threshold = x.mean(axis=(1, 2, 3), dtype=np.float64, keepdims=True)
    distance = np.abs(x - threshold)[differs].max()
    return SignMismatch(node.name, int(differs.sum()), float(distance), max(1.0, float(np.abs(x).max())))


def predict_with_torch(net: nn.Module, images: Tensor) -> np.ndarray:
    """Return PyTorch's logits, (n, classes), computed in batches of TORCH_BATCH_SIZE."""
    with torch.no_grad():
        return torch.cat([net(batch) for batch in images.split(TORCH_BATCH_SIZE)]).numpy()


def trace_mismatches(
    net: nn.Module, model: BnnModel, images: Tensor, torch_logits: np.ndarray, engine_logits: np.ndarray
) -> list[PredictionMismatch]:
    """Return for each image with another predicted class the first layer whose signs differ.

    `torch_logits` must come from predict_with_torch, because PyTorch's sums can depend on the batch.
    """
    check_version_1(model)
    differing_images = np.flatnonzero(torch_logits.argmax(1) != engine_logits.argmax(1))
    mismatches: list[PredictionMismatch] = []
    with Engine(to_bytes(model), fuse=False) as engine:
        for start in sorted({int(i) // TORCH_BATCH_SIZE * TORCH_BATCH_SIZE for i in differing_images}):
            batch = images[start : start + TORCH_BATCH_SIZE]  # the same batches as in predict_with_torch
            with record_activations(net) as recorded:
                net(batch)
            for image in differing_images[(differing_images >= start) & (differing_images < start + TORCH_BATCH_SIZE)]:
                largest_logits = np.sort(engine_logits[image])[-2:]
                mismatches.append(
                    PredictionMismatch(
                        int(image),
                        _find_first_sign_mismatch(engine, model, batch, recorded, image - start),
                        float(largest_logits[1] - largest_logits[0]),
                    )
                )
    return mismatches


def _find_first_sign_mismatch(
    engine: Engine, model: BnnModel, images: Tensor, recorded: RecordedActivations, index: int
) -> SignMismatch | None:
    """Return the first layer with a differing sign for one image. All signs before this layer are equal."""
    image_array = to_channels_last(images[index : index + 1])
    feature_orders: list[np.ndarray | None] = [None]
    for node in model.nodes:
        input_index = node.inputs[0]
        if node.op == "bconv":
            x = image_array if input_index == 0 else engine.value(image_array, input_index - 1)
            torch_signs = recorded.signs[source_module_name(node)][index : index + 1]
            mismatch = find_sign_mismatch(node, x, to_format_order(torch_signs, feature_orders[input_index], x.shape))
            if mismatch:
                return mismatch
        shape = engine.shape if input_index == 0 else engine.nodes[input_index - 1].shape
        feature_order = None if "kernel" in node.attributes else feature_orders[input_index]
        feature_orders.append(channels_first_index(shape) if node.op == "flatten" else feature_order)
    return None
