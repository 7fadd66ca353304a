"""Builds the network of the user's file, makes it binary with the method of the run, and chooses its LCR blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lcrbnn.data.datasets import DataSet
from lcrbnn.errors import InputError
from lcrbnn.nn.convert import binarize
from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.model_hooks import eval_mode, iter_binary_layers
from lcrbnn.nn.models.model_registry import FULL_PRECISION
from lcrbnn.train.setup.network_file import NetworkReference, call_network_function

NUM_EXAMPLE_IMAGES = 2  # enough to see the axis of the images in the output


def build_own_network(
    reference: NetworkReference, source: bytes, method: Method | None, method_name: str, dataset: DataSet
) -> nn.Module:
    """Return the network of a file, with binary layers of the method, for the images of a data set.

    A network without binary layers is made binary, except for its first and its last layer. Binary layers of its own
    must be of the run's method, because records and reports name the method of the run.
    """
    model = call_network_function(
        reference,
        source,
        {
            "num_classes": dataset.num_classes,
            "in_channels": dataset.channels,
            "image_size": dataset.image_size,
        },
    )
    example = make_example(dataset)
    _check_outputs(reference, model, example, dataset.num_classes)
    own_methods = {(layer.method.name, layer.method.bit_widths) for _, layer in iter_binary_layers(model)}
    if own_methods:
        expected = (FULL_PRECISION, "") if method is None else (method.name, method.bit_widths)
        if expected not in own_methods:
            name, bits = min(own_methods)
            raise InputError(
                f"{reference} has binary layers of the method {name} {bits}, and the method of the run is "
                f"{' '.join((method_name, expected[1])).strip()}: set method {name} and bits {bits}"
            )
    elif method is not None:
        try:
            binarize(model, method, example=example)
        except InputError as error:
            raise InputError(f"{reference}: {error}") from None
    return model


def make_example(dataset: DataSet) -> Tensor:
    """Return a batch of black images of a data set."""
    return torch.zeros(NUM_EXAMPLE_IMAGES, dataset.channels, dataset.image_size, dataset.image_size)


def _check_outputs(reference: NetworkReference, model: nn.Module, example: Tensor, num_classes: int) -> None:
    """Raise InputError unless the network returns one number per image and class."""
    shape = tuple(example.shape)
    try:
        with eval_mode(model), torch.no_grad():
            logits = model(example)
    except MemoryError:
        raise
    except Exception as error:  # code of the user
        reason = " ".join(str(error).split())[:300]
        raise InputError(
            f"{reference} returned a network that does not accept images of shape {shape}: {type(error).__name__}: "
            f"{reason}"
        ) from error
    expected = (len(example), num_classes)
    if not isinstance(logits, Tensor) or tuple(logits.shape) != expected:
        output = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(
            f"{reference} returned a network whose output for images of shape {shape} is {output}; it must have shape "
            f"{expected}, one number per image and class (let the function take num_classes)"
        )
