"""LNS: what its penalty alone makes of weights."""

from __future__ import annotations

import torch

from lcrbnn.methods import method


def test_the_penalty_alone_leaves_weights_where_their_signs_can_turn() -> None:
    """The mapped weights stay spread: about as many within 1 as of a normal distribution, 0.68, at any time."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(8, 8, 3, 3) * 0.1)
    binarizer = method("lns").weight_binarizer(weight)
    optimizer = torch.optim.SGD([weight, *binarizer.parameters()], lr=0.1, momentum=0.9, weight_decay=1e-4)
    first = binarizer.penalty(weight).item()
    for _ in range(1500):
        optimizer.zero_grad()
        binarizer.penalty(weight).backward()
        optimizer.step()
    assert binarizer.penalty(weight).item() < first
    within = (binarizer.latent(weight).abs() <= 1).float().mean().item()
    assert within > 0.4
