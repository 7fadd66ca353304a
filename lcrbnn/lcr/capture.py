"""Capture of feature maps during a forward pass, with hooks on the modules of any network.

A port is the input or output of a named module. The hooks save the tensor at each port. Where a binary layer binarizes
this very tensor, they also save the binary tensor: the sign of the layer is shared and not computed again. Everything
happens inside the forward pass, so torch.compile traces it with the rest of the network.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lcrbnn.device import is_eager, is_in_backward
from lcrbnn.errors import InputError, check_known_names
from lcrbnn.lcr.second_pass import RngStates, save_rng_states
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.binarizer import ActivationBinarizer, BinaryTensor
from lcrbnn.nn.model_hooks import eval_mode, iter_binary_layers


class ModulePort(NamedTuple):
    """The input ("in") or output ("out") of a named module."""

    module: str
    side: str

    def __str__(self) -> str:
        """Return the port in words, for messages."""
        return f"the {'input' if self.side == 'in' else 'output'} of {self.module!r}"


Span = tuple[ModulePort, ModulePort]  # a front and a back port, between which one retention matrix is computed


def make_block_spans(names: Sequence[str]) -> list[Span]:
    """Return one span per named module (a block), from the input to the output of the module (Eq. 10)."""
    return [(ModulePort(name, "in"), ModulePort(name, "out")) for name in names]


def make_layer_spans(names: Sequence[str]) -> list[Span]:
    """Return the spans from the input of each named module (a layer) to the input of the next module (Eq. 8)."""
    return [(ModulePort(a, "in"), ModulePort(b, "in")) for a, b in itertools.pairwise(names)]


def unique_ports(spans: Sequence[Span]) -> list[ModulePort]:
    """Return the ports of all spans, each of them once."""
    return list(dict.fromkeys(port for span in spans for port in span))


def check_modules_exist(model: nn.Module, ports: Sequence[ModulePort]) -> None:
    """Raise InputError if the model has no module of a port's name."""
    names = [name for name, _ in model.named_modules() if name]
    unknown = [port.module for port in ports if port.module not in names]
    # The message lists no submodules of binary layers, because users do not mean such modules.
    binary_layer_prefixes = tuple(f"{name}." for name, _ in iter_binary_layers(model))
    listed_names = [name for name in names if not name.startswith(binary_layer_prefixes)]
    check_known_names(unknown, listed_names, f"module of {type(model).__name__}", "model.named_modules()")


NO_MAPS_MESSAGE = (
    "Retention has no feature maps to compare: call the model before each loss() (if the model is compiled and was "
    "called before this Retention was created, torch._dynamo.reset() makes it use the new hooks)"
)


@dataclass
class CapturedMaps:
    """The feature maps of one forward pass, as dictionaries from ports in the order of the forward pass."""

    inputs: tuple[Any, ...] = ()  # the positional arguments of the model
    keyword_inputs: dict[str, Any] = field(default_factory=dict)
    is_training_pass: bool = False  # whether the model was in training mode
    real: dict[ModulePort, Tensor] = field(default_factory=dict)
    binary: dict[ModulePort, BinaryTensor] = field(default_factory=dict)
    versions: dict[ModulePort, int] = field(default_factory=dict)  # version counters of the real maps when saved
    # States of the random generators at the start of the pass; None if they were not saved
    rng_states: RngStates | None = None

    def add(self, port: ModulePort, x: Any) -> None:
        """Save the feature map at a port. If a module is called several times, its latest feature map is kept."""
        if not isinstance(x, Tensor):
            verb = {"in": "takes", "out": "returns"}[port.side]
            raise InputError(
                f"Retention needs a tensor at {port.module!r}, which {verb} {type(x).__name__}; name an inner module"
            )
        self.real.pop(port, None)  # remove an old entry first, so that the dict has the order of the latest calls
        self.real[port] = x
        self.binary.pop(port, None)
        if not torch.compiler.is_compiling() and not x.is_inference():
            self.versions[port] = x._version

    def check_complete(self, ports: Sequence[ModulePort], no_maps_message: str = NO_MAPS_MESSAGE) -> None:
        """Raise InputError if a port has no map, or if a map was changed in place after it was saved.

        `no_maps_message` is the message if there are no maps at all.
        """
        missing = [p for p in ports if p not in self.real]
        if missing and not self.real:
            raise InputError(no_maps_message)
        if missing:
            raise InputError(f"Retention has no feature map at {missing[0].module!r}: that module was not called")
        for port, version in self.versions.items():
            if self.real[port]._version != version:
                raise InputError(
                    f"the feature map at {port.module!r} was changed in place after its capture (an activation with "
                    "inplace=True?); let that operation return a new tensor"
                )

    def get_binary_map(self, port: ModulePort, *, weights_only: bool) -> Tensor:
        """Return the map after the sign of the next binary layer. Without such a layer, return the sign of the map.

        With `weights_only` (binary weights, real activations) no layer binarizes a map, and this returns the real map.
        """
        if port in self.binary:
            return self.binary[port].dequantize()
        return self.real[port] if weights_only else ops.surrogate_sign(self.real[port], ops.closed_clip_slope)


