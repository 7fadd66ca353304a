"""Reading a network: accuracy on a split, its retention ratios, and what retention weighs in its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.errors import InputError
from lcrbnn.layers import evaluating
from lcrbnn.retention import Retention
from lcrbnn.retention.frozen import frozen_statistics
from lcrbnn.train.augment import normalize
from lcrbnn.train.batches import Batch, Source, evaluation_batch
from lcrbnn.train.build import REAL, Parts, chosen_form
from lcrbnn.train.captured import Answers
from lcrbnn.train.objective import LOUDER, arithmetic, other_loss
from lcrbnn.train.ranks import ALONE, Ranks
from lcrbnn.train.spec import Spec

TOP5_FROM = 6  # classes from which on the five best answers are counted too


class Accuracy(NamedTuple):
    """Percent of the images whose label is the first answer, or among the first five; and the mean cross-entropy."""

    top1: float
    top5: float | None
    loss: float
    images: int


def accuracy(
    answers: Answers, batches: Source, between: Callable[[], None] = lambda: None, ranks: Ranks = ALONE
) -> Accuracy:
    """Read all images once, in evaluation mode; `between` is called after each batch and may raise to stop.

    Several processes read a part each, and all know the whole.
    """
    size = min(evaluation_batch(batches.row.image), -(-len(batches) // ranks.size))
    return score(answers, batches.plain(size, ranks.rank, ranks.size), between, ranks)


@torch.no_grad()
def score(
    answers: Answers, shown: Iterable[Batch], between: Callable[[], None] = lambda: None, ranks: Ranks = ALONE
) -> Accuracy:
    """The same for whatever images are shown."""
    sums, n, five = torch.zeros(3, dtype=torch.float64), 0, False
    with evaluating(answers.model):
        for batch in shown:
            logits = answers(batch.images)
            five = logits.shape[1] >= TOP5_FROM
            best = logits.topk(5 if five else 1, 1).indices == batch.labels[:, None]
            loss = F.cross_entropy(logits, batch.labels, reduction="sum")
            read = torch.stack([best[:, 0].sum().double(), best.sum().double(), loss.double()])
            sums, n = sums.to(read.device) + read, n + len(batch.labels)
            between()
    seen = ranks.of_all((sums.tolist(), n, five))
    first, fifth, loss_sum = (sum(one[0][i] for one in seen) for i in range(3))
    n, five = sum(one[1] for one in seen), any(one[2] for one in seen)
    return Accuracy(100 * first / n, 100 * fifth / n if five else None, loss_sum / n, n)


class Look(NamedTuple):
    """sigma_B / sigma_F of each matrix; the length of retention's gradient, at lambda 1, over that of the task's."""

    ratios: list[float] | None
    share: float | None


def look(spec: Spec, parts: Parts, batches: Source) -> Look:
    """Measure the spec's form on images that stand for a split, as in a training step that leaves no trace.

    Ratios are None where the form cannot be measured: a real network, a reference that is not there. The share is None
    where retention does not take part.
    """
    local = spec.batch // (batches.world * spec.accumulate)  # what retention sees at a time
    batch = batches.sample(min(local, len(batches)))
    batch = batch._replace(images=normalize(batch.images, batches.scale, batches.shift))
    with frozen_statistics(parts.model):
        return _share(spec, parts, batch) if spec.retains else _ratios(spec, parts, batch)


@torch.no_grad()
def _ratios(spec: Spec, parts: Parts, batch: Batch) -> Look:
    if spec.method == REAL:
        return Look(None, None)
    form = chosen_form(spec).but(weight=1.0, quantization=0.0, scale=False)
    teacher = parts.teacher if form.reference == "teacher" else None
    try:
        watch = Retention(parts.model, form, teacher=teacher, seed=spec.seed, check_overflow=False)
    except InputError:
        return Look(None, None)
    try:
        with arithmetic(spec, batch.images.device):
            parts.model(batch.images)
            watch.loss()
    finally:
        watch.close()
    return Look(_rounded(watch), None)


def _share(spec: Spec, parts: Parts, batch: Batch) -> Look:
    assert parts.retention is not None
    with arithmetic(spec, batch.images.device):
        logits = parts.model(batch.images)
        task = other_loss(spec, parts, batch.images, batch.labels, logits)
        kept = parts.retention.loss(1.0)
    weights = list(parts.model.parameters())

    def length(loss: Tensor, keep: bool) -> float:
        loss = loss * LOUDER.get(spec.precision, 1.0)
        gradients = torch.autograd.grad(loss, weights, retain_graph=keep, allow_unused=True)
        return torch.nn.utils.get_total_norm([g for g in gradients if g is not None]).item()

    return Look(_rounded(parts.retention), length(kept, True) / max(length(task, False), 1e-30))


def _rounded(retention: Retention) -> list[float]:
    assert retention.ratios is not None
    return [round(r, 6) for r in retention.ratios.tolist()]
