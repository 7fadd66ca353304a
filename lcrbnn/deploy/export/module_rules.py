"""MODULE_RULES has one export rule per module type. The forward of any other module is traced."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from lcrbnn.deploy.export.fx_tracing import trace_forward
from lcrbnn.deploy.export.graph_builder import GraphBuilder, Value, raise_export_error
from lcrbnn.deploy.export.layer_rules import LAYER_RULES, LayerRule
from lcrbnn.nn.models.blocks import DoubleBlock, PadChannels, PlainBlock, SingleBlock
from lcrbnn.nn.models.network import Network
from lcrbnn.nn.models.reactnet_a import DuplicateChannels, MobileBlock


def export_module(builder: GraphBuilder, name: str, module: nn.Module, *inputs: Value) -> Value:
    """Add the nodes of a module and return its output.

    The rule depends on the exact type, because a subclass may compute something else. A custom module has no rule: its
    forward is traced, and the modules that it calls are exported in turn.
    """
    _check_hooks(name, module)
    rule = MODULE_RULES.get(type(module))
    if rule is not None and len(inputs) == 1:
        value = rule(builder, name, module, *inputs)
        return builder.record_overwrite(name, *inputs, value) if getattr(module, "inplace", False) else value
    if rule is not None:
        raise_export_error(name, f"it gets {len(inputs)} maps, but takes one")
    if is_parametrized(module):
        raise_export_error(
            name,
            "it is parametrized; make its parameters plain with torch.nn.utils.parametrize.remove_parametrizations",
        )
    if type(module).__module__.startswith("torch."):
        known_names = ", ".join(dict.fromkeys(kind.__name__ for kind in MODULE_RULES))
        raise_export_error(name, f"{type(module).__name__} has no export rule; there are rules for {known_names}")
    return trace_forward(builder, name, module, inputs, export_module)


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
