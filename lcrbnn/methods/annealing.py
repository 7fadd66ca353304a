"""What moves with training: any number (Schedule), and the temperature of a gradient that sharpens (IR-Net, RBNN)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lcrbnn.errors import number


def temperature(progress: float, t_min: float, t_max: float) -> tuple[float, float]:
    """Return (t, k) at progress = epoch / epochs: t goes from t_min to t_max, log-linear, and k = max(1/t, 1)."""
    t = 10 ** (math.log10(t_min) + (math.log10(t_max) - math.log10(t_min)) * progress)
    return t, max(1 / t, 1.0)


class Annealing(nn.Module):
    """Holds t and k as buffers, so that a compiled step sees them change."""

    t: Tensor
    k: Tensor

    def __init__(self, t_min: float, t_max: float) -> None:
        """Start at progress 0."""
        super().__init__()
        number(t_min, "t_min", low=1e-12)
        number(t_max, "t_max", low=t_min)
        self.t_min, self.t_max = t_min, t_max
        t, k = temperature(0.0, t_min, t_max)
        self.register_buffer("t", torch.tensor(t))
        self.register_buffer("k", torch.tensor(k))

    def advance(self, progress: float) -> None:
        """Move t and k to where the schedule has them at this progress."""
        t, k = temperature(progress, self.t_min, self.t_max)
        self.t.fill_(t)
        self.k.fill_(k)


class Schedule(nn.Module):
    """A number that moves with training, a function of progress, in a buffer, where a compiled step sees it."""

    value: Tensor

    def __init__(self, at: Callable[[float], float]) -> None:
        """Start at progress 0."""
        super().__init__()
        self.at = at
        self.register_buffer("value", torch.tensor(float(at(0.0))))

    def advance(self, progress: float) -> None:
        """Move to where the number is at this progress."""
        self.value.fill_(self.at(progress))
