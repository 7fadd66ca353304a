"""What a binarisation method is: two binarizers, one for weights and one for activations, and a row that names them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError, refuse_unknown
from lcrbnn.methods.annealing import Annealing, Schedule


class Binary(NamedTuple):
    """Two-level numbers: the tensor meant is `signs * scale + offset`, summed over the bases.

    signs   exactly -1 or +1 (gradient flows through it). With `bases` > 1 a leading axis of that length.
    scale   None means 1. Of activations: a scalar, or one number a sample; with bases, a leading axis of that length.
            Of weights: it broadcasts over the *output* of the layer, (out, 1, 1) for a convolution, so that a layer
            multiplies signs by signs and scales afterwards; with bases, a leading axis of that length.
    offset  None means 0. Of activations a scalar. Of weights it broadcasts over the output, as their scale.
    soft    empty, or why `signs` holds other numbers than -1 and +1: a third level, an expectation. It completes the
            sentence "cannot be exported: ...".
    """

    signs: Tensor
    scale: Tensor | None = None
    offset: Tensor | None = None
    bases: int = 1
    soft: str = ""

    def each(self) -> list[Binary]:
        """The bases of weights, one Binary each; the offset goes with the first."""
        if self.bases == 1:
            return [self]
        scales = [None] * self.bases if self.scale is None else list(self.scale)
        offsets = [self.offset, *[None] * (self.bases - 1)]
        return [
            Binary(signs, scale, offset, 1, self.soft)
            for signs, scale, offset in zip(self.signs, scales, offsets, strict=True)
        ]

    def value(self) -> Tensor:
        """The activations meant, as one real tensor (for weights see `scale`)."""
        meant = self.signs if self.scale is None else self.signs * self.scale
        meant = meant.sum(0) if self.bases > 1 else meant
        return meant if self.offset is None else meant + self.offset


class Binarizer(nn.Module):
    """Turns one real tensor into a Binary. A method overrides `forward`, and seldom anything else."""

    training_only: tuple[str, ...] = ()  # names of learned numbers that are not stored with what was learned

    def forward(self, x: Tensor) -> Binary:
        """Binarise x."""
        raise InputError(f"{type(self).__name__} does not say how it binarises: it needs a forward method")

    def advance(self, progress: float) -> None:
        """Hear how far training is, in [0, 1]. A pure function of progress: telling it twice changes nothing."""
        for child in self.children():
            if isinstance(child, Annealing | Schedule):
                child.advance(progress)


class WeightBinarizer(Binarizer):
    """Binarises the latent weight of one layer, shape (out, in, kh, kw) or (out, in).

    In training mode weights may be soft, or real for a while. In evaluation mode they are what would be shipped.
    """

    needs_fit: bool = False  # whether `fit` must be called before the first forward pass
    observes: bool = False  # whether `observe` wants to see inputs
    bits: int = 1  # that one weight takes when it is stored: a base each, two for three levels

    def __init__(self, weight: Tensor) -> None:
        """Size parameters and buffers from the layer's latent weight; keep no reference to it."""
        super().__init__()

    def latent(self, weight: Tensor) -> Tensor:
        """The real tensor whose sign is taken, of the shape of `weight` (what binarising approximates)."""
        return weight

    def initialize(self, weight: Tensor) -> None:
        """Overwrite a fresh latent weight if the method starts from values of its own (never called on given ones).

        Called again when a network gives the layer a start of its own: learned numbers may start from that here.
        """

    def start_epoch(self, weight: Tensor) -> None:
        """Do what happens once an epoch, at its start. Not repeatable, unlike `advance`."""

    def project(self, weight: Tensor) -> None:
        """Put the latent weight back where the method keeps it; called after each optimiser step."""

    def fit(self, output: tuple[int, ...]) -> None:
        """Hear the spatial size of the layer's output, once, before the first forward pass."""

    def penalty(self, weight: Tensor) -> Tensor | None:
        """What the method adds to the loss for this weight, a number with gradient."""
        return None

    def observe(self, x: Tensor, groups: int) -> None:
        """See the layer's input in training, where `observes`; what is remembered lies in buffers."""

    def observed(self) -> list[Tensor]:
        """Those buffers. They are means over inputs, so that processes that share a run can average theirs."""
        return []


