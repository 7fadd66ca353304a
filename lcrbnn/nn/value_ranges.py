"""Ranges of the values of feature maps, and RANGE_RULES: how each function of PyTorch changes the range."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ActivationSite:
    """A place in a network that bounds its values, for example a ReLU.

    `module_name` is the module in whose forward method the function is called. `is_module` means that this module is
    an activation of torch.nn and does nothing else.
    """

    function: str
    module_name: str
    is_module: bool


@dataclass(frozen=True)
class ValueRange:
    """The lowest and the highest value that a tensor can have, and the sites because of which it has this bound."""

    low: float = -math.inf
    high: float = math.inf
    sources: frozenset[ActivationSite] = frozenset()

    @property
    def is_non_negative(self) -> bool:
        """Whether no value is below 0."""
        return self.low >= 0

    @property
    def has_one_sign(self) -> bool:
        """Whether no two values have different signs, if 0 counts as both."""
        return self.low >= 0 or self.high <= 0

    @property
    def is_gate(self) -> bool:
        """Whether all values lie between 0 and 1. A map is usually multiplied by such values to weight it."""
        return self.low >= 0 and self.high <= 1


ANY_VALUE = ValueRange()


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function, in whose arguments each tensor is replaced by its ValueRange."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    site: ActivationSite

    def get(self, index: int, name: str, default: Any = None) -> Any:
        """Return an argument by its position or its name."""
        return self.args[index] if len(self.args) > index else self.kwargs.get(name, default)

    def get_range(self, index: int, name: str) -> ValueRange:
        """Return the range of an argument."""
        return to_range(self.get(index, name))

    @property
    def input_range(self) -> ValueRange:
        """The range of the first argument."""
        return self.get_range(0, "input")


Rule = Callable[[FunctionCall], ValueRange]


def to_range(value: Any) -> ValueRange:
    """Return the range of an argument. A number is its own range, and everything else can have any value."""
    if isinstance(value, ValueRange):
        return value
    if isinstance(value, int | float):
        return ValueRange(float(value), float(value))
    return ANY_VALUE


def iter_ranges(value: Any) -> Iterator[ValueRange]:
    """Yield the ranges of all tensors in an argument."""
    if isinstance(value, ValueRange):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from iter_ranges(item)


def join_ranges(ranges: Iterable[ValueRange]) -> ValueRange:
    """Return the smallest range that contains all ranges, with the sources of all of them."""
    items = list(ranges)
    if not items:
        return ANY_VALUE
    return ValueRange(min(r.low for r in items), max(r.high for r in items), _join_sources(items))


def _join_sources(ranges: Iterable[ValueRange]) -> frozenset[ActivationSite]:
    return frozenset().union(*(r.sources for r in ranges))


def _keep_range(call: FunctionCall) -> ValueRange:
    return join_ranges(iter_ranges(call.args[:1] or (call.kwargs.get("input"),)))


def _keep_non_negative(call: FunctionCall) -> ValueRange:
    """Return the range after a function with the sign of its input, such as tanh, or after a sum."""
    x = call.input_range
    return ValueRange(0, math.inf, x.sources) if x.is_non_negative else ANY_VALUE


def _limit(x: ValueRange, low: float, high: float, site: ActivationSite) -> ValueRange:
    """Return the range after a clamp. The site is a source only if its own bounds allow no change of sign."""
    sources = x.sources if x.has_one_sign else frozenset()
    if low >= 0 or high <= 0:
        sources |= {site}
    return ValueRange(min(max(x.low, low), high), max(min(x.high, high), low), sources)


def _limit_to(low: float, high: float) -> Rule:
    return lambda call: _limit(call.input_range, low, high, call.site)


def _bound(low: float, high: float) -> Rule:
    """Return the rule of a function whose results lie between two values, and anywhere between them."""
    return lambda call: ValueRange(
        low, high, (call.input_range.sources if call.input_range.has_one_sign else frozenset()) | {call.site}
    )


def _clamp(call: FunctionCall) -> ValueRange:
    low, high = call.get(1, "min"), call.get(2, "max")
    return _limit(
        call.input_range,
        -math.inf if low is None else to_range(low).low,
        math.inf if high is None else to_range(high).high,
        call.site,
    )


def _hardtanh(call: FunctionCall) -> ValueRange:
    low, high = call.get(1, "min_val", -1.0), call.get(2, "max_val", 1.0)
    return _limit(call.input_range, to_range(low).low, to_range(high).high, call.site)


def _threshold(call: FunctionCall) -> ValueRange:
    """Return the range of x where x > threshold, and of the value elsewhere."""
    threshold, value = call.get_range(1, "threshold"), call.get_range(2, "value")
    x = _limit(call.input_range, threshold.low, math.inf, call.site)
    return ValueRange(min(x.low, value.low), max(x.high, value.high), x.sources)


def _add(call: FunctionCall) -> ValueRange:
    a, b = call.input_range, call.get_range(1, "other")
    return ValueRange(a.low + b.low, a.high + b.high, _join_sources((a, b)))


def _negate(x: ValueRange) -> ValueRange:
    return ValueRange(-x.high, -x.low, x.sources)


def _subtract(call: FunctionCall) -> ValueRange:
    a, b = call.input_range, _negate(call.get_range(1, "other"))
    return ValueRange(a.low + b.low, a.high + b.high, _join_sources((a, b)))


def _reverse(rule: Rule) -> Rule:
    """Return the rule for exchanged arguments, as in Tensor.__rsub__."""
    return lambda call: rule(FunctionCall((call.args[1], call.args[0], *call.args[2:]), call.kwargs, call.site))


def _find_product_sources(factors: tuple[ValueRange, ValueRange]) -> frozenset[ActivationSite]:
    """Return the sources of the factors that are not gates: without these, the product could be negative."""
    return _join_sources([factor for factor in factors if not factor.is_gate] or factors)


def _multiply_values(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _multiply(call: FunctionCall) -> ValueRange:
    a, b = call.input_range, call.get_range(1, "other")
    products = [_multiply_values(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return ValueRange(min(products), max(products), _find_product_sources((a, b)))


def _divide(call: FunctionCall) -> ValueRange:
    a, b = call.input_range, call.get_range(1, "other")
    if b.low > 0:
        quotients = [0.0 if math.isinf(y) else x / y for x in (a.low, a.high) for y in (b.low, b.high)]
        return ValueRange(min(quotients), max(quotients), a.sources)
    return ValueRange(0, math.inf, a.sources) if a.is_non_negative and b.is_non_negative else ANY_VALUE


def _multiply_matrices(call: FunctionCall) -> ValueRange:
    a, b = call.input_range, call.get_range(1, "other")
    if not (a.is_non_negative and b.is_non_negative):
        return ANY_VALUE
    return ValueRange(0, math.inf, _find_product_sources((a, b)))


def _raise_to_power(call: FunctionCall) -> ValueRange:
    exponent = call.get(1, "exponent")
    if isinstance(exponent, int | float) and exponent % 2 == 0:
        return _bound(0, math.inf)(call)
    return _keep_non_negative(call)


def _join_values(call: FunctionCall) -> ValueRange:
    """Return the range of a concatenation, or of a choice between tensors."""
    return join_ranges(iter_ranges([*call.args, *call.kwargs.values()]))


def _choose(call: FunctionCall) -> ValueRange:
    return join_ranges([call.get_range(1, "input"), call.get_range(2, "other")])


def _pad(call: FunctionCall) -> ValueRange:
    if call.get(2, "mode", "constant") != "constant":
        return call.input_range
    value = call.get(3, "value")
    return join_ranges([call.input_range, to_range(0.0 if value is None else value)])


def _interpolate(call: FunctionCall) -> ValueRange:
    return ANY_VALUE if call.get(3, "mode", "nearest") == "bicubic" else call.input_range  # bicubic overshoots


def _pick_extreme(pick: Callable[[float, float], float]) -> Rule:
    """Return the rule of a maximum or minimum: of two tensors, or of a tensor along axes."""

    def apply(call: FunctionCall) -> ValueRange:
        other = call.get(1, "other")
        if not isinstance(other, ValueRange):
            return call.input_range
        x = call.input_range
        return ValueRange(pick(x.low, other.low), pick(x.high, other.high), _join_sources((x, other)))

    return apply


def _for_each(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


# Each function by its name, without leading and trailing underscores. Other functions can return any value.
RANGE_RULES: dict[str, Rule] = {
    **_for_each("flatten unflatten view view_as reshape reshape_as permute transpose t movedim swapaxes", _keep_range),
    **_for_each("contiguous clone detach to float half double bfloat16 type type_as cuda cpu", _keep_range),
    **_for_each("squeeze unsqueeze expand expand_as repeat repeat_interleave tile roll flip rot90", _keep_range),
    **_for_each("getitem getattr get chunk split unbind tensor_split narrow select", _keep_range),
    **_for_each("index_select gather masked_select take_along_dim sort topk unfold", _keep_range),
    **_for_each("mean median amax amin quantile", _keep_range),
    **_for_each("max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d", _keep_range),
    **_for_each("max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices", _keep_range),
    **_for_each("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d lp_pool1d lp_pool2d", _keep_range),
    **_for_each("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d", _keep_range),
    **_for_each("dropout dropout1d dropout2d dropout3d", _keep_range),
    **_for_each("pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle", _keep_range),
    **_for_each("tanh leaky_relu elu selu celu gelu silu mish hardswish softsign rrelu prelu", _keep_non_negative),
    **_for_each("tanhshrink softshrink hardshrink erf asinh sqrt log1p expm1", _keep_non_negative),
    **_for_each("sum cumsum cumprod prod fold", _keep_non_negative),
    "relu": _limit_to(0, math.inf),
    "relu6": _limit_to(0, 6),
    **_for_each("clamp clip", _clamp),
    "clamp_min": lambda call: _limit(call.input_range, call.get_range(1, "min").low, math.inf, call.site),
    "clamp_max": lambda call: _limit(call.input_range, -math.inf, call.get_range(1, "max").high, call.site),
    "hardtanh": _hardtanh,
    "threshold": _threshold,
    **_for_each("sigmoid hardsigmoid softmax softmin gumbel_softmax expit heaviside", _bound(0, 1)),
    **_for_each("softplus exp exp2 abs absolute square var std norm vector_norm", _bound(0, math.inf)),
    **_for_each("pow ipow", _raise_to_power),
    **_for_each("add iadd radd", _add),
    **_for_each("sub isub subtract", _subtract),
    "rsub": _reverse(_subtract),
    **_for_each("neg negative", lambda call: _negate(call.input_range)),
    **_for_each("mul imul rmul multiply", _multiply),
    **_for_each("div truediv itruediv divide", _divide),
    **_for_each("rdiv rtruediv", _reverse(_divide)),
    **_for_each("matmul bmm mm imatmul", _multiply_matrices),
    **_for_each("cat concat concatenate stack hstack vstack", _join_values),
    "where": _choose,
    "pad": _pad,
    **_for_each("interpolate upsample", _interpolate),
    **_for_each("max maximum", _pick_extreme(max)),
    **_for_each("min minimum", _pick_extreme(min)),
    # Attention returns weighted means of the values, its third argument.
    "scaled_dot_product_attention": lambda call: call.get_range(2, "value"),
}

PRODUCTS = {name for name, rule in RANGE_RULES.items() if rule in (_multiply, _multiply_matrices)}
