"""Count parameters, stored bits, multiply-accumulates and element-wise operations of a network for one image.

The operations are counted during one forward pass, by these rules:

    convolution, linear     1 per multiply-accumulate; 0 for the bias, which is the initial value of the sum
    sign of an activation   1 per number and bit
    scale of a binary layer 1 per output and base; the same for an offset of its weights and for a sum of two bases
    batch norm              2 per number
    activation              2 per number (ReLU, hardtanh, PReLU, Maxout: two bounds, or a comparison and a product)
    max pool                k^2 - 1 per output
    average pool            k^2 per output; for global pooling k^2 is the size of the feature map
    sum of two tensors      1 per number, for every addition such as a skip or a learned shift; 0 for a shift directly
                            before a sign, because the sign then compares with the shift
    mean of a sample        1 per number, for methods that need it for signs or scales: RBNN, SiMaN, HORQ
    standardizing a sample  4 per number, for methods with real activations that need it: RBNN 1/32
    anything else           0 (copies, reshapes, padding)

Inference engines fold scales and batch norms into other numbers. Here they are counted as separate operations.

By these rules the standard ResNet-18 has exactly 1,826,040,320 floating-point operations, which the paper gives as
1.826e9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lcrbnn.nn.layers import BinaryLayer
from lcrbnn.nn.methods.binarizer import Binarizer
from lcrbnn.nn.model_hooks import eval_mode
from lcrbnn.nn.models.blocks import Maxout

BINARY_OPS_PER_OP = 64  # number of 1-bit operations that count as one OP
FLOAT_BITS = 32


@dataclass(frozen=True)
class LayerCost:
    """Cost of one convolution or linear layer for a single image."""

    name: str
    kind: str  # kind of the layer: binary, mixed or real
    weights: int
    macs: int
    bits: int  # (bits per activation) x (number of weight bases); 32 for real activations


@dataclass(frozen=True)
class Cost:
    """Size of a network and cost of one image."""

    parameters: int  # number of learnable parameters, including latent weights
    binary_weights: int  # number of latent weights of binary layers
    binary_macs: int  # number of multiply-accumulates of a 1-bit weight and an activation of one or a few bits
    mixed_macs: int  # number of multiply-accumulates of a 1-bit weight and a real activation, or vice versa
    real_macs: int
    # Number of bit operations (BOPs): each of the binary_macs counts once per bit of the activation
    bit_operations: int = 0
    element_wise: int = 0
    # Stored bits. A binary weight has 1 bit per base (2 bits for three levels). Any other parameter or batch-norm
    # statistic has 32 bits. A parameter that only training needs has 0 bits.
    stored_bits: int = 0
    weight_bits: int = 0  # number of stored bits of the binary weights alone
    layers: tuple[LayerCost, ...] = field(default=(), repr=False)

    @property
    def flops(self) -> int:
        """Return the number of floating-point operations: multiply-accumulates and element-wise operations."""
        return self.real_macs + self.mixed_macs + self.element_wise

    @property
    def ops(self) -> float:
        """Return OPs = FP + BOPs / 64 for convolutions and linear layers."""
        return self.real_macs + self.mixed_macs + self.bit_operations / BINARY_OPS_PER_OP

    @property
    def ops_all(self) -> float:
        """Return the OPs of the whole network, including element-wise operations."""
        return self.flops + self.bit_operations / BINARY_OPS_PER_OP


def count_cost(model: nn.Module, shape: tuple[int, ...]) -> Cost:
    """Return the cost of one image with this shape (channels, height, width), counted during a forward pass."""
    counter = _CostCounter()
    named_layers = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [m.register_forward_hook(counter.make_layer_hook(name)) for name, m in named_layers]
    for module in model.modules():
        if rule := _find_rule(module):
            hooks += [
                module.register_forward_pre_hook(counter.enter_module),
                module.register_forward_hook(counter.make_exit_hook(rule)),
            ]
    parameter = next(model.parameters(), torch.zeros(()))
    try:
        with eval_mode(model), torch.no_grad(), counter:
            model(torch.zeros(1, *shape, device=parameter.device, dtype=parameter.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    layers = tuple(counter.layers)
    macs = {kind: sum(layer.macs for layer in layers if layer.kind == kind) for kind in ("binary", "mixed", "real")}
    binary_layers = [m for _, m in named_layers if isinstance(m, BinaryLayer) and not m.method.has_real_weights]
    binary_weights = sum(m.weight.numel() for m in binary_layers)
    weight_bits = sum(m.weight.numel() * m.weight_binarizer.bits for m in binary_layers)
    parameters = sum(p.numel() for p in model.parameters())
    return Cost(
        parameters=parameters,
        binary_weights=binary_weights,
        binary_macs=macs["binary"],
        mixed_macs=macs["mixed"],
        real_macs=macs["real"],
        bit_operations=sum(layer.macs * layer.bits for layer in layers if layer.kind == "binary"),
        element_wise=counter.element_wise,
        stored_bits=weight_bits
        + FLOAT_BITS * (parameters - binary_weights - _count_training_only(model) + _count_running_statistics(model)),
        weight_bits=weight_bits,
        layers=layers,
    )


class _CostCounter(TorchDispatchMode):
    """Counts the operations of a forward pass.

    Hooks count modules that have a rule, torch dispatch counts other additions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers: list[LayerCost] = []
        self.element_wise = 0
        self._rule_depth = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if not self._rule_depth and func in _ADD_OPERATORS and all(isinstance(operand, Tensor) for operand in args[:2]):
            self.element_wise += output.numel()
        return output

    def make_layer_hook(self, name: str) -> Callable[..., None]:
        def record_layer(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            assert isinstance(layer, nn.Conv2d | nn.Linear)
            is_convolution = isinstance(layer, nn.Conv2d)
            positions = output.shape[2:].numel() if is_convolution else output[0].numel() // output.shape[-1]
            kind, bits = _kind_and_bits(layer)
            taps = layer.weight.numel() + _offset_taps(layer)
            self.layers.append(LayerCost(name, kind, layer.weight.numel(), taps * positions, bits))

        return record_layer

    def enter_module(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._rule_depth += 1

    def make_exit_hook(self, rule: OperationRule) -> Callable[..., None]:
        def add_operations(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            self._rule_depth -= 1
            self.element_wise += rule(module, args[0], output)

        return add_operations


STANDARDIZATION_OPS = 4  # number of operations per activation: mean, standard deviation, difference, quotient
# dictionary: type of module -> function (module, input, output) that returns the number of operations
OperationRule = Callable[[Any, Tensor, Tensor], int]

_ADD_OPERATORS = (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor)


def _window_size(module: Any) -> int:
    size = module.kernel_size
    return size * size if isinstance(size, int) else size[0] * size[1]


def _count_binary_layer(layer: BinaryLayer, x: Tensor, y: Tensor) -> int:
    binarizer = layer.input_binarizer
    if binarizer is None:
        sign_operations = STANDARDIZATION_OPS * x.numel() if layer.method.standardizes_real_inputs else 0
    else:
        sign_operations = x.numel() * (binarizer.bits + binarizer.num_sample_reductions)
    if layer.method.has_real_weights:
        return sign_operations
    weight = layer.binarize_weight()
    scales = [part for part in (weight.scale, weight.offset) if part is not None]
    return sign_operations + y.numel() * (weight.num_bases * len(scales) + weight.num_bases - 1)


OPERATION_RULES: dict[type[nn.Module] | tuple[type[nn.Module], ...], OperationRule] = {
    BinaryLayer: _count_binary_layer,
    (nn.Conv2d, nn.Linear): lambda m, x, y: 0,
    (nn.BatchNorm1d, nn.BatchNorm2d): lambda m, x, y: 2 * y.numel(),
    (nn.ReLU, nn.Hardtanh, nn.PReLU, Maxout): lambda m, x, y: 2 * y.numel(),
    nn.MaxPool2d: lambda m, x, y: (_window_size(m) - 1) * y.numel(),
    nn.AvgPool2d: lambda m, x, y: _window_size(m) * y.numel(),
    nn.AdaptiveAvgPool2d: lambda m, x, y: x.numel(),
}


def _find_rule(module: nn.Module) -> OperationRule | None:
    return next((rule for kinds, rule in OPERATION_RULES.items() if isinstance(module, kinds)), None)


def _kind_and_bits(layer: nn.Module) -> tuple[str, int]:
    if not isinstance(layer, BinaryLayer):
        return "real", FLOAT_BITS
    if layer.input_binarizer is None or layer.method.has_real_weights:
        return "mixed", FLOAT_BITS
    return "binary", layer.input_binarizer.bits * layer.weight_binarizer.bits


def _offset_taps(layer: nn.Module) -> int:
    """Return the number of multiply-accumulates for an offset of the weights, which adds a filter of ones per group."""
    if not isinstance(layer, BinaryLayer) or layer.binarize_weight().offset is None:
        return 0
    return layer.weight[0].numel() * getattr(layer, "groups", 1)


def _count_training_only(model: nn.Module) -> int:
    """Return the number of parameters that are not stored, because only training needs them."""
    binarizers = [m for m in model.modules() if isinstance(m, Binarizer)]
    return sum(m.get_parameter(name).numel() for m in binarizers for name in m.training_only_parameters)


def _count_running_statistics(model: nn.Module) -> int:
    """Return the number of running means and variances, which are stored but are not parameters."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    return sum(s.numel() for m in norms for s in (m.running_mean, m.running_var) if s is not None)
