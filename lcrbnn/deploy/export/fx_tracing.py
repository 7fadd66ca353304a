"""Export custom modules. torch.fx traces the calls of their forward, and function_rules has a rule for each call.

Each call is exported when the forward makes it. The forward therefore knows the shape of every map, and it can depend
on shapes. A forward that depends on the values of a map cannot be traced. Modules that the forward calls are exported
by their own rules.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn

from lcrbnn.deploy.export.alternatives import find_alternatives
from lcrbnn.deploy.export.graph.batch_size import BatchSize
from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, Value, raise_export_error
from lcrbnn.deploy.export.rules.constant_calls import call_with_constants
from lcrbnn.deploy.export.rules.function_rules import FUNCTIONS, find_values
from lcrbnn.errors import InputError

# Attributes of a tensor that a forward may read. All other attributes of a proxy are methods.
ATTRIBUTES = ("shape", "ndim", "dtype", "device", "T", "mT", "data", "requires_grad", "is_cuda", "values", "indices")


class ModuleExporter(Protocol):
    """Type of module_rules.export_module."""

    def __call__(self, builder: GraphBuilder, name: str, module: nn.Module, *inputs: Any, **options: Any) -> Any:
        """Add the nodes of a module and return its output."""


class _InplaceProxy(fx.Proxy):
    """Proxy that records `x += y` separately from `x + y`, which plain fx treats alike, and evaluates attributes."""

    def __getattr__(self, k: str) -> Any:
        if k in ATTRIBUTES:
            return self.tracer.create_proxy("call_function", getattr, (self, k), {})
        return super().__getattr__(k)

    def __len__(self) -> int:
        return len(self.tracer.unpack(self))  # type: ignore[attr-defined]  # its tracer is an _ExportingTracer

    def __iadd__(self, value: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, value), {})

    def __isub__(self, value: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.isub, (self, value), {})

    def __imul__(self, value: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.imul, (self, value), {})

    def __itruediv__(self, value: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.itruediv, (self, value), {})


class _ExportingTracer(fx.Tracer):
    """Tracer that exports each call as the forward makes it, and does not enter the modules that it calls.

    A function that cannot be exported is refused only if its result is used, because a forward may compute more than it
    needs. Until then its result is the error.
    """

    proxy_buffer_attributes = True

    def __init__(
        self, builder: GraphBuilder, name: str, module: nn.Module, inputs: Sequence[Any], options: dict[str, Any],
        export_module: ModuleExporter,
    ) -> None:  # fmt: skip
        """Store what the calls need."""
        super().__init__()
        self.builder, self.module_name, self.module, self.export_module = builder, name, module, export_module
        self.arguments = self._bind_arguments(inputs, options)
        self.results: dict[fx.Node, Any] = {}
        self.is_exporting = False  # in a rule, modules and their attributes are not traced

    def _bind_arguments(self, inputs: Sequence[Any], options: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the forward by name."""
        try:
            return inspect.signature(type(self.module).forward).bind_partial(self.module, *inputs, **options).arguments
        except TypeError as error:
            raise_export_error(
                self.module_name, f"the forward of {type(self.module).__name__} cannot take its arguments ({error})"
            )

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _InplaceProxy(node, self)

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return forward(*args, **kwargs) if self.is_exporting else super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        return attr_val if self.is_exporting else super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, BatchSize) or (isinstance(a, Tensor) and not isinstance(a, nn.Parameter)):
            return a  # plain fx would store a tensor in the module
        return super().create_arg(a)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *names: Any, **options: Any) -> Any:
        proxy = super().create_proxy(kind, target, args, kwargs, *names, **options)
        was_exporting, self.is_exporting = self.is_exporting, True
        try:
            self.results[proxy.node] = self._export_node(proxy.node)
        finally:
            self.is_exporting = was_exporting
        # A list or dict stays one proxy if it is an argument: fx would take it for several arguments.
        is_argument = kind == "placeholder" and isinstance(self.results[proxy.node], tuple | list | dict)
        return proxy if is_argument else self._make_result(proxy)

    def _make_result(self, proxy: fx.Proxy) -> Any:
        """Return a proxy for tensors, and everything else as it is."""
        result = self.results[proxy.node]
        if isinstance(result, tuple | list) and find_tensors(result):
            items = [self._get_item(proxy, index) for index in range(len(result))]
            return type(result)(*items) if hasattr(result, "_fields") else tuple(items)
        return proxy if isinstance(result, Value | Tensor | InputError) else result

    def _get_item(self, proxy: fx.Proxy, index: int) -> Any:
        item = super().create_proxy("call_function", operator.getitem, (proxy, index), {})
        self.results[item.node] = self.results[proxy.node][index]
        return self._make_result(item)

    def _export_node(self, call: fx.Node) -> Any:
        args, kwargs = fx.node.map_arg((call.args, call.kwargs), lambda node: self.results[node])
        errors = [item for item in flatten_arguments((args, kwargs)) if isinstance(item, InputError)]
        is_always_needed = (call.op != "call_function" and call.op != "call_method") or _may_write(call)
        if errors and is_always_needed:
            raise errors[0]
        try:
            return errors[0] if errors else self._export_call(call, args, kwargs)
        except InputError as error:
            if is_always_needed:
                raise
            return error

    def _export_call(self, call: fx.Node, args: Any, kwargs: Any) -> Any:
        name: str = self.module_name
        target: Any = call.target
        step_name = f"{name}.{call.name}" if name else call.name
        if call.op == "placeholder":
            return self._bind_argument(call)
        if call.op == "get_attr":
            return operator.attrgetter(str(target))(self.module)
        if call.op == "call_module":
            path = f"{name}.{target}" if name else str(target)
            return self.export_module(self.builder, path, self.module.get_submodule(str(target)), *args, **kwargs)
        if getattr(target, "__module__", "") == "_operator" and args and isinstance(args[0], tuple | list | dict):
            return target(*args, **kwargs)
        overwritten = _find_overwritten_value(step_name, args, kwargs) if _writes_in_place(call) else None
        export = partial(_export_function, self.builder, step_name, target, args, kwargs)
        checker = self.builder.checker
        result = export() if checker is None else checker.check_function(export, step_name, target, args, kwargs)
        if overwritten is not None and isinstance(result, Value):
            return self.builder.record_overwrite(step_name, overwritten, result)
        return result

    def _bind_argument(self, call: fx.Node) -> Any:
        name = str(call.target).lstrip("*")
        if name in self.arguments:
            return self.arguments[name]
        if str(call.target).startswith("*"):
            return {} if str(call.target).startswith("**") else ()
        if not call.args:
            raise_export_error(
                self.module_name,
                f"the forward of {type(self.module).__name__} needs the argument {name!r}, but gets none",
            )
        return call.args[0]  # its default

    def to_bool(self, obj: fx.Proxy) -> bool:
        result = self.results[obj.node]
        return bool(result) if isinstance(result, Tensor) else super().to_bool(obj)

    def unpack(self, obj: fx.Proxy) -> list[Any]:
        """Return the elements along the first axis of a tensor."""
        result = self.results[obj.node]
        if isinstance(result, InputError):
            raise result
        if isinstance(result, tuple | list | dict):
            keys = result if isinstance(result, dict) else range(len(result))
            return [obj[key] for key in keys]  # type: ignore[index]  # a proxy has operators
        length = result.shape[0] if isinstance(result, Tensor) else result.torch_shape[0]
        if isinstance(result, Value) and result.layout.batch_axis == 0:
            raise TypeError("the images of a batch are unpacked")
        return [obj[index] for index in range(length)]  # type: ignore[index]  # a proxy has operators

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        return iter(self.unpack(obj))


