"""An upper bound of the Lipschitz constant of the *surrogate* network, whose signs are hardtanhs; and Eq. 5's product.

Neither says anything of the deployed network: a sign jumps, so that the deployed network has no Lipschitz constant at
all. Layers are those that compute: signs of the weights times their scales, batch norms in evaluation mode folded in.
The standardisation of inputs (RBNN, SiMaN) is not counted. A residual block counts the norm of its skip plus that of
its branch. Eq. 5 is the product along the main path alone, as the paper prints it; for a network with skips that is
no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lcrbnn.analyze.operator import SLACK, Convolution, Interval, matrix_norm, norm_of
from lcrbnn.errors import InputError
from lcrbnn.layers import BinaryLayer, evaluating
from lcrbnn.models import Network
from lcrbnn.models.blocks import DoubleBlock, Maxout, PadChannels, PlainBlock, RPReLU, SingleBlock, Subsample


@dataclass
class Bounds:
    """What a network's layers and their product come to, for images of one size."""

    layers: dict[str, Interval] = field(default_factory=dict)
    surrogate_log10: float = 0.0  # of the upper bound
    eq5_log10: tuple[float, float] = (0.0, 0.0)  # of the product along the main path, its lower and upper end


@torch.no_grad()
def bounds(model: Network, images: Tensor) -> Bounds:
    """Norms of all layers, and both products, with respect to the images that the network takes (normalised)."""
    with evaluating(model):
        walk = _Walk(_input_shapes(model, images[:1]))
        total = walk.bound("", model)
    off = {name for name in walk.layers if ".shortcut" in name}
    main = [interval for name, interval in walk.layers.items() if name not in off]
    return Bounds(
        walk.layers,
        _log10(total),
        (sum(_log10(i.low) for i in main), sum(_log10(i.high) for i in main)),
    )


def _log10(value: float) -> float:
    return math.log10(max(value, 1e-300))  # a layer of zeros


def _input_shapes(model: nn.Module, image: Tensor) -> dict[str, torch.Size]:
    shapes: dict[str, torch.Size] = {}

    def note(name: str) -> Callable[..., None]:
        def seen(module: nn.Module, args: tuple[Any, ...]) -> None:
            shapes[name] = args[0].shape

        return seen

    hooks = [m.register_forward_pre_hook(note(name)) for name, m in model.named_modules()]
    try:
        model(image)
    finally:
        for hook in hooks:
            hook.remove()
    return shapes


Part = tuple[str, nn.Module]


class _Walk:
    """Follows a network's modules and multiplies; keeps the norm of each layer on the way."""

    def __init__(self, shapes: dict[str, torch.Size]) -> None:
        self.shapes = shapes
        self.layers: dict[str, Interval] = {}

    def bound(self, name: str, module: nn.Module) -> float:
        for kinds, rule in RULES.items():
            if isinstance(module, kinds):
                return rule(self, name, module)
        raise InputError(f"no rule bounds {type(module).__name__} ({name or 'the network'})")

    def chain(self, parts: Sequence[Part]) -> float:
        """The product of parts that follow each other; a layer takes the batch norm after it along."""
        total, rest = 1.0, list(parts)
        while rest:
            name, module = rest.pop(0)
            if not isinstance(module, nn.Conv2d | nn.Linear):
                total *= self.bound(name, module)
                continue
            between = []
            while rest and isinstance(rest[0][1], nn.MaxPool2d) and _repeats(rest[0][1]) == 1:
                between.append(rest.pop(0))  # acts on each channel alone and lengthens nothing: the norm may pass it
            norm = rest.pop(0)[1] if rest and isinstance(rest[0][1], nn.BatchNorm2d) else None
            self.layers[name] = layer_norm(module, norm, self.shapes[name])
            total *= self.layers[name].high
        return total

    def part(self, name: str, module: nn.Module, child: str) -> Part:
        return (f"{name}.{child}" if name else child, module.get_submodule(child))

    def parts(self, name: str, module: nn.Module, children: Sequence[str]) -> list[Part]:
        return [self.part(name, module, child) for child in children]


def _one_base(layer: BinaryLayer) -> tuple[Tensor, Tensor | None]:
    """What a binary layer multiplies by, and the scale of its outputs; bases and offsets are summed up first."""
    found = layer.binary_weight()
    if found.bases == 1 and found.offset is None:
        return found.signs, found.scale
    total = torch.zeros_like(layer.weight)
    for base in found.each():
        for numbers, part in ((base.scale, base.signs), (base.offset, torch.ones_like(base.signs))):
            if numbers is not None:
                total = total + part * numbers.reshape(-1, *[1] * (total.dim() - 1))
    return total, None