class _Hook:
    """A hook that works only on the model for which it was created. Copies and pickles of the hook do nothing."""

    def __init__(self, callback: Any) -> None:
        self.callback = callback

    def __call__(self, *args: Any) -> None:
        self.callback(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return _Hook(_do_nothing)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (_do_nothing,)


def _do_nothing(*args: Any) -> None:
    """Do nothing. Copied hooks call this function."""


def remove_copied_hooks(model: nn.Module) -> None:
    """Remove the copied hooks, which have no effect, from a copy of a hooked model."""
    for module in model.modules():
        for table in (module._forward_pre_hooks, module._forward_hooks):
            for key in [k for k, hook in table.items() if isinstance(hook, _Hook) and hook.callback is _do_nothing]:
                del table[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)


class FeatureMapCapture:
    """Hooks on a model that keep the feature maps at the given ports from the model's latest forward pass.

    The hooks only record the modules that they were registered on: a forward pass of a copy of the model is ignored.
    So is a forward pass with latent weights that another capture started, and a block that activation checkpointing
    computes again during the backward pass. A pass in evaluation mode (validation) does not replace the maps of a
    training pass that are still needed: `take_maps` returns those of the mode that the model has then.
    """

    def __init__(
        self,
        model: nn.Module,
        ports: Sequence[ModulePort],
        *,
        capture_binary: bool,
        save_rng: bool = False,
        layers_marked: bool = False,
    ) -> None:
        """Register hooks on the modules of the ports and, with `capture_binary`, on all activation binarizers.

        With `save_rng`, the states of the random generators are saved at the start of a pass. `layers_marked`: the
        layers are those of a copied model and already have the mark of this capture.
        """
        check_modules_exist(model, ports)
        modules = dict(model.named_modules())
        self._model = model
        self.maps = CapturedMaps()  # of the latest pass
        self._unused_training_maps: CapturedMaps | None = None  # of a training pass, if a validation pass followed it
        self._layers = [layer for _, layer in iter_binary_layers(model)]
        self.expects_latent_pass = False  # True while the owner of this capture runs a pass with latent weights
        self._is_recording = True
        # The mode of this layer shows whether a pass uses latent weights
        self._first_binary_layer = self._layers[0] if self._layers else None
        self._hooks: list[Any] = [model.register_forward_pre_hook(self._make_start_hook(model), with_kwargs=True)]
        if save_rng:
            self._hooks.append(model.register_forward_pre_hook(self._make_rng_hook(model)))
        for port in dict.fromkeys(ports):
            module = modules[port.module]
            if port.side == "in":
                self._hooks.append(
                    module.register_forward_pre_hook(self._make_input_hook(module, port), with_kwargs=True)
                )
            else:
                self._hooks.append(module.register_forward_hook(self._make_output_hook(module, port)))
        if capture_binary:
            for module in modules.values():
                if isinstance(module, ActivationBinarizer):
                    self._hooks.append(module.register_forward_hook(self._make_binarizer_hook(module)))
        self._layer_mark = f"{sorted(set(ports))} {capture_binary};"
        for layer in [] if layers_marked else self._layers:
            layer.capture_marks += self._layer_mark

    def take_maps(self) -> CapturedMaps:
        """Return the maps of the latest pass and drop them here.

        In training mode, return those of the latest training pass, also if a validation pass followed it.
        """
        maps, self.maps = self.maps, CapturedMaps()
        if self._model.training and self._unused_training_maps is not None:
            maps, self._unused_training_maps = self._unused_training_maps, None
        return maps

    def close(self) -> None:
        """Remove all hooks and drop the maps. A second call does nothing."""
        for hook in self._hooks:
            hook.remove()
        for layer in self._layers if self._hooks else []:
            layer.capture_marks = layer.capture_marks.replace(self._layer_mark, "", 1)
        self._hooks.clear()
        self.maps, self._unused_training_maps = CapturedMaps(), None

    def _can_record(self) -> bool:
        return self._is_recording and not is_in_backward()

    def _make_start_hook(self, hooked_model: nn.Module) -> Any:
        def start_recording(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if module is hooked_model and not is_in_backward():
                layer = self._first_binary_layer
                uses_latent_weights = layer is not None and layer.uses_latent_weight
                self._is_recording = self.expects_latent_pass or not uses_latent_weights
                if self._can_record():
                    if module.training:
                        self._unused_training_maps = None
                    elif self.maps.is_training_pass:
                        self._unused_training_maps = self.maps
                    self.maps = CapturedMaps(args, kwargs, module.training)

        return _Hook(start_recording)

    def _make_rng_hook(self, hooked_model: nn.Module) -> Any:
        def save_states(module: nn.Module, args: tuple[Any, ...]) -> None:
            if module is hooked_model and self._can_record() and not self.expects_latent_pass and is_eager():
                self.maps.rng_states = save_rng_states(module)

        return _Hook(save_states)

    def _make_input_hook(self, hooked_module: nn.Module, port: ModulePort) -> Any:
        def save_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if module is hooked_module and self._can_record():
                arguments = (*args, *kwargs.values())
                first_argument = arguments[0] if arguments else None
                self.maps.add(port, next((x for x in arguments if isinstance(x, Tensor)), first_argument))

        return _Hook(save_input)

    def _make_output_hook(self, hooked_module: nn.Module, port: ModulePort) -> Any:
        def save_output(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if module is hooked_module and self._can_record():
                self.maps.add(port, output)

        return _Hook(save_output)

    def _make_binarizer_hook(self, hooked_binarizer: nn.Module) -> Any:
        def save_binary_map(module: nn.Module, args: tuple[Tensor, ...], output: BinaryTensor) -> None:
            if module is hooked_binarizer and self._can_record():
                for port, x in self.maps.real.items():
                    # If a shortcut binarizes the same map, the main path counts: its convolution is called first.
                    if x is args[0] and port not in self.maps.binary:
                        self.maps.binary[port] = output

        return _Hook(save_binary_map)


def capture_maps(
    model: nn.Module, ports: Sequence[ModulePort], images: Tensor, *, capture_binary: bool
) -> CapturedMaps:
    """Return the feature maps of one forward pass in evaluation mode. The model has no hooks afterwards."""
    capture = FeatureMapCapture(model, ports, capture_binary=capture_binary)
    try:
        with eval_mode(model):
            model(images)
        return capture.take_maps()
    finally:
        capture.close()


def is_weights_only(model: nn.Module) -> bool:
    """Return whether the model has binary layers, but none of these layers binarizes its input (bits 1/32)."""
    layers = [layer for _, layer in iter_binary_layers(model)]
    return bool(layers) and all(layer.input_binarizer is None for layer in layers)


def is_fully_copied(module: nn.Module) -> bool:
    """Return whether the copy of a network has all its submodules. They are missing while the copy is under way."""
    children = vars(module).get("_modules")
    return children is not None and all(is_fully_copied(child) for child in children.values() if child is not None)
