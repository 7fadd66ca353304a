"""Binary layers whose inputs have only one sign, and the replacement of the activations that cause this."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError, lookup
from lcrbnn.nn.input_ranges import (
    NETWORK_INPUT,
    InputRanges,
    NotTraceable,
    run_for_input_ranges,
    trace_input_ranges,
)
from lcrbnn.nn.layers import BinaryLayer
from lcrbnn.nn.model_hooks import eval_mode, prepare_example
from lcrbnn.nn.value_ranges import ActivationSite, ValueRange

# What `binarize` does with an activation because of which a binary layer has constant signs.
ACTIVATION_CHOICES = {
    "replace": "replace it by nn.Hardtanh",
    "keep": "leave it, and warn with the names of the layers",
}

MAX_LISTED_LAYERS = 5  # layers that a message names
PROBE_STEPS = 64  # inputs for which the signs of a binarizer are computed
MAX_PROBE_DISTANCE = 1e3  # largest distance of these inputs from a finite bound of the range


@dataclass(frozen=True)
class ConstantLayer:
    """A binary layer whose input signs are the same for every image, and the activations that cause this."""

    name: str
    sources: tuple[ActivationSite, ...]


def plan_activation_replacements(
    model: nn.Module,
    binary_layers: Mapping[str, nn.Module],
    activation: str,
    example: Tensor | Sequence[int] | None,
) -> dict[nn.Module, nn.Module]:
    """Return the activation modules to replace, with their replacements. The model is not changed.

    `binary_layers` are the binary layers that will replace the layers of the model with these names. A warning names
    the layers that keep constant signs. Raise InputError if `activation` is "replace" but a layer is behind a function
    call, which cannot be replaced.
    """
    lookup(ACTIVATION_CHOICES, activation, "activation choice of binarize")
    inspected = {
        name: layer
        for name, layer in binary_layers.items()
        if isinstance(layer, BinaryLayer) and layer.input_binarizer is not None
    }
    input_ranges = _find_input_ranges(model, list(inspected), example) if inspected else None
    if input_ranges is None:
        return {}
    constant_layers = [
        ConstantLayer(name, tuple(sorted(value_range.sources, key=lambda site: (site.module_name, site.function))))
        for name, value_range in input_ranges.ranges.items()
        if not can_separate(inspected[name], value_range)
    ]
    replaced_sites: set[ActivationSite] = set()
    if activation == "replace":
        for layer in constant_layers:
            _check_replaceable(model, layer, constant_layers, input_ranges.gate_sites)
        replaced_sites = {
            site
            for layer in constant_layers
            for site in layer.sources
            if site.is_module and site not in input_ranges.gate_sites
        }
    kept_layers = [layer for layer in constant_layers if not replaced_sites.intersection(layer.sources)]
    if kept_layers:
        warnings.warn(_describe_constant_layers(model, kept_layers), stacklevel=3)  # where binarize is called
    return {
        model.get_submodule(site.module_name): _make_hardtanh(model, site)
        for site in sorted(replaced_sites, key=lambda site: site.module_name)
    }


def _find_input_ranges(
    model: nn.Module, layer_names: Sequence[str], example: Tensor | Sequence[int] | None
) -> InputRanges | None:
    """Return the ranges of the inputs of layers, or None with a warning if they cannot be found."""
    images = example if isinstance(example, Tensor) else None
    try:
        return trace_input_ranges(model, layer_names, images)
    except NotTraceable as error:
        reason = str(error)
    if example is not None:
        return run_for_input_ranges(model, layer_names, prepare_example(model, example), images)
    warnings.warn(
        f"binarize cannot trace {type(model).__name__} ({reason}), so it does not know whether a ReLU or another "
        "non-negative activation feeds a binary layer; pass an example, a batch or its shape such as (1, 3, 32, 32)",
        stacklevel=4,  # where binarize is called
    )
    return None


@torch.no_grad()
def can_separate(layer: BinaryLayer, value_range: ValueRange) -> bool:
    """Return whether inputs in this range can have different binary values, now or after training.

    The input binarizer itself is called with values of the range, because methods have different thresholds.
    """
    binarizer, weight = layer.input_binarizer, layer.weight
    if binarizer is None or binarizer.learns_threshold:
        return True
    if weight.is_meta:
        return value_range.low < 0 <= value_range.high
    values = _make_probe(value_range).to(weight.device, weight.dtype)
    probe = values.reshape(1, -1, 1) if binarizer.channel_axis == -1 else values.reshape(1, 1, -1, 1)
    shape = list(probe.shape)
    shape[binarizer.channel_axis] = _count_input_channels(layer)
    with eval_mode(binarizer):
        levels = binarizer(probe.expand(shape).contiguous()).dequantize()
    return bool((levels.amax() > levels.amin()).item())


def _make_probe(value_range: ValueRange) -> Tensor:
    """Return values of the range: its finite bounds, and values at distances from 0.001 to MAX_PROBE_DISTANCE."""
    distances = torch.cat([torch.zeros(1), torch.logspace(-3, torch.tensor(MAX_PROBE_DISTANCE).log10(), PROBE_STEPS)])
    low, high = value_range.low, value_range.high
    ends = [end for end in (low, high) if abs(end) != float("inf")] or [0.0]
    values = torch.cat([end + sign * distances for end in ends for sign in (-1, 1)])
    return values[(values >= low) & (values <= high)]


def _count_input_channels(layer: BinaryLayer) -> int:
    channels = layer.in_channels if isinstance(layer, nn.Conv2d) else layer.in_features
    assert isinstance(channels, int)
    return channels


def _make_hardtanh(model: nn.Module, site: ActivationSite) -> nn.Module:
    module = model.get_submodule(site.module_name)
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        raise InputError(
            f"activation {site.module_name!r} has hooks, which would be lost with the activation; remove the hooks, or "
            "pass activation='keep'"
        )
    return nn.Hardtanh(inplace=bool(getattr(module, "inplace", False))).train(module.training)


def _check_replaceable(
    model: nn.Module, layer: ConstantLayer, constant_layers: Sequence[ConstantLayer], gate_sites: set[ActivationSite]
) -> None:
    """Raise InputError if the layer is behind a function call, which only the author of the network can replace."""
    for site in layer.sources:
        if site.is_module or site.function == NETWORK_INPUT or site in gate_sites:
            continue
        others = sum(site in other.sources for other in constant_layers) - 1
        raise InputError(
            f"binary layer {layer.name!r}{f' (and {others} more)' if others else ''} would have constant signs: its "
            f"input comes from {_describe_site(model, site)}, which is never negative and is a function call, so "
            "binarize cannot replace it. Write F.hardtanh there, put a batch norm after it, or pass activation='keep' "
            "to leave it"
        )


def _describe_site(model: nn.Module, site: ActivationSite) -> str:
    if site.function == NETWORK_INPUT:
        return "the input of the network, whose example has no negative values"
    module = model.get_submodule(site.module_name)
    if site.is_module:
        return f"{type(module).__name__} {site.module_name!r}"
    place = f" {site.module_name!r}" if site.module_name else ""
    return f"{site.function}() in the forward method of {type(module).__name__}{place}"


def _describe_constant_layers(model: nn.Module, layers: Sequence[ConstantLayer]) -> str:
    places = [
        f"{layer.name!r} (fed by {', '.join(_describe_site(model, site) for site in layer.sources) or 'a constant'})"
        for layer in layers
    ]
    return (
        f"the inputs of {_join_names(places)} have only one sign, so these binary layers have the same output for "
        "every image and cannot learn. Let values of both signs reach them (Hardtanh instead of the activation, a "
        "batch norm directly before the layer, images with mean 0), or add the layers to skip"
    )


def _join_names(names: Iterable[str]) -> str:
    """Return at most MAX_LISTED_LAYERS names, and the number of the others."""
    items = list(names)
    rest = len(items) - MAX_LISTED_LAYERS
    return ", ".join(items[:MAX_LISTED_LAYERS]) + (f" and {rest} more" if rest > 0 else "")
