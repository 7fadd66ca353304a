"""Losses that attacks maximize: one number per image, from logits and labels."""

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
    """Return a cross-entropy loss whose logits are divided by the temperature (n,) of each image.

    Large logits saturate the softmax. Its gradient vanishes, which can be mistaken for robustness.
    """
    return lambda logits, labels: cross_entropy(logits / temperature[:, None], labels)


def largest_other_logit(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the largest logit of the other classes, (n,)."""
    is_label = F.one_hot(labels, logits.shape[1]).bool()
    return logits.masked_fill(is_label, -torch.inf).amax(1)


def logit_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the largest logit of the other classes minus that of the label. Above 0 the image is misclassified."""
    return largest_other_logit(logits, labels) - logits.gather(1, labels[:, None])[:, 0]


def dlr_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the difference of logits ratio (Croce and Hein 2020): margin / (largest - third largest logit).

    It is invariant to shifts and scales of the logits, so it needs no temperature.
    """
    if logits.shape[1] < 3:
        raise InputError(f"the difference of logits ratio needs three classes; got {logits.shape[1]}")
    sorted_logits = logits.sort(1, descending=True).values
    return logit_margin(logits, labels) / (sorted_logits[:, 0] - sorted_logits[:, 2]).clamp_min(_MIN_DENOMINATOR)
