"""Collect the export problems of all layers: after a refused call, continue with the shape that PyTorch returns."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import map_aggregate

from lcrbnn.deploy.export.export_model import explain_unexportable_method
from lcrbnn.deploy.export.function_rules import BATCH_SIZE
from lcrbnn.deploy.export.graph_builder import ExportError, GraphBuilder, NodeBuilder, Value, raise_export_error
from lcrbnn.deploy.export.module_rules import MODULE_RULES
from lcrbnn.errors import InputError
from lcrbnn.nn.layers import BinaryLayer

EXPORTABLE_METHODS = ("irnet", "reactnet", "xnor")  # alternatives to a method that cannot be exported


@dataclass
class CheckedCall:
    """One call of a module or function: the nodes that it adds, or why it cannot be exported."""

    layer: str  # name of the module, or name of the function's call
    kind: str  # class of the module, or name of the function
    position: int  # number of nodes before it
    nodes: list[NodeBuilder] = field(default_factory=list)
    problem: str = ""
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True)
class UnrepresentableResult:
    """A result of PyTorch that no Value can represent, such as a tensor with three axes; only its shape counts."""

    content: Any


class _ShapeUnknown(InputError):
    """PyTorch cannot compute the shape of a refused call, so the module that contains the call is not followed."""


def describe_problem(error: Exception) -> str:
    """Return why a call cannot be exported, without the name of its layer."""
    if isinstance(error, ExportError):
        return error.reason
    return str(error) if isinstance(error, InputError) else f"its export fails ({type(error).__name__}: {error})"


def record_output_shapes(net: nn.Module, images: Tensor) -> dict[nn.Module, deque[Any]]:
    """Run the network once and return the outputs of each module's calls in order, with zeros in place of numbers."""
    outputs: dict[nn.Module, deque[Any]] = defaultdict(deque)

    def record_call(module: nn.Module, args: Any, output: Any) -> None:
        outputs[module].append(
            _map_tensors(output, lambda tensor: torch.zeros((), dtype=tensor.dtype).expand(tensor.shape))
        )

    hooks = [module.register_forward_hook(record_call) for module in net.modules()]
    try:
        with torch.no_grad():
            net(images)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs


