"""Define `binarize`, which makes the convolutions and linear layers of any network binary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from lcrbnn.errors import InputError, check_name_list
from lcrbnn.nn.constant_signs import plan_activation_replacements
from lcrbnn.nn.layers import BinaryConv2d, BinaryLayer, BinaryLinear
from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.methods.method_registry import get_method
from lcrbnn.nn.model_hooks import fit_output_shapes


def binarize(
    model: nn.Module,
    method: str | Method = "irnet",
    *,
    bits: str | None = None,
    skip: Iterable[str] | None = None,
    activation: str = "replace",
    padding_value: float = 0.0,
    example: Tensor | Sequence[int] | None = None,
    **options: Any,
) -> nn.Module:
    """Replace every nn.Conv2d and nn.Linear of `model` by a binary layer, in place, and return the model.

    The binary layers keep the weights of the replaced layers as latent weights (the same parameters). An optimizer that
    was created before continues to train them, but it does not train the parameters that a method adds (angles and
    scales of rbnn, shifts of reactnet, scales of xnor++). Subclasses of nn.Conv2d and nn.Linear are not replaced.

    `skip` lists the layers that stay real, as names or shell patterns ("*.shortcut.*"). By default these are the first
    and the last layer in the order of registration. `example`, a batch or its shape, is required by xnor++.

    `activation` decides about activations that are never negative, such as ReLU, and feed a binary layer. There every
    sign is +1, so the layer has the same output for every image and cannot learn. "replace", the default, puts
    nn.Hardtanh in their place. "keep" leaves them, and a UserWarning names the layers. The default is "replace" because
    `binarize` changes the network in any case, and no network can use the constant layer that "keep" gives.

    - The inspection follows the values from the activation to the layer, for example through pooling, dropout,
      flattening, concatenation and sums. Normalization layers and other layers with weights end it, because their
      results have both signs.
    - A replaced module is replaced everywhere: in all places that share it, and also if its output is used by a
      residual connection or by a layer that stays real.
    - A function call such as F.relu cannot be replaced. It raises InputError with the place and the fix.
    - An activation stays if its values also weight another map (the sigmoid of a squeeze-and-excite block), and so do
      activations with both signs (GELU, SiLU, PReLU). Images without negative values that feed a binary layer cannot be
      replaced either. This is only seen if `example` is a batch of such images. In both cases there is a warning if a
      binary layer has constant signs.
    - Methods with a threshold above 0 or a learned threshold, and methods that center their input, need no
      replacement (for example dorefa, reactnet and rbnn). With real activations (1/32), nothing is inspected.
    - The network is traced by torch.fx. A network that cannot be traced is inspected by running the example. Without an
      example there is a warning, and no activation is replaced.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Hardtanh(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8, 2))
    >>> binarize(net, "irnet")[2].extra_repr()
    '8, 8, kernel_size=(3, 3), stride=(1, 1), irnet 1/1'
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"binarize takes a torch.nn.Module; got {type(model).__name__}")
    configured_method = get_method(method, bits, **options)
    real_layers = {name: m for name, m in model.named_modules() if type(m) in (nn.Conv2d, nn.Linear)}
    if "" in real_layers:
        raise InputError("the model is a single layer; make it a BinaryConv2d or BinaryLinear directly")
    skipped_names = _find_skipped_layers(list(real_layers), skip)
    binary_layers = {
        name: _make_binary_layer(name, layer, configured_method, padding_value)
        for name, layer in real_layers.items()
        if name not in skipped_names
    }
    if not binary_layers:
        raise InputError(
            f"nothing to binarize: {len(skipped_names)} of {len(real_layers)} convolutions and linear layers are "
            "skipped"
        )
    _check_output_shapes_known(binary_layers, configured_method, example)
    replacements: dict[nn.Module, nn.Module] = {
        real_layers[name]: binary_layer for name, binary_layer in binary_layers.items()
    }
    with _explain_example_errors(example):
        replacements |= plan_activation_replacements(model, binary_layers, activation, example)
    _replace_modules(model, replacements)
    fast_path_flags = _disable_fast_paths(model)
    if example is not None:
        try:
            with _explain_example_errors(example):
                fit_output_shapes(model, example)
        except Exception:
            _replace_modules(model, {new_module: module for module, new_module in replacements.items()})
            for layer, flag in fast_path_flags.items():
                layer.activation_relu_or_gelu = flag
            raise
    return model


def _replace_modules(model: nn.Module, replacements: dict[nn.Module, nn.Module]) -> None:
    for parent in list(model.modules()):
        # named_children() lists a layer that is registered under two names only once.
        for name, child in list(parent._modules.items()):
            if child in replacements:
                setattr(parent, name, replacements[child])


def _disable_fast_paths(model: nn.Module) -> dict[nn.TransformerEncoderLayer, int]:
    """Disable the fast path of encoder layers with binary layers, and return the flags that were changed.

    In evaluation mode, the fast path would read the latent weights of the linear layers without binarizing them.
    PyTorch takes it only if the activation is known to be a ReLU or GELU.
    """
    flags = {}
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and any(isinstance(m, BinaryLayer) for m in module.modules()):
            flags[module] = module.activation_relu_or_gelu
            module.activation_relu_or_gelu = 0
    return flags


def _check_output_shapes_known(binary_layers: dict[str, nn.Module], method: Method, example: object) -> None:
    """Raise InputError if a layer needs the size of its output and there is no example."""
    layers_without_shape = [
        name
        for name, layer in binary_layers.items()
        if isinstance(layer, BinaryLayer) and layer.weight_binarizer.needs_output_shape
    ]
    if layers_without_shape and example is None:
        raise InputError(
            f"{method.name} learns a scale per output position of layer {layers_without_shape[0]!r} and needs the "
            "image size: pass an example (a batch or its shape, such as (1, 3, 32, 32)), or choose case=1"
        )


@contextmanager
def _explain_example_errors(example: Tensor | Sequence[int] | None) -> Iterator[None]:
    """Turn an error that the network raises for the example into an InputError."""
    try:
        yield
    except InputError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if example is None:
            raise
        shape = tuple(example.shape if isinstance(example, Tensor) else example)
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"the network does not accept an example of shape {shape} ({reason}); the example must be a batch of "
            "images or its shape, such as (1, 3, 32, 32)"
        ) from error


def _find_skipped_layers(names: list[str], skip: Iterable[str] | None) -> set[str]:
    if skip is None:
        return {names[0], names[-1]} if names else set()
    skipped_names = set()
    for pattern in check_name_list(skip, "skip"):
        matches = [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            closest_names = get_close_matches(pattern, names, n=3, cutoff=0) or names[:3]
            raise InputError(
                f"skip pattern {pattern!r} matches none of the {len(names)} convolutions and linear layers; the "
                f"closest names are {', '.join(closest_names)} (model.named_modules() lists all)"
            )
        skipped_names.update(matches)
    return skipped_names


def _make_binary_layer(name: str, layer: nn.Module, method: Method, padding_value: float) -> nn.Module:
    if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
        raise InputError(
            f"layer {name!r} has hooks, which would be lost with the layer; remove the hooks or add the layer to skip"
        )
    try:
        if isinstance(layer, nn.Conv2d):
            return BinaryConv2d.from_conv(layer, method, padding_value)
        assert isinstance(layer, nn.Linear)
        return BinaryLinear.from_linear(layer, method)
    except InputError as error:
        raise InputError(f"layer {name!r} cannot be made binary: {error}") from None
