"""What attacks make large: each a number an image, from logits and labels."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.errors import InputError

_TINY = 1e-12


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """- log softmax of the label."""
    return F.cross_entropy(logits, labels, reduction="none")


def tempered(temperature: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Cross-entropy of logits divided by a number an image, (n,): large logits saturate the softmax, and its gradient
    vanishes, which would look like robustness.
    """
    return lambda logits, labels: cross_entropy(logits / temperature[:, None], labels)


def best_other(logits: Tensor, labels: Tensor) -> Tensor:
    """The largest logit but the label's, (n,)."""
    hidden = F.one_hot(labels, logits.shape[1]).bool()
    return logits.masked_fill(hidden, -torch.inf).amax(1)


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The largest other logit minus the label's: over 0 the image is misclassified."""
    return best_other(logits, labels) - logits.gather(1, labels[:, None])[:, 0]


def dlr(logits: Tensor, labels: Tensor) -> Tensor:
    """Difference of logits ratio (Croce and Hein 2020): the margin over the distance of the first and third logit.

    It does not change if logits are shifted or multiplied, so that no temperature matters to it.
    """
    if logits.shape[1] < 3:
        raise InputError(f"the difference of logits ratio needs three classes; there are {logits.shape[1]}")
    ranked = logits.sort(1, descending=True).values
    return margin(logits, labels) / (ranked[:, 0] - ranked[:, 2]).clamp_min(_TINY)
