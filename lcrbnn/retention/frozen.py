"""A pass of a network in training that leaves no trace in what its layers remember."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from lcrbnn.layers import binary_layers


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Inside, batch norms in training mode normalise by the batch and leave their running statistics alone.

    So do instance norms, and binary layers with what they remember of their inputs and weights.
    """
    norms = [
        m
        for m in model.modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training and m.track_running_stats
    ]
    # These go on updating whatever statistics they have; without any they normalise in the same way.
    instance = [m for m in model.modules() if isinstance(m, nn.modules.instancenorm._InstanceNorm) and m.training]
    kept = [(m.running_mean, m.running_var) for m in instance]
    layers = [layer for _, layer in binary_layers(model)]
    for norm in norms:
        norm.track_running_stats = False
    for one in instance:
        one.running_mean = one.running_var = None
    for layer in layers:
        layer.observing = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
        for one, (mean, var) in zip(instance, kept, strict=True):
            one.running_mean, one.running_var = mean, var
        for layer in layers:
            layer.observing = True
