"""Binary layers. Like the inference engine, these layers multiply signs by signs and apply the scales afterwards."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.errors import InputError
from lcrbnn.nn.kernels.conv import conv2d
from lcrbnn.nn.methods.binarizer import BinaryTensor, Method, standardize_samples
from lcrbnn.nn.methods.method_registry import get_method


class BinaryLayer(nn.Module):
    """Base class of the binary layers.

    It has a latent weight and two binarizers, and multiplies the results of both.
    """

    weight: Tensor
    bias: Any  # bias of the layer, a Tensor or None; torch annotates this attribute differently in Conv2d and Linear
    method: Method

    def _attach_method(self, method: Method, channels: int) -> None:
        # Call this after nn.Conv2d or nn.Linear has created the weight, because the binarizers take their shapes from
        # it.
        self.method = method
        self.normalizer: WeightNormalizer | None = None
        self.weight_binarizer = method.create_weight_binarizer(self.weight)
        self.input_binarizer = method.create_activation_binarizer(channels)
        self.to(self.weight.device, self.weight.dtype)
        # whether the latent weight is used instead of its signs; model_hooks.use_latent_weights sets it
        self.uses_latent_weight = False
        # whether the weight is multiplied by the scale; model_hooks.fold_scales_into_weights sets it
        self.folds_scale_into_weight = False
        # Describes the hooks that lcr.capture has registered in the network. torch.compile does not check whether hooks
        # exist, but it checks attributes that a forward pass reads. So a change of this text causes a recompilation.
        self.capture_marks = ""
        # whether observe_input is called; False in the additional forward passes of lcr.second_pass
        self.observation_enabled = True

    def _copy_attributes(self, layer: nn.Conv2d | nn.Linear) -> None:
        self.__dict__.update({k: v for k, v in layer.__dict__.items() if k not in self.__dict__})
        for name in ("weight", "bias"):
            self.register_parameter(name, getattr(layer, name))

    def initialize_weight(self) -> None:
        """Initialize the latent weight as the method prescribes.

        Do nothing if the method prescribes no initialization.
        """
        if not self.method.has_real_weights:
            with torch.no_grad():
                self.weight_binarizer.initialize(self.weight)

    def binarize_weight(self) -> BinaryTensor:
        """Return the weight that the layer multiplies by.

        It is binary, and also normalized if there is a normalizer.
        """
        if self.uses_latent_weight or self.method.has_real_weights:
            return BinaryTensor(self.weight_binarizer.pre_sign_weight(self.weight))
        if self.normalizer is None:
            return self.weight_binarizer(self.weight)
        return self.normalizer.normalize_binary(self.weight_binarizer(self.normalizer.normalize_latent(self.weight)))

    def binarize_input(self, x: Tensor) -> BinaryTensor:
        """Return the input that the layer multiplies. It is binary, or real for methods with real activations.

        The method RBNN also standardizes real inputs.
        """
        if self.input_binarizer is not None:
            binarized: BinaryTensor = self.input_binarizer(x)
            return binarized
        return BinaryTensor(standardize_samples(x) if self.method.standardizes_real_inputs else x)

    def _apply_linear(self, x: Tensor, signs: Tensor, padding_sign: float) -> Tensor:
        raise InputError(f"{type(self).__name__} is only a base class: use BinaryConv2d or BinaryLinear")

    def forward(self, x: Tensor) -> Tensor:
        """Binarize the weight and the input, multiply them, apply the scales, and add the bias."""
        # read this attribute, so that torch.compile compiles again when it changes: see _attach_method
        bool(self.capture_marks)
        weight = self.binarize_weight()
        if self.weight_binarizer.observes_inputs and self.training and self.observation_enabled:
            self.weight_binarizer.observe_input(x.detach(), getattr(self, "groups", 1))
        y = self._multiply_all_bases(self.binarize_input(x), weight)
        if self.bias is None:
            return y
        return y + self.bias.reshape(-1, *[1] * (self.weight.dim() - 2))

    def _multiply_all_bases(self, x: BinaryTensor, weight: BinaryTensor) -> Tensor:
        # The output is the sum over all bases of the weight. Most methods have one base.
        products = [self._multiply_base(x, base) for base in weight.split_bases()]
        y = products[0]
        for product in products[1:]:
            y = y + product
        return y

    def _multiply_base(self, x: BinaryTensor, weight: BinaryTensor) -> Tensor:
        signs, scale = weight.signs, weight.scale
        if self.folds_scale_into_weight and scale is not None and scale.numel() == signs.shape[0]:
            y = self._multiply_signs(x, signs * scale.reshape(-1, *[1] * (signs.dim() - 1)))
        else:
            y = self._multiply_signs(x, signs)
            # The scale is cast to the dtype of the output. Under autocast, a float32 scale would promote the output
            # and everything after it to float32.
            if scale is not None:
                y = y * _validate_scale_shape(scale, y).to(y.dtype)
        if weight.offset is None:
            return y
        # sum(x * (s + offset)) = sum(x * s) + offset * sum(x). Here sum(x) over a window is a convolution with one
        # filter of ones per group.
        groups = getattr(self, "groups", 1)
        window_sums = self._multiply_signs(x, torch.ones_like(signs[:groups]))
        if groups > 1:
            window_sums = window_sums.unsqueeze(2).expand(-1, -1, self.weight.shape[0] // groups, -1, -1).flatten(1, 2)
        return y + window_sums * weight.offset.to(y.dtype)

    def _multiply_signs(self, x: BinaryTensor, signs: Tensor) -> Tensor:
        """Return the input times one base of the weight."""
        padding_value = getattr(self, "padding_value", 0.0)
        binarizer = self.input_binarizer
        if binarizer is None:
            return self._apply_linear(x.signs, signs, padding_value)
        padding_sign = 0.0 if binarizer.has_real_padding else binarizer.padding_sign(padding_value)
        if x.num_bases > 1:
            y = self._apply_linear(x.signs.flatten(0, 1), signs, padding_sign).unflatten(0, (x.num_bases, -1))
            y = (y if x.scale is None else y * _cast_activation_scale(x.scale, y)).sum(0)
        else:
            y = self._apply_linear(x.signs, signs, padding_sign)
            y = y if x.scale is None else y * _cast_activation_scale(x.scale, y)
        if binarizer.has_real_padding and (padding_value != 0 or x.offset is not None):
            # The signs above were padded with 0. The offset and the real padding value are the same for every sample.
            # So their contribution is computed only once, from a constant input with one sample.
            constant_input = torch.zeros_like(x.signs[0] if x.num_bases > 1 else x.signs)[:1]
            if x.offset is not None:
                constant_input = constant_input + x.offset
            return y + self._apply_linear(constant_input, signs, padding_value)
        if x.offset is not None:
            # The border was padded with a sign, so the offset applies to every tap. Its contribution is the offset
            # times the sum of the filter.
            filter_sums = signs.flatten(1).sum(1).reshape(-1, *[1] * (self.weight.dim() - 2))
            y = (y + x.offset * filter_sums).to(y.dtype)
        return y


def _cast_activation_scale(scale: Tensor, y: Tensor) -> Tensor:
    """Return the scale of an activation in the dtype of y. Otherwise a float32 scale would turn y into float32.

    A 0-dimensional scale never changes the dtype of a product and is returned unchanged.
    """
    return scale.to(y.dtype) if scale.dim() else scale


class WeightNormalizer(nn.Module):
    """Base class of regularizers that normalize the weights of binary layers, before or after the sign."""

    def normalize_latent(self, weight: Tensor) -> Tensor:
        """Return the latent weight that is to be binarized."""
        return weight

    def normalize_binary(self, weight: BinaryTensor) -> BinaryTensor:
        """Return the binary weight that the layer multiplies by."""
        return weight

    def update(self, layer: BinaryLayer) -> None:
        """Update the normalizer to the current weight. Training calls this after each optimizer step."""


class BinaryConv2d(BinaryLayer, nn.Conv2d):
    """A 2-d convolution with a binary weight. Its inputs are binary too, unless the bit widths of the method are 1/32.

    The arguments are those of nn.Conv2d, but the default is no bias. `padding_value` is the value outside of the image.
    The default 0 is that of all published implementations, but it is a third level besides -1 and +1. The values -1 and
    +1 keep the border binary.
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
        **factory_kwargs: Any,
    ) -> None:
        """Create the layer with a newly initialized weight."""
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
            **factory_kwargs,
        )
        self._set_padding_value(padding_value)
        self._attach_method(get_method(method), in_channels)
        self.initialize_weight()

    @classmethod
    def from_conv(cls, conv: nn.Conv2d, method: Method, padding_value: float = 0.0) -> BinaryConv2d:
        """Return a binary layer with the settings and the weight of an ordinary convolution.

        Both share the weight parameter.
        """
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._copy_attributes(conv)
        layer._set_padding_value(padding_value)
        layer._attach_method(method, conv.in_channels)
        return layer.train(conv.training)

    def _set_padding_value(self, value: float) -> None:
        if value not in (-1, 0, 1):
            raise InputError(f"padding_value must be 0, -1 or 1; got {value!r}")
        self.padding_value = float(value)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of the output for an input of the given height and width."""
        left, right, top, bottom = self._reversed_padding_repeated_twice
        return (
            (height + top + bottom - self.dilation[0] * (self.kernel_size[0] - 1) - 1) // self.stride[0] + 1,
            (width + left + right - self.dilation[1] * (self.kernel_size[1] - 1) - 1) // self.stride[1] + 1,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Convolve a batch (n, in, h, w) to (n, out, h', w')."""
        if x.dim() != 4:
            raise InputError(f"BinaryConv2d takes a batch of images, (n, channels, h, w); got shape {tuple(x.shape)}")
        return BinaryLayer.forward(self, x)

    def _apply_linear(self, x: Tensor, signs: Tensor, padding_sign: float) -> Tensor:
        if self.padding_mode == "zeros" and padding_sign == 0:
            return conv2d(x, signs, None, self.stride, self.padding, self.dilation, self.groups)
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        value = padding_sign if mode == "constant" else None
        x = F.pad(x, self._reversed_padding_repeated_twice, mode=mode, value=value)
        return conv2d(x, signs, None, self.stride, 0, self.dilation, self.groups)

    def extra_repr(self) -> str:
        """Return the settings of the convolution, the method and its bit widths."""
        border = "" if self.padding_value == 0 else f", padding_value={self.padding_value:g}"
        return f"{nn.Conv2d.extra_repr(self)}{border}, {_format_method(self.method)}"


