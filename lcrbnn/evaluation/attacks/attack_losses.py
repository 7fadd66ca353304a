"""Losses that attacks maximize. Each loss returns one number per image, computed from logits and labels."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.errors import InputError

_MIN_DENOMINATOR = 1e-12


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each image."""
    return F.cross_entropy(logits, labels, reduction="none")


def scaled_cross_entropy(temperature: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a cross-entropy loss for logits that are divided by a temperature per image, (n,).

    Large logits saturate the softmax. Then its gradient vanishes, and the network seems robust although it is not.
    """
    return lambda logits, labels: cross_entropy(logits / temperature[:, None], labels)


def largest_other_logit(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the largest logit among the wrong classes of each image, (n,)."""
    is_label = F.one_hot(labels, logits.shape[1]).bool()
    return logits.masked_fill(is_label, -torch.inf).amax(1)


def logit_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the largest logit of a wrong class minus that of the label.

    If it is above 0, the image is misclassified.
    """
    return largest_other_logit(logits, labels) - logits.gather(1, labels[:, None])[:, 0]


def dlr_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the difference of logits ratio (Croce and Hein 2020), margin / (largest - third largest logit).

    The ratio does not change if the logits are shifted or scaled. So it needs no temperature.
    """
    if logits.shape[1] < 3:
        raise InputError(f"the difference of logits ratio needs three classes; got {logits.shape[1]}")
    sorted_logits = logits.sort(1, descending=True).values
    return logit_margin(logits, labels) / (sorted_logits[:, 0] - sorted_logits[:, 2]).clamp_min(_MIN_DENOMINATOR)