def _map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Return nested tuples, lists and dicts with `function` applied to their tensors."""
    return map_aggregate(value, lambda item: function(item) if isinstance(item, Tensor) else item)


class ProblemCollector:
    """Checker of a GraphBuilder that records every call and continues after a refused one."""

    def __init__(self, builder: GraphBuilder, net: nn.Module, images: Tensor) -> None:
        """Run the network once on these images to record the output of every module."""
        self.builder, self.batch_size = builder, len(images)
        self.calls: list[CheckedCall] = []
        self.recorded_outputs = record_output_shapes(net, images)

    def make_value(self, output: Any, name: str) -> Any:
        """Return an output of PyTorch as a Value without history, or as an UnrepresentableResult."""
        return _map_tensors(output, lambda tensor: self._make_tensor_value(tensor, name))

    def _make_tensor_value(self, tensor: Tensor, name: str) -> Value | UnrepresentableResult:
        if tensor.dim() not in (2, 4) or len(tensor) != self.batch_size or not tensor.is_floating_point():
            return UnrepresentableResult(tensor)
        channels, h, w = (*tensor.shape[1:], 1, 1)[:3]
        is_flat = tensor.dim() == 2
        return Value.from_node(NodeBuilder("unknown", name, [], (h, w, channels), is_flat=is_flat), is_flat=is_flat)

    def check_module(self, export: Callable[[], Any], name: str, module: nn.Module, inputs: Sequence[Any]) -> Any:
        """Export one call of a module; after a problem return a value of the shape that the module returned."""
        call = CheckedCall(name, type(module).__name__, len(self.builder.nodes))
        num_earlier_calls = len(self.calls)
        outputs = self.recorded_outputs[module]
        recorded_output = outputs.popleft() if outputs else None
        try:
            _check_inputs(name, module, inputs)
            result = export()
        except _ShapeUnknown:
            return self.make_value(recorded_output, name)
        except Exception as error:  # after a refused layer, a rule can also fail in ways that it does not expect
            self._add_problem(call, error)
            if _is_method_unexportable(module):
                call.alternatives = EXPORTABLE_METHODS
            return self.make_value(recorded_output, name)
        is_leaf = len(self.calls) == num_earlier_calls
        reported_nodes = {id(node) for other in self.calls[num_earlier_calls:] for node in other.nodes}
        call.nodes = [node for node in self.builder.nodes[call.position :] if id(node) not in reported_nodes]
        if is_leaf:
            self.calls.append(call)
        else:  # sums between the parts of a block
            for node in call.nodes:
                position = self.builder.nodes.index(node)
                self.calls.append(CheckedCall(node.name, call.kind, position, [node]))
        return result

    def check_function(
        self, export: Callable[[], Any], name: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Export one call of a function; after a problem return a value of the shape that PyTorch computes."""
        function_name = target if isinstance(target, str) else getattr(target, "__name__", repr(target))
        call = CheckedCall(name, f"{function_name}()", len(self.builder.nodes))
        if function_name == "getitem" and isinstance(args[0], tuple | list | dict):  # an output of a refused module
            return args[0][args[1]]
        if _contains_unrepresentable((args, kwargs)):
            return self._compute_shape(name, target, args, kwargs)
        try:
            result = export()
        except Exception as error:
            self._add_problem(call, error)
            return self._compute_shape(name, target, args, kwargs)
        call.nodes = self.builder.nodes[call.position :]
        if call.nodes:
            self.calls.append(call)
        return result

    def _add_problem(self, call: CheckedCall, error: Exception) -> None:
        call.problem = describe_problem(error)
        call.alternatives = error.alternatives if isinstance(error, ExportError) else ()
        self.calls.append(call)

    def _compute_shape(self, name: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return the result of PyTorch for zeros of the shapes of these arguments."""

        def make_argument(value: Any) -> Any:
            if value is BATCH_SIZE:
                return self.batch_size
            if isinstance(value, UnrepresentableResult):
                return value.content
            if isinstance(value, Value):
                h, w, c = value.shape
                return torch.zeros((self.batch_size, c) if value.is_flat else (self.batch_size, c, h, w))
            return value

        positional, keywords = map_aggregate((tuple(args), kwargs), make_argument)
        try:
            if isinstance(target, str):
                result = getattr(positional[0], target)(*positional[1:], **keywords)
            else:
                result = target(*positional, **keywords)
        except Exception:  # a function can raise any error for zeros
            raise _ShapeUnknown(f"the shape of {name} is not known") from None
        return self.make_value(result, name)


def _contains_unrepresentable(arguments: Any) -> bool:
    has_unrepresentable = False

    def check(value: Any) -> Any:
        nonlocal has_unrepresentable
        has_unrepresentable |= isinstance(value, UnrepresentableResult)
        return value

    map_aggregate(arguments, check)
    return has_unrepresentable


def _check_inputs(name: str, module: nn.Module, inputs: Sequence[Any]) -> None:
    """Raise InputError for inputs that the rule of the module cannot get."""
    if not all(isinstance(value, Value | UnrepresentableResult) for value in inputs):
        raise_export_error(name, "it is called with arguments other than positional maps")
    unrepresentable = [value.content for value in inputs if isinstance(value, UnrepresentableResult)]
    if unrepresentable and type(module) in MODULE_RULES:
        shape = tuple(getattr(unrepresentable[0], "shape", ()))
        raise_export_error(name, f"its input has the shape {shape}, which is neither a batch of maps nor of vectors")


def _is_method_unexportable(module: nn.Module) -> bool:
    """Return whether no layer of this method can be exported. Real weights only need the second training step."""
    if not isinstance(module, BinaryLayer) or module.method.has_real_weights:
        return False
    return bool(explain_unexportable_method(module.method))