class BinaryLinear(BinaryLayer, nn.Linear):
    """A linear layer with a binary weight. Its inputs are binary too, unless the bit widths of the method are 1/32.

    The default is no bias.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = False, *, method: str | Method, **factory_kwargs: Any
    ) -> None:
        """Create the layer with a newly initialized weight."""
        nn.Linear.__init__(self, in_features, out_features, bias, **factory_kwargs)
        self._attach_method(get_method(method), in_features)
        self.initialize_weight()

    @classmethod
    def from_linear(cls, linear: nn.Linear, method: Method) -> BinaryLinear:
        """Return a binary layer with the weight of an ordinary linear layer. Both layers share the weight parameter."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._copy_attributes(linear)
        layer._attach_method(method, linear.in_features)
        return layer.train(linear.training)

    def _attach_method(self, method: Method, channels: int) -> None:
        BinaryLayer._attach_method(self, method, channels)
        if self.input_binarizer is not None:
            self.input_binarizer.channel_axis = -1

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to the last axis, which turns (n, ..., in) into (n, ..., out)."""
        if x.dim() < 2:
            raise InputError(f"BinaryLinear takes a batch, (n, ..., features); got shape {tuple(x.shape)}")
        return BinaryLayer.forward(self, x)

    def _apply_linear(self, x: Tensor, signs: Tensor, padding_sign: float) -> Tensor:
        return F.linear(x, signs)

    def extra_repr(self) -> str:
        """Return the settings of the layer, the method and its bit widths."""
        return f"{nn.Linear.extra_repr(self)}, {_format_method(self.method)}"


def _format_method(method: Method) -> str:
    return f"{method.name} {method.bit_widths}"


def _validate_scale_shape(scale: Tensor, y: Tensor) -> Tensor:
    # A scale per output position requires a fixed image size. Without this check, broadcasting would accept wrong
    # sizes.
    if scale.dim() == 3 and any(s not in (1, n) for s, n in zip(scale.shape[1:], y.shape[-2:], strict=True)):
        raise InputError(
            f"the scale was learned for outputs of size {tuple(scale.shape[1:])}; got {tuple(y.shape[-2:])}: "
            "this network accepts only one image size"
        )
    return scale
