"""Upper bound of the Lipschitz constant of the surrogate network, in which hardtanh replaces sign, and Eq. 5.

Neither of them describes the deployed network. Its sign function is discontinuous, so it has no Lipschitz constant. The
weights of a layer are its signs times scales. The batch norm that follows a layer is merged into the weights, in
evaluation mode. The standardization of inputs (RBNN, SiMaN) is ignored. The bound of a residual block is the norm of
its skip connection plus the norm of its branch. Eq. 5 is the product along the main path only, as in the paper. For a
network with skip connections, that product is no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError
from lcrbnn.evaluation.analysis.convolution_norm import (
    ROUNDING_MARGIN,
    Convolution,
    NormInterval,
    bound_norm,
    exact_matrix_norm,
)
from lcrbnn.nn.layers import BinaryLayer
from lcrbnn.nn.model_hooks import eval_mode
from lcrbnn.nn.models.blocks import DoubleBlock, Maxout, PadChannels, PlainBlock, RPReLU, SingleBlock, Subsample
from lcrbnn.nn.models.network import Network


@dataclass
class LipschitzBounds:
    """Norm bounds of all layers of a network, and the products of these bounds, for images of one size."""

    layers: dict[str, NormInterval] = field(default_factory=dict)
    surrogate_log10: float = 0.0  # log10 of the upper bound of the surrogate network
    # log10 of Eq. 5, computed from the lower and from the upper bounds of the layers
    eq5_log10: tuple[float, float] = (0.0, 0.0)


@torch.no_grad()
def bound_lipschitz(model: nn.Module, images: Tensor) -> LipschitzBounds:
    """Return norm bounds of all layers and both products, relative to normalized input images."""
    with eval_mode(model):
        calculator = _BoundCalculator(_record_input_shapes(model, images[:1]))
        bound = calculator.bound_module("", model)
    shortcut_layers = {name for name in calculator.layers if ".shortcut" in name}
    main_path = [interval for name, interval in calculator.layers.items() if name not in shortcut_layers]
    return LipschitzBounds(
        calculator.layers,
        _log10(bound),
        (sum(_log10(i.low) for i in main_path), sum(_log10(i.high) for i in main_path)),
    )


def _log10(value: float) -> float:
    return math.log10(max(value, 1e-300))  # a layer of zeros has the norm 0, which has no logarithm


def _record_input_shapes(model: nn.Module, image: Tensor) -> dict[str, torch.Size]:
    shapes: dict[str, torch.Size] = {}

    def make_hook(name: str) -> Callable[..., None]:
        def record_shape(module: nn.Module, args: tuple[Any, ...]) -> None:
            shapes[name] = args[0].shape

        return record_shape

    hooks = [m.register_forward_pre_hook(make_hook(name)) for name, m in model.named_modules()]
    try:
        model(image)
    finally:
        for hook in hooks:
            hook.remove()
    return shapes


NamedModule = tuple[str, nn.Module]


class _BoundCalculator:
    """Calculator that multiplies the bounds of the modules of a network, and stores the norm of each layer."""

    def __init__(self, input_shapes: dict[str, torch.Size]) -> None:
        self.input_shapes = input_shapes
        self.layers: dict[str, NormInterval] = {}

    def bound_module(self, name: str, module: nn.Module) -> float:
        for kinds, rule in BOUND_RULES.items():
            if isinstance(module, kinds):
                return rule(self, name, module)
        raise InputError(
            f"there is no Lipschitz bound for modules of type {type(module).__name__} ({name or 'the network'})"
        )

    def bound_chain(self, modules: Sequence[NamedModule]) -> float:
        """Return the product of the bounds of consecutive modules. Batch norms are merged into the layer before."""
        total, remaining = 1.0, list(modules)
        while remaining:
            name, module = remaining.pop(0)
            if not isinstance(module, nn.Conv2d | nn.Linear):
                total *= self.bound_module(name, module)
                continue
            # A max pool without overlap has the Lipschitz constant 1 and works on each channel separately. So the batch
            # norm after it can be merged into the layer before it.
            while remaining and isinstance(remaining[0][1], nn.MaxPool2d) and _windows_per_pixel(remaining[0][1]) == 1:
                remaining.pop(0)
            batch_norm = remaining.pop(0)[1] if remaining and isinstance(remaining[0][1], nn.BatchNorm2d) else None
            self.layers[name] = bound_layer_norm(module, batch_norm, self.input_shapes[name])
            total *= self.layers[name].high
        return total

    def get_child(self, name: str, module: nn.Module, child: str) -> NamedModule:
        return (f"{name}.{child}" if name else child, module.get_submodule(child))

    def get_children(self, name: str, module: nn.Module, children: Sequence[str]) -> list[NamedModule]:
        return [self.get_child(name, module, child) for child in children]


def _merge_bases(layer: BinaryLayer) -> tuple[Tensor, Tensor | None]:
    """Return one weight and one output scale for a binary layer. Bases and offsets are merged into the weight."""
    weight = layer.binarize_weight()
    if weight.num_bases == 1 and weight.offset is None:
        return weight.signs, weight.scale
    total = torch.zeros_like(layer.weight)
    for base in weight.split_bases():
        for factors, signs in ((base.scale, base.signs), (base.offset, torch.ones_like(base.signs))):
            if factors is not None:
                total = total + signs * factors.reshape(-1, *[1] * (total.dim() - 1))
    return total, None


def bound_layer_norm(layer: nn.Module, batch_norm: nn.Module | None, input_shape: Sequence[int]) -> NormInterval:
    """Return norm bounds of a convolution or linear layer, together with the batch norm that follows it.

    `shape` is the shape of the input, including the batch axis. The binarization of inputs is not a part of the norm.
    """
    assert isinstance(layer, nn.Conv2d | nn.Linear)
    weight, scale = layer.weight.detach(), None
    if isinstance(layer, BinaryLayer):
        weight, scale = _merge_bases(layer)
    gain = torch.ones(len(weight), *[1] * (weight.dim() - 2), dtype=torch.float64, device=weight.device)
    gain = gain if scale is None else gain * scale.detach().double()
    if batch_norm is not None:
        gain = gain * _batch_norm_factors(batch_norm).reshape(gain.shape[0], *[1] * (gain.dim() - 1))
    weight = weight.detach().double()
    if isinstance(layer, nn.Linear):
        return exact_matrix_norm(weight * gain[:, None])
    if layer.padding_mode not in ("zeros", "circular"):
        raise InputError(
            f"norm bounds need zero or circular padding; got a convolution with padding mode {layer.padding_mode!r}"
        )
    left, right, top, bottom = layer._reversed_padding_repeated_twice
    conv = Convolution(
        weight,
        gain,
        _as_pair(layer.stride),
        (left, right, top, bottom),
        _as_pair(layer.dilation),
        layer.groups,
        layer.padding_mode == "circular",
    )
    channels, height, width = input_shape[1:]
    return bound_norm(conv, (channels, height, width))


def _as_pair(sizes: Sequence[int]) -> tuple[int, int]:
    return sizes[0], sizes[1]


def _batch_norm_factors(batch_norm: Any) -> Tensor:
    """Return the factor by which a batch norm in evaluation mode multiplies each channel."""
    factor = (batch_norm.running_var.double() + batch_norm.eps).rsqrt()
    return factor if batch_norm.weight is None else factor * batch_norm.weight.detach().double()


def _bound_batch_norm(calculator: _BoundCalculator, name: str, module: Any) -> float:
    value = _batch_norm_factors(module).abs().max().item()
    calculator.layers[name] = NormInterval(value, value * (1 + ROUNDING_MARGIN))
    return calculator.layers[name].high


def _windows_per_pixel(pool: nn.MaxPool2d) -> int:
    """Return the maximum number of pooling windows that contain a pixel, along one axis."""
    size, stride = pool.kernel_size, pool.stride
    assert isinstance(size, int)
    assert isinstance(stride, int)
    return -(-size // stride)


def _bound_average_pool(calculator: _BoundCalculator, name: str, pool: Any) -> float:
    covers_input = all(side % pool.kernel_size == 0 for side in calculator.input_shapes[name][2:])
    return 1 / pool.kernel_size if covers_input and pool.kernel_size == pool.stride else 1.0


def _bound_residual(
    calculator: _BoundCalculator, name: str, block: nn.Module, branch: Sequence[str], skip: str | None
) -> float:
    skip_bound = 1.0 if skip is None else calculator.bound_module(*calculator.get_child(name, block, skip))
    return skip_bound + calculator.bound_chain(calculator.get_children(name, block, branch))


def _bound_plain_block(calculator: _BoundCalculator, name: str, block: nn.Module) -> float:
    residual = _bound_residual(calculator, name, block, ("conv1", "bn1", "act1", "conv2", "bn2"), "shortcut")
    return residual * calculator.bound_module(*calculator.get_child(name, block, "act2"))


def _bound_single_block(calculator: _BoundCalculator, name: str, block: nn.Module) -> float:
    residual = _bound_residual(calculator, name, block, ("conv1", "bn1"), "shortcut")
    return residual * calculator.bound_module(*calculator.get_child(name, block, "act1"))


def _bound_double_block(calculator: _BoundCalculator, name: str, block: nn.Module) -> float:
    first = _bound_single_block(calculator, name, block)
    second = _bound_residual(calculator, name, block, ("conv2", "bn2"), None)
    return first * second * calculator.bound_module(*calculator.get_child(name, block, "act2"))


def _bound_prelu(module: nn.PReLU) -> float:
    return max(1.0, module.weight.detach().abs().max().item())


def _bound_maxout(module: Maxout) -> float:
    return max(slope.detach().abs().max().item() for slope in (module.above, module.below))


BoundRule = Callable[[_BoundCalculator, str, Any], float]

BOUND_RULES: dict[type[nn.Module] | tuple[type[nn.Module], ...], BoundRule] = {
    Network: lambda calculator, name, m: calculator.bound_chain(
        calculator.get_children(name, m, ("stem", *m.stage_names, "pool", "head"))
    ),
    PlainBlock: _bound_plain_block,
    DoubleBlock: _bound_double_block,
    SingleBlock: _bound_single_block,
    nn.Sequential: lambda calculator, name, m: calculator.bound_chain(
        calculator.get_children(name, m, [child for child, _ in m.named_children()])
    ),
    (nn.Conv2d, nn.Linear): lambda calculator, name, m: calculator.bound_chain([(name, m)]),
    (nn.BatchNorm1d, nn.BatchNorm2d): _bound_batch_norm,
    (nn.Identity, nn.Flatten, nn.ReLU, nn.Hardtanh, Subsample, PadChannels): lambda calculator, name, m: 1.0,
    nn.PReLU: lambda calculator, name, m: _bound_prelu(m),
    RPReLU: lambda calculator, name, m: _bound_prelu(m.prelu),
    Maxout: lambda calculator, name, m: _bound_maxout(m),
    nn.MaxPool2d: lambda calculator, name, m: float(_windows_per_pixel(m)),
    nn.AvgPool2d: _bound_average_pool,
    nn.AdaptiveAvgPool2d: lambda calculator, name, m: 1 / math.sqrt(calculator.input_shapes[name][2:].numel()),
}
