"""The forward and gradient curves of every method, drawn from METHODS by running it.

Learned numbers of a method (a shift, a scale, an angle) are drawn as if training had moved them all to 0.5.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lcrbnn.methods import METHODS, Method
from lcrbnn.methods.biper import BiperWeight
from lcrbnn.methods.rbnn import RbnnActivation
from lcrbnn.methods.siman import SimanActivation, SimanWeight
from lcrbnn.study.figure import BLUE, ORANGE, drawing

LEARNED = 0.5
PROGRESS = (0.0, 0.5, 0.9)  # where in training the schedules are shown


class Curve(NamedTuple):
    """Along x: the value that x becomes, and the slope that backward uses there."""

    x: Tensor
    value: Tensor
    slope: Tensor


def activation_curve(row: Method, progress: float) -> Curve:
    """The curve of an activation between -2 and 2."""
    x = torch.linspace(-2, 2, 401, requires_grad=True)
    binarizer = row.activation_binarizer(1)
    if binarizer is None:
        return Curve(x.detach(), x.detach(), torch.ones_like(x))
    binarizer.eval().advance(progress)
    _settle(binarizer)
    value = binarizer(x.reshape(1, 1, 1, -1)).value().reshape(-1)
    coupled = isinstance(binarizer, RbnnActivation | SimanActivation)  # they standardise the sample; no others do
    slope = _diagonal(value, x) if coupled else torch.autograd.grad(value.sum(), x)[0]
    return Curve(x.detach(), value.detach(), slope)


def weight_curve(row: Method, progress: float) -> Curve:
    """The curve of one weight in a filter of 100, along the real number whose sign is taken.

    Where that goes up and down with the weight, the curve is along the weight itself.
    """
    w = torch.linspace(-2, 2, 100)[None].requires_grad_()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        binarizer = row.weight_binarizer(w.detach())
    binarizer.eval().advance(progress)
    _settle(binarizer)
    value = torch.zeros(())
    for base in binarizer(w).each():
        part = base.signs if base.scale is None else base.signs * base.scale.reshape(-1, 1)
        value = value + (part if base.offset is None else part + base.offset.reshape(-1, 1))
    folds = isinstance(binarizer, SimanWeight | BiperWeight)
    latent = (w if folds else binarizer.latent(w)).detach()[0]
    order = latent.argsort()
    return Curve(latent[order], value.detach()[0, order], _diagonal(value[0], w)[order])


def _settle(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.dim() < 2:  # a matrix, such as a basis, stays where it starts
            nn.init.constant_(parameter, LEARNED)


def _diagonal(value: Tensor, x: Tensor) -> Tensor:
    # Each number's own derivative: standardising couples the numbers, and the gradient of their sum would cancel.
    rows = [torch.autograd.grad(v, x, retain_graph=True)[0].reshape(-1)[i] for i, v in enumerate(value)]
    return torch.stack(rows)


def draw_curves(path: Path) -> None:
    """Two methods a line, activations left and weights right of each; value in blue, slope in orange (right scale)."""
    lines = -(-len(METHODS) // 2)
    with drawing(path, lines, 4, 15, 1.8 * lines) as (figure, grid):
        places = grid.reshape(-1, 2)
        for axes, row in zip(places, METHODS.values(), strict=False):
            for axis, curve, what in zip(axes, (activation_curve, weight_curve), ("activation", "weight"), strict=True):
                handles, labels = _draw(axis, row, curve, what)
        for axis in places[len(METHODS) :].flat:
            axis.set_visible(False)
        figure.legend([grid[0, 0].lines[0], *handles], ["value", *labels], loc="outside upper center", ncols=4)


def _draw(axis: Any, row: Method, curve: Callable[[Method, float], Curve], what: str) -> tuple[list[Any], list[str]]:
    slopes = axis.twinx()
    for progress, alpha in zip(PROGRESS, (0.3, 0.6, 1.0), strict=True):
        x, value, slope = curve(row, progress)
        slopes.plot(x, slope, color=ORANGE, alpha=alpha, label=f"slope at {progress:.0%} of training")
    axis.plot(x, value, color=BLUE, label="value")
    slopes.set_ylim(bottom=min(0.0, slopes.get_ylim()[0]))
    slopes.grid(False)
    slopes.spines["right"].set_visible(True)
    real = what == "activation" and row.chosen_bits == 32
    axis.set_title(f"{row.name}: {what}" + (" (left real)" if real else ""))
    axis.set_xlabel({"activation": "input", "weight": "latent weight, as the sign sees it"}[what])
    axis.set_ylabel("value", color=BLUE)
    slopes.set_ylabel("slope", color=ORANGE)
    return slopes.get_legend_handles_labels()
