"""Helpers of the LCR tests: digit images, a small network, training steps and single retention matrices."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from lcrbnn import Retention
from lcrbnn.data.digits import load_digits
from lcrbnn.lcr.retention_matrix import MATRIX_STACKS, MatrixStack

DIGITS, _ = load_digits()
IMAGES, LABELS = torch.from_numpy(DIGITS.images), torch.from_numpy(DIGITS.labels)


def count_hooks(model: nn.Module) -> int:
    """Return the number of forward hooks and pre-hooks."""
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def make_small_model(method: str | None = "irnet", **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return lcrbnn.create_model("resnet8-double", method, in_channels=1, **options)


def train_steps(
    model: nn.Module, retention: Retention | None, num_steps: int, *, lcr_weight: float | None = None
) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    ratios = []
    for i in range(num_steps):
        batch = torch.arange(i * 64, (i + 1) * 64) % len(LABELS)
        loss = F.cross_entropy(model(IMAGES[batch]), LABELS[batch])
        if retention is not None:
            loss = loss + retention.loss(lcr_weight)
            ratios.append(retention.sigma_ratios)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [r for r in ratios if r is not None]


def make_stack(matrix: str, front: Tensor, back: Tensor, normalization: str) -> MatrixStack:
    """Return the stack of the retention matrix of one pair of feature maps."""
    return MATRIX_STACKS[matrix]([(front, back)], normalization)


def compute_bilinear_form(stack: MatrixStack, u: Tensor, v: Tensor) -> Tensor:
    """Return u^T RM v of all matrices of a stack."""
    return torch.cat(stack.bilinear_forms(u, v))
