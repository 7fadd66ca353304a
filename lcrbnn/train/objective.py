"""What a step minimises: cross-entropy, a teacher's opinion, what a method or regulariser adds, and lambda/2 L_Lip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.layers import extra_loss
from lcrbnn.regularizers import REGULARIZERS
from lcrbnn.train.build import Parts
from lcrbnn.train.spec import Spec

SHORT = {"bfloat16": torch.bfloat16, "float16": torch.float16}  # precisions that are a type under autocast
LOUDER = {"float16": 2048.0}  # times the loss on the way back: float16 ends at 6e-8, and gradients go below
SUMS = ("loss", "lip", "correct", "seen")  # what an epoch adds up over its images, in this order


class Outcome(NamedTuple):
    """Of one batch: the loss to go back from, and its SUMS, float64, without gradient."""

    loss: Tensor
    sums: Tensor


def objective(spec: Spec, parts: Parts, images: Tensor, labels: Tensor, weight: float | Tensor) -> Outcome:
    """The loss of a batch at this lambda."""
    with arithmetic(spec, images.device):
        n = labels.shape[0]
        answers = parts.model(images)  # of several views, the first is the image to be named
        loss = other_loss(spec, parts, images, labels, answers)
        if parts.retention is not None:
            loss = loss + parts.retention.loss(weight if parts.retention.form.weight > 0 else None)
    lip = None if parts.retention is None else parts.retention.lip
    plain = loss.detach()
    correct = (answers[:n].detach().argmax(1) == labels).sum()
    values = [plain * n, torch.zeros_like(plain) if lip is None else lip * n, correct, torch.full_like(correct, n)]
    return Outcome(loss, torch.stack([v.double() for v in values]))


def other_loss(spec: Spec, parts: Parts, images: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
    """All of the loss but retention's part: the task's, and what keeps views alike or weights in order."""
    n = labels.shape[0]
    loss = task_loss(spec, parts, images[:n], labels, answers[:n])
    if spec.consistency > 0:
        loss = loss + spec.consistency * divergence(full(answers).unflatten(0, (-1, n)))
    added = REGULARIZERS[spec.regularizer].loss
    return loss if added is None else loss + spec.strength * added(parts.model)


def task_loss(spec: Spec, parts: Parts, images: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
    """Cross-entropy with the labels, mixed with the divergence from the teacher's answers; plus what methods add."""
    logits = full(logits)
    told = F.cross_entropy(logits, labels, label_smoothing=spec.label_smoothing)
    extra = extra_loss(parts.model)
    added = 0.0 if extra is None else full(extra)
    if spec.distill == 0:
        return told + added
    assert parts.teacher is not None
    with torch.no_grad():
        wanted = full(parts.teacher(images))
    t = spec.temperature
    apart = F.kl_div(F.log_softmax(logits / t, 1), F.log_softmax(wanted / t, 1), log_target=True, reduction="batchmean")
    return (1 - spec.distill) * told + spec.distill * t * t * apart + added


def full(x: Tensor) -> Tensor:
    """At least float32."""
    return x if x.dtype == torch.float64 else x.float()


def divergence(logits: Tensor) -> Tensor:
    """Jensen and Shannon's, between the answers to several views, (views, n, classes); the mean over the images."""
    logs = F.log_softmax(logits, 2)
    middle = logs.exp().mean(0).clamp(1e-7, 1).log()
    return F.kl_div(middle.expand_as(logs), logs, log_target=True, reduction="sum") / logs[..., 0].numel()


@contextmanager
def arithmetic(spec: Spec, device: torch.device) -> Iterator[None]:
    """Inside, products are computed as the spec's precision says."""
    short = SHORT.get(spec.precision)
    with torch.autocast(device.type, short or torch.bfloat16, enabled=short is not None):
        yield


def go_back(spec: Spec, loss: Tensor, parameters: Iterable[Tensor]) -> list[Tensor]:
    """The gradients of the parameters, also left in them; on the way they are as much larger as the precision needs."""
    push(spec, loss)
    return gradients_of(spec, parameters)


def push(spec: Spec, loss: Tensor, share: float = 1.0) -> None:
    """Add this share of the gradient to the parameters, still as much larger as the precision needs."""
    louder = LOUDER.get(spec.precision, 1.0) * share
    loss.backward(None if louder == 1 else torch.full_like(loss, louder))


def gradients_of(spec: Spec, parameters: Iterable[Tensor]) -> list[Tensor]:
    """What was pushed into the parameters, in its true size."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if spec.precision in LOUDER:
        torch._foreach_mul_(gradients, 1 / LOUDER[spec.precision])
    return gradients


def clip_gradients(spec: Spec, gradients: list[Tensor], norms: Tensor) -> None:
    """Scale the gradients down in place where their joint norm exceeds `max_gradient_norm`; `norms` has one per tensor.

    As torch.nn.utils.clip_grad_norm_, without waiting for the device.
    """
    if spec.max_gradient_norm > 0:
        factor = spec.max_gradient_norm / (torch.linalg.vector_norm(norms) + 1e-6)
        torch._foreach_mul_(gradients, factor.clamp(max=1.0))
