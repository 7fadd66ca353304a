"""Run all attacks on some images, measure the accuracy under one and under all attacks, detect masked gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lcrbnn.evaluation.attacks.attack_registry import Attack
from lcrbnn.evaluation.attacks.threat_model import AttackedModel, LinfBall

BATCH_SIZE = 1000  # number of images per batch
ROUNDING_TOLERANCE = 1e-6  # maximum amount by which rounding can increase a distance beyond eps

MASKED_GRADIENTS_WARNING = (
    "MASKED GRADIENTS: at {eps} an attack without gradients (accuracy {black:.1f} %) is stronger than every gradient "
    "attack ({white:.1f} %). Gradient attacks overestimate the robustness; use the worst case, an upper bound of it."
)


class RobustAccuracy(NamedTuple):
    """Accuracy in percent without attack, under each attack and under all attacks, at one eps."""

    clean: float  # accuracy in percent without attack
    accuracy: dict[str, float]  # dictionary from the name of an attack to the accuracy in percent under it
    worst: float  # percentage of images that stay correct under every attack
    # Percentage of images that stay correct under every gradient attack; None without gradient attacks
    gradients: float | None
    black_box_only: int  # number of images that only attacks without gradients misclassify
    best_gradient: float | None  # accuracy in percent under the strongest gradient attack
    best_black_box: float | None  # accuracy in percent under the strongest attack without gradients
    # dictionary: attack -> for each image, whether the prediction is correct without and with the attack
    survived: dict[str, list[bool]]

    @property
    def has_masked_gradients(self) -> bool:
        """Return whether an attack without gradients succeeds more often than every gradient attack.

        Gradients are then unreliable.
        """
        black, white = self.best_black_box, self.best_gradient
        return black is not None and white is not None and black < white


def run_all_attacks(
    model: AttackedModel,
    images: Tensor,
    labels: Tensor,
    attacks: Mapping[str, Attack],
    eps: float,
    *,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    report_progress: Callable[[str], Any] = lambda name: None,
) -> RobustAccuracy:
    """Return the accuracy under each attack. An attack only runs on images that are correct without attack.

    Pixels are from 0 to 1, and images are in the order of their split. Random numbers depend only on attack, seed and
    index of an image, not on the batch. `report_progress` is called with the name of each finished attack.
    """
    is_correct = torch.cat([model.query(part).argmax(1) for part in images.split(batch_size)]) == labels
    rows = is_correct.nonzero()[:, 0]
    survived: dict[str, list[bool]] = {}
    for name, attack in attacks.items():
        remains_correct = is_correct.clone()
        for part in rows.split(batch_size):
            ball = LinfBall(images[part], labels[part], tuple(part.tolist()), eps, seed)
            remains_correct[part] = _check_and_classify(model, ball, attack(model, ball))
        survived[name] = remains_correct.tolist()
        report_progress(name)
    return compute_robust_accuracy(is_correct.tolist(), survived, attacks)


def _check_and_classify(model: AttackedModel, ball: LinfBall, adversarial: Tensor) -> Tensor:
    """Return whether each attacked image is still classified correctly.

    Raise AssertionError if it is too far from the original.
    """
    distance = (adversarial - ball.images).abs().max().item() if len(ball) else 0.0
    if distance > ball.eps + ROUNDING_TOLERANCE or (
        len(ball) and not 0 <= adversarial.min().item() <= adversarial.max().item() <= 1
    ):
        raise AssertionError(f"an attack left its ball: distance {distance:.6g}, allowed {ball.eps:.6g}")
    return model.query(adversarial).argmax(1) == ball.labels


def compute_robust_accuracy(
    is_correct: Sequence[bool], survived: dict[str, list[bool]], attacks: Mapping[str, Attack]
) -> RobustAccuracy:
    """Return the accuracies, computed from which images are correct without attack and under each attack."""

    def percent(entries: Sequence[bool]) -> float:
        return 100 * sum(entries) / len(entries)

    def survives_all(names: list[str]) -> list[bool]:
        return [all(entries) for entries in zip(is_correct, *(survived[n] for n in names), strict=True)]

    white_box = [name for name in survived if attacks[name].uses_gradients]
    black_box = [name for name in survived if not attacks[name].uses_gradients]
    accuracy = {name: percent(entries) for name, entries in survived.items()}
    survives_everything, survives_gradients = survives_all(list(survived)), survives_all(white_box)
    return RobustAccuracy(
        percent(is_correct),
        accuracy,
        percent(survives_everything),
        percent(survives_gradients) if white_box else None,
        sum(a and not b for a, b in zip(survives_gradients, survives_everything, strict=True))
        if white_box and black_box
        else 0,
        min((accuracy[n] for n in white_box), default=None),
        min((accuracy[n] for n in black_box), default=None),
        survived,
    )
