"""LNS: training with its penalty alone."""

from __future__ import annotations

import torch

from lcrbnn.nn.methods.method_registry import get_method


def test_lns_penalty_alone_keeps_weights_where_signs_can_change() -> None:
    """The mapped weights keep their spread: about 0.68 of them stay within 1, as for a normal distribution."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(8, 8, 3, 3) * 0.1)
    binarizer = get_method("lns").create_weight_binarizer(weight)
    optimizer = torch.optim.SGD([weight, *binarizer.parameters()], lr=0.1, momentum=0.9, weight_decay=1e-4)
    initial_loss = binarizer.extra_loss(weight).item()
    for _ in range(1500):
        optimizer.zero_grad()
        binarizer.extra_loss(weight).backward()
        optimizer.step()
    assert binarizer.extra_loss(weight).item() < initial_loss
    fraction_within_one = (binarizer.pre_sign_weight(weight).abs() <= 1).float().mean().item()
    assert fraction_within_one > 0.4
