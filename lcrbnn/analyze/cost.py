"""Counting what one image costs: parameters, bits, multiply-accumulates and element-wise operations, of any network.

Everything is read off one forward pass. The rule, for one image:

    convolution, linear     a multiply-accumulate counts once; a bias is where its sum starts, and counts nothing
    sign of an activation   1 a number and a bit
    scale of a binary layer 1 an output and base; so are an offset of its weights, and the sum of two bases
    batch norm              2 a number
    activation              2 a number (ReLU, hardtanh, PReLU, Maxout: two bounds, or a comparison and a product)
    max pool                k^2 - 1 an output
    average pool            k^2 an output; of a global one, k^2 is the whole map
    sum of two maps         1 a number, wherever a network adds: skips, a learned shift (but not one that a sign is
                            taken of: its comparison is with the shift then)
    mean of a sample        1 a number, where signs or scales need it: RBNN, SiMaN, HORQ
    standardising a sample  4 a number, where real activations are: RBNN 1/32
    anything else           copies, reshapes, padding: 0

An engine folds scales and batch norms into other numbers; here they are counted as the network has them.

With it the usual ResNet-18 has exactly the 1,826,040,320 floating-point operations that the paper prints as 1.826e9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lcrbnn.layers import BinaryLayer, evaluating
from lcrbnn.methods.contract import Binarizer
from lcrbnn.models.blocks import Maxout

WORD = 64  # 1-bit operations that count as one operation
REAL_BITS = 32


@dataclass(frozen=True)
class LayerCost:
    """What one convolution or linear layer does for an image."""

    name: str
    kind: str  # binary, mixed or real
    weights: int
    macs: int
    bits: int  # of its activations, times the bases of its weights: 1, a few, or 32


@dataclass(frozen=True)
class Cost:
    """What a network holds, and what one image costs."""

    parameters: int  # learnable numbers, latent weights among them
    binary_weights: int  # of these, the ones of which a bit is kept, or one a base
    binary_macs: int  # 1-bit weight times 1-bit (or few-bit) activation
    mixed_macs: int  # 1-bit weight times real activation, or the other way round
    real_macs: int
    bit_operations: int = 0  # binary_macs, each as often as its activation has bits: BOPs
    element_wise: int = 0
    # One a binary weight (and base; two for three levels), 32 every other parameter and batch-norm statistic; nothing
    # for what only training needs.
    stored_bits: int = 0
    weight_bits: int = 0  # of these, those of binary weights
    layers: tuple[LayerCost, ...] = field(default=(), repr=False)

    @property
    def flops(self) -> int:
        """Everything that is not binary: multiply-accumulates with a real number, and element-wise operations."""
        return self.real_macs + self.mixed_macs + self.element_wise

    @property
    def ops(self) -> float:
        """OPs = FP + BOPs / 64, of convolutions and linear layers."""
        return self.real_macs + self.mixed_macs + self.bit_operations / WORD

    @property
    def ops_all(self) -> float:
        """OPs with element-wise operations."""
        return self.flops + self.bit_operations / WORD


def count(model: nn.Module, shape: tuple[int, ...]) -> Cost:
    """Run one image of this shape (channels, height, width) and count what each module does."""
    counter = _Counter()
    named = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [m.register_forward_hook(counter.layer(name)) for name, m in named]
    for module in model.modules():
        if rule := _rule(module):
            hooks += [
                module.register_forward_pre_hook(counter.enter),
                module.register_forward_hook(counter.leave(rule)),
            ]
    parameter = next(model.parameters(), torch.zeros(()))
    try:
        with evaluating(model), torch.no_grad(), counter:
            model(torch.zeros(1, *shape, device=parameter.device, dtype=parameter.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    layers = tuple(counter.layers)
    macs = {kind: sum(one.macs for one in layers if one.kind == kind) for kind in ("binary", "mixed", "real")}
    binary_layers = [m for _, m in named if isinstance(m, BinaryLayer) and not m.method.real_weights]
    binary = sum(m.weight.numel() for m in binary_layers)
    kept = sum(m.weight.numel() * m.weight_binarizer.bits for m in binary_layers)
    parameters = sum(p.numel() for p in model.parameters())
    return Cost(
        parameters=parameters,
        binary_weights=binary,
        binary_macs=macs["binary"],
        mixed_macs=macs["mixed"],
        real_macs=macs["real"],
        bit_operations=sum(one.macs * one.bits for one in layers if one.kind == "binary"),
        element_wise=counter.element_wise,
        stored_bits=kept + REAL_BITS * (parameters - binary - _training_only(model) + _statistics(model)),
        weight_bits=kept,
        layers=layers,
    )


class _Counter(TorchDispatchMode):
    """Hears of every tensor operation; sums outside modules that have a rule of their own are counted here."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: list[LayerCost] = []
        self.element_wise = 0
        self._inside = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if not self._inside and func in _SUMS and all(isinstance(one, Tensor) for one in args[:2]):
            self.element_wise += output.numel()
        return output

    def layer(self, name: str) -> Callable[..., None]:
        def note(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            assert isinstance(layer, nn.Conv2d | nn.Linear)
            convolves = isinstance(layer, nn.Conv2d)
            positions = output.shape[2:].numel() if convolves else output[0].numel() // output.shape[-1]
            kind, bits = _kind(layer)
            taps = layer.weight.numel() + _box(layer)
            self.layers.append(LayerCost(name, kind, layer.weight.numel(), taps * positions, bits))

        return note

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._inside += 1

    def leave(self, rule: Rule) -> Callable[..., None]:
        def note(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            self._inside -= 1
            self.element_wise += rule(module, args[0], output)

        return note


STANDARDIZING = 4  # operations per number of a real input: mean, deviation, difference, quotient
Rule = Callable[[Any, Tensor, Tensor], int]  # module, input, output -> operations

_SUMS = (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor)


def _window(module: Any) -> int:
    size = module.kernel_size
    return size * size if isinstance(size, int) else size[0] * size[1]


def _binary(layer: BinaryLayer, x: Tensor, y: Tensor) -> int:
    binarizer = layer.input_binarizer
    if binarizer is None:
        signs = STANDARDIZING * x.numel() if layer.method.standardizes_real_input else 0
    else:
        signs = x.numel() * (binarizer.bits + binarizer.sample_sums)
    if layer.method.real_weights:
        return signs
    weight = layer.binary_weight()
    numbers = [part for part in (weight.scale, weight.offset) if part is not None]
    return signs + y.numel() * (weight.bases * len(numbers) + weight.bases - 1)


RULES: dict[type[nn.Module] | tuple[type[nn.Module], ...], Rule] = {
    BinaryLayer: _binary,
    (nn.Conv2d, nn.Linear): lambda m, x, y: 0,
    (nn.BatchNorm1d, nn.BatchNorm2d): lambda m, x, y: 2 * y.numel(),
    (nn.ReLU, nn.Hardtanh, nn.PReLU, Maxout): lambda m, x, y: 2 * y.numel(),
    nn.MaxPool2d: lambda m, x, y: (_window(m) - 1) * y.numel(),
    nn.AvgPool2d: lambda m, x, y: _window(m) * y.numel(),
    nn.AdaptiveAvgPool2d: lambda m, x, y: x.numel(),
}


def _rule(module: nn.Module) -> Rule | None:
    return next((rule for kinds, rule in RULES.items() if isinstance(module, kinds)), None)


def _kind(layer: nn.Module) -> tuple[str, int]:
    if not isinstance(layer, BinaryLayer):
        return "real", REAL_BITS
    if layer.input_binarizer is None or layer.method.real_weights:
        return "mixed", REAL_BITS
    return "binary", layer.input_binarizer.bits * layer.weight_binarizer.bits


def _box(layer: nn.Module) -> int:
    """The taps of the filters of ones, one a group, by which an offset of weights multiplies."""
    if not isinstance(layer, BinaryLayer) or layer.binary_weight().offset is None:
        return 0
    return layer.weight[0].numel() * getattr(layer, "groups", 1)


def _training_only(model: nn.Module) -> int:
    """Learned numbers that lead to binary weights or their gradients, and are not stored beside them."""
    found = [m for m in model.modules() if isinstance(m, Binarizer)]
    return sum(m.get_parameter(name).numel() for m in found for name in m.training_only)


def _statistics(model: nn.Module) -> int:
    """Running means and variances: numbers that evaluation needs and nobody learns."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    return sum(s.numel() for m in norms for s in (m.running_mean, m.running_var) if s is not None)
