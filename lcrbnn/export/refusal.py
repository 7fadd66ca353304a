"""Which methods can be exported: asked of the exporter itself, with a layer of each."""

from __future__ import annotations

from torch import nn

from lcrbnn.errors import InputError
from lcrbnn.export.model import Input, export_model
from lcrbnn.layers import BinaryConv2d, fit
from lcrbnn.methods import Method


def refusal(chosen: Method) -> str:
    """Why a layer of this method, with its bits and options, cannot be exported; empty if it can."""
    net = nn.Sequential(BinaryConv2d(2, 2, 3, padding=1, method=chosen), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    fit(net, (1, 2, 4, 4))
    try:
        export_model(net, Input((4, 4, 2), ("a", "b")), "trial")
    except InputError as error:
        return str(error).partition("cannot be exported: ")[2] or str(error)
    return ""
