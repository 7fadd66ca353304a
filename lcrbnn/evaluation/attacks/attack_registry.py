"""ATTACKS contains all attacks, from the weakest to the strongest. The last attack, Square, uses no gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lcrbnn.evaluation.attacks.apgd import apgd_ce, apgd_dlr
from lcrbnn.evaluation.attacks.fgsm_pgd import fgsm, pgd
from lcrbnn.evaluation.attacks.square import square_attack
from lcrbnn.evaluation.attacks.threat_model import AttackedModel, LinfBall


@dataclass(frozen=True)
class Attack:
    """A row of ATTACKS: the function of an attack and its settings."""

    name: str
    summary: str
    uses_gradients: bool
    run: Callable[..., Tensor]  # function: (model, ball, **settings) -> attacked images inside the ball
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, model: AttackedModel, ball: LinfBall) -> Tensor:
        """Return one attacked image per ball. If the attack succeeds, the network misclassifies the image."""
        return self.run(model, ball, **self.settings)


_ROWS = [
    Attack("fgsm", "one step along the sign of the gradient", True, fgsm),
    Attack("pgd", "50 small steps, 5 random starts", True, pgd, {"steps": 50, "restarts": 5}),
    Attack("apgd-ce", "100 steps of a size that adapts, cross-entropy with temperature", True, apgd_ce, {"steps": 100}),
    Attack("apgd-dlr", "the same with the difference of logits ratio", True, apgd_dlr, {"steps": 100}),
    Attack("square", "5,000 queries, random squares, no gradients", False, square_attack, {"queries": 5000}),
]

ATTACKS: dict[str, Attack] = {row.name: row for row in _ROWS}
