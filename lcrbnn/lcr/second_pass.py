"""Context managers for a second forward pass.

It repeats the random draws of the first pass and updates no statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lcrbnn.device import is_eager
from lcrbnn.nn.model_hooks import iter_binary_layers

RngStates = list[tuple[torch.device, Tensor]]  # pairs of a device and the state of its default random generator


def save_rng_states(model: nn.Module) -> RngStates:
    """Return the states of the random generators of the CPU and of the GPUs that hold the model."""
    gpus = {p.device for p in model.parameters() if p.is_cuda}
    return [(torch.device("cpu"), torch.get_rng_state()), *((gpu, torch.cuda.get_rng_state(gpu)) for gpu in gpus)]


def restore_rng_states(states: RngStates) -> None:
    """Set the random generators to the saved states."""
    for device, state in states:
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, device)


@contextmanager
def replay_rng(model: nn.Module, states: RngStates | None) -> Iterator[None]:
    """Set the random generators to `states`, if there are any. At the end, restore the states from before.

    While a compiler traces the code or a CUDA graph is captured, this does nothing. The random draws are then part of
    the trace.
    """
    if not is_eager():
        yield
        return
    states_before = save_rng_states(model)
    if states is not None:
        restore_rng_states(states)
    try:
        yield
    finally:
        restore_rng_states(states_before)


@contextmanager
def freeze_running_statistics(model: nn.Module) -> Iterator[None]:
    """Prevent updates of running statistics.

    Batch norms in training mode still normalize with the statistics of the batch. This covers batch norms, instance
    norms and the statistics that binary layers keep of their inputs and weights.
    """
    batch_norms = [
        m
        for m in model.modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training and m.track_running_stats
    ]
    # Instance norms ignore track_running_stats: they update any running statistics that they have. So these statistics
    # are removed for the moment. This does not change how instance norms normalize.
    instance_norms = [m for m in model.modules() if isinstance(m, nn.modules.instancenorm._InstanceNorm) and m.training]
    saved_statistics = [(m.running_mean, m.running_var) for m in instance_norms]
    layers = [layer for _, layer in iter_binary_layers(model)]
    for batch_norm in batch_norms:
        batch_norm.track_running_stats = False
    for instance_norm in instance_norms:
        instance_norm.running_mean = instance_norm.running_var = None
    for layer in layers:
        layer.observation_enabled = False
    try:
        yield
    finally:
        for batch_norm in batch_norms:
            batch_norm.track_running_stats = True
        for instance_norm, (mean, var) in zip(instance_norms, saved_statistics, strict=True):
            instance_norm.running_mean, instance_norm.running_var = mean, var
        for layer in layers:
            layer.observation_enabled = True


def cast_float_tensor(x: Any, dtype: torch.dtype | None) -> Any:
    """Return a floating-point tensor as `dtype`, and any other value unchanged."""
    return x.to(dtype) if dtype is not None and isinstance(x, Tensor) and x.is_floating_point() else x
