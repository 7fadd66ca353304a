"""LCR under autocast, with bfloat16 and with float16 and a gradient scaler, on foreign networks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn import Retention
from tests.lcr.foreign_networks import FOREIGN_NETWORKS, IMAGES, LABELS, make_foreign_network
from tests.lcr.plain_loop import (
    assert_same_gradients,
    compute_plain_loss,
    make_network_and_retention,
    take_gradients,
)

INITIAL_SCALE = 1024.0


def compute_loss(model: nn.Module, retention: Retention, dtype: torch.dtype) -> Tensor:
    with torch.autocast("cpu", dtype):
        logits = model(IMAGES)
        lcr_loss = retention.loss()
    assert lcr_loss.dtype == torch.float32
    return F.cross_entropy(logits.float(), LABELS) + lcr_loss


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FOREIGN_NETWORKS)
def test_autocast_has_the_gradients_of_a_plain_loop(name: str, dtype: torch.dtype) -> None:
    model, retention = make_network_and_retention(name)
    loss = compute_loss(model, retention, dtype)
    loss.backward()
    plain = make_foreign_network(name)
    with torch.autocast("cpu", dtype):
        plain_loss = compute_plain_loss(plain, FOREIGN_NETWORKS[name].blocks, IMAGES, LABELS)
    plain_loss.backward()
    assert loss.item() == pytest.approx(plain_loss.item(), rel=1e-3)
    # Gradients of feature maps have 8 or 11 bits, and they are rounded in each layer.
    assert_same_gradients(take_gradients(model), take_gradients(plain), tolerance=0.02)


@pytest.mark.parametrize("name", FOREIGN_NETWORKS)
def test_gradient_scaler_returns_the_gradients_without_scaling(name: str) -> None:
    model, retention = make_network_and_retention(name)
    compute_loss(model, retention, torch.float16).backward()
    expected = take_gradients(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=INITIAL_SCALE)
    scaler.scale(compute_loss(model, retention, torch.float16)).backward()
    scaler.unscale_(optimizer)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    assert_same_gradients(gradients, expected, tolerance=0.02)
    weights = [p.detach().clone() for p in model.parameters()]
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == INITIAL_SCALE
    assert any(not torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))


def test_gradient_scaler_skips_a_step_with_infinite_feature_maps() -> None:
    """The LCR loss of such maps is NaN and raises no error, so the scaler can continue with a smaller factor."""
    model, retention = make_network_and_retention("unet")
    model.first.weight.data.mul_(1e6)  # more than float16 can hold
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=INITIAL_SCALE)
    weights = [p.detach().clone() for p in model.parameters()]
    for step in (1, 2):
        optimizer.zero_grad()
        scaler.scale(compute_loss(model, retention, torch.float16)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == INITIAL_SCALE / 2**step
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))


def test_gradient_scaler_recovers_from_a_factor_that_is_too_large() -> None:
    model, retention = make_network_and_retention("resnet")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, backoff_factor=2.0**-10)
    weight = model.fc.weight.detach().clone()
    for _ in range(5):
        optimizer.zero_grad()
        scaler.scale(compute_loss(model, retention, torch.float16)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() < 2.0**40
    assert not torch.equal(weight, model.fc.weight)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
