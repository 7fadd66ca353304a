"""Choose the spans (parts of a network) whose retention matrices are computed: named modules, or those of a variant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from lcrbnn.errors import InputError, check_name_list
from lcrbnn.lcr.capture import Span, make_block_spans, make_layer_spans
from lcrbnn.lcr.lcr_variants import LcrVariant
from lcrbnn.nn.layers import BinaryConv2d
from lcrbnn.nn.models.network import Network


def find_spans(
    model: nn.Module, variant: LcrVariant, blocks: Sequence[str] | None, layers: Sequence[str] | None
) -> list[Span]:
    """Return the spans of the named blocks or layers. A span is a part of the network from one feature map to another.

    Without names, the granularity of the variant determines the spans. This needs a network of this package. If the
    variant sets `num_last_matrices`, only that many spans at the end are returned.
    """
    spans = _find_all_spans(model, variant, blocks, layers)
    if variant.num_last_matrices > len(spans):
        raise InputError(
            f"num_last_matrices must be at most the number of matrices, {len(spans)}; got {variant.num_last_matrices}"
        )
    return spans[-variant.num_last_matrices :]


def _find_all_spans(
    model: nn.Module, variant: LcrVariant, blocks: Sequence[str] | None, layers: Sequence[str] | None
) -> list[Span]:
    name_lists = [n for n in (blocks, layers) if n is not None]
    if len(name_lists) == 2:
        raise InputError("Retention takes blocks or layers; got both")
    if name_lists:
        kind = "blocks" if blocks is not None else "layers"
        names = check_module_names(name_lists[0], kind, model)
        duplicate = next((name for i, name in enumerate(names) if name in names[:i]), None)
        if duplicate is not None:
            raise InputError(f"{kind} must name each module once; {duplicate!r} is named twice")
        spans = make_block_spans(names) if blocks is not None else make_layer_spans(names)
        if not spans:
            raise InputError(
                f"Retention needs at least {'one block' if blocks is not None else 'two layers'}; got {list(names)!r}"
            )
        return spans
    if not isinstance(model, Network):
        raise InputError(f"{type(model).__name__} is not a network of this package: name its blocks with blocks=[...]")
    return SPAN_FINDERS[variant.granularity](model)


# Functions that return the spans of a network of this package, by `LcrVariant.granularity`.
SPAN_FINDERS = {
    "layers": lambda net: make_layer_spans(net.main_path),
    "blocks": lambda net: make_block_spans(net.block_names),
    "stages": lambda net: make_block_spans(net.stage_names[1:]),
    "convolutions": lambda net: make_block_spans(
        [name for name in net.main_path if isinstance(net.get_submodule(name), BinaryConv2d)]
    ),
}


def check_module_names(names: Any, argument: str, model: nn.Module) -> list[str]:
    """Return the list of module names. Raise InputError if an entry is a module.

    The message then states the module's name.
    """
    is_module = isinstance(names, nn.Module)
    if isinstance(names, Iterable) and not is_module and not isinstance(names, str):
        names = list(names)
    for module in [names] if is_module else names if isinstance(names, list) else []:
        if isinstance(module, nn.Module):
            name = next((n for n, m in model.named_modules() if m is module and n), None)
            hint = f": write {name!r}" if name else f", a {type(module).__name__}: write its name in the network"
            raise InputError(
                f"{argument} must be a list of module names; it {'is' if is_module else 'holds'} a module{hint}"
            )
    return check_name_list(names, argument)


# The attribute of a wrapper that holds the network, by the class name of the wrapper.
_WRAPPED_NETWORKS = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "module",
}


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return the network inside the wrappers of torch.compile, DistributedDataParallel and FullyShardedDataParallel."""
    if isinstance(model, nn.DataParallel):
        raise InputError(
            "Retention does not support DataParallel, whose replicas share one set of hooks; "
            "use DistributedDataParallel"
        )
    attribute = _WRAPPED_NETWORKS.get(type(model).__name__)
    return model if attribute is None else unwrap_model(getattr(model, attribute))