def flatten_arguments(arguments: Any) -> list[Any]:
    """Return the items of nested tuples, lists and dicts."""
    if isinstance(arguments, tuple | list):
        return [item for part in arguments for item in flatten_arguments(part)]
    if isinstance(arguments, dict):
        return flatten_arguments(list(arguments.values()))
    if isinstance(arguments, slice):
        return [arguments.start, arguments.stop, arguments.step]
    return [arguments]


def find_tensors(arguments: Any) -> list[Any]:
    """Return the values and tensors, and the errors in place of them, among nested arguments."""
    return [item for item in flatten_arguments(arguments) if isinstance(item, Value | Tensor | InputError)]


def _writes_in_place(call: fx.Node) -> bool:
    """Return whether a function or method overwrites one of its arguments."""
    function_name = call.target if isinstance(call.target, str) else getattr(call.target, "__name__", "")
    if call.op not in ("call_function", "call_method") or function_name.endswith("__"):
        return False
    is_inplace_name = function_name in ("iadd", "isub", "imul", "itruediv") or function_name.endswith("_")
    return (
        is_inplace_name or call.kwargs.get("out") is not None or bool(call.kwargs.get("inplace"))
    )  # positional arguments too: fx passes them by name


def _is_foreign_function(call: fx.Node) -> bool:
    """Return whether a function is from neither PyTorch nor Python, so that its side effects are unknown."""
    return inspect.isfunction(call.target) and str(call.target.__module__).partition(".")[0] != "torch"


