"""ATTACKS: every attack, a row each, from the weakest to the strongest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lcrbnn.attack.apgd import apgd_ce, apgd_dlr
from lcrbnn.attack.ball import Ball
from lcrbnn.attack.gradient import fgsm, pgd
from lcrbnn.attack.square import square
from lcrbnn.attack.target import Target


@dataclass(frozen=True)
class Attack:
    """A row of ATTACKS: what it does, whether it sees gradients, its settings."""

    name: str
    summary: str
    gradients: bool
    run: Callable[..., Tensor]  # (target, ball, **settings) -> images of the ball
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, target: Target, ball: Ball) -> Tensor:
        """Images of the ball: misclassified ones where it found any."""
        return self.run(target, ball, **self.settings)


_ROWS = [
    Attack("fgsm", "one step along the sign of the gradient", True, fgsm),
    Attack("pgd", "50 small steps, 5 random starts", True, pgd, {"steps": 50, "restarts": 5}),
    Attack("apgd-ce", "100 steps of a size that adapts, cross-entropy with temperature", True, apgd_ce, {"steps": 100}),
    Attack("apgd-dlr", "the same with the difference of logits ratio", True, apgd_dlr, {"steps": 100}),
    Attack("square", "5,000 queries, random squares, no gradients", False, square, {"queries": 5000}),
]

ATTACKS: dict[str, Attack] = {row.name: row for row in _ROWS}
