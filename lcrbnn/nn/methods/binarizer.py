"""Define the base classes of binarizers of weights and activations, and `Method`, a row of METHODS."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError, check_known_names
from lcrbnn.nn.methods.annealing import Annealing, Schedule


class BinaryTensor(NamedTuple):
    """A tensor that is stored as signs. Its values are `signs * scale + offset`, summed over the bases.

    signs   Exactly -1 or +1. The gradient flows through this tensor. If `num_bases` > 1, the first axis is the base.
    scale   None means 1. For activations: a scalar, or one number per sample. For weights: it broadcasts over the
            *output* of the layer, (out, 1, 1) for a convolution, so that a layer multiplies signs by signs and scales
            the result. If `num_bases` > 1, the first axis is the base.
    offset  None means 0. For activations: a scalar. For weights: it broadcasts over the output, like the scale.
    non_binary_reason
            Empty, or the reason why `signs` has values other than -1 and +1, such as a third level or an
            expectation. It completes the sentence "cannot be exported: ...".
    """

    signs: Tensor
    scale: Tensor | None = None
    offset: Tensor | None = None
    num_bases: int = 1
    non_binary_reason: str = ""

    def split_bases(self) -> list[BinaryTensor]:
        """Return one BinaryTensor per base of a weight. Only the first BinaryTensor has the offset."""
        if self.num_bases == 1:
            return [self]
        scales = [None] * self.num_bases if self.scale is None else list(self.scale)
        offsets = [self.offset, *[None] * (self.num_bases - 1)]
        return [
            BinaryTensor(signs, scale, offset, 1, self.non_binary_reason)
            for signs, scale, offset in zip(self.signs, scales, offsets, strict=True)
        ]

    def dequantize(self) -> Tensor:
        """Return activations as one real tensor.

        Not for weights, because the scale of a weight applies to the output.
        """
        values = self.signs if self.scale is None else self.signs * self.scale
        values = values.sum(0) if self.num_bases > 1 else values
        return values if self.offset is None else values + self.offset


class Binarizer(nn.Module):
    """Base class that turns a real tensor into a BinaryTensor. Most methods only override `forward`."""

    training_only_parameters: tuple[str, ...] = ()  # names of parameters that the stored model does not need

    def forward(self, x: Tensor) -> BinaryTensor:
        """Return x as a BinaryTensor."""
        raise InputError(f"{type(self).__name__} must define a forward method")

    def set_progress(self, progress: float) -> None:
        """Set the training progress, a number from 0 to 1.

        The state may only depend on `progress`. So repeated calls with the same number change nothing.
        """
        for child in self.children():
            if isinstance(child, Annealing | Schedule):
                child.set_progress(progress)


class WeightBinarizer(Binarizer):
    """Base class that binarizes the latent weight of one layer, of shape (out, in, kh, kw) or (out, in).

    In training mode, a method may return soft weights, or real weights for some time. In evaluation mode it returns the
    weights of an exported model.
    """

    needs_output_shape: bool = False  # whether `fit_output_shape` must be called before the first forward pass
    observes_inputs: bool = False  # whether `observe_input` must be called in training
    bits: int = 1  # number of bits per stored weight: one bit per base, or two bits for three levels

    def __init__(self, weight: Tensor) -> None:
        """Create parameters and buffers for a latent weight of this shape. Do not keep a reference to `weight`."""
        super().__init__()

    def pre_sign_weight(self, weight: Tensor) -> Tensor:
        """Return the real tensor whose sign is taken, in the shape of `weight`.

        An example is the standardized weight.
        """
        return weight

    def initialize(self, weight: Tensor) -> None:
        """Overwrite a new latent weight, if the method prescribes its own initialization.

        This is never called on weights that the user provides. It is called again if a network initializes the layer in
        another way. So learned numbers can be derived from the new values here.
        """

    def start_epoch(self, weight: Tensor) -> None:
        """Run the update that the method makes once per epoch.

        Unlike `set_progress`, a repeated call may change the result.
        """

    def project(self, weight: Tensor) -> None:
        """Move the latent weight into the set that the method allows. Training calls this function after each step."""

    def fit_output_shape(self, output_shape: tuple[int, ...]) -> None:
        """Set the height and width of the layer's output. Training calls this once before the first forward pass."""

    def extra_loss(self, weight: Tensor) -> Tensor | None:
        """Return the method's loss term for this weight, a scalar with gradient, or None if there is no such term."""
        return None

    def observe_input(self, x: Tensor, groups: int) -> None:
        """Update statistics of the layer's input during training, if `observes_inputs` is set.

        The statistics are stored in buffers.
        """

    def observation_buffers(self) -> list[Tensor]:
        """Return the buffers that `observe_input` updates.

        The buffers must be means over inputs. So the processes of a distributed run can average them.
        """
        return []