def layer_norm(layer: nn.Module, norm: nn.Module | None, shape: Sequence[int]) -> Interval:
    """The norm of a convolution or linear layer as it computes, with the batch norm after it, for inputs of this shape.

    Inputs have a batch axis. What a binary layer does to its input before it multiplies is not part of it.
    """
    assert isinstance(layer, nn.Conv2d | nn.Linear)
    weight, scale = layer.weight.detach(), None
    if isinstance(layer, BinaryLayer):
        weight, scale = _one_base(layer)
    gain = torch.ones(len(weight), *[1] * (weight.dim() - 2), dtype=torch.float64, device=weight.device)
    gain = gain if scale is None else gain * scale.detach().double()
    if norm is not None:
        gain = gain * _amplification(norm).reshape(gain.shape[0], *[1] * (gain.dim() - 1))
    weight = weight.detach().double()
    if isinstance(layer, nn.Linear):
        return matrix_norm(weight * gain[:, None])
    if layer.padding_mode not in ("zeros", "circular"):
        raise InputError(f"norms are for zero and circular padding; this convolution has {layer.padding_mode}")
    left, right, top, bottom = layer._reversed_padding_repeated_twice
    conv = Convolution(
        weight,
        gain,
        _two(layer.stride),
        (left, right, top, bottom),
        _two(layer.dilation),
        layer.groups,
        layer.padding_mode == "circular",
    )
    channels, height, width = shape[1:]
    return norm_of(conv, (channels, height, width))


def _two(sizes: Sequence[int]) -> tuple[int, int]:
    return sizes[0], sizes[1]


def _amplification(norm: Any) -> Tensor:
    """What a batch norm in evaluation mode multiplies each channel by."""
    factor = (norm.running_var.double() + norm.eps).rsqrt()
    return factor if norm.weight is None else factor * norm.weight.detach().double()


def _alone(walk: _Walk, name: str, module: Any) -> float:
    value = _amplification(module).abs().max().item()
    walk.layers[name] = Interval(value, value * (1 + SLACK))
    return walk.layers[name].high


def _repeats(pool: nn.MaxPool2d) -> int:
    """Windows that see one pixel, along one axis."""
    size, stride = pool.kernel_size, pool.stride
    assert isinstance(size, int)
    assert isinstance(stride, int)
    return -(-size // stride)


def _average(walk: _Walk, name: str, pool: Any) -> float:
    whole = all(side % pool.kernel_size == 0 for side in walk.shapes[name][2:])
    return 1 / pool.kernel_size if whole and pool.kernel_size == pool.stride else 1.0


def _residual(walk: _Walk, name: str, block: nn.Module, branch: Sequence[str], skip: str | None) -> float:
    around = 1.0 if skip is None else walk.bound(*walk.part(name, block, skip))
    return around + walk.chain(walk.parts(name, block, branch))


def _plain(walk: _Walk, name: str, block: nn.Module) -> float:
    both = _residual(walk, name, block, ("conv1", "bn1", "act1", "conv2", "bn2"), "shortcut")
    return both * walk.bound(*walk.part(name, block, "act2"))


def _single(walk: _Walk, name: str, block: nn.Module) -> float:
    first = _residual(walk, name, block, ("conv1", "bn1"), "shortcut")
    return first * walk.bound(*walk.part(name, block, "act1"))


def _double(walk: _Walk, name: str, block: nn.Module) -> float:
    first = _single(walk, name, block)
    second = _residual(walk, name, block, ("conv2", "bn2"), None)
    return first * second * walk.bound(*walk.part(name, block, "act2"))


def _prelu(module: nn.PReLU) -> float:
    return max(1.0, module.weight.detach().abs().max().item())


def _maxout(module: Maxout) -> float:
    return max(slope.detach().abs().max().item() for slope in (module.above, module.below))


Rule = Callable[[_Walk, str, Any], float]

RULES: dict[type[nn.Module] | tuple[type[nn.Module], ...], Rule] = {
    Network: lambda walk, name, m: walk.chain(walk.parts(name, m, ("stem", *m.stages, "pool", "head"))),
    PlainBlock: _plain,
    DoubleBlock: _double,
    SingleBlock: _single,
    nn.Sequential: lambda walk, name, m: walk.chain(walk.parts(name, m, [child for child, _ in m.named_children()])),
    (nn.Conv2d, nn.Linear): lambda walk, name, m: walk.chain([(name, m)]),
    (nn.BatchNorm1d, nn.BatchNorm2d): _alone,
    (nn.Identity, nn.Flatten, nn.ReLU, nn.Hardtanh, Subsample, PadChannels): lambda walk, name, m: 1.0,
    nn.PReLU: lambda walk, name, m: _prelu(m),
    RPReLU: lambda walk, name, m: _prelu(m.prelu),
    Maxout: lambda walk, name, m: _maxout(m),
    nn.MaxPool2d: lambda walk, name, m: float(_repeats(m)),
    nn.AvgPool2d: _average,
    nn.AdaptiveAvgPool2d: lambda walk, name, m: 1 / math.sqrt(walk.shapes[name][2:].numel()),
}
