"""All attacks on some images: what each leaves right, what survives them all, and whether gradients can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lcrbnn.attack.ball import Ball
from lcrbnn.attack.table import Attack
from lcrbnn.attack.target import Target

BATCH = 1000  # images at a time
EDGE = 1e-6  # what rounding may add to a distance

LOUD = (
    "MASKED GRADIENTS: at {eps} an attack without gradients ({black:.1f} % left right) beats every attack with them "
    "({white:.1f} %). What those report as robust is not; only the worst case counts, and it is an upper bound."
)


class Verdict(NamedTuple):
    """At one eps: percent of images that stay right, by attack and in the worst case, and an entry an image."""

    clean: float
    accuracy: dict[str, float]
    worst: float
    gradients: float | None  # what survives all attacks that use gradients, if there are any
    black_box_only: int  # images that fell to an attack without gradients and to no other
    best_gradient: float | None  # the least that one attack with gradients leaves right
    best_black_box: float | None  # the same of one without
    survived: dict[str, list[bool]]  # by attack: right before and after it

    @property
    def masked(self) -> bool:
        """Whether an attack without gradients beats each of those with them."""
        black, white = self.best_black_box, self.best_gradient
        return black is not None and white is not None and black < white


def attack_all(
    target: Target,
    images: Tensor,
    labels: Tensor,
    attacks: Mapping[str, Attack],
    eps: float,
    *,
    seed: int = 0,
    batch: int = BATCH,
    between: Callable[[str], Any] = lambda name: None,
) -> Verdict:
    """Run each attack on the images that are right without it (0 to 1, in the order of their split).

    Draws depend on attack, seed and the place of an image alone, not on the batch. `between` hears of each attack.
    """
    right = torch.cat([target.ask(part).argmax(1) for part in images.split(batch)]) == labels
    rows = right.nonzero()[:, 0]
    survived: dict[str, list[bool]] = {}
    for name, attack in attacks.items():
        left = right.clone()
        for part in rows.split(batch):
            ball = Ball(images[part], labels[part], tuple(part.tolist()), eps, seed)
            left[part] = _stands(target, ball, attack(target, ball))
        survived[name] = left.tolist()
        between(name)
    return judge(right.tolist(), survived, attacks)


def _stands(target: Target, ball: Ball, found: Tensor) -> Tensor:
    """Whether each image is still right, after a check that what was found lies in the ball."""
    far = (found - ball.images).abs().max().item() if len(ball) else 0.0
    if far > ball.eps + EDGE or (len(ball) and not 0 <= found.min().item() <= found.max().item() <= 1):
        raise AssertionError(f"an attack left its ball: {far:.6g} away, {ball.eps:.6g} allowed")
    return target.ask(found).argmax(1) == ball.labels


def judge(right: Sequence[bool], survived: dict[str, list[bool]], attacks: Mapping[str, Attack]) -> Verdict:
    """From who was right, and who still is after each attack."""

    def percent(entries: Sequence[bool]) -> float:
        return 100 * sum(entries) / len(entries)

    def all_of(names: list[str]) -> list[bool]:
        return [all((one, *rest)) for one, *rest in zip(right, *(survived[n] for n in names), strict=True)]

    white = [name for name in survived if attacks[name].gradients]
    black = [name for name in survived if not attacks[name].gradients]
    accuracy = {name: percent(entries) for name, entries in survived.items()}
    worst, gradients = all_of(list(survived)), all_of(white)
    return Verdict(
        percent(right),
        accuracy,
        percent(worst),
        percent(gradients) if white else None,
        sum(a and not b for a, b in zip(gradients, worst, strict=True)) if white and black else 0,
        min((accuracy[n] for n in white), default=None),
        min((accuracy[n] for n in black), default=None),
        survived,
    )
