"""OPTIMIZERS, and functions that build the parameter groups for weight decay and learning rate."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lcrbnn.nn.layers import BinaryLayer
from lcrbnn.nn.methods.reactnet import ReactActivation
from lcrbnn.nn.models.blocks import RPReLU
from lcrbnn.train.setup.spec import TrainSpec


def build_optimizer(spec: TrainSpec, model: nn.Module, names: dict[Tensor, str], fused: bool) -> torch.optim.Optimizer:
    """Return the optimizer of a spec for the parameters in `names`, in a group with weight decay and one without."""
    decaying_parameters = WEIGHT_DECAY_GROUPS[spec.weight_decay_parameters](model)
    groups = [
        {"params": [p for p in names if p in decaying_parameters], "weight_decay": spec.weight_decay},
        {"params": [p for p in names if p not in decaying_parameters], "weight_decay": 0.0},
    ]
    return OPTIMIZERS[spec.optimizer](spec, [g for g in groups if g["params"]], fused)


def _find_all_parameters(model: nn.Module) -> set[Tensor]:
    return set(model.parameters())


def _find_layer_weights(model: nn.Module) -> set[Tensor]:
    return {m.weight for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)}


def _find_convolution_weights(model: nn.Module) -> set[Tensor]:
    return {m.weight for m in model.modules() if isinstance(m, nn.Conv2d)}


def _find_learned_shifts(model: nn.Module) -> set[Tensor]:
    activations = [shift for m in model.modules() if isinstance(m, RPReLU) for shift in (m.front, m.back)]
    return {*activations, *(m.shift for m in model.modules() if isinstance(m, ReactActivation))}


def find_latent_weights(model: nn.Module) -> set[Tensor]:
    """Return the weights of the binary layers before binarization."""
    return {m.weight for m in model.modules() if isinstance(m, BinaryLayer)}


WEIGHT_DECAY_GROUPS: dict[str, Callable[[nn.Module], set[Tensor]]] = {
    "all": _find_all_parameters,
    "non-latent": lambda model: _find_all_parameters(model) - find_latent_weights(model),
    "reactnet": lambda model: _find_convolution_weights(model) | _find_learned_shifts(model),
    "conv-linear-weights": _find_layer_weights,
}


OPTIMIZERS: dict[str, Callable[[TrainSpec, list[dict], bool], torch.optim.Optimizer]] = {
    "sgd": lambda spec, groups, fused: torch.optim.SGD(
        groups, spec.lr, momentum=spec.momentum, nesterov=spec.nesterov, fused=fused or None
    ),
    "adam": lambda spec, groups, fused: torch.optim.Adam(
        groups, spec.lr, betas=(spec.momentum, 0.999), fused=fused or None, capturable=fused
    ),
}
