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
from lcrbnn.deploy.export.graph.batch_size import insert_batch_size
from lcrbnn.deploy.export.graph.graph_builder import ExportError, GraphBuilder, NodeBuilder, Value
from lcrbnn.deploy.export.graph.layouts import Layout
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


class UnknownResult(InputError):
    """A result whose shape is not known or has no layout. The calls that need it are not checked."""


def describe_problem(error: Exception) -> str:
    """Return why a call cannot be exported, without the name of its layer."""
    if isinstance(error, ExportError):
        return error.reason
    return str(error) if isinstance(error, InputError) else f"its export fails ({type(error).__name__}: {error})"


def record_output_shapes(net: nn.Module, image: Tensor) -> dict[nn.Module, deque[Any]]:
    """Run the network once and return the outputs of each module's calls in order, with zeros in place of numbers."""
    outputs: dict[nn.Module, deque[Any]] = defaultdict(deque)

    def record_call(module: nn.Module, args: Any, output: Any) -> None:
        outputs[module].append(
            _map_tensors(output, lambda tensor: torch.zeros((), dtype=tensor.dtype).expand(tensor.shape))
        )

    hooks = [module.register_forward_hook(record_call) for module in net.modules()]
    try:
        with torch.no_grad():
            net(image)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs


def _map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Return nested tuples, lists and dicts with `function` applied to their tensors."""
    return map_aggregate(value, lambda item: function(item) if isinstance(item, Tensor) else item)


class ProblemCollector:
    """Checker of a GraphBuilder that records every call and continues after a refused one."""

    def __init__(self, builder: GraphBuilder, net: nn.Module, image: Tensor) -> None:
        """Run the network once on a batch of one image to record the output of every module."""
        self.builder = builder
        self.calls: list[CheckedCall] = []
        self.recorded_outputs = record_output_shapes(net, image)

    def check_module(self, export: Callable[[], Any], name: str, module: nn.Module) -> Any:
        """Export one call of a module; after a problem return a value of the shape that the module returned."""
        call = CheckedCall(name, type(module).__name__, len(self.builder.nodes))
        num_earlier_calls = len(self.calls)
        outputs = self.recorded_outputs[module]
        recorded_output = outputs.popleft() if outputs else UnknownResult(f"the shape of {name} is not known")
        try:
            result = export()
        except UnknownResult:
            return make_value(recorded_output, name)
        except Exception as error:  # after a refused layer, a rule can also fail in ways that it does not expect
            self._add_problem(call, error)
            if _is_method_unexportable(module):
                call.alternatives = EXPORTABLE_METHODS
            return make_value(recorded_output, name)
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
        try:
            result = export()
        except Exception as error:
            self._add_problem(call, error)
            return _compute_shape(name, target, args, kwargs)
        call.nodes = self.builder.nodes[call.position :]
        if call.nodes:
            self.calls.append(call)
        return result

    def _add_problem(self, call: CheckedCall, error: Exception) -> None:
        call.problem = describe_problem(error)
        call.alternatives = error.alternatives if isinstance(error, ExportError) else ()
        self.calls.append(call)


def make_value(output: Any, name: str) -> Any:
    """Return an output of PyTorch for one image as a Value without history."""
    return _map_tensors(output, lambda tensor: _make_tensor_value(tensor, name))


def _make_tensor_value(tensor: Tensor, name: str) -> Value | UnknownResult:
    if tensor.dim() < 2 or len(tensor) != 1 or not tensor.is_floating_point():
        return UnknownResult(f"the result of {name} is not a batch of maps, tokens or vectors")
    layout = Layout(tuple(tensor.shape))
    return Value.from_node(NodeBuilder("unknown", name, [], layout.standard_shape), layout)


def _compute_shape(name: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the result of PyTorch for zeros of the shapes of these arguments."""
    arguments = insert_batch_size((tuple(args), kwargs), 1)
    positional, keywords = map_aggregate(
        arguments, lambda item: torch.zeros(item.torch_shape) if isinstance(item, Value) else item
    )
    try:
        if isinstance(target, str):
            result = getattr(positional[0], target)(*positional[1:], **keywords)
        else:
            result = target(*positional, **keywords)
    except Exception:  # a function can raise any error for zeros
        return UnknownResult(f"the shape of {name} is not known")
    return make_value(result, name)


def _is_method_unexportable(module: nn.Module) -> bool:
    """Return whether no layer of this method can be exported. Real weights only need the second training step."""
    if not isinstance(module, BinaryLayer) or module.method.has_real_weights:
        return False
    return bool(explain_unexportable_method(module.method))