def _may_write(call: fx.Node) -> bool:
    """Return whether a call may overwrite a tensor, so that it matters even if its result is not used."""
    return _writes_in_place(call) or _is_foreign_function(call)


def trace_forward(
    builder: GraphBuilder,
    name: str,
    module: nn.Module,
    inputs: Sequence[Any],
    options: dict[str, Any],
    export_module: ModuleExporter,
) -> Any:
    """Add the nodes of a forward, in the order of its calls, and return its output."""
    class_name = type(module).__name__
    rng_state = torch.get_rng_state()
    tracer = _ExportingTracer(builder, name, module, inputs, options, export_module)
    try:
        calls = tracer.trace(module)
    except InputError:
        raise
    except Exception as error:  # a forward can raise any error for a proxy input
        error_text = " ".join(str(error).split())[:200]
        raise_export_error(name, f"the forward of {class_name} cannot be traced ({error_text or type(error).__name__})")
    if not torch.equal(rng_state, torch.get_rng_state()):
        raise_export_error(name, f"the forward of {class_name} draws random numbers")
    (output,) = (call for call in calls.nodes if call.op == "output")
    result = fx.node.map_arg(output.args[0], lambda node: tracer.results[node])
    errors = [item for item in flatten_arguments(result) if isinstance(item, InputError)]
    if errors:
        raise errors[0]
    return result


def _find_overwritten_value(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    """Return the value that an in-place function overwrites, which is the first argument of the function."""
    target = args[0] if args else kwargs.get("input")
    if not isinstance(target, Value):
        raise_export_error(name, f"it overwrites a {type(target).__name__}, which is not a map")
    return target


def _export_function(builder: GraphBuilder, name: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the result of a function or method: a Value, or what PyTorch returns if no map is involved."""
    function = FUNCTIONS.get(target)
    function_name = target if isinstance(target, str) else getattr(target, "__name__", repr(target))
    values = find_values((*args, *kwargs.values()))
    if not values:
        return call_with_constants(builder, name, target, args, kwargs)
    if function is None:
        known_names = sorted({f if isinstance(f, str) else f.__name__ for f in FUNCTIONS})
        raise_export_error(
            name,
            f"the function {function_name!r} has no export rule",
            find_alternatives(function_name, known_names),
            "lcrbnn.deploy.export.FUNCTIONS lists all",
        )
    try:
        return function(builder, name, *args, **kwargs)
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise_export_error(
            name, f"the function {function_name!r} is called with arguments that cannot be exported ({error})"
        )