class ActivationBinarizer(Binarizer):
    """Binarises the input of one layer, shape (n, channels, h, w) or (..., channels)."""

    bits: int = 1  # how many signs an activation has
    sample_sums: int = 0  # over a whole sample, that it takes when testing too: for a mean, or for a scale
    averaged: bool = False  # whether the network's loss has the mean over layers of what they note, not the sum
    channel_axis: int = 1  # where the channels of the input are; a linear layer sets -1
    real_border: bool = False  # whether padding is a real number beside learned levels, and no sign among signs

    def __init__(self, channels: int) -> None:
        """Size parameters from the number of input channels."""
        super().__init__()
        self._noted: Tensor | None = None

    def note(self, penalty: Tensor) -> None:
        """Keep what the method adds to the loss for this batch, from inside `forward`, for `penalty` to hand over."""
        if self.training and torch.is_grad_enabled():
            self._noted = penalty

    def penalty(self) -> Tensor | None:
        """Hand over what the latest forward pass noted, and forget it."""
        noted, self._noted = self._noted, None
        return noted

    def __getstate__(self) -> dict[str, Any]:
        """Without what is noted: a copy of a network is no part of its graph."""
        return {**self.__dict__, "_noted": None}

    def shifted(self, x: Tensor, shift: Tensor) -> Tensor:
        """The input plus a number a channel, (channels,), in its type: a wider one would widen all behind it."""
        shift = shift.to(x.dtype)
        return x + (shift.reshape(-1, 1, 1) if self.channel_axis == 1 else shift)

    def thresholds(self) -> Tensor | None:
        """From which number on evaluation gives +1: one a channel, or one for all. None if nobody has said.

        The exporter asks; those of the package's own methods stand in `lcrbnn/export/signs.py`.
        """
        return None

    def padding_sign(self, value: float) -> float:
        """The number that stands for the real padding value among the signs."""
        return value


@dataclass(frozen=True)
class Method:
    """A row of METHODS, or one with bits and options chosen: how a layer gets its two binarizers."""

    name: str
    paper: str
    summary: str
    weight: Callable[..., WeightBinarizer]
    activation: Callable[..., ActivationBinarizer]
    activation_bits: tuple[int, ...] = (1, 32)  # what the row can do, its own first; 32 leaves activations real
    two_steps: bool = False  # whether "32/1", real weights under binary activations, is its first step
    weights_only: Mapping[str, Any] = field(default_factory=dict)  # option defaults that differ with real activations
    standardizes_real_input: bool = False  # whether activations that stay real are standardised per sample
    alike: str = ""  # why this row shares forward and gradient with another, where it does
    bits: int | None = None  # the activation bits chosen; None means the row's own
    real_weights: bool = False  # the first of two steps was chosen
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chosen_bits(self) -> int:
        """Bits of an activation: 1, a few, or 32 for real ones."""
        return self.activation_bits[0] if self.bits is None else self.bits

    def configure(self, bits: str | None = None, **options: Any) -> Method:
        """Choose `bits`, "weights/activations" as in the paper's tables, and the options of the binarizers."""
        refuse_unknown(options, self.option_names(), f"option of {self.name}")
        chosen, real = (self.bits, self.real_weights) if bits is None else self._parse(bits)
        return replace(self, bits=chosen, real_weights=real, options={**self.options, **options})

    @property
    def bit_widths(self) -> list[str]:
        """The "weights/activations" that the row can do, its own first."""
        return [f"1/{b}" for b in self.activation_bits] + (["32/1"] if self.two_steps else [])

    @property
    def chosen_widths(self) -> str:
        """The "weights/activations" chosen."""
        return f"{32 if self.real_weights else 1}/{self.chosen_bits}"

    def option_names(self) -> list[str]:
        """The keyword options that the binarizers of this method take."""
        return sorted({*_keywords(self.weight), *_keywords(self.activation)} - {"bits"})

    def weight_binarizer(self, weight: Tensor) -> WeightBinarizer:
        """A binarizer for this latent weight."""
        return self.weight(weight, **self._options_for(self.weight))

    def activation_binarizer(self, channels: int) -> ActivationBinarizer | None:
        """A binarizer for inputs of so many channels; None leaves them real."""
        if self.chosen_bits == 32:
            return None
        wanted = self._options_for(self.activation)
        if "bits" in _keywords(self.activation):
            wanted["bits"] = self.chosen_bits
        return self.activation(channels, **wanted)

    def _options_for(self, make: Callable[..., Any]) -> dict[str, Any]:
        values = {**(self.weights_only if self.chosen_bits == 32 else {}), **self.options}
        return {name: value for name, value in values.items() if name in _keywords(make)}

    def _parse(self, bits: str) -> tuple[int, bool]:
        if bits not in self.bit_widths:
            raise InputError(
                f"{self.name} has no bit width {bits!r} (weights/activations); there are {', '.join(self.bit_widths)}"
            )
        weights, activations = bits.split("/")
        return int(activations), weights == "32"


