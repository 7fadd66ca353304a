"""Export custom modules. torch.fx traces the calls of their forward, and function_rules has a rule for each call.

Modules that the forward calls are exported by their own rules. A forward that depends on the values of a tensor cannot
be traced.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import fx, nn

from lcrbnn.deploy.export.function_rules import FUNCTIONS, find_values
from lcrbnn.deploy.export.graph_builder import GraphBuilder, Value, raise_export_error
from lcrbnn.errors import InputError


class ModuleExporter(Protocol):
    """Type of module_rules.export_module."""

    def __call__(self, builder: GraphBuilder, name: str, module: nn.Module, *inputs: Value) -> Value:
        """Add the nodes of a module and return its output."""


class _InplaceProxy(fx.Proxy):
    """Proxy that records `x += y` separately from `x + y`. The Proxy of fx treats both alike."""

    def __iadd__(self, value: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, value), {})

    def __isub__(self, value: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.isub, (self, value), {})

    def __imul__(self, value: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.imul, (self, value), {})

    def __itruediv__(self, value: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.itruediv, (self, value), {})


class _CallTracer(fx.Tracer):
    """Tracer that records the calls of one forward, but not the calls inside the called modules."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _InplaceProxy(node, self)


def _writes_in_place(call: fx.Node) -> bool:
    """Return whether a function or method overwrites one of its arguments."""
    function_name = call.target if isinstance(call.target, str) else getattr(call.target, "__name__", "")
    if call.op not in ("call_function", "call_method") or function_name.endswith("__"):
        return False
    is_inplace_name = function_name in ("iadd", "isub", "imul", "itruediv") or function_name.endswith("_")
    return (
        is_inplace_name or "out" in call.kwargs or bool(call.kwargs.get("inplace"))
    )  # call.kwargs also contains the positional arguments of a call, because fx passes them by name


def _is_foreign_function(call: fx.Node) -> bool:
    """Return whether a function is from neither PyTorch nor Python, so that its side effects are unknown."""
    return inspect.isfunction(call.target) and str(call.target.__module__).partition(".")[0] != "torch"


def _find_needed_calls(calls: fx.Graph) -> set[fx.Node]:
    """Return the calls on which the output depends, or which may overwrite a tensor that the output needs."""
    needed: set[fx.Node] = set()
    for call in reversed(calls.nodes):
        is_always_needed = (
            call.op in ("output", "placeholder", "call_module") or _writes_in_place(call) or _is_foreign_function(call)
        )
        if is_always_needed or needed & set(call.users):
            needed.add(call)
    return needed


def trace_forward(
    builder: GraphBuilder, name: str, module: nn.Module, inputs: Sequence[Value], export_module: ModuleExporter
) -> Value:
    """Add the nodes of a forward, in the order of its calls, and return its output."""
    rng_state = torch.get_rng_state()
    try:
        calls = _CallTracer().trace(module)
    except Exception as error:  # a forward can raise any error for a proxy input
        error_text = " ".join(str(error).split())[:200]
        raise_export_error(
            name, f"the forward of {type(module).__name__} cannot be traced ({error_text or type(error).__name__})"
        )
    if not torch.equal(rng_state, torch.get_rng_state()):
        raise_export_error(name, f"the forward of {type(module).__name__} draws random numbers")
    needed = _find_needed_calls(calls)
    results: dict[fx.Node, Any] = {}
    unused_inputs = list(inputs)
    for call in calls.nodes:
        if call not in needed:
            continue
        step_name = f"{name}.{call.name}" if name else call.name
        args, kwargs = fx.node.map_arg((call.args, call.kwargs), lambda node: results[node])
        if call.op == "placeholder":
            results[call] = _bind_argument(name, module, call, unused_inputs)
        elif call.op == "get_attr":
            results[call] = operator.attrgetter(str(call.target))(module)
        elif call.op == "call_module":
            path = f"{name}.{call.target}" if name else str(call.target)
            results[call] = export_module(
                builder, path, module.get_submodule(str(call.target)), *_check_module_arguments(path, args, kwargs)
            )
        elif call.op == "output":
            if not isinstance(args[0], Value):
                raise_export_error(
                    name, f"the forward of {type(module).__name__} returns {type(args[0]).__name__}, not one map"
                )
            return args[0]
        else:
            results[call] = _export_call(builder, step_name, call.target, args, kwargs)
            if _writes_in_place(call) and isinstance(results[call], Value):
                results[call] = builder.record_overwrite(
                    step_name, _find_overwritten_value(step_name, args, kwargs), results[call]
                )
    raise AssertionError("a traced forward has an output")


def _find_overwritten_value(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    """Return the value that an in-place function overwrites, which is the first argument of the function."""
    target = args[0] if args else kwargs.get("input")
    if not isinstance(target, Value):
        raise_export_error(name, f"it overwrites a {type(target).__name__}, which is not a map")
    return target


def _bind_argument(name: str, module: nn.Module, call: fx.Node, unused_inputs: list[Value]) -> Any:
    if unused_inputs:
        return unused_inputs.pop(0)
    if not call.args:
        raise_export_error(
            name, f"the forward of {type(module).__name__} needs the argument {call.target!r}, but gets none"
        )
    return call.args[0]  # the default value


def _check_module_arguments(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Value]:
    non_maps = [v for v in (*args, *kwargs.values()) if not isinstance(v, Value)]
    if non_maps or kwargs:
        raise_export_error(name, "it is called with arguments other than positional maps")
    return list(args)


def _export_call(builder: GraphBuilder, name: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the result of a function or method: a Value, or a Python number if no map is involved."""
    function = FUNCTIONS.get(target)
    function_name = target if isinstance(target, str) else getattr(target, "__name__", repr(target))
    values = find_values((*args, *kwargs.values()))
    if not values and getattr(target, "__module__", "") == "_operator":
        try:
            return target(*args, **kwargs)
        except (TypeError, ValueError, ArithmeticError, IndexError):
            raise_export_error(name, f"{function_name} of {args} is not known at export")
    if function is None or not values:
        known_names = sorted({f if isinstance(f, str) else f.__name__ for f in FUNCTIONS})
        raise_export_error(
            name, f"the function {function_name!r} has no export rule; there are rules for {', '.join(known_names)}"
        )
    try:
        return function(builder, name, *args, **kwargs)
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise_export_error(
            name, f"the function {function_name!r} is called with arguments that cannot be exported ({error})"
        )