class ActivationBinarizer(Binarizer):
    """Base class that binarizes the input of one layer, of shape (n, channels, h, w) or (..., channels)."""

    bits: int = 1  # number of signs per activation
    # number of sums over a whole sample that evaluation needs too, for a mean or a scale
    num_sample_reductions: int = 0
    averages_extra_loss: bool = False  # whether the extra losses of the layers are averaged and not summed
    channel_axis: int = 1  # axis of the input channels; a linear layer sets this number to -1
    # whether pixels outside of the image get a real value, because no sign represents it
    has_real_padding: bool = False
    learns_threshold: bool = False  # whether training moves the input value at which the sign changes

    def __init__(self, channels: int) -> None:
        """Create parameters and buffers for this number of input channels."""
        super().__init__()
        self._recorded_loss: Tensor | None = None

    def record_extra_loss(self, loss: Tensor) -> None:
        """Store the loss term of the current batch, which `pop_extra_loss` returns. `forward` calls this."""
        if self.training and torch.is_grad_enabled():
            self._recorded_loss = loss

    def pop_extra_loss(self) -> Tensor | None:
        """Return the loss term of the last forward pass and delete it. If there is no loss term, return None."""
        noted, self._recorded_loss = self._recorded_loss, None
        return noted

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the recorded loss, because a network's copy must not share its autograd graph."""
        return {**self.__dict__, "_recorded_loss": None}

    def add_channel_shift(self, x: Tensor, shift: Tensor) -> Tensor:
        """Return x plus one number per channel, in the dtype of x.

        The shift is cast, because a float32 shift would turn all later activations into float32.
        """
        shift = shift.to(x.dtype)
        return x + (shift.reshape(-1, 1, 1) if self.channel_axis == 1 else shift)

    def thresholds(self) -> Tensor | None:
        """Return the smallest inputs with sign +1 in evaluation, one per channel or one for all. None means unknown.

        Only the exporter calls this. The thresholds of the package's own methods are in
        `lcrbnn/deploy/export/binary_layers/sign_rules.py`.
        """
        return None

    def padding_sign(self, value: float) -> float:
        """Return the sign of the padding, or a number from -1 to 1, for the padding value `value` of the real input."""
        return value


@dataclass(frozen=True)
class Method:
    """A binarization method with its bits and options, which creates the two binarizers of a layer."""

    name: str
    paper: str
    summary: str
    weight_class: Callable[..., WeightBinarizer]
    activation_class: Callable[..., ActivationBinarizer]
    # supported bits per activation; the first is the default, and 32 means real activations
    supported_activation_bits: tuple[int, ...] = (1, 32)
    # whether "32/1" is supported (real weights, the first step of two-step training)
    supports_real_weights: bool = False
    # defaults of options that are different for real activations
    real_activation_defaults: Mapping[str, Any] = field(default_factory=dict)
    standardizes_real_inputs: bool = False  # whether real activations are standardized per sample
    # Reason why forward pass and gradient equal those of another method; empty if they do not
    equivalence_note: str = ""
    # Selected number of bits per activation; None = the default of the method
    selected_activation_bits: int | None = None
    has_real_weights: bool = False  # whether the bit widths "32/1" (real weights, binary activations) are selected
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def activation_bits(self) -> int:
        """Return the selected bits per activation."""
        bits = self.selected_activation_bits
        return self.supported_activation_bits[0] if bits is None else bits

    def configure(self, bits: str | None = None, **options: Any) -> Method:
        """Return the method with other bits and options. Bits are written "weights/activations", as in papers."""
        check_known_names(options, self.option_names(), f"option of {self.name}", "docs/methods.md")
        method = replace(self, options={**self.options, **options})
        if bits is None:
            return method
        activation_bits, has_real_weights = self._parse_bits(bits)
        return replace(method, selected_activation_bits=activation_bits, has_real_weights=has_real_weights)

    @property
    def supported_bit_widths(self) -> list[str]:
        """Return all bit widths "weights/activations" that the method supports. The first pair is the default."""
        return [f"1/{b}" for b in self.supported_activation_bits] + (["32/1"] if self.supports_real_weights else [])

    @property
    def bit_widths(self) -> str:
        """Return the selected bit widths as "weights/activations"."""
        return f"{32 if self.has_real_weights else 1}/{self.activation_bits}"

    def option_names(self) -> list[str]:
        """Return the names of the method's options: the keyword-only arguments of its binarizer classes."""
        return sorted({*_keyword_only_names(self.weight_class), *_keyword_only_names(self.activation_class)} - {"bits"})

    def create_weight_binarizer(self, weight: Tensor) -> WeightBinarizer:
        """Return a new binarizer for this latent weight."""
        return self.weight_class(weight, **self._options_for(self.weight_class))

    def create_activation_binarizer(self, channels: int) -> ActivationBinarizer | None:
        """Return a new binarizer for inputs with this number of channels. Return None if activations stay real."""
        if self.activation_bits == 32:
            return None
        options = self._options_for(self.activation_class)
        if "bits" in _keyword_only_names(self.activation_class):
            options["bits"] = self.activation_bits
        return self.activation_class(channels, **options)

    def _options_for(self, binarizer_class: Callable[..., Any]) -> dict[str, Any]:
        values = {**(self.real_activation_defaults if self.activation_bits == 32 else {}), **self.options}
        return {name: value for name, value in values.items() if name in _keyword_only_names(binarizer_class)}

    def _parse_bits(self, bits: str) -> tuple[int, bool]:
        if bits not in self.supported_bit_widths:
            raise InputError(
                f"{self.name} has no bit width {bits!r} (weights/activations); "
                f"there are {', '.join(self.supported_bit_widths)}"
            )
        weights, activations = bits.split("/")
        return int(activations), weights == "32"


