"""Each rule of RANGE_RULES, compared with the values that the function returns for random inputs of the range."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.nn.input_ranges import InputRanges, run_for_input_ranges, trace_input_ranges
from lcrbnn.nn.value_ranges import RANGE_RULES, ActivationSite, FunctionCall, ValueRange, join_ranges, to_range

SITE = ActivationSite("f", "", False)
SOURCE = ActivationSite("source", "", False)
RANGES = [(0.0, math.inf), (0.0, 6.0), (0.5, 1.0), (-1.0, 1.0), (-math.inf, math.inf), (-2.0, 0.0), (0.0, 1.0)]


def draw_values(low: float, high: float) -> Tensor:
    """Return random values of a range of shape (2, 4, 4, 4), with finite bounds among them."""
    values = (torch.randn(2, 4, 4, 4, dtype=torch.float64) * 3).clamp(max(low, -1e9), min(high, 1e9))
    for i, bound in enumerate((low, high)):
        if math.isfinite(bound):
            values[:, i, i, i] = bound
    return values


# Name of the rule, the function, and its further arguments.
ONE_INPUT_CALLS = [
    *((name, getattr(F, name), ()) for name in ("relu", "relu6", "hardtanh", "softplus", "sigmoid", "hardsigmoid")),
    *((name, getattr(F, name), ()) for name in ("gelu", "silu", "mish", "hardswish", "elu", "selu", "celu")),
    *((name, getattr(F, name), ()) for name in ("leaky_relu", "softsign", "tanhshrink", "softshrink", "hardshrink")),
    *((name, getattr(torch, name), ()) for name in ("tanh", "exp", "abs", "square", "neg", "erf", "sum", "mean")),
    *((name, getattr(torch, name), ()) for name in ("flatten", "clone", "amax", "amin", "var", "cumsum")[:5]),
    *((f"max_pool{n}d", getattr(F, f"max_pool{n}d"), (2,)) for n in (2, 3)),
    ("softmax", F.softmax, (1,)),
    ("avg_pool2d", F.avg_pool2d, (2,)),
    ("interpolate", lambda x, size, scale, mode: F.interpolate(x, None, scale, mode), (None, 2.0, "bilinear")),
    ("interpolate", lambda x, size, scale, mode: F.interpolate(x, None, scale, mode), (None, 2.0, "bicubic")),
    ("pad", F.pad, ((1, 1), "constant", -1.5)),
    ("pad", F.pad, ((1, 1),)),
    ("pad", F.pad, ((1, 1, 1, 1), "reflect")),
    ("clamp", torch.clamp, (0.25,)),
    ("clamp", torch.clamp, (None, 0.5)),
    ("clamp", torch.clamp, (-0.5, 0.5)),
    ("clamp_min", torch.clamp_min, (-0.75,)),
    ("clamp_max", torch.clamp_max, (-0.75,)),
    ("hardtanh", F.hardtanh, (0.0, 6.0)),
    ("threshold", F.threshold, (0.5, -3.0)),
    ("threshold", F.threshold, (0.0, 0.0)),
    *(("pow", torch.pow, (exponent,)) for exponent in (2, 3, 4)),
    *(("add", torch.add, (number,)) for number in (-0.5, 2.0)),
    *(("sub", torch.sub, (number,)) for number in (0.5, -2.0)),
    *(("mul", torch.mul, (number,)) for number in (-0.5, 2.0, 0.0)),
    *(("div", torch.div, (number,)) for number in (0.5, -2.0, 6.0)),
    ("rsub", torch.rsub, (1.0,)),
]
TWO_INPUT_CALLS = [
    *((name, getattr(torch, name)) for name in ("add", "sub", "mul", "matmul", "maximum", "minimum")),
    ("cat", lambda a, b: torch.cat([a, b])),
    ("where", lambda a, b: torch.where(a > 0.3, a, b)),
]


def call_rule(name: str, *args: object) -> ValueRange:
    if name == "cat":
        args = (list(args),)
    if name == "where":
        args = (ValueRange(), *args)
    return RANGE_RULES[name](FunctionCall(args, {}, SITE))


def assert_in_range(values: Tensor, value_range: ValueRange) -> None:
    assert value_range.low - 1e-9 <= values.min().item()
    assert values.max().item() <= value_range.high + 1e-9


@pytest.mark.parametrize(("name", "function", "arguments"), ONE_INPUT_CALLS)
def test_results_of_one_input_are_in_the_range(
    name: str, function: Callable[..., Tensor], arguments: tuple[object, ...]
) -> None:
    torch.manual_seed(0)
    for low, high in RANGES:
        result = call_rule(name, ValueRange(low, high, frozenset({SOURCE})), *arguments)
        for _ in range(5):
            assert_in_range(function(draw_values(low, high), *arguments), result)


@pytest.mark.parametrize(("name", "function"), TWO_INPUT_CALLS)
def test_results_of_two_inputs_are_in_the_range(name: str, function: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    for first in RANGES:
        for second in RANGES:
            result = call_rule(name, ValueRange(*first), ValueRange(*second))
            assert_in_range(function(draw_values(*first), draw_values(*second)), result)


NON_NEGATIVE_CALLS = ["relu", "relu6", "sigmoid", "hardsigmoid", "softmax", "softplus", "exp", "abs", "square"]


@pytest.mark.parametrize("name", NON_NEGATIVE_CALLS)
def test_non_negative_functions_are_sources(name: str) -> None:
    assert call_rule(name, ValueRange()).is_non_negative
    assert call_rule(name, ValueRange()).sources == {SITE}
    behind_another = call_rule(name, ValueRange(0, 5, frozenset({SOURCE})))
    assert behind_another.sources == {SITE, SOURCE}  # without this function the values are non-negative as well


def test_functions_with_both_signs_are_no_sources() -> None:
    for name in ("tanh", "gelu", "silu", "hardswish", "leaky_relu", "hardtanh"):
        assert call_rule(name, ValueRange()).low < 0
        assert call_rule(name, ValueRange(0, 5, frozenset({SOURCE}))).sources == {SOURCE}
        assert call_rule(name, ValueRange()).sources == set()


def test_only_the_map_of_a_gated_product_is_a_source() -> None:
    gate = ValueRange(0, 1, frozenset({SITE}))
    relu = ValueRange(0, math.inf, frozenset({SOURCE}))
    assert call_rule("mul", relu, gate).sources == {SOURCE}
    assert call_rule("matmul", gate, relu).sources == {SOURCE}
    assert call_rule("mul", gate, gate).sources == {SITE}
    assert not call_rule("mul", ValueRange(), gate).is_non_negative


def test_ranges_of_numbers_and_joined_ranges() -> None:
    assert to_range(2) == ValueRange(2.0, 2.0)
    assert to_range(None) == to_range(torch.ones(1)) == ValueRange()
    assert join_ranges([ValueRange(0, 1), ValueRange(-2, 0.5)]) == ValueRange(-2, 1)
    assert join_ranges([]) == ValueRange()


class OperatorNet(nn.Module):
    """Applies a function to a non-negative map, then a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.relu, self.layer = function, nn.ReLU(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.function(self.relu(x)))


