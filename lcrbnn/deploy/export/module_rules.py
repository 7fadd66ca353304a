"""MODULE_RULES has one export rule per module type. The forward of any other module is traced."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from lcrbnn.deploy.export.alternatives import find_alternatives
from lcrbnn.deploy.export.fx_tracing import trace_forward
from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, Value, raise_export_error
from lcrbnn.deploy.export.rules.activation_rules import LayerRule
from lcrbnn.deploy.export.rules.layer_rules import LAYER_RULES
from lcrbnn.deploy.export.transformer_rules import TRANSFORMER_RULES
from lcrbnn.nn.models.blocks import DoubleBlock, PadChannels, PlainBlock, SingleBlock
from lcrbnn.nn.models.network import Network
from lcrbnn.nn.models.reactnet_a import DuplicateChannels, MobileBlock


def export_module(builder: GraphBuilder, name: str, module: nn.Module, *inputs: Any, **options: Any) -> Any:
    """Add the nodes of a module and return its output.

    The rule depends on the exact type, because a subclass may compute something else. A custom module has no rule: its
    forward is traced, and the modules that it calls are exported in turn.
    """
    if builder.checker is None:
        return _apply_module_rule(builder, name, module, inputs, options)
    export = partial(_apply_module_rule, builder, name, module, inputs, options)
    return builder.checker.check_module(export, name, module)


def _apply_module_rule(
    builder: GraphBuilder, name: str, module: nn.Module, inputs: Sequence[Any], options: dict[str, Any]
) -> Any:
    _check_hooks(name, module)
    kind = type(module)
    if kind in TRANSFORMER_RULES:
        return _call_transformer_rule(builder, name, module, inputs, options)
    if kind in MODULE_RULES:
        arguments = [*inputs, *options.values()]
        if not all(isinstance(v, Value) for v in arguments):
            raise_export_error(name, "it is called with arguments other than maps")
        if len(arguments) != 1:
            raise_export_error(name, f"it gets {len(arguments)} maps, but takes one")
        value = MODULE_RULES[kind](builder, name, module, arguments[0])
        return builder.record_overwrite(name, arguments[0], value) if getattr(module, "inplace", False) else value
    if is_parametrized(module):
        raise_export_error(
            name,
            "it is parametrized; make its parameters plain with torch.nn.utils.parametrize.remove_parametrizations",
        )
    if kind.__module__.startswith("torch."):
        known_names = [k.__name__ for k in (*MODULE_RULES, *TRANSFORMER_RULES) if k.__module__.startswith("torch.")]
        raise_export_error(
            name,
            f"{kind.__name__} has no export rule",
            find_alternatives(kind.__name__, known_names),
            "lcrbnn.deploy.export.MODULE_RULES lists all",
        )
    return trace_forward(builder, name, module, inputs, options, export_module)


def _call_transformer_rule(
    builder: GraphBuilder, name: str, module: nn.Module, inputs: Sequence[Any], options: dict[str, Any]
) -> Any:
    """Return the output of a module with several arguments; raise InputError if they do not fit."""
    rule = TRANSFORMER_RULES[type(module)]
    try:
        inspect.signature(rule).bind(builder, name, module, export_module, *inputs, **options)
    except TypeError as error:
        raise_export_error(name, f"its arguments do not fit ({error})")
    return rule(builder, name, module, export_module, *inputs, **options)


def _check_hooks(name: str, module: nn.Module) -> None:
    """Raise InputError for hooks and replaced forwards, which may change the output. Hooks of Retention are allowed."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    unknown_hooks = [h for h in hooks if not str(getattr(h, "__module__", "")).startswith("lcrbnn.lcr.")]
    if unknown_hooks:
        hook_name = getattr(unknown_hooks[0], "__qualname__", type(unknown_hooks[0]).__name__)
        raise_export_error(name, f"its hook {hook_name} may change what it computes; remove it first")
    if "forward" in vars(module):
        hook_name = type(module).__name__
        raise_export_error(
            name, f"its forward is not that of its class {hook_name}; put the other forward into a module class"
        )


def _export_chain(builder: GraphBuilder, name: str, module: nn.Module, parts: tuple[str, ...], x: Value) -> Value:
    for part in parts:
        x = export_module(builder, f"{name}.{part}" if name else part, module.get_submodule(part), x)
    return x


def _export_sequential(builder: GraphBuilder, name: str, module: nn.Sequential, x: Value) -> Value:
    # named_children would skip a module that occurs twice
    return _export_chain(builder, name, module, tuple(module._modules), x)


def _export_network(builder: GraphBuilder, name: str, net: Network, x: Value) -> Value:
    return _export_chain(builder, name, net, ("stem", *net.stage_names, "pool", "head"), x)


def _export_plain_block(builder: GraphBuilder, name: str, block: PlainBlock, x: Value) -> Value:
    y = _export_chain(builder, name, block, ("conv1", "bn1", "act1", "conv2", "bn2"), x)
    y = builder.add_node("add", f"{name}.add2", [y, _export_chain(builder, name, block, ("shortcut",), x)])
    return _export_chain(builder, name, block, ("act2",), y)


def _export_double_block(builder: GraphBuilder, name: str, block: DoubleBlock, x: Value) -> Value:
    y = _export_single_block(builder, name, block, x)
    z = _export_chain(builder, name, block, ("conv2", "bn2"), y)
    return _export_chain(builder, name, block, ("act2",), builder.add_node("add", f"{name}.add2", [z, y]))


def _export_single_block(builder: GraphBuilder, name: str, block: nn.Module, x: Value) -> Value:
    y = _export_chain(builder, name, block, ("conv1", "bn1"), x)
    y = builder.add_node("add", f"{name}.add1", [y, _export_chain(builder, name, block, ("shortcut",), x)])
    return _export_chain(builder, name, block, ("act1",), y)


def _export_mobile_block(builder: GraphBuilder, name: str, block: MobileBlock, x: Value) -> Value:
    y = _export_single_block(builder, name, block, x)
    z = _export_chain(builder, name, block, ("conv2", "bn2"), y)
    z = builder.add_node("add", f"{name}.add2", [z, _export_chain(builder, name, block, ("widen",), y)])
    return _export_chain(builder, name, block, ("act2",), z)


def _export_duplicate_channels(builder: GraphBuilder, name: str, module: DuplicateChannels, x: Value) -> Value:
    c = x.shape[2]
    halves = [
        LAYER_RULES[PadChannels](builder, f"{name}.{position}", PadChannels.from_counts(before, after), x)
        for position, before, after in (("front", 0, c), ("back", c, 0))
    ]
    return builder.add_node("add", name, halves)


MODULE_RULES: dict[type[nn.Module], LayerRule] = {
    Network: _export_network,
    nn.Sequential: _export_sequential,
    PlainBlock: _export_plain_block,
    DoubleBlock: _export_double_block,
    SingleBlock: _export_single_block,
    MobileBlock: _export_mobile_block,
    DuplicateChannels: _export_duplicate_channels,
    **LAYER_RULES,
}
