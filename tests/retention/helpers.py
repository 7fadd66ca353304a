"""What the tests of `Retention` share: digits, a small network, a few training steps."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from lcrbnn import Retention
from lcrbnn.data import load_digits

DIGITS, _ = load_digits()
IMAGES, LABELS = torch.from_numpy(DIGITS.images), torch.from_numpy(DIGITS.labels)


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def small(method: str | None = "irnet", **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return lcrbnn.network("resnet8-double", method, in_channels=1, **options)


def steps(model: nn.Module, retention: Retention | None, count: int, *, weight: float | None = None) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    ratios = []
    for i in range(count):
        batch = torch.arange(i * 64, (i + 1) * 64) % len(LABELS)
        loss = F.cross_entropy(model(IMAGES[batch]), LABELS[batch])
        if retention is not None:
            loss = loss + retention.loss(weight)
            ratios.append(retention.ratios)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [r for r in ratios if r is not None]