def _keyword_only_names(binarizer_class: Callable[..., Any]) -> set[str]:
    return {p.name for p in inspect.signature(binarizer_class).parameters.values() if p.kind is p.KEYWORD_ONLY}


def broadcast_over_output(scale: Tensor, weight: Tensor) -> Tensor:
    """Reshape a vector with one number per filter, (out,), so that it broadcasts over the layer's output."""
    return scale.reshape(-1, *[1] * (weight.dim() - 2))


def broadcast_over_weight(scale: Tensor, weight: Tensor) -> Tensor:
    """Reshape a vector with one number per filter, (out,), so that it broadcasts over the weight."""
    return scale.reshape(-1, *[1] * (weight.dim() - 1))


def mean_magnitude(weight: Tensor) -> Tensor:
    """Return the mean absolute value of each filter, (out,)."""
    return weight.abs().mean(dim=tuple(range(1, weight.dim())))


# The released code of ReCU, SiMaN, IE-Net and BiPer adds this number to a variance before the square root.
VARIANCE_EPSILON = 1e-5


def standardize_filters(weight: Tensor, epsilon: float = 0.0, correction: int = 1) -> Tensor:
    """Return each filter minus its mean, divided by its standard deviation. A constant filter becomes 0.

    The result is differentiable. `epsilon` is added to the variance. So the gradients of filters with tiny weights stay
    small. The variance of n weights is the sum of their squared deviations divided by n - `correction`.
    """
    return _standardize(weight, "filter", "weight", epsilon, correction)


def standardize_samples(x: Tensor, epsilon: float = 0.0) -> Tensor:
    """Return each sample of a batch minus its mean, divided by its standard deviation (with divisor n - 1)."""
    return _standardize(x, "sample", "batch", epsilon, 1)


def _standardize(x: Tensor, unit_name: str, tensor_name: str, epsilon: float, correction: int) -> Tensor:
    if x[0].numel() < 2:
        raise InputError(
            f"this method standardizes each {unit_name} and needs at least 2 numbers per {unit_name}; "
            f"got a {tensor_name} of shape {tuple(x.shape)}"
        )
    # Reduce over all axes except the first. Flattening instead would copy a tensor in channels-last format.
    axes = tuple(range(1, x.dim()))
    if epsilon > 0:
        variance, mean = torch.var_mean(x, dim=axes, correction=correction, keepdim=True)
        return (x - mean) / (variance + epsilon).sqrt()
    std, mean = torch.std_mean(x, dim=axes, correction=correction, keepdim=True)
    return (x - mean) / std.clamp_min(1e-5)


def sample_std(x: Tensor) -> Tensor:
    """Return sqrt(variance + VARIANCE_EPSILON) of each sample (divisor n - 1), shaped to broadcast over the batch."""
    if x[0].numel() < 2:
        return torch.ones_like(x)
    return (x.var(dim=tuple(range(1, x.dim())), keepdim=True) + VARIANCE_EPSILON).sqrt()
