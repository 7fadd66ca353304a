"""`Retention` in a training loop: what it promises, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lcrbnn
from lcrbnn import Retention
from tests.retention.foreign import BLOCKS, Foreign
from tests.retention.helpers import IMAGES, hooks, small, steps

# ---------------------------------------------------------------------------------------------------------------
# The promise to a user.
MAKERS = [Foreign, lambda: lcrbnn.binarize(Foreign(nn.Conv2d), skip=["begin.0", "end", "*.skip"])]


def gap(ratios: list[Tensor]) -> Tensor:
    """The mean distance from 1, a number a block."""
    return torch.stack(ratios).mean(0).sub(1).abs()


@pytest.mark.parametrize("make", MAKERS, ids=["own", "binarized"])
def test_in_three_lines_on_a_network_of_the_users_own(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    retention = Retention(model, blocks=BLOCKS, weight=100.0)
    model(IMAGES[:64])
    loss = retention.loss()
    assert loss.item() > 0
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in (model.flat.one.weight, model.down.one.weight))
    model.zero_grad()

    ratios = steps(model, retention, 50)
    assert (gap(ratios[-3:]) < gap(ratios[:3])).all()
    assert gap(ratios[-3:]).sum() < 0.6 * gap(ratios[:3]).sum()
    retention.close()
    assert hooks(model) == 0
    retention.close()  # a second time does nothing


@pytest.mark.parametrize("make", MAKERS, ids=["own", "binarized"])
def test_without_the_loss_the_ratios_do_not_come_closer(make: Callable[[], nn.Module]) -> None:
    """The control of the test above: fifty steps of cross-entropy alone."""
    torch.manual_seed(0)
    model = make()
    ratios = steps(model, Retention(model, blocks=BLOCKS), 50, weight=0.0)
    assert gap(ratios[-3:]).sum() > 0.8 * gap(ratios[:3]).sum()


# ---------------------------------------------------------------------------------------------------------------
# What it leaves alone.
def test_lambda_zero_is_bit_equal_to_no_retention() -> None:
    plain, zero = small(), small()
    steps(plain, None, 5)
    retention = Retention(zero, weight=0.0)
    assert hooks(zero) == 0
    steps(zero, retention, 5)
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), zero.state_dict().values(), strict=True))
    assert list(retention.parameters()) == []


@pytest.mark.parametrize("reference", ["latent", "weights", "teacher"])
def test_watching_without_weight_changes_no_bit_of_training(reference: str) -> None:
    plain, watched = small(), small()
    steps(plain, None, 5)
    teacher = small(None) if reference == "teacher" else None
    retention = Retention(watched, reference=reference, teacher=teacher)
    steps(watched, retention, 5, weight=0.0)
    assert all(
        torch.equal(a, b) for a, b in zip(plain.state_dict().values(), watched.state_dict().values(), strict=True)
    )


def test_neither_network_nor_teacher_is_part_of_it() -> None:
    model, teacher = small(), small(None)
    retention = Retention(model, reference="teacher", teacher=teacher)
    assert list(retention.state_dict()) == []
    assert list(retention.parameters()) == []


def test_a_ramp_scales_the_loss() -> None:
    model = small()
    retention = Retention(model, weight=4.0)
    values = []
    for weight in (None, 2.0, torch.tensor(1.0)):
        model(IMAGES[:16])
        values.append(float(retention.loss(weight).detach()))
    # batch norm in training mode sees the same batch, so the maps are the same each time
    assert values == pytest.approx([values[0], values[0] / 2, values[0] / 4])


def test_a_wrapped_model_is_watched_inside() -> None:
    model = small()
    retention = Retention(torch.compile(model, backend="eager"))
    model(IMAGES[:4])
    assert retention.loss() > 0


def test_autocast_gives_nearly_the_same_ratios() -> None:
    model = small()
    retention = Retention(model)
    model(IMAGES[:64])
    retention.loss()
    plain = retention.ratios
    with torch.autocast("cpu", torch.bfloat16):
        model(IMAGES[:64])
        assert retention.loss().dtype == torch.float32
    # bf16 moves some activations across their thresholds
    torch.testing.assert_close(retention.ratios, plain, atol=0.03, rtol=0)


@pytest.mark.parametrize(
    ("name", "bits"),
    [(m.name, f"1/{b}") for m in lcrbnn.METHODS.values() for b in m.activation_bits if b in (1, 2, 32)],
)
def test_every_method_takes_retention(name: str, bits: str) -> None:
    model = small(name, bits=bits)
    retention = Retention(model, reference="weights" if bits == "1/32" else "latent")
    model(IMAGES[:16])
    loss = retention.loss()
    assert torch.isfinite(loss)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
