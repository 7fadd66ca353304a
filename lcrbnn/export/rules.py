"""RULES: what each kind of module becomes, a row each; one without a row is followed through its forward."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from lcrbnn.export.draft import Draft, Value, refuse
from lcrbnn.export.leaves import LEAVES, Rule
from lcrbnn.export.traced import trace
from lcrbnn.models.blocks import DoubleBlock, PadChannels, PlainBlock, SingleBlock
from lcrbnn.models.mobile import MobileBlock, Twice
from lcrbnn.models.skeleton import Network


def follow(draft: Draft, name: str, module: nn.Module, *inputs: Value) -> Value:
    """Emit the steps of a module. Its exact type decides: a subclass may compute something else.

    A module of one's own has no row: its forward is traced, and what it calls is followed in turn.
    """
    _refuse_hooks(name, module)
    rule = RULES.get(type(module))
    if rule is not None and len(inputs) == 1:
        made = rule(draft, name, module, *inputs)
        return draft.write(name, *inputs, made) if getattr(module, "inplace", False) else made
    if rule is not None:
        refuse(name, f"it is given {len(inputs)} maps, and takes one")
    if is_parametrized(module):
        refuse(name, "it is parametrized; torch.nn.utils.parametrize.remove_parametrizations writes its numbers down")
    if type(module).__module__.startswith("torch."):
        known = ", ".join(dict.fromkeys(kind.__name__ for kind in RULES))
        refuse(name, f"nothing says how a {type(module).__name__} is written; there are {known}")
    return trace(draft, name, module, inputs, follow)


def _refuse_hooks(name: str, module: nn.Module) -> None:
    """Hooks may change what PyTorch computes; those of an open Retention only look."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    others = [h for h in hooks if not str(getattr(h, "__module__", "")).startswith("lcrbnn.retention.")]
    if others:
        kind = getattr(others[0], "__qualname__", type(others[0]).__name__)
        refuse(name, f"its hook {kind} may change what it computes; remove it first")
    if "forward" in vars(module):
        kind = type(module).__name__
        refuse(name, f"its forward was replaced by another than that of {kind}; make a module of its own of it")


def _chain(draft: Draft, name: str, module: nn.Module, parts: tuple[str, ...], x: Value) -> Value:
    for part in parts:
        x = follow(draft, f"{name}.{part}" if name else part, module.get_submodule(part), x)
    return x


def _sequential(draft: Draft, name: str, module: nn.Sequential, x: Value) -> Value:
    return _chain(draft, name, module, tuple(module._modules), x)  # named_children would leave out what occurs twice


def _network(draft: Draft, name: str, net: Network, x: Value) -> Value:
    return _chain(draft, name, net, ("stem", *net.stages, "pool", "head"), x)


def _plain(draft: Draft, name: str, block: PlainBlock, x: Value) -> Value:
    y = _chain(draft, name, block, ("conv1", "bn1", "act1", "conv2", "bn2"), x)
    y = draft.emit("add", f"{name}.add2", [y, _chain(draft, name, block, ("shortcut",), x)])
    return _chain(draft, name, block, ("act2",), y)


def _double(draft: Draft, name: str, block: DoubleBlock, x: Value) -> Value:
    y = _single(draft, name, block, x)
    z = _chain(draft, name, block, ("conv2", "bn2"), y)
    return _chain(draft, name, block, ("act2",), draft.emit("add", f"{name}.add2", [z, y]))


def _single(draft: Draft, name: str, block: nn.Module, x: Value) -> Value:
    y = _chain(draft, name, block, ("conv1", "bn1"), x)
    y = draft.emit("add", f"{name}.add1", [y, _chain(draft, name, block, ("shortcut",), x)])
    return _chain(draft, name, block, ("act1",), y)


def _mobile(draft: Draft, name: str, block: MobileBlock, x: Value) -> Value:
    y = _single(draft, name, block, x)
    z = _chain(draft, name, block, ("conv2", "bn2"), y)
    z = draft.emit("add", f"{name}.add2", [z, _chain(draft, name, block, ("widen",), y)])
    return _chain(draft, name, block, ("act2",), z)


def _twice(draft: Draft, name: str, module: Twice, x: Value) -> Value:
    c = x.shape[2]
    halves = [
        LEAVES[PadChannels](draft, f"{name}.{where}", PadChannels.by(before, after), x)
        for where, before, after in (("front", 0, c), ("back", c, 0))
    ]
    return draft.emit("add", name, halves)


RULES: dict[type[nn.Module], Rule] = {
    Network: _network,
    nn.Sequential: _sequential,
    PlainBlock: _plain,
    DoubleBlock: _double,
    SingleBlock: _single,
    MobileBlock: _mobile,
    Twice: _twice,
    **LEAVES,
}
