"""The Square attack is a random search with squares, without gradients (Andriushchenko et al. 2020, Linf)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lcrbnn.evaluation.attacks.attack_losses import logit_margin
from lcrbnn.evaluation.attacks.threat_model import AttackedModel, LinfBall

INITIAL_AREA_FRACTION = 0.8  # fraction of the image area that the first squares cover
# numbers of queries, of 10,000 in total, after which the area is halved
HALVING_QUERIES = (10, 50, 200, 1000, 2000, 4000, 6000, 8000)
QUERIES_PER_DRAW = 500  # number of queries for which random numbers are drawn together


def square_side(query: int, num_queries: int, image_side: int) -> int:
    """Return the side length in pixels of the square for this query."""
    area_fraction = INITIAL_AREA_FRACTION / 2 ** sum(
        query * 10_000 > threshold * num_queries for threshold in HALVING_QUERIES
    )
    return min(max(round(math.sqrt(area_fraction * image_side * image_side)), 1), image_side)


def square_attack(model: AttackedModel, ball: LinfBall, *, queries: int = 5000) -> Tensor:
    """Return the images that random search finds. It starts with vertical stripes of +-eps.

    Then it changes random squares and keeps a change if it increases the margin.
    """
    n, channels, height, width = ball.images.shape
    adversarial = ball.images.clone()
    stripes = ball.draw_uniform("square", shape=(channels, 1, width))
    best = ball.project(ball.images + ball.eps * _random_signs(stripes))
    best_margin = logit_margin(model.query(best), ball.labels)
    rows = torch.arange(n, device=ball.images.device)
    side = min(height, width)
    random_numbers = torch.empty(0)
    remaining = ball
    for query in range(1, queries + 1):
        is_misclassified = best_margin > 0
        if is_misclassified.any():
            adversarial[rows[is_misclassified]] = best[is_misclassified]
            still_correct = (~is_misclassified).nonzero()[:, 0]
            rows, remaining, best, best_margin = (
                rows[still_correct],
                remaining.select(still_correct),
                best[still_correct],
                best_margin[still_correct],
            )
            random_numbers = random_numbers[still_correct] if len(random_numbers) else random_numbers
        if len(rows) == 0 or query == queries:
            break
        draw_index = (query - 1) % QUERIES_PER_DRAW
        if draw_index == 0:
            random_numbers = remaining.draw_uniform("square", query, shape=(QUERIES_PER_DRAW, 2 + channels))
        best, best_margin = _try_square(
            model, remaining, best, best_margin, random_numbers[:, draw_index], square_side(query, queries, side)
        )
    return adversarial


def _try_square(
    model: AttackedModel, ball: LinfBall, best: Tensor, best_margin: Tensor, random_numbers: Tensor, side: int
) -> tuple[Tensor, Tensor]:
    """Return the best images and margins after one query. A query changes each channel of a random square by +-eps."""
    height, width = best.shape[2:]
    top = (random_numbers[:, 0] * (height - side + 1)).long()[:, None, None, None]
    left = (random_numbers[:, 1] * (width - side + 1)).long()[:, None, None, None]
    y = torch.arange(height, device=best.device)[:, None]
    x = torch.arange(width, device=best.device)
    is_inside = (y >= top) & (y < top + side) & (x >= left) & (x < left + side)
    random_color_images = ball.project(ball.images + ball.eps * _random_signs(random_numbers[:, 2:, None, None]))
    candidate = torch.where(is_inside, random_color_images, best)
    candidate_margin = logit_margin(model.query(candidate), ball.labels)
    is_better = candidate_margin > best_margin
    return torch.where(is_better[:, None, None, None], candidate, best), torch.maximum(candidate_margin, best_margin)


def _random_signs(random_numbers: Tensor) -> Tensor:
    return torch.where(random_numbers < 0.5, -1.0, 1.0)
