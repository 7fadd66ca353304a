"""Automatic choice of the blocks that LCR compares in a network that is not one of this package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError
from lcrbnn.nn.layers import BinaryLayer
from lcrbnn.nn.model_hooks import eval_mode

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class LcrModules(NamedTuple):
    """The arguments `blocks` and `layers` of Retention. A network of this package needs neither."""

    blocks: list[str] | None = None
    layers: list[str] | None = None

    def __str__(self) -> str:
        """Return the kind of the modules and their names."""
        kind, names = ("layers", self.layers) if self.blocks is None else ("blocks", self.blocks)
        return f"{kind} {', '.join(names or ())}"


def choose_lcr_modules(model: nn.Module, granularity: str, example: Tensor) -> LcrModules:
    """Return the blocks or layers that Retention compares in a network with binary layers.

    Blocks are the outermost modules with binary layers that are no containers. If these are binary layers themselves,
    as in a plain chain, or with the granularity "layers", LCR compares the inputs of successive binary layers. Modules
    whose inputs or outputs are no feature maps are left out. The names have the order of the forward pass.
    """
    if granularity == "stages":
        raise InputError(
            "granularity stages is only for networks of this package; name the stages of your network with lcr_blocks"
        )
    layer_names = [name for name, module in model.named_modules() if isinstance(module, BinaryLayer)]
    candidates = layer_names if granularity == "layers" else list_outermost_blocks(model)
    names = order_by_forward_pass(model, candidates, example)
    if len(names) > 1 and all(isinstance(model.get_submodule(name), BinaryLayer) for name in names):
        return LcrModules(layers=names)
    if not names:
        raise InputError(
            f"{type(model).__name__} has no block with binary layers that takes and returns a feature map: name "
            "modules with lcr_blocks"
        )
    return LcrModules(blocks=names)


def list_outermost_blocks(model: nn.Module) -> list[str]:
    """Return the names of the outermost modules with binary layers that are no containers.

    A module that contains all binary layers of the network is opened, too.
    """
    candidates = list(_iterate_blocks(model, ""))
    while len(candidates) == 1:
        module = model.get_submodule(candidates[0])
        inner_candidates = list(_iterate_blocks(module, f"{candidates[0]}."))
        if not inner_candidates:
            break
        candidates = inner_candidates
    return candidates


def _iterate_blocks(module: nn.Module, prefix: str) -> Iterator[str]:
    for name, child in module.named_children():
        if isinstance(module, BinaryLayer) or not _has_binary_layers(child):
            continue
        if isinstance(child, CONTAINERS) and not _is_block_of_layers(child):
            yield from _iterate_blocks(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _has_binary_layers(module: nn.Module) -> bool:
    return any(isinstance(inner, BinaryLayer) for inner in module.modules())


def _is_block_of_layers(container: nn.Module) -> bool:
    """Return whether a container is a chain with binary layers, such as convolution, batch norm, hardtanh."""
    return isinstance(container, nn.Sequential) and any(isinstance(m, BinaryLayer) for m in container.children())


def order_by_forward_pass(model: nn.Module, names: list[str], example: Tensor) -> list[str]:
    """Return the modules that take and return feature maps of the batch, in the order of their latest calls."""
    called_names: dict[str, bool] = {}

    def make_hook(name: str) -> Callable[..., None]:
        def record_call(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            called_names.pop(name, None)
            called_names[name] = bool(inputs) and all(_is_feature_map(x, len(example)) for x in (inputs[0], output))

        return record_call

    hooks = [model.get_submodule(name).register_forward_hook(make_hook(name)) for name in names]
    weight = next(iter(model.parameters()), example)
    try:
        with eval_mode(model), torch.no_grad():
            model(example.to(weight.device, weight.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    return [name for name, is_comparable in called_names.items() if is_comparable]


def _is_feature_map(value: Any, batch_size: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 1 and value.shape[0] == batch_size and value.is_floating_point()
