"""Reading a trained network: accuracy on a split, and how far its retention ratios are from 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from lcrbnn.errors import InputError
from lcrbnn.layers import evaluating
from lcrbnn.models import Network
from lcrbnn.retention import Retention
from lcrbnn.retention.regularizer import frozen_statistics
from lcrbnn.train.batches import Batches
from lcrbnn.train.build import REAL, chosen_form
from lcrbnn.train.objective import arithmetic
from lcrbnn.train.spec import Spec

TOP5_FROM = 50  # classes from which on the five best answers are counted too


class Accuracy(NamedTuple):
    """Percent of the images whose label is the first answer, or among the first five; and the mean cross-entropy."""

    top1: float
    top5: float | None
    loss: float
    images: int


@torch.no_grad()
def accuracy(model: Network, spec: Spec, batches: Batches, between: Callable[[], None] = lambda: None) -> Accuracy:
    """Read all images once, in evaluation mode; `between` is called after each batch and may raise to stop."""
    sums = torch.zeros(3, dtype=torch.float64, device=batches.labels.device)
    five = False
    with evaluating(model):
        for batch in batches.plain():
            with arithmetic(spec, batch.images.device):
                logits = model(batch.images).float()
            five = logits.shape[1] >= TOP5_FROM
            best = logits.topk(5 if five else 1, 1).indices == batch.labels[:, None]
            loss = F.cross_entropy(logits, batch.labels, reduction="sum")
            sums += torch.stack([best[:, 0].sum().double(), best.sum().double(), loss.double()])
            between()
    first, fifth, loss_sum = sums.tolist()
    n = len(batches)
    return Accuracy(100 * first / n, 100 * fifth / n if five else None, loss_sum / n, n)


@torch.no_grad()
def ratios(model: Network, teacher: Network | None, spec: Spec, batches: Batches) -> list[float] | None:
    """sigma_B / sigma_F of each matrix of the spec's form on the first images of a split, leaving no trace.

    None where the form cannot be measured: a real network, a reference that is not there.
    """
    if spec.method == REAL:
        return None
    form = chosen_form(spec).but(weight=1.0, quantization=0.0, scale=False)
    batch = next(batches.plain(min(spec.batch, len(batches))))
    try:
        watch = Retention(model, form, teacher=teacher if form.reference == "teacher" else None, seed=spec.seed)
    except InputError:
        return None
    try:
        with frozen_statistics(model), arithmetic(spec, batch.images.device):
            model(batch.images)
            watch.loss()
    finally:
        watch.close()
    assert watch.ratios is not None
    return [round(r, 6) for r in watch.ratios.tolist()]
