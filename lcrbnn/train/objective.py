"""The training objective is a sum of cross-entropy, distillation, losses of methods and regularizers, and LCR loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.device import autocast_precision
from lcrbnn.lcr.regularizers import REGULARIZERS
from lcrbnn.nn.model_hooks import extra_loss
from lcrbnn.train.setup.build import TrainingParts
from lcrbnn.train.setup.spec import TrainSpec

# The loss is multiplied by this factor for the backward pass. Gradients can be smaller than 6e-8, the smallest number
# of float16.
LOSS_SCALES = {"float16": 2048.0}

SUM_NAMES = ("loss", "lip", "correct", "seen")  # names of sums over the images of an epoch; "lip" is the LCR loss


class StepLoss(NamedTuple):
    """The loss of a batch for the backward pass, and the values of SUM_NAMES in float64 without gradient."""

    loss: Tensor
    sums: Tensor


def compute_objective(
    spec: TrainSpec, parts: TrainingParts, images: Tensor, labels: Tensor, lcr_weight: float | Tensor
) -> StepLoss:
    """Return the loss of a batch for this value of lambda."""
    with autocast_precision(spec.precision, images.device):
        n = labels.shape[0]
        # Logits of all views; with several views per image, the first n rows belong to the first view
        logits = parts.model(images)
        loss = compute_non_lcr_loss(spec, parts, images, labels, logits)
        if parts.retention is not None:
            loss = loss + parts.retention.loss(lcr_weight if parts.retention.variant.weight > 0 else None)
    lcr_loss = None if parts.retention is None else parts.retention.lcr_loss
    value = loss.detach()
    correct = (logits[:n].detach().argmax(1) == labels).sum()
    lcr_sum = torch.zeros_like(value) if lcr_loss is None else lcr_loss * n
    sums = [value * n, lcr_sum, correct, torch.full_like(correct, n)]
    return StepLoss(loss, torch.stack([s.double() for s in sums]))


def compute_non_lcr_loss(
    spec: TrainSpec, parts: TrainingParts, images: Tensor, labels: Tensor, logits: Tensor
) -> Tensor:
    """Return the loss without LCR: task loss, consistency of several views, and weight regularizer."""
    n = labels.shape[0]
    loss = compute_task_loss(spec, parts, images[:n], labels, logits[:n])
    if spec.consistency_weight > 0:
        loss = loss + spec.consistency_weight * jensen_shannon_divergence(to_float32(logits).unflatten(0, (-1, n)))
    regularizer_loss = REGULARIZERS[spec.regularizer].loss
    return loss if regularizer_loss is None else loss + spec.regularizer_weight * regularizer_loss(parts.model)


def compute_task_loss(spec: TrainSpec, parts: TrainingParts, images: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
    """Return the cross-entropy with the labels, mixed with the distillation loss, plus the methods' loss terms."""
    logits = to_float32(logits)
    cross_entropy = F.cross_entropy(logits, labels, label_smoothing=spec.label_smoothing)
    method_loss = extra_loss(parts.model)
    added_loss = 0.0 if method_loss is None else to_float32(method_loss)
    if spec.distillation_alpha == 0:
        return cross_entropy + added_loss
    assert parts.teacher is not None
    with torch.no_grad():
        teacher_logits = to_float32(parts.teacher(images))
    alpha, t = spec.distillation_alpha, spec.distillation_temperature
    log_p, teacher_log_p = F.log_softmax(logits / t, 1), F.log_softmax(teacher_logits / t, 1)
    divergence = F.kl_div(log_p, teacher_log_p, log_target=True, reduction="batchmean")
    return (1 - alpha) * cross_entropy + alpha * t * t * divergence + added_loss


def to_float32(x: Tensor) -> Tensor:
    """Return the tensor in float32. A float64 tensor is returned unchanged."""
    return x if x.dtype == torch.float64 else x.float()


def jensen_shannon_divergence(logits: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence between the views of an image, averaged over the images.

    The outputs are (views, n, classes).
    """
    log_p = F.log_softmax(logits, 2)
    log_mean = log_p.exp().mean(0).clamp(1e-7, 1).log()
    return F.kl_div(log_mean.expand_as(log_p), log_p, log_target=True, reduction="sum") / log_p[..., 0].numel()


def compute_gradients(spec: TrainSpec, loss: Tensor, parameters: Iterable[Tensor]) -> list[Tensor]:
    """Compute the gradients of all parameters, store them in `grad` and return them."""
    accumulate_gradient(spec, loss)
    return collect_gradients(spec, parameters)


def accumulate_gradient(spec: TrainSpec, loss: Tensor, fraction: float = 1.0) -> None:
    """Add a fraction of the gradient, times the loss scale of the precision, to the gradient of the parameters."""
    scale = LOSS_SCALES.get(spec.precision, 1.0) * fraction
    loss.backward(None if scale == 1 else torch.full_like(loss, scale))


def collect_gradients(spec: TrainSpec, parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients of the parameters, divided by the loss scale of the precision in place."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if spec.precision in LOSS_SCALES:
        torch._foreach_mul_(gradients, 1 / LOSS_SCALES[spec.precision])
    return gradients


def clip_gradients(spec: TrainSpec, gradients: list[Tensor], norms: Tensor) -> None:
    """Multiply the gradients in place by a factor if their total norm exceeds `max_gradient_norm`.

    `norms` contains one norm per gradient, or the total norm. The result is that of torch.nn.utils.clip_grad_norm_, but
    this function does not wait for the device.
    """
    if spec.max_gradient_norm > 0:
        factor = spec.max_gradient_norm / (torch.linalg.vector_norm(norms) + 1e-6)
        torch._foreach_mul_(gradients, factor.clamp(max=1.0))
