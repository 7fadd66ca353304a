"""FGSM makes one step along the sign of the gradient. PGD makes many small steps from random starting points."""

from __future__ import annotations

from torch import Tensor

from lcrbnn.evaluation.attacks.attack_losses import cross_entropy
from lcrbnn.evaluation.attacks.threat_model import AttackedModel, LinfBall


def fgsm(model: AttackedModel, ball: LinfBall) -> Tensor:
    """Return x + eps sign(gradient of the cross-entropy) for each image x (Goodfellow et al. 2015)."""
    _, _, gradient = model.compute_gradient(ball.images, ball.labels, cross_entropy)
    return ball.project(ball.images + ball.eps * gradient.sign())


def pgd(
    model: AttackedModel, ball: LinfBall, *, steps: int = 50, restarts: int = 5, relative_path_length: float = 2.5
) -> Tensor:
    """Return the images that projected gradient descent finds from random starting points (Madry et al. 2018).

    Each step has size relative_path_length * eps / steps. It is followed by a projection into the ball. The search for
    an image ends as soon as one of its points is misclassified.
    """
    adversarial = ball.images.clone()
    rows = ball.labels.new_tensor(range(len(ball)))
    for restart in range(restarts):
        remaining = ball.select(rows)
        x = remaining.project(remaining.images + remaining.eps * (2 * remaining.draw_uniform("pgd", restart) - 1))
        for step in range(steps + 1):
            if len(rows) == 0:
                return adversarial
            logits, _, gradient = model.compute_gradient(x, remaining.labels, cross_entropy)
            is_misclassified = logits.argmax(1) != remaining.labels
            adversarial[rows[is_misclassified]] = x[is_misclassified]
            if is_misclassified.any():
                still_correct = (~is_misclassified).nonzero()[:, 0]
                rows, remaining, x, gradient = (
                    rows[still_correct],
                    remaining.select(still_correct),
                    x[still_correct],
                    gradient[still_correct],
                )
            if step < steps:
                x = remaining.project(x + relative_path_length * remaining.eps / steps * gradient.sign())
    return adversarial
