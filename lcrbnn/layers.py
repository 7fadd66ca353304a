"""Binary layers: they multiply signs by signs and scale afterwards, so that the sums of an engine exist here too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.errors import InputError, number
from lcrbnn.kernels.conv import conv2d
from lcrbnn.methods import Binary, Method
from lcrbnn.methods import method as find_method
from lcrbnn.methods.contract import standardize_samples


class BinaryLayer(nn.Module):
    """What both binary layers share: a latent weight, two binarizers, and how their outcomes combine."""

    weight: Tensor
    bias: Any  # Tensor or None: torch types it one way in Conv2d and another in Linear
    method: Method
    watched = ""  # what hooks of the package look at in its network: see retention.capture
    scales_early = False  # see scaled_early(); here too for networks that were pickled before it was there

    def _install(self, chosen: Method, channels: int) -> None:
        # After nn.Conv2d / nn.Linear made the weight: methods size themselves from it.
        self.method = chosen
        self.normalizer: Normalizer | None = None
        self.weight_binarizer = chosen.weight_binarizer(self.weight)
        self.input_binarizer = chosen.activation_binarizer(channels)
        self.to(self.weight.device, self.weight.dtype)
        self.use_latent = False  # see latent_weights()
        self.scales_early = False  # see scaled_early()
        self.watched = ""  # of its own, so that a compiled graph finds the same after hooks came and went
        self.observing = True  # whether a pass is one of training: see retention/frozen.py

    def _adopt(self, layer: nn.Conv2d | nn.Linear) -> None:
        self.__dict__.update({k: v for k, v in layer.__dict__.items() if k not in self.__dict__})
        for name in ("weight", "bias"):
            self.register_parameter(name, getattr(layer, name))

    def initialize(self) -> None:
        """Give the latent weight the start of the method, where the method has one of its own."""
        if not self.method.real_weights:
            with torch.no_grad():
                self.weight_binarizer.initialize(self.weight)

    def binary_weight(self) -> Binary:
        """The weight as the layer multiplies by it: binarised, normalised if a regulariser asks for it."""
        if self.use_latent or self.method.real_weights:
            return Binary(self.weight_binarizer.latent(self.weight))
        if self.normalizer is None:
            return self.weight_binarizer(self.weight)
        return self.normalizer.after(self.weight_binarizer(self.normalizer.before(self.weight)))

    def prepared_input(self, x: Tensor) -> Binary:
        """Return the input as the layer multiplies it: binarised, or real (RBNN standardises real inputs too)."""
        if self.input_binarizer is not None:
            binarized: Binary = self.input_binarizer(x)
            return binarized
        return Binary(standardize_samples(x) if self.method.standardizes_real_input else x)

    def _multiply(self, x: Tensor, signs: Tensor, padding_sign: float) -> Tensor:
        raise InputError(f"{type(self).__name__} is not a layer of its own: use BinaryConv2d or BinaryLinear")

    def forward(self, x: Tensor) -> Tensor:
        """Binarise weight and input, multiply, scale, add the bias."""
        bool(self.watched)  # torch.compile checks what a pass uses, but not that there are no hooks
        weight = self.binary_weight()
        if self.weight_binarizer.observes and self.training and self.observing:
            self.weight_binarizer.observe(x.detach(), getattr(self, "groups", 1))
        y = self._weighted(self.prepared_input(x), weight)
        if self.bias is None:
            return y
        return y + self.bias.reshape(-1, *[1] * (self.weight.dim() - 2))

    def _weighted(self, a: Binary, weight: Binary) -> Tensor:
        # The sum over the bases of the weight: one, for all but a few methods.
        parts = [self._one(a, base) for base in weight.each()]
        y = parts[0]
        for more in parts[1:]:
            y = y + more
        return y

    def _one(self, a: Binary, w: Binary) -> Tensor:
        if self.scales_early and w.scale is not None and w.scale.numel() == w.signs.shape[0]:
            y = self._combine(a, w.signs * w.scale.reshape(-1, *[1] * (w.signs.dim() - 1)))
        else:
            y = self._combine(a, w.signs)
            if w.scale is not None:  # in the output's type: under autocast a wider scale would widen all that follows
                y = y * _fitting(w.scale, y).to(y.dtype)
        if w.offset is None:
            return y
        # An offset multiplies the sum of the input under each window: a filter of ones a group.
        groups = getattr(self, "groups", 1)
        sums = self._combine(a, torch.ones_like(w.signs[:groups]))
        if groups > 1:
            sums = sums.unsqueeze(2).expand(-1, -1, self.weight.shape[0] // groups, -1, -1).flatten(1, 2)
        return y + sums * w.offset.to(y.dtype)

    def _combine(self, a: Binary, signs: Tensor) -> Tensor:
        """The input that `a` means, multiplied by one base of a weight."""
        value = getattr(self, "padding_value", 0.0)
        binarizer = self.input_binarizer
        if binarizer is None:
            return self._multiply(a.signs, signs, value)
        outside = binarizer.real_border and (value != 0 or a.offset is not None)
        border = 0.0 if binarizer.real_border else binarizer.padding_sign(value)
        if a.bases > 1:
            y = self._multiply(a.signs.flatten(0, 1), signs, border).unflatten(0, (a.bases, -1))
            y = (y if a.scale is None else y * _narrow(a.scale, y)).sum(0)
        else:
            y = self._multiply(a.signs, signs, border)
            y = y if a.scale is None else y * _narrow(a.scale, y)
        if outside:  # offset and border by themselves, as a real map that is the same for every sample
            still = torch.zeros_like(a.signs[0] if a.bases > 1 else a.signs)[:1]
            return y + self._multiply(still if a.offset is None else still + a.offset, signs, value)
        if a.offset is not None:  # the border was padded in the signs' own terms, so the offset sees every tap
            sums = signs.flatten(1).sum(1).reshape(-1, *[1] * (self.weight.dim() - 2))
            y = (y + a.offset * sums).to(y.dtype)
        return y


def _narrow(scale: Tensor, y: Tensor) -> Tensor:
    """The scale of an activation in the output's type, which a wider one would widen; a single number cannot."""
    return scale.to(y.dtype) if scale.dim() else scale


