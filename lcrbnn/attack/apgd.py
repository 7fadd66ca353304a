"""APGD: PGD without a step size to choose (Croce and Hein 2020, Algorithm 1), for any loss."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from lcrbnn.attack.ball import Ball
from lcrbnn.attack.losses import dlr, margin, tempered
from lcrbnn.attack.target import Loss, Target

MOMENTUM = 0.75  # alpha of the paper: the part of the new step, the rest goes on as before
PROGRESS = 0.75  # rho: the share of steps that must have raised the loss, or the step is halved


def checkpoints(steps: int) -> list[int]:
    """After how many steps progress is looked at: first after 22 %, then after ever fewer, never under 6 %."""
    percent, further, found = 22, 22, []  # whole numbers: 0.57 of 100 steps are 57
    while percent < 100:
        found.append(-(-percent * steps // 100))
        further = max(further - 3, 6)
        percent += further
    return sorted(set(found) - {steps})


@dataclass(frozen=True)
class _State:
    """An entry an image: where it is, where it was, the best so far, and how the search goes."""

    rows: Tensor
    x: Tensor
    before: Tensor
    gradient: Tensor
    loss: Tensor
    best: Tensor
    best_gradient: Tensor
    best_loss: Tensor
    step: Tensor  # size
    rises: Tensor  # steps since the last look that raised the loss
    looked_loss: Tensor  # best_loss at the last look
    halved: Tensor  # whether that look halved the step

    def take(self, kept: Tensor) -> _State:
        return _State(**{field.name: getattr(self, field.name)[kept] for field in fields(self)})


def apgd_ce(target: Target, ball: Ball, *, steps: int = 100) -> Tensor:
    """With cross-entropy, logits divided by the margin that the clean image has: its own temperature."""
    temperature = margin(target.ask(ball.images), ball.labels).abs().clamp_min(1e-6)
    return _apgd(target, ball, steps, "apgd-ce", temperature)


def apgd_dlr(target: Target, ball: Ball, *, steps: int = 100) -> Tensor:
    """With the difference of logits ratio, to which no temperature matters."""
    return _apgd(target, ball, steps, "apgd-dlr", None)


def _apgd(target: Target, ball: Ball, steps: int, name: str, temperature: Tensor | None) -> Tensor:
    found = ball.images.clone()
    looks = checkpoints(steps)

    def loss(rows: Tensor) -> Loss:
        return dlr if temperature is None else tempered(temperature[rows])

    rows = torch.arange(len(ball), device=ball.images.device)
    inner = ball
    x = ball.project(ball.images + ball.eps * (2 * ball.uniform(name) - 1))
    state = None
    for step in range(steps + 1):
        if len(rows) == 0:
            break
        logits, losses, gradient = target.gradient(x, inner.labels, loss(rows))
        wrong = logits.argmax(1) != inner.labels
        found[rows[wrong]] = x[wrong]
        state = _start(rows, x, losses, gradient, ball.eps) if state is None else _heard(state, x, losses, gradient)
        if wrong.any():
            kept = (~wrong).nonzero()[:, 0]
            state, inner = state.take(kept), inner.take(kept)
            rows = state.rows
        if step in looks:
            state = _look(state, step - max([0, *(one for one in looks if one < step)]))
        x = _move(state, inner, first=step == 0)
    return found


def _start(rows: Tensor, x: Tensor, losses: Tensor, gradient: Tensor, eps: float) -> _State:
    size = torch.full_like(losses, 2 * eps)
    nothing = torch.zeros_like(losses)
    return _State(rows, x, x, gradient, losses, x, gradient, losses, size, nothing, losses, nothing.bool())


def _heard(state: _State, x: Tensor, losses: Tensor, gradient: Tensor) -> _State:
    """The loss at the new point: is it a rise, is it the best?"""
    better = losses > state.best_loss
    wide = better[:, None, None, None]
    return replace(
        state,
        before=state.x,
        x=x,
        gradient=gradient,
        loss=losses,
        best=torch.where(wide, x, state.best),
        best_gradient=torch.where(wide, gradient, state.best_gradient),
        best_loss=torch.maximum(losses, state.best_loss),
        rises=state.rises + (losses > state.loss),
    )


def _look(state: _State, since: int) -> _State:
    """Halve the step and go back to the best point where too few steps rose, or nothing was gained at this size."""
    few = state.rises < PROGRESS * since
    stuck = ~state.halved & (state.best_loss <= state.looked_loss)
    halve = few | stuck
    wide = halve[:, None, None, None]
    return replace(
        state,
        step=torch.where(halve, state.step / 2, state.step),
        x=torch.where(wide, state.best, state.x),
        before=torch.where(wide, state.best, state.before),
        gradient=torch.where(wide, state.best_gradient, state.gradient),
        loss=torch.where(halve, state.best_loss, state.loss),
        rises=torch.zeros_like(state.rises),
        looked_loss=state.best_loss,
        halved=halve,
    )


def _move(state: _State, ball: Ball, *, first: bool) -> Tensor:
    """The next point: a step along the sign of the gradient, with momentum but for the first."""
    ahead = ball.project(state.x + state.step[:, None, None, None] * state.gradient.sign())
    if first:
        return ahead
    return ball.project(state.x + MOMENTUM * (ahead - state.x) + (1 - MOMENTUM) * (state.x - state.before))
