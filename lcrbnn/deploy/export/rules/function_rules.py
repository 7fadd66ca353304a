"""FUNCTIONS has one export rule per function or tensor method that a custom forward may call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F

from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, Value
from lcrbnn.deploy.export.rules.activation_rules import ACTIVATION_ROWS
from lcrbnn.deploy.export.rules.arithmetic_rules import ARITHMETIC_ROWS, FunctionRow
from lcrbnn.deploy.export.rules.attention_rules import MATRIX_ROWS
from lcrbnn.deploy.export.rules.linear_rules import LINEAR_ROWS
from lcrbnn.deploy.export.rules.norm_rules import NORM_ROWS
from lcrbnn.deploy.export.rules.padding_rules import PADDING_ROWS
from lcrbnn.deploy.export.rules.pooling_rules import POOLING_ROWS
from lcrbnn.deploy.export.rules.reduction_rules import REDUCTION_ROWS
from lcrbnn.deploy.export.rules.view_rules import VIEW_ROWS

# A rule takes the builder, the name of the node, and the arguments of the function, with maps replaced by Values.
FunctionRule = Callable[..., Any]


def find_values(args: Sequence[Any]) -> list[Value]:
    """Return the values among the arguments, including those inside lists and tuples."""
    flattened = [v for argument in args for v in (argument if isinstance(argument, tuple | list) else (argument,))]
    return [v for v in flattened if isinstance(v, Value)]


def _export_dropout(
    builder: GraphBuilder, name: str, input: Value, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Value:
    if training:
        raise ValueError("training=True would also drop elements in evaluation")
    return input


_FUNCTION_ROWS: list[FunctionRow] = [
    *ARITHMETIC_ROWS,
    *ACTIVATION_ROWS,
    *LINEAR_ROWS,
    *NORM_ROWS,
    *POOLING_ROWS,
    *PADDING_ROWS,
    *REDUCTION_ROWS,
    *MATRIX_ROWS,
    *VIEW_ROWS,
    ((F.dropout, F.dropout2d), _export_dropout),
]
FUNCTIONS: dict[Any, FunctionRule] = {target: function for targets, function in _FUNCTION_ROWS for target in targets}
