"""`binarize`: turn the convolutions and linear layers of any network binary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from lcrbnn.errors import InputError, names_of
from lcrbnn.layers import BinaryConv2d, BinaryLayer, BinaryLinear, fit
from lcrbnn.methods import Method
from lcrbnn.methods import method as find_method


def binarize(
    model: nn.Module,
    method: str | Method = "irnet",
    *,
    bits: str | None = None,
    skip: Iterable[str] | None = None,
    padding_value: float = 0.0,
    example: Tensor | Sequence[int] | None = None,
    **options: Any,
) -> nn.Module:
    """Replace every nn.Conv2d and nn.Linear of `model` by its binary twin, in place, and return the model.

    The latent weights are the given ones, the same parameters: an optimiser made before goes on training them, but
    not what a method adds (rbnn's angles and scales, reactnet's shifts, xnor++'s scales). Subclasses are left alone.
    `skip` names the layers that stay real, shell patterns allowed ("*.shortcut.*"); without it they are the first and
    the last layer in order of registration. `example`, a batch or its shape, is needed by xnor++.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Hardtanh(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8, 2))
    >>> binarize(net, "irnet")[2].extra_repr()
    '8, 8, kernel_size=(3, 3), stride=(1, 1), irnet 1/1'
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"binarize takes a torch.nn.Module; got {type(model).__name__}")
    chosen = find_method(method, bits, **options)
    found = {name: m for name, m in model.named_modules() if type(m) in (nn.Conv2d, nn.Linear)}
    if "" in found:
        raise InputError("the model is a single layer; make it a BinaryConv2d or BinaryLinear directly")
    kept = _kept(list(found), skip)
    for name, parent in model.named_modules():  # its fast path for inference reads the weights past the layers
        inside = [n for n in found if n.startswith(f"{name}.") and n not in kept]
        if isinstance(parent, nn.TransformerEncoderLayer) and inside:
            raise InputError(
                f"layer {inside[0]!r} belongs to a TransformerEncoderLayer, which in evaluation mode computes with the "
                "real weights whatever the layer is; skip it"
            )
    twins = {name: _twin(name, layer, chosen, padding_value) for name, layer in found.items() if name not in kept}
    if not twins:
        raise InputError(
            f"nothing to binarise: of {len(found)} convolutions and linear layers, {len(kept)} are to stay real"
        )
    _check_sized(twins, chosen, example)
    replaced: dict[nn.Module, nn.Module] = {found[name]: twin for name, twin in twins.items()}
    _replace(model, replaced)
    if example is not None:
        try:
            _fit(model, example)
        except Exception:
            _replace(model, {twin: layer for layer, twin in replaced.items()})
            raise
    return model


def _replace(model: nn.Module, twins: dict[nn.Module, nn.Module]) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # named_children would pass over a layer's second name
            if child in twins:
                setattr(parent, name, twins[child])


def _check_sized(twins: dict[str, nn.Module], chosen: Method, example: object) -> None:
    """Raise if a layer has to hear the size of its output, and nothing tells it."""
    unsized = [
        name for name, twin in twins.items() if isinstance(twin, BinaryLayer) and twin.weight_binarizer.needs_fit
    ]
    if unsized and example is None:
        raise InputError(
            f"{chosen.name} learns a scale for each output position of layer {unsized[0]!r} and has to know the image "
            "size: give an example, a batch or its shape such as (1, 3, 32, 32), or choose case=1"
        )


def _fit(model: nn.Module, example: Tensor | Sequence[int]) -> None:
    try:
        fit(model, example)
    except InputError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shape = tuple(example.shape if isinstance(example, Tensor) else example)
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"the network does not take an example of shape {shape} ({reason}); it is a batch of images or its shape, "
            "such as (1, 3, 32, 32)"
        ) from error


def _kept(names: list[str], skip: Iterable[str] | None) -> set[str]:
    if skip is None:
        return {names[0], names[-1]} if names else set()
    kept = set()
    for pattern in names_of(skip, "skip"):
        matches = [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            raise InputError(
                f"skip names {pattern!r}, which is no convolution or linear layer here; there are {', '.join(names)}"
            )
        kept.update(matches)
    return kept


def _twin(name: str, layer: nn.Module, chosen: Method, padding_value: float) -> nn.Module:
    if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
        raise InputError(f"layer {name!r} carries hooks, which its binary twin would lose; remove them or skip it")
    try:
        if isinstance(layer, nn.Conv2d):
            return BinaryConv2d.of(layer, chosen, padding_value)
        assert isinstance(layer, nn.Linear)
        return BinaryLinear.of(layer, chosen)
    except InputError as error:
        raise InputError(f"layer {name!r} cannot be made binary: {error}") from None
