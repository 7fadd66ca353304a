"""Hold values that change during training: IR-Net's and RBNN's temperature (Annealing), or any number (Schedule)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lcrbnn.errors import check_number


def anneal_temperature(progress: float, t_min: float, t_max: float) -> tuple[float, float]:
    """Return the temperature t and the factor k = max(1 / t, 1) at progress = epoch / epochs.

    log t rises linearly from log t_min to log t_max.
    """
    t = 10 ** (math.log10(t_min) + (math.log10(t_max) - math.log10(t_min)) * progress)
    return t, max(1 / t, 1.0)


class Annealing(nn.Module):
    """Holds the temperature t and the factor k in buffers, so that a compiled training step sees their changes."""

    t: Tensor
    k: Tensor

    def __init__(self, t_min: float, t_max: float) -> None:
        """Create the buffers, with the values of t and k at progress 0."""
        super().__init__()
        check_number(t_min, "t_min", low=1e-12)
        check_number(t_max, "t_max", low=t_min)
        self.t_min, self.t_max = t_min, t_max
        t, k = anneal_temperature(0.0, t_min, t_max)
        self.register_buffer("t", torch.tensor(t))
        self.register_buffer("k", torch.tensor(k))

    def set_progress(self, progress: float) -> None:
        """Set t and k to their values at this training progress."""
        t, k = anneal_temperature(progress, self.t_min, self.t_max)
        self.t.fill_(t)
        self.k.fill_(k)


class Schedule(nn.Module):
    """A number that changes with training progress.

    It is in a buffer, so that a compiled training step sees its changes.
    """

    value: Tensor

    def __init__(self, function: Callable[[float], float]) -> None:
        """Create the buffer, with the value of the number at progress 0."""
        super().__init__()
        self.function = function
        self.register_buffer("value", torch.tensor(float(function(0.0))))

    def set_progress(self, progress: float) -> None:
        """Set the number to its value at this training progress."""
        self.value.fill_(self.function(progress))
