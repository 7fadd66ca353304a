"""LAYER_RULES has one export rule per layer type without submodules. A new layer type needs a function and a row."""

from __future__ import annotations

from torch import nn

from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, Value
from lcrbnn.deploy.export.rules.activation_rules import ACTIVATION_MODULES, LayerRule
from lcrbnn.deploy.export.rules.linear_rules import LINEAR_MODULES
from lcrbnn.deploy.export.rules.norm_rules import NORM_MODULES
from lcrbnn.deploy.export.rules.padding_rules import PADDING_MODULES
from lcrbnn.deploy.export.rules.pooling_rules import POOLING_MODULES
from lcrbnn.deploy.export.rules.view_rules import VIEW_MODULES


def _export_nothing(builder: GraphBuilder, name: str, module: nn.Module, x: Value) -> Value:
    return x


LAYER_RULES: dict[type[nn.Module], LayerRule] = {
    **LINEAR_MODULES,
    **NORM_MODULES,
    **ACTIVATION_MODULES,
    **POOLING_MODULES,
    **PADDING_MODULES,
    **VIEW_MODULES,
    nn.Identity: _export_nothing,
    nn.Dropout: _export_nothing,
    nn.Dropout1d: _export_nothing,
    nn.Dropout2d: _export_nothing,
    nn.AlphaDropout: _export_nothing,
}
