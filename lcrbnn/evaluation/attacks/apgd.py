"""APGD is PGD with an adaptive step size (Croce and Hein 2020, Algorithm 1), for any loss."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from lcrbnn.evaluation.attacks.attack_losses import dlr_loss, logit_margin, scaled_cross_entropy
from lcrbnn.evaluation.attacks.threat_model import AttackedModel, AttackLoss, LinfBall

MOMENTUM = 0.75  # The paper's alpha: the weight of the gradient step. The previous step has the weight 1 - alpha.
# The paper's rho: the step size is halved if a smaller fraction of the steps increased the loss.
MIN_INCREASE_FRACTION = 0.75


def checkpoint_steps(steps: int) -> list[int]:
    """Return the steps at which the step size is adapted. The first of them comes after 22 % of all steps.

    The intervals between them shrink to 6 % of all steps.
    """
    percent, interval, checkpoints = 22, 22, []  # percentages are integers, so that there are no rounding errors
    while percent < 100:
        checkpoints.append(-(-percent * steps // 100))
        interval = max(interval - 3, 6)
        percent += interval
    return sorted(set(checkpoints) - {steps})


@dataclass(frozen=True)
class _SearchState:
    """State of the search. Each tensor has one entry per image."""

    rows: Tensor
    x: Tensor
    previous: Tensor
    gradient: Tensor
    loss: Tensor
    best: Tensor
    best_gradient: Tensor
    best_loss: Tensor
    step_size: Tensor
    num_increases: Tensor  # number of steps since the last checkpoint that increased the loss
    checkpoint_loss: Tensor  # value of best_loss at the last checkpoint
    was_halved: Tensor  # whether the step size was halved at the last checkpoint

    def select(self, indices: Tensor) -> _SearchState:
        return _SearchState(**{field.name: getattr(self, field.name)[indices] for field in fields(self)})


def apgd_ce(model: AttackedModel, ball: LinfBall, *, steps: int = 100) -> Tensor:
    """Return the images that APGD finds with the cross-entropy.

    An image's logits are divided by its margin before the attack.
    """
    temperature = logit_margin(model.query(ball.images), ball.labels).abs().clamp_min(1e-6)
    return _apgd(model, ball, steps, "apgd-ce", temperature)


def apgd_dlr(model: AttackedModel, ball: LinfBall, *, steps: int = 100) -> Tensor:
    """Return the images that APGD finds with the difference of logits ratio as loss."""
    return _apgd(model, ball, steps, "apgd-dlr", None)


def _apgd(model: AttackedModel, ball: LinfBall, steps: int, purpose: str, temperature: Tensor | None) -> Tensor:
    adversarial = ball.images.clone()
    checkpoints = checkpoint_steps(steps)

    def make_loss(rows: Tensor) -> AttackLoss:
        return dlr_loss if temperature is None else scaled_cross_entropy(temperature[rows])

    rows = torch.arange(len(ball), device=ball.images.device)
    remaining = ball
    x = ball.project(ball.images + ball.eps * (2 * ball.draw_uniform(purpose) - 1))
    state = None
    for step in range(steps + 1):
        if len(rows) == 0:
            break
        logits, losses, gradient = model.compute_gradient(x, remaining.labels, make_loss(rows))
        is_misclassified = logits.argmax(1) != remaining.labels
        adversarial[rows[is_misclassified]] = x[is_misclassified]
        state = (
            _initialize_state(rows, x, losses, gradient, ball.eps)
            if state is None
            else _record_point(state, x, losses, gradient)
        )
        if is_misclassified.any():
            still_correct = (~is_misclassified).nonzero()[:, 0]
            state, remaining = state.select(still_correct), remaining.select(still_correct)
            rows = state.rows
        if step in checkpoints:
            state = _adapt_step_size(
                state, step - max([0, *(checkpoint for checkpoint in checkpoints if checkpoint < step)])
            )
        x = _next_point(state, remaining, is_first=step == 0)
    return adversarial


def _initialize_state(rows: Tensor, x: Tensor, losses: Tensor, gradient: Tensor, eps: float) -> _SearchState:
    step_size = torch.full_like(losses, 2 * eps)
    zeros = torch.zeros_like(losses)
    return _SearchState(rows, x, x, gradient, losses, x, gradient, losses, step_size, zeros, losses, zeros.bool())


def _record_point(state: _SearchState, x: Tensor, losses: Tensor, gradient: Tensor) -> _SearchState:
    """Return the state after evaluating the new point x. The best point and the number of increases are updated."""
    is_best = losses > state.best_loss
    is_best_pixelwise = is_best[:, None, None, None]
    return replace(
        state,
        previous=state.x,
        x=x,
        gradient=gradient,
        loss=losses,
        best=torch.where(is_best_pixelwise, x, state.best),
        best_gradient=torch.where(is_best_pixelwise, gradient, state.best_gradient),
        best_loss=torch.maximum(losses, state.best_loss),
        num_increases=state.num_increases + (losses > state.loss),
    )


def _adapt_step_size(state: _SearchState, num_steps: int) -> _SearchState:
    """Return the state after a checkpoint, where some images get half the step size and return to the best point.

    These are images for which too few steps increased the loss, or whose best loss did not change.
    """
    has_few_increases = state.num_increases < MIN_INCREASE_FRACTION * num_steps
    is_stuck = ~state.was_halved & (state.best_loss <= state.checkpoint_loss)
    should_halve = has_few_increases | is_stuck
    should_restart = should_halve[:, None, None, None]
    return replace(
        state,
        step_size=torch.where(should_halve, state.step_size / 2, state.step_size),
        x=torch.where(should_restart, state.best, state.x),
        previous=torch.where(should_restart, state.best, state.previous),
        gradient=torch.where(should_restart, state.best_gradient, state.gradient),
        loss=torch.where(should_halve, state.best_loss, state.loss),
        num_increases=torch.zeros_like(state.num_increases),
        checkpoint_loss=state.best_loss,
        was_halved=should_halve,
    )


def _next_point(state: _SearchState, ball: LinfBall, *, is_first: bool) -> Tensor:
    """Return the next point, one step along the gradient's sign. All steps except the first also have momentum."""
    gradient_step = ball.project(state.x + state.step_size[:, None, None, None] * state.gradient.sign())
    if is_first:
        return gradient_step
    return ball.project(state.x + MOMENTUM * (gradient_step - state.x) + (1 - MOMENTUM) * (state.x - state.previous))
