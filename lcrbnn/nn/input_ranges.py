"""The range of the values that each layer of a network gets: by tracing the network, or by running an example."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from lcrbnn.nn.layers import BinaryLayer
from lcrbnn.nn.model_hooks import eval_mode
from lcrbnn.nn.value_ranges import (
    ANY_VALUE,
    PRODUCTS,
    RANGE_RULES,
    ActivationSite,
    FunctionCall,
    ValueRange,
    iter_ranges,
    join_ranges,
)

NETWORK_INPUT = "input of the network"  # the function of the site that stands for the images

# Files of torch.nn with modules that only call functions. Tracing passes through those without parameters.
_TRACED_FILES = {
    f"torch.nn.modules.{name}"
    for name in (
        *("activation", "container", "channelshuffle", "dropout", "flatten", "fold"),
        *("linear", "padding", "pixelshuffle", "pooling", "upsampling"),
    )
}
_ACTIVATION_FILE = "torch.nn.modules.activation"


class NotTraceable(Exception):
    """The network has control flow that depends on its values, so it cannot be traced without an example."""


class InputRanges:
    """The ranges of the inputs of some layers, by name, and the sites of gates: values that multiply another map."""

    def __init__(self, model: nn.Module, layer_names: Sequence[str]) -> None:
        """Start without any range. The ranges of a layer that is called several times are joined."""
        self.modules = dict(model.named_modules())
        self.ranges: dict[str, ValueRange] = {}
        self.gate_sites: set[ActivationSite] = set()
        self._layer_names = set(layer_names)

    def add_layer_input(self, name: str, value_range: ValueRange) -> None:
        """Save the range of the input of a layer, if it is one of the layers that are inspected."""
        if name in self._layer_names:
            known_range = self.ranges.get(name)
            self.ranges[name] = value_range if known_range is None else join_ranges([known_range, value_range])

    def apply_function(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], get_range: Callable[[Any], Any], caller: str
    ) -> ValueRange:
        """Return the range of the result of a function that the module `caller` calls.

        `get_range` returns the range of an argument, and everything else unchanged.
        """
        name = name.strip("_")
        if name in ("mul", "imul") and len(args) > 1 and args[0] is args[1]:
            name = "square"
        rule = RANGE_RULES.get(name)
        if rule is None:
            return ANY_VALUE
        site = ActivationSite(name, caller, _is_activation(self.modules[caller]))
        known_args = _map_arguments(args, get_range)
        result = rule(FunctionCall(known_args, _map_arguments(dict(kwargs), get_range), site))
        operands = list(iter_ranges(known_args))
        if name in PRODUCTS and len(operands) > 1:
            self.gate_sites.update(*(operand.sources for operand in operands if operand.is_gate))
        return result


def trace_input_ranges(model: nn.Module, layer_names: Sequence[str], example: Tensor | None) -> InputRanges:
    """Return the ranges of the inputs of the named layers, from a symbolic trace of the network.

    Raise NotTraceable if torch.fx cannot trace the network. Values of the `example`, if there is one, are only read to
    find the range of the images.
    """
    result = InputRanges(model, layer_names)
    ranges: dict[fx.Node, ValueRange] = {}

    def get_range(value: Any) -> Any:
        return ranges.get(value, ANY_VALUE) if isinstance(value, fx.Node) else value

    for node in _trace(model).nodes:
        if node.op == "placeholder":
            ranges[node] = ANY_VALUE if ranges else find_image_range(example)
        elif node.op == "call_module":
            input_range = next(iter_ranges(_map_arguments(node.args, get_range)), ANY_VALUE)
            result.add_layer_input(str(node.target), input_range)
        elif node.op in ("call_function", "call_method"):
            name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
            stack = list(node.meta.get("nn_module_stack", {}).values())
            caller = stack[-1][0] if stack else ""
            ranges[node] = result.apply_function(name, node.args, node.kwargs, get_range, caller)
            if _is_in_place(name, node.kwargs) and node.args and isinstance(node.args[0], fx.Node):
                ranges[node.args[0]] = ranges[node]
    return result


def _is_in_place(name: str, kwargs: Mapping[str, Any]) -> bool:
    return kwargs.get("inplace") is True or (name.endswith("_") and not name.endswith("__"))


class _Tracer(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        """Return whether the trace has one node for this module, which then can return any value."""
        if isinstance(module, BinaryLayer):
            return True
        is_torch_module = type(module).__module__.startswith("torch.nn")
        has_parameters = any(True for _ in module.parameters(recurse=False))
        return is_torch_module and (has_parameters or type(module).__module__ not in _TRACED_FILES)


def _trace(model: nn.Module) -> fx.Graph:
    arguments = signature(model.forward).parameters.values()
    defaults = {p.name: p.default for p in arguments if p.default is not Parameter.empty}
    try:
        with eval_mode(model), torch.random.fork_rng(devices=[]):
            return _Tracer().trace(model, concrete_args=defaults or None)
    except Exception as error:  # the forward method of a user may raise anything if it gets no real tensors
        raise NotTraceable(str(error).strip().partition("\n")[0]) from error


class _RangeMode(TorchFunctionMode):
    """Finds the range of each tensor that a function returns while a network runs."""

    def __init__(self, result: InputRanges) -> None:
        super().__init__()
        self.result = result
        self.callers = [""]  # the modules that are running, the innermost one last
        self.known: dict[int, tuple[Tensor, ValueRange]] = {}  # by id; the tensor is kept so that its id stays unique

    def get_range(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return self.known[id(value)][1] if id(value) in self.known else ANY_VALUE

    def save(self, value: Any, value_range: ValueRange) -> None:
        if isinstance(value, Tensor):
            self.known[id(value)] = (value, value_range)
        elif isinstance(value, list | tuple):
            for item in value:
                self.save(item, value_range)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        value_range = self.result.apply_function(
            getattr(func, "__name__", ""), args, kwargs, self.get_range, self.callers[-1]
        )
        value = func(*args, **kwargs)
        self.save(value, value_range)
        return value


@torch.no_grad()
def run_for_input_ranges(
    model: nn.Module, layer_names: Sequence[str], images: Tensor, example: Tensor | None
) -> InputRanges:
    """Return the ranges of the inputs of the named layers, from one forward pass of the images in evaluation mode.

    Only the functions that run are used, not the values of the feature maps. Values of the `example`, if there is one,
    are read to find the range of the images.
    """
    result = InputRanges(model, layer_names)
    mode = _RangeMode(result)
    mode.save(images, find_image_range(example))
    with eval_mode(model), torch.random.fork_rng(devices=[]), _module_hooks(result, mode), mode:
        model(images)
    return result


@contextmanager
def _module_hooks(result: InputRanges, mode: _RangeMode) -> Iterator[None]:
    """Inside, the mode knows which module runs, and the ranges of the inputs of the layers are saved."""

    def make_start_hook(name: str) -> Callable[..., None]:
        def start(module: nn.Module, args: tuple[Any, ...]) -> None:
            mode.callers.append(name)
            result.add_layer_input(name, mode.get_range(args[0]) if args else ANY_VALUE)

        return start

    def stop(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        mode.callers.pop()

    hooks = []
    for name, module in result.modules.items():
        hooks += [module.register_forward_pre_hook(make_start_hook(name)), module.register_forward_hook(stop)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def find_image_range(example: Tensor | None) -> ValueRange:
    """Return the range of images like the example: from 0 to its maximum if it has no negative value.

    A constant example, such as zeros, shows nothing.
    """
    if example is None or not example.is_floating_point() or example.numel() == 0:
        return ANY_VALUE
    low, high = example.min().item(), example.max().item()
    if low < 0 or low == high:
        return ANY_VALUE
    return ValueRange(0.0, high, frozenset({ActivationSite(NETWORK_INPUT, "", False)}))


def _is_activation(module: nn.Module) -> bool:
    """Return whether the module is an activation of torch.nn without parameters, or a subclass of one."""
    is_torch_class = any(c.__module__ == _ACTIVATION_FILE for c in type(module).__mro__)
    return is_torch_class and not any(True for _ in module.parameters(recurse=False))


def _map_arguments(value: Any, get_range: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_map_arguments(item, get_range) for item in value)
    if isinstance(value, dict):
        return {name: _map_arguments(item, get_range) for name, item in value.items()}
    return get_range(value)
