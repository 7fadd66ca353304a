"""FGSM and PGD: one step along the sign of the gradient, or many small ones from random starts."""

from __future__ import annotations

from torch import Tensor

from lcrbnn.attack.ball import Ball
from lcrbnn.attack.losses import cross_entropy
from lcrbnn.attack.target import Target


def fgsm(target: Target, ball: Ball) -> Tensor:
    """Goodfellow et al. 2015: x + eps sign(gradient of the cross-entropy)."""
    _, _, gradient = target.gradient(ball.images, ball.labels, cross_entropy)
    return ball.project(ball.images + ball.eps * gradient.sign())


def pgd(target: Target, ball: Ball, *, steps: int = 50, restarts: int = 5, reach: float = 2.5) -> Tensor:
    """Madry et al. 2018: steps of reach * eps / steps along the sign, back into the ball; random starts.

    An image that a point on the way misclassifies is done; its other restarts are left out.
    """
    best = ball.images.clone()
    rows = ball.labels.new_tensor(range(len(ball)))
    for restart in range(restarts):
        inner = ball.take(rows)
        x = inner.project(inner.images + inner.eps * (2 * inner.uniform("pgd", restart) - 1))
        for step in range(steps + 1):
            if len(rows) == 0:
                return best
            logits, _, gradient = target.gradient(x, inner.labels, cross_entropy)
            wrong = logits.argmax(1) != inner.labels
            best[rows[wrong]] = x[wrong]
            if wrong.any():
                kept = (~wrong).nonzero()[:, 0]
                rows, inner, x, gradient = rows[kept], inner.take(kept), x[kept], gradient[kept]
            if step < steps:
                x = inner.project(x + reach * inner.eps / steps * gradient.sign())
    return best
