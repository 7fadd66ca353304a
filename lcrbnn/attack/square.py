"""Square attack: random search with squares, by queries alone (Andriushchenko et al. 2020, Linf); no gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lcrbnn.attack.ball import Ball
from lcrbnn.attack.losses import margin
from lcrbnn.attack.target import Target

SHARE = 0.8  # of an image that the first squares cover
HALVE = (10, 50, 200, 1000, 2000, 4000, 6000, 8000)  # queries of 10,000 after which the share halves
CHUNK = 500  # queries whose numbers are drawn at a time


def square_side(query: int, queries: int, image: int) -> int:
    """The side of the square that a query tries, in pixels."""
    share = SHARE / 2 ** sum(query * 10_000 > one * queries for one in HALVE)
    return min(max(round(math.sqrt(share * image * image)), 1), image)


def square(target: Target, ball: Ball, *, queries: int = 5000) -> Tensor:
    """Vertical stripes of +-eps, then squares of +-eps, a colour each; kept where the margin rises."""
    n, channels, height, width = ball.images.shape
    found = ball.images.clone()
    stripes = ball.uniform("square", shape=(channels, 1, width))
    best = ball.project(ball.images + ball.eps * _signs(stripes))
    reached = margin(target.ask(best), ball.labels)
    rows = torch.arange(n, device=ball.images.device)
    side = min(height, width)
    drawn = torch.empty(0)
    inner = ball
    for query in range(1, queries + 1):
        wrong = reached > 0
        if wrong.any():
            found[rows[wrong]] = best[wrong]
            kept = (~wrong).nonzero()[:, 0]
            rows, inner, best, reached = rows[kept], inner.take(kept), best[kept], reached[kept]
            drawn = drawn[kept] if len(drawn) else drawn
        if len(rows) == 0 or query == queries:
            break
        place = (query - 1) % CHUNK
        if place == 0:
            drawn = inner.uniform("square", query, shape=(CHUNK, 2 + channels))
        best, reached = _try(target, inner, best, reached, drawn[:, place], square_side(query, queries, side))
    return found


def _try(target: Target, ball: Ball, best: Tensor, reached: Tensor, drawn: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """One query: a square at a drawn place, each colour moved as far up or down as it may go."""
    height, width = best.shape[2:]
    top = (drawn[:, 0] * (height - side + 1)).long()[:, None, None, None]
    left = (drawn[:, 1] * (width - side + 1)).long()[:, None, None, None]
    y = torch.arange(height, device=best.device)[:, None]
    x = torch.arange(width, device=best.device)
    inside = (y >= top) & (y < top + side) & (x >= left) & (x < left + side)
    moved = ball.project(ball.images + ball.eps * _signs(drawn[:, 2:, None, None]))
    tried = torch.where(inside, moved, best)
    gained = margin(target.ask(tried), ball.labels)
    better = gained > reached
    return torch.where(better[:, None, None, None], tried, best), torch.maximum(gained, reached)


def _signs(drawn: Tensor) -> Tensor:
    return torch.where(drawn < 0.5, -1.0, 1.0)
