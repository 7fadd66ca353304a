"""Fold batch norms into the layer before. The products are float64 and are rounded to float32 once at the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lcrbnn.deploy.export.graph.graph_builder import NodeBuilder, find_consumers, raise_export_error

FOLDING_OPS = ("conv", "bconv", "wconv")  # operators that a batch norm can be folded into


def fold_affine_nodes(nodes: Sequence[NodeBuilder]) -> list[NodeBuilder]:
    """Fold affine nodes into the layer before if no other node reads that layer. Return the remaining nodes."""
    consumers = find_consumers(nodes)
    remaining = []
    for node in nodes:
        layer = node.inputs[0] if node.op == "affine" else None
        if layer is None or layer.op not in FOLDING_OPS or len(consumers[layer]) != 1:
            remaining.append(node)
            continue
        _fold_into_layer(layer, node.attributes["a"], node.attributes["b"])
        layer.name += f" + {node.name}"
        layer.torch_functions += node.torch_functions
        for consumer in consumers[node]:
            consumer.inputs = [layer if input_node is node else input_node for input_node in consumer.inputs]
        consumers[layer] = consumers[node]
    return remaining


def _fold_into_layer(layer: NodeBuilder, a: np.ndarray, b: np.ndarray) -> None:
    attributes = layer.attributes
    if layer.op == "conv":
        attributes["weight"] = attributes["weight"] * a[:, None, None, None]
        attributes["bias"] = a * attributes.get("bias", 0.0) + b
    else:
        attributes["a"], attributes["b"] = a * attributes["a"], a * attributes["b"] + b


def round_to_float32(nodes: Sequence[NodeBuilder]) -> None:
    """Round every float64 tensor to float32. Raise InputError if a number is too large."""
    for node in nodes:
        for key, value in node.attributes.items():
            if not isinstance(value, np.ndarray) or value.dtype == np.int32:
                continue
            with np.errstate(over="ignore"):
                node.attributes[key] = np.ascontiguousarray(value, np.float32)
            if not np.isfinite(node.attributes[key]).all():
                raise_export_error(node.name, f"its {key} has numbers that float32 cannot represent")
