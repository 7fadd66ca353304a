"""Rules for padding: the elements of a tensor around itself, or a constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, Value, raise_export_error
from lcrbnn.deploy.export.graph.layouts import FILL
from lcrbnn.deploy.export.rules.activation_rules import LayerRule, require_map
from lcrbnn.deploy.export.rules.arithmetic_rules import FunctionRow
from lcrbnn.deploy.export.rules.view_rules import select_elements
from lcrbnn.nn.models.blocks import PadChannels


def pad_map(
    builder: GraphBuilder, name: str, x: Value, pads: Sequence[int], mode: str, value: float | None = None
) -> Value:
    """Return a tensor padded as F.pad does."""
    pads = [int(pad) for pad in pads]
    if mode == "constant" and _pads_images(x, pads):
        raise_export_error(name, "it pads along the axis of the images")

    def pad(numbers: Tensor) -> Tensor:
        return F.pad(numbers, pads, mode, FILL if mode == "constant" else None)

    fill = float(value or 0) if mode == "constant" else None
    return select_elements(builder, name, x, pad, fill=fill)


def _pads_images(x: Value, pads: Sequence[int]) -> bool:
    """Return whether constant padding extends the axis of the images."""
    first = 2 * (len(x.torch_shape) - 1 - x.layout.batch_axis)
    return any(pads[first : first + 2])


def export_pad_channels(builder: GraphBuilder, name: str, module: PadChannels, x: Value) -> Value:
    """Add a node that adds zero channels."""
    x = require_map(builder, name, x, None)
    h, w, c = x.shape
    shape = (h, w, module.before + c + module.after)
    return builder.add_node("channels", name, x, shape, before=module.before, after=module.after)


def _export_pad(
    builder: GraphBuilder, name: str, input: Value, pad: Any, mode: str = "constant", value: float | None = None
) -> Value:
    """Export zero channels as a node of their own, and any other padding as a selection of elements."""
    is_map = builder.resolve(input, name).layout.is_map
    if is_map and mode == "constant" and not value and len(pad) == 6 and not any(pad[:4]) and min(pad) >= 0:
        return export_pad_channels(builder, name, PadChannels.from_counts(pad[4], pad[5]), input)
    return pad_map(builder, name, input, pad, mode, value)


def _export_pad_module(builder: GraphBuilder, name: str, module: Any, x: Value) -> Value:
    modes = {"Reflection": "reflect", "Replication": "replicate", "Circular": "circular"}
    mode = next((m for start, m in modes.items() if type(module).__name__.startswith(start)), "constant")
    return pad_map(builder, name, x, module.padding, mode, getattr(module, "value", 0.0))


PAD_KINDS = ("ZeroPad", "ConstantPad", "ReflectionPad", "ReplicationPad", "CircularPad")
PADDING_MODULES: dict[type[nn.Module], LayerRule] = {
    PadChannels: export_pad_channels,
    **{getattr(nn, f"{kind}{rank}d"): _export_pad_module for kind in PAD_KINDS for rank in (1, 2)},
}

PADDING_ROWS: list[FunctionRow] = [((F.pad,), _export_pad)]