class Normalizer(nn.Module):
    """What a regulariser does to the weight of a binary layer: before it is binarised, or after."""

    def before(self, weight: Tensor) -> Tensor:
        """The latent weight that is binarised."""
        return weight

    def after(self, weight: Binary) -> Binary:
        """The binary weight that multiplies."""
        return weight

    def step(self, layer: BinaryLayer) -> None:
        """Follow the weight; called after each optimiser step."""


class BinaryConv2d(BinaryLayer, nn.Conv2d):
    """A 2-d convolution with a binary weight, and binary inputs unless the method's bits say 1/32.

    As nn.Conv2d, without a bias by default. `padding_value` is what stands outside the image: 0 as in all published
    codes (a third level beside -1 and +1), or -1 or +1, which keep the border binary.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = False,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        *,
        method: str | Method,
        padding_value: float = 0.0,
        **factory: Any,
    ) -> None:
        """Make a fresh layer, with the method's own start of the weight where it has one."""
        nn.Conv2d.__init__(
            self,
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            **factory,
        )
        self._set_padding_value(padding_value)
        self._install(find_method(method), in_channels)
        self.initialize()

    @classmethod
    def of(cls, conv: nn.Conv2d, chosen: Method, padding_value: float = 0.0) -> BinaryConv2d:
        """The binary layer with the weight (the same parameter) and settings of an ordinary convolution."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._adopt(conv)
        layer._set_padding_value(padding_value)
        layer._install(chosen, conv.in_channels)
        return layer.train(conv.training)

    def _set_padding_value(self, value: float) -> None:
        if value not in (-1, 0, 1):
            raise InputError(f"padding_value is 0, -1 or 1; got {value!r}")
        self.padding_value = float(value)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output for an input of this height and width."""
        left, right, top, bottom = self._reversed_padding_repeated_twice
        return (
            (height + top + bottom - self.dilation[0] * (self.kernel_size[0] - 1) - 1) // self.stride[0] + 1,
            (width + left + right - self.dilation[1] * (self.kernel_size[1] - 1) - 1) // self.stride[1] + 1,
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, in, h, w) -> (n, out, h', w')."""
        if x.dim() != 4:
            raise InputError(f"BinaryConv2d takes a batch of images, (n, channels, h, w); got shape {tuple(x.shape)}")
        return BinaryLayer.forward(self, x)

    def _multiply(self, x: Tensor, signs: Tensor, padding_sign: float) -> Tensor:
        if self.padding_mode == "zeros" and padding_sign == 0:
            return conv2d(x, signs, None, self.stride, self.padding, self.dilation, self.groups)
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        value = padding_sign if mode == "constant" else None
        x = F.pad(x, self._reversed_padding_repeated_twice, mode=mode, value=value)
        return conv2d(x, signs, None, self.stride, 0, self.dilation, self.groups)

    def extra_repr(self) -> str:
        """The settings of the convolution, the method and its bits."""
        border = "" if self.padding_value == 0 else f", padding_value={self.padding_value:g}"
        return f"{nn.Conv2d.extra_repr(self)}{border}, {_label(self.method)}"


class BinaryLinear(BinaryLayer, nn.Linear):
    """A linear layer with a binary weight, and binary inputs unless the method's bits say 1/32; no bias by default."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = False, *, method: str | Method, **factory: Any
    ) -> None:
        """Make a fresh layer, with the method's own start of the weight where it has one."""
        nn.Linear.__init__(self, in_features, out_features, bias, **factory)
        self._install(find_method(method), in_features)
        self.initialize()

    @classmethod
    def of(cls, linear: nn.Linear, chosen: Method) -> BinaryLinear:
        """The binary layer with the weight (the same parameter) of an ordinary linear layer."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._adopt(linear)
        layer._install(chosen, linear.in_features)
        return layer.train(linear.training)

    def _install(self, chosen: Method, channels: int) -> None:
        BinaryLayer._install(self, chosen, channels)
        if self.input_binarizer is not None:
            self.input_binarizer.channel_axis = -1

    def forward(self, x: Tensor) -> Tensor:
        """(n, ..., in) -> (n, ..., out)."""
        if x.dim() < 2:
            raise InputError(f"BinaryLinear takes a batch, (n, ..., features); got shape {tuple(x.shape)}")
        return BinaryLayer.forward(self, x)

    def _multiply(self, x: Tensor, signs: Tensor, padding_sign: float) -> Tensor:
        return F.linear(x, signs)

    def extra_repr(self) -> str:
        """The settings of the layer, the method and its bits."""
        return f"{nn.Linear.extra_repr(self)}, {_label(self.method)}"


def binary_layers(model: nn.Module) -> Iterator[tuple[str, BinaryLayer]]:
    """The binary layers of a model with their names, in the order of registration."""
    for name, module in model.named_modules():
        if isinstance(module, BinaryLayer):
            yield name, module


def advance(model: nn.Module, progress: float) -> None:
    """Tell every binarizer how far training is: epoch / epochs. Repeatable; nothing happens in models without any."""
    number(progress, "progress", low=0, high=1)
    for _, layer in binary_layers(model):
        layer.weight_binarizer.advance(progress)
        if layer.input_binarizer is not None:
            layer.input_binarizer.advance(progress)


def start_epoch(model: nn.Module) -> None:
    """Do what methods do once an epoch (RBNN turns its rotations). Call it once, before the first step of the epoch."""
    for _, layer in binary_layers(model):
        layer.weight_binarizer.start_epoch(layer.weight)


def project(model: nn.Module) -> None:
    """Put latent weights back where their methods keep them (XNOR-Net centres and clamps). Call it after each step."""
    for _, layer in binary_layers(model):
        layer.weight_binarizer.project(layer.weight)
        if layer.normalizer is not None:
            layer.normalizer.step(layer)


def extra_loss(model: nn.Module) -> Tensor | None:
    """What the methods of the layers add to the loss of the latest forward pass (RAD, BNN+); None if they add nothing.

    Call it once a step, after the forward pass, and add it to the loss.
    """
    sums: list[Tensor | None] = []
    means: list[Tensor | None] = []
    for _, layer in binary_layers(model):
        sums.append(layer.weight_binarizer.penalty(layer.weight))
        if layer.input_binarizer is not None:
            (means if layer.input_binarizer.averaged else sums).append(layer.input_binarizer.penalty())
    alone, shared = ([x for x in found if x is not None] for found in (sums, means))
    parts = [*alone, *([torch.stack(shared).mean()] if shared else [])]
    return sum(parts[1:], parts[0]) if parts else None


def fit(model: nn.Module, example: Tensor | Sequence[int]) -> None:
    """Tell every layer the size of its output, by running an example (a batch, or its shape) through the model once.

    Only methods with a scale for each output position (xnor++) need it; the model is left in the mode it was in, and
    its batch-norm statistics are not touched.
    """
    images = example if isinstance(example, Tensor) else _zeros(example)
    weight = next(iter(model.parameters()), images)
    images = images.to(weight.device, weight.dtype)

    def tell(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, BinaryConv2d)
        layer.weight_binarizer.fit(layer.output_size(*args[0].shape[-2:]))
        layer.weight_binarizer.to(layer.weight.device, layer.weight.dtype)

    hooks = [m.register_forward_pre_hook(tell) for m in model.modules() if isinstance(m, BinaryConv2d)]
    try:
        with evaluating(model), torch.no_grad():
            model(images)
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode; afterwards every module is in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def scaled_early(model: nn.Module) -> Iterator[None]:
    """Inside, a scale for each output channel is multiplied into the weight instead of into what the layer gives."""
    layers = [layer for layer in model.modules() if isinstance(layer, BinaryLayer)]
    for layer in layers:
        layer.scales_early = True
    try:
        yield
    finally:
        for layer in layers:
            layer.scales_early = False


@contextmanager
def latent_weights(model: nn.Module) -> Iterator[None]:
    """Inside, binary layers multiply by the real tensor that their method takes the sign of."""
    layers = [layer for _, layer in binary_layers(model)]
    for layer in layers:
        layer.use_latent = True
    try:
        yield
    finally:
        for layer in layers:
            layer.use_latent = False


def _zeros(shape: Sequence[int]) -> Tensor:
    if not isinstance(shape, list | tuple | torch.Size) or not all(isinstance(n, int) and n > 0 for n in shape):
        raise InputError(f"an example is a batch of images or its shape, such as (1, 3, 32, 32); got {shape!r}")
    return torch.zeros(*shape)


def _label(chosen: Method) -> str:
    return f"{chosen.name} {chosen.chosen_widths}"


def _fitting(scale: Tensor, y: Tensor) -> Tensor:
    # A scale for each output position fixes the image size; broadcasting would hide some mistakes and garble others.
    if scale.dim() == 3 and any(s not in (1, n) for s, n in zip(scale.shape[1:], y.shape[-2:], strict=True)):
        raise InputError(
            f"a scale was learned for outputs of {tuple(scale.shape[1:])} and this one has {tuple(y.shape[-2:])}: "
            "its network takes images of one size"
        )
    return scale