def change_in_place(x: Tensor) -> Tensor:
    x = x - 1
    x.relu_()
    return x


def change_by_function(x: Tensor) -> Tensor:
    x = x - 1
    F.relu(x, inplace=True)
    return x


# Functions of a non-negative map, and whether their result can be negative.
EXPRESSIONS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "x + x": (lambda x: x + x, False),
    "x += 1": (lambda x: operator.iadd(x + 0, 1), False),
    "x * 2": (lambda x: 2 * x, False),
    "x - 1": (lambda x: x - 1, True),
    "1 - x": (lambda x: 1 - x, True),
    "-x": (lambda x: -x, True),
    "x / 3": (lambda x: x / 3, False),
    "1 / (1 + x)": (lambda x: 1 / (1 + x), False),
    "x * x": (lambda x: (x - 1) * (x - 1), True),
    "y * y": (lambda x: (lambda y: y * y)(x - 1), False),
    "x ** 2": (lambda x: (x - 1) ** 2, False),
    "x @ x.T": (lambda x: x @ x.T, False),
    "x.T": (lambda x: x.T.contiguous().mT, False),
    "chunk": (lambda x: torch.cat(x.chunk(2, 1)[::-1], dim=1), False),
    "index": (lambda x: x[:, [0, 1, 2, 3]], False),
    "max": (lambda x: torch.max(x - 1, x), False),
    "relu_": (change_in_place, False),
    "relu inplace": (change_by_function, False),
    "clamp": (lambda x: (x - 1).clamp(min=0), False),
    "clamp_min": (lambda x: (x - 1).clamp_min(0), False),
    "dropout": (lambda x: F.dropout(x, 0.5), False),
    "alpha dropout": (lambda x: F.alpha_dropout(x), True),
    "unknown": (lambda x: torch.sin(x), True),
    "batch norm": (nn.BatchNorm1d(4), True),
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_trace_and_run_find_the_same_ranges(expression: str) -> None:
    function, can_be_negative = EXPRESSIONS[expression]
    model = OperatorNet(function)
    images = torch.randn(4, 4)
    results: list[InputRanges] = [
        trace_input_ranges(model, ["layer"], None),
        run_for_input_ranges(model, ["layer"], images, None),
    ]
    for result in results:
        assert (result.ranges["layer"].low < 0) == can_be_negative
    assert results[0].ranges["layer"].low == results[1].ranges["layer"].low
    assert results[0].ranges["layer"].high == results[1].ranges["layer"].high


def test_a_layer_that_is_called_twice_has_the_joined_range() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor, scale: float | None = None) -> Tensor:
            return self.layer(torch.relu(self.layer(x if scale is None else x * scale)))

    for result in (
        trace_input_ranges(Twice(), ["layer"], None),
        run_for_input_ranges(Twice(), ["layer"], torch.randn(2, 4), None),
    ):
        assert result.ranges["layer"].low == -math.inf


def test_normalization_without_parameters_gives_any_value() -> None:
    model = nn.Sequential(nn.ReLU(), nn.InstanceNorm1d(3), nn.Linear(4, 4))
    assert trace_input_ranges(model, ["2"], None).ranges["2"] == ValueRange()
