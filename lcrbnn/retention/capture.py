"""Reading maps out of a running network: hooks on modules, one mechanism for our own networks and for foreign ones.

A point is the input or output of a named module. The hooks note the tensor that passes each point and, where a binary
layer binarises that very tensor, what it became: the layer's sign is shared, never computed again. Everything happens
inside the forward pass, so that torch.compile traces it with the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lcrbnn import ops
from lcrbnn.errors import InputError, refuse_unknown
from lcrbnn.layers import binary_layers, evaluating
from lcrbnn.methods import ActivationBinarizer, Binary
from lcrbnn.retention.draws import States, plain_pass, states


class Point(NamedTuple):
    """The input ("in") or output ("out") of a named module."""

    module: str
    side: str

    def __str__(self) -> str:
        """In words."""
        return f"the {'input' if self.side == 'in' else 'output'} of {self.module!r}"


Span = tuple[Point, Point]  # a front and a back point: one retention matrix


def across(names: Sequence[str]) -> list[Span]:
    """From the input to the output of each named module: blocks (Eq. 10)."""
    return [(Point(name, "in"), Point(name, "out")) for name in names]


def between(names: Sequence[str]) -> list[Span]:
    """From the input of each named module to that of the next: layers, adjacent maps (Eq. 8)."""
    return [(Point(a, "in"), Point(b, "in")) for a, b in itertools.pairwise(names)]


def check_points(model: nn.Module, points: Sequence[Point]) -> None:
    """Raise on a point whose module the model does not have."""
    names = [name for name, _ in model.named_modules() if name]
    unknown = [point.module for point in points if point.module not in names]
    inner = tuple(f"{name}." for name, _ in binary_layers(model))  # nobody means a part of a binary layer
    refuse_unknown(unknown, [n for n in names if not n.startswith(inner)], f"module of {type(model).__name__}")


NO_MAPS = (
    "retention has no maps to compare: call the model before each loss() (if it is compiled and was called "
    "before this Retention was made, torch._dynamo.reset() lets it see the new hooks)"
)


@dataclass
class Maps:
    """What one forward pass showed, point by point in the order in which it came to them."""

    inputs: tuple[Any, ...] = ()  # the positional arguments of the model
    keywords: dict[str, Any] = field(default_factory=dict)
    real: dict[Point, Tensor] = field(default_factory=dict)
    binary: dict[Point, Binary] = field(default_factory=dict)
    versions: dict[Point, int] = field(default_factory=dict)  # of the real maps, when they were noted
    draws: States | None = None  # of the generators when the pass began, where they were noted

    def note(self, point: Point, x: Any) -> None:
        """Keep the map at a point; a module that is called again has its latest call kept."""
        if not isinstance(x, Tensor):
            word = {"in": "takes", "out": "returns"}[point.side]
            raise InputError(
                f"retention needs a tensor at {point.module!r}, which {word} {type(x).__name__}; name an inner module"
            )
        self.real.pop(point, None)  # so that it comes last
        self.real[point] = x
        self.binary.pop(point, None)
        if not torch.compiler.is_compiling() and not x.is_inference():
            self.versions[point] = x._version

    def check(self, points: Sequence[Point], no_maps: str = NO_MAPS) -> None:
        """Raise unless there is a map at every point, as it was when it passed; `no_maps` says that there is none."""
        missing = [p for p in points if p not in self.real]
        if missing and not self.real:
            raise InputError(no_maps)
        if missing:
            raise InputError(f"retention has no map at {missing[0].module!r}: that module was not called")
        for point, version in self.versions.items():
            if self.real[point]._version != version:
                raise InputError(
                    f"the map at {point.module!r} was changed in place after it passed (an activation with "
                    "inplace=True?); make that operation return a new tensor"
                )

    def binarised(self, point: Point, *, weights_only: bool) -> Tensor:
        """The map as the next binary layer binarises it; where none does, its sign with a clipped gradient.

        In a network of binary weights and real activations no map is binarised anywhere, and it is the map itself.
        """
        if point in self.binary:
            return self.binary[point].value()
        return self.real[point] if weights_only else ops.surrogate_sign(self.real[point], ops.clip_closed)


class _Hook:
    """A hook that stays with its model: copied or pickled with it, it is one that does nothing."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def __call__(self, *args: Any) -> None:
        self.work(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return _Hook(_nothing)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (_nothing,)


def _nothing(*args: Any) -> None:
    """What a copied hook does."""


def remove_copied_hooks(model: nn.Module) -> None:
    """Take away the hooks that a copy of a watched model carried along, which do nothing."""
    for module in model.modules():
        for table in (module._forward_pre_hooks, module._forward_hooks):
            for key in [k for k, hook in table.items() if isinstance(hook, _Hook) and hook.work is _nothing]:
                del table[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)


class Capture:
    """Hooks on a model that keep the maps of its latest forward pass at the given points, until taken or closed.

    The hooks answer for the very modules they were put on: a copy of the model carries them along, and is not heard.
    Nor is a pass that another capture started for itself, with latent weights.
    """

    def __init__(
        self, model: nn.Module, points: Sequence[Point], *, signs: bool, draws: bool = False, marked: bool = False
    ) -> None:
        """Hook the modules of the points; with `signs`, the model's activation binarizers too.

        With `draws`, the states of the generators are noted as a pass begins. The layers of a copied model carry the
        mark of its capture: `marked`.
        """
        check_points(model, points)
        modules = dict(model.named_modules())
        self.maps = Maps()
        self._layers = [layer for _, layer in binary_layers(model)]
        self.expects_latent = False  # whether a pass with latent weights is ours
        self._listening = True
        self._witness = self._layers[0] if self._layers else None  # tells a pass with latent weights
        self._hooks: list[Any] = [model.register_forward_pre_hook(self._begin(model), with_kwargs=True)]
        if draws:
            self._hooks.append(model.register_forward_pre_hook(self._note_draws(model)))
        for point in dict.fromkeys(points):
            module = modules[point.module]
            if point.side == "in":
                self._hooks.append(module.register_forward_pre_hook(self._note_input(module, point), with_kwargs=True))
            else:
                self._hooks.append(module.register_forward_hook(self._note_output(module, point)))
        if signs:
            for module in modules.values():
                if isinstance(module, ActivationBinarizer):
                    self._hooks.append(module.register_forward_hook(self._note_binary(module)))
        self._mark = f"{sorted(set(points))} {signs};"
        for layer in [] if marked else self._layers:
            layer.watched += self._mark

    def take(self) -> Maps:
        """Hand over the maps of the latest pass, and forget them."""
        maps, self.maps = self.maps, Maps()
        return maps

    def close(self) -> None:
        """Remove all hooks and forget the maps; calling it again does nothing."""
        for hook in self._hooks:
            hook.remove()
        for layer in self._layers if self._hooks else []:
            layer.watched = layer.watched.replace(self._mark, "", 1)
        self._hooks.clear()
        self.maps = Maps()

    def _begin(self, hooked: nn.Module) -> Any:
        def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if module is hooked:
                latent = self._witness is not None and self._witness.use_latent
                self._listening = self.expects_latent or not latent
                if self._listening:
                    self.maps = Maps(args, kwargs)

        return _Hook(begin)

    def _note_draws(self, hooked: nn.Module) -> Any:
        def note(module: nn.Module, args: tuple[Any, ...]) -> None:
            if module is hooked and self._listening and not self.expects_latent and plain_pass():
                self.maps.draws = states(module)

        return _Hook(note)

    def _note_input(self, hooked: nn.Module, point: Point) -> Any:
        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if module is hooked and self._listening:
                given = (*args, *kwargs.values())
                self.maps.note(point, next((x for x in given if isinstance(x, Tensor)), given[0] if given else None))

        return _Hook(note)

    def _note_output(self, hooked: nn.Module, point: Point) -> Any:
        def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if module is hooked and self._listening:
                self.maps.note(point, output)

        return _Hook(note)

    def _note_binary(self, hooked: nn.Module) -> Any:
        def note(module: nn.Module, args: tuple[Tensor, ...], output: Binary) -> None:
            if module is hooked and self._listening:
                for point, x in self.maps.real.items():
                    # The main path's convolution comes before a shortcut's.
                    if x is args[0] and point not in self.maps.binary:
                        self.maps.binary[point] = output

        return _Hook(note)


def maps_at(model: nn.Module, points: Sequence[Point], images: Tensor, *, signs: bool) -> Maps:
    """The maps of one pass in evaluation mode, for whoever looks at a network and does not train it."""
    capture = Capture(model, points, signs=signs)
    try:
        with evaluating(model):
            model(images)
        return capture.take()
    finally:
        capture.close()


def weights_only(model: nn.Module) -> bool:
    """Whether the model has binary layers, and none of them binarises its input (1/32)."""
    layers = [layer for _, layer in binary_layers(model)]
    return bool(layers) and all(layer.input_binarizer is None for layer in layers)