def _keywords(make: Callable[..., Any]) -> set[str]:
    return {p.name for p in inspect.signature(make).parameters.values() if p.kind is p.KEYWORD_ONLY}


def per_output(scale: Tensor, weight: Tensor) -> Tensor:
    """Shape one number a filter, (out,), so that it broadcasts over the layer's output."""
    return scale.reshape(-1, *[1] * (weight.dim() - 2))


def per_filter(scale: Tensor, weight: Tensor) -> Tensor:
    """Shape one number a filter, (out,), so that it broadcasts over the weight."""
    return scale.reshape(-1, *[1] * (weight.dim() - 1))


def mean_magnitude(weight: Tensor) -> Tensor:
    """The mean |w| of each filter, (out,)."""
    return weight.abs().mean(dim=tuple(range(1, weight.dim())))


FLOOR = 1e-5  # what the released codes of ReCU, SiMaN, IE-Net and BiPer add to a variance before its root


def standardize_filters(weight: Tensor, floor: float = 0.0, correction: int = 1) -> Tensor:
    """Each filter minus its mean, over its standard deviation, inside the graph; a constant filter becomes 0.

    `floor` is added to the variance: small filters stay smaller than 1, and so do their gradients. The variance of n
    weights is their sum of squares over n - `correction`.
    """
    return _standardize(weight, "filter", "weight", floor, correction)


def standardize_samples(x: Tensor, floor: float = 0.0) -> Tensor:
    """The same for each sample of a batch of maps, with n - 1."""
    return _standardize(x, "sample", "map", floor, 1)


def _standardize(x: Tensor, each: str, whole: str, floor: float, correction: int) -> Tensor:
    if x[0].numel() < 2:
        raise InputError(
            f"this method standardises each {each}, and a {whole} of shape {tuple(x.shape)} has one number a {each}"
        )
    # Over all axes but the first, not over a flattened tensor: that would copy one stored channels last.
    axes = tuple(range(1, x.dim()))
    if floor > 0:
        variance, mean = torch.var_mean(x, dim=axes, correction=correction, keepdim=True)
        return (x - mean) / (variance + floor).sqrt()
    spread, mean = torch.std_mean(x, dim=axes, correction=correction, keepdim=True)
    return (x - mean) / spread.clamp_min(1e-5)


def sample_deviation(x: Tensor) -> Tensor:
    """The root of variance (n-1) and FLOOR of each sample of a batch, inside the graph, to broadcast over it."""
    if x[0].numel() < 2:
        return torch.ones_like(x)
    return (x.var(dim=tuple(range(1, x.dim())), keepdim=True) + FLOOR).sqrt()
