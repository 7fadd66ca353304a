"""Draw the forward and gradient curves of every method, which are computed by the method's binarizers.

All learned parameters of a method (shift, scale, angle) are set to 0.5, so that they have a visible effect as after
training.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.methods.biper import BiperWeight
from lcrbnn.nn.methods.method_registry import METHODS
from lcrbnn.nn.methods.rbnn import RbnnActivation
from lcrbnn.nn.methods.siman import SimanActivation, SimanWeight
from lcrbnn.report.figures.figure import BLUE, ORANGE, draw_figure

LEARNED_VALUE = 0.5
DRAWN_PROGRESS = (0.0, 0.5, 0.9)  # values of the training progress (0 to 1) at which methods with annealing are drawn


class Curve(NamedTuple):
    """Binarized values and surrogate gradients at the points x."""

    x: Tensor
    value: Tensor
    slope: Tensor


def compute_activation_curve(method: Method, progress: float) -> Curve:
    """Return the curve of an activation from -2 to 2."""
    x = torch.linspace(-2, 2, 401, requires_grad=True)
    binarizer = method.create_activation_binarizer(1)
    if binarizer is None:
        return Curve(x.detach(), x.detach(), torch.ones_like(x))
    binarizer.eval().set_progress(progress)
    _set_learned_values(binarizer)
    value = binarizer(x.reshape(1, 1, 1, -1)).dequantize().reshape(-1)
    # methods that standardise the sample
    is_coupled = isinstance(binarizer, RbnnActivation | SimanActivation)
    slope = _jacobian_diagonal(value, x) if is_coupled else torch.autograd.grad(value.sum(), x)[0]
    return Curve(x.detach(), value.detach(), slope)


def compute_weight_curve(method: Method, progress: float) -> Curve:
    """Return the curve of one weight in a filter of 100 weights. The x axis is the real value whose sign is taken.

    If that value is not monotonic in the weight, the x axis is the weight itself.
    """
    w = torch.linspace(-2, 2, 100)[None].requires_grad_()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        binarizer = method.create_weight_binarizer(w.detach())
    binarizer.eval().set_progress(progress)
    _set_learned_values(binarizer)
    value = torch.zeros(())
    for base in binarizer(w).split_bases():
        term = base.signs if base.scale is None else base.signs * base.scale.reshape(-1, 1)
        value = value + (term if base.offset is None else term + base.offset.reshape(-1, 1))
    is_not_monotonic = isinstance(binarizer, SimanWeight | BiperWeight)
    latent = (w if is_not_monotonic else binarizer.pre_sign_weight(w)).detach()[0]
    order = latent.argsort()
    return Curve(latent[order], value.detach()[0, order], _jacobian_diagonal(value[0], w)[order])


def _set_learned_values(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.dim() < 2:  # parameters that are matrices, such as a learned basis, keep their initial values
            nn.init.constant_(parameter, LEARNED_VALUE)


def _jacobian_diagonal(value: Tensor, x: Tensor) -> Tensor:
    # Take the derivative of each value with respect to its own input. Standardization couples the inputs. So the
    # gradient of the sum would be zero.
    rows = [torch.autograd.grad(v, x, retain_graph=True)[0].reshape(-1)[i] for i, v in enumerate(value)]
    return torch.stack(rows)


def draw_method_curves(path: Path) -> None:
    """Draw two methods per row, each with an activation panel and a weight panel.

    The value is blue, and the slope is orange with its axis on the right.
    """
    lines = -(-len(METHODS) // 2)
    with draw_figure(path, lines, 4, 15, 1.8 * lines) as (figure, grid):
        panel_pairs = grid.reshape(-1, 2)
        for axes, method in zip(panel_pairs, METHODS.values(), strict=False):
            for axis, compute_curve, part in zip(
                axes, (compute_activation_curve, compute_weight_curve), ("activation", "weight"), strict=True
            ):
                handles, labels = _draw_panel(axis, method, compute_curve, part)
        for axis in panel_pairs[len(METHODS) :].flat:
            axis.set_visible(False)
        figure.legend([grid[0, 0].lines[0], *handles], ["value", *labels], loc="outside upper center", ncols=4)


def _draw_panel(
    axis: Any, method: Method, compute_curve: Callable[[Method, float], Curve], part: str
) -> tuple[list[Any], list[str]]:
    slope_axis = axis.twinx()
    for progress, alpha in zip(DRAWN_PROGRESS, (0.3, 0.6, 1.0), strict=True):
        x, value, slope = compute_curve(method, progress)
        slope_axis.plot(x, slope, color=ORANGE, alpha=alpha, label=f"slope at {progress:.0%} of training")
    axis.plot(x, value, color=BLUE, label="value")
    slope_axis.set_ylim(bottom=min(0.0, slope_axis.get_ylim()[0]))
    slope_axis.grid(False)
    slope_axis.spines["right"].set_visible(True)
    is_real = part == "activation" and method.activation_bits == 32
    axis.set_title(f"{method.name}: {part}" + (" (left real)" if is_real else ""))
    axis.set_xlabel({"activation": "input", "weight": "latent weight before the sign"}[part])
    axis.set_ylabel("value", color=BLUE)
    slope_axis.set_ylabel("slope", color=ORANGE)
    return slope_axis.get_legend_handles_labels()
