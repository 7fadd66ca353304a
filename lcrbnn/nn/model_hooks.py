"""Functions that a training loop calls on a model with binary layers, such as set_progress and project_weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError, check_number
from lcrbnn.nn.layers import BinaryConv2d, BinaryLayer


def iter_binary_layers(model: nn.Module) -> Iterator[tuple[str, BinaryLayer]]:
    """Yield the binary layers of a model with their names, in the order of registration."""
    for name, module in model.named_modules():
        if isinstance(module, BinaryLayer):
            yield name, module


def set_progress(model: nn.Module, progress: float) -> None:
    """Tell every binarizer of the model the training progress (epoch / epochs, from 0 to 1).

    Repeated calls with the same progress change nothing. A model without binary layers is left as it is.
    """
    check_number(progress, "progress", low=0, high=1)
    for _, layer in iter_binary_layers(model):
        layer.weight_binarizer.set_progress(progress)
        if layer.input_binarizer is not None:
            layer.input_binarizer.set_progress(progress)


def start_epoch(model: nn.Module) -> None:
    """Run the updates that methods do once per epoch, such as RBNN's update of rotations.

    Call this before the first step of an epoch.
    """
    for _, layer in iter_binary_layers(model):
        layer.weight_binarizer.start_epoch(layer.weight)


def project_weights(model: nn.Module) -> None:
    """Project latent weights onto the set that their method allows, as XNOR-Net's centering and clamping do.

    Call this after each optimizer step.
    """
    for _, layer in iter_binary_layers(model):
        layer.weight_binarizer.project(layer.weight)
        if layer.normalizer is not None:
            layer.normalizer.update(layer)


def extra_loss(model: nn.Module) -> Tensor | None:
    """Return the sum of the loss terms of the methods for the latest forward pass, or None if there are none.

    RAD and BNN+, for example, have such terms. Call this once per step, after the forward pass, and add the result to
    the task loss.
    """
    summed_losses: list[Tensor | None] = []
    averaged_losses: list[Tensor | None] = []
    for _, layer in iter_binary_layers(model):
        summed_losses.append(layer.weight_binarizer.extra_loss(layer.weight))
        if layer.input_binarizer is not None:
            (averaged_losses if layer.input_binarizer.averages_extra_loss else summed_losses).append(
                layer.input_binarizer.pop_extra_loss()
            )
    terms = [loss for loss in summed_losses if loss is not None]
    averaged_terms = [loss for loss in averaged_losses if loss is not None]
    if averaged_terms:
        terms.append(torch.stack(averaged_terms).mean())
    return sum(terms[1:], terms[0]) if terms else None


def fit_output_shapes(model: nn.Module, example: Tensor | Sequence[int]) -> None:
    """Set the output size of every layer. For this purpose, the model processes one example (a batch or its shape).

    Only methods with a scale per output position (xnor++) need this. The training mode and the batch-norm statistics of
    the model do not change.
    """
    images = prepare_example(model, example)

    def set_output_shape(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, BinaryConv2d)
        layer.weight_binarizer.fit_output_shape(layer.output_size(*args[0].shape[-2:]))
        layer.weight_binarizer.to(layer.weight.device, layer.weight.dtype)

    hooks = [m.register_forward_pre_hook(set_output_shape) for m in model.modules() if isinstance(m, BinaryConv2d)]
    try:
        with eval_mode(model), torch.no_grad():
            model(images)
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Set the model to evaluation mode inside the `with` block, and restore the mode of every module afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def fold_scales_into_weights(model: nn.Module) -> Iterator[None]:
    """Inside the `with` block, binary layers multiply the weight by the scale of each channel.

    Otherwise they scale the output.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, BinaryLayer)]
    for layer in layers:
        layer.folds_scale_into_weight = True
    try:
        yield
    finally:
        for layer in layers:
            layer.folds_scale_into_weight = False


@contextmanager
def use_latent_weights(model: nn.Module) -> Iterator[None]:
    """Inside the `with` block, binary layers use the real latent weights instead of their signs."""
    layers = [layer for _, layer in iter_binary_layers(model)]
    for layer in layers:
        layer.uses_latent_weight = True
    try:
        yield
    finally:
        for layer in layers:
            layer.uses_latent_weight = False


def prepare_example(model: nn.Module, example: Tensor | Sequence[int]) -> Tensor:
    """Return the example, a batch or its shape, as a batch on the device and in the dtype of the model."""
    images = example if isinstance(example, Tensor) else _make_example(example)
    weight = next(iter(model.parameters()), images)
    return images.to(weight.device, weight.dtype)


def _make_example(shape: Sequence[int]) -> Tensor:
    if not isinstance(shape, list | tuple | torch.Size) or not all(isinstance(n, int) and n > 0 for n in shape):
        raise InputError(f"the example must be a batch of images or its shape, such as (1, 3, 32, 32); got {shape!r}")
    return torch.zeros(*shape)
