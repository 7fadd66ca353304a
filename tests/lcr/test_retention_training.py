"""`Retention` in a training loop: its effect on the sigma ratios, and what it does not change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lcrbnn
from lcrbnn import Retention
from tests.lcr.helpers import IMAGES, count_hooks, make_small_model, train_steps
from tests.lcr.user_network import BLOCKS, UserNetwork

# ---------------------------------------------------------------------------------------------------------------
# The effect of the LCR loss.
MODEL_FACTORIES = [UserNetwork, lambda: lcrbnn.binarize(UserNetwork(nn.Conv2d), skip=["begin.0", "end", "*.skip"])]


def mean_distance_from_1(ratios: list[Tensor]) -> Tensor:
    """Return the mean distance of the ratios from 1, per block."""
    return torch.stack(ratios).mean(0).sub(1).abs()


@pytest.mark.parametrize("make", MODEL_FACTORIES, ids=["own", "binarized"])
def test_lcr_loss_brings_the_sigma_ratios_of_a_users_network_closer_to_1(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    retention = Retention(model, blocks=BLOCKS, lcr_weight=100.0)
    model(IMAGES[:64])
    loss = retention.loss()
    assert loss.item() > 0
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in (model.flat.conv.weight, model.down.conv.weight))
    model.zero_grad()

    ratios = train_steps(model, retention, 50)
    assert (mean_distance_from_1(ratios[-3:]) < mean_distance_from_1(ratios[:3])).all()
    assert mean_distance_from_1(ratios[-3:]).sum() < 0.6 * mean_distance_from_1(ratios[:3]).sum()
    retention.close()
    assert count_hooks(model) == 0
    retention.close()  # a second call does nothing


@pytest.mark.parametrize("make", MODEL_FACTORIES, ids=["own", "binarized"])
def test_sigma_ratios_do_not_come_closer_to_1_without_the_lcr_loss(make: Callable[[], nn.Module]) -> None:
    """The baseline of the test above: fifty steps with the cross-entropy only."""
    torch.manual_seed(0)
    model = make()
    ratios = train_steps(model, Retention(model, blocks=BLOCKS), 50, lcr_weight=0.0)
    assert mean_distance_from_1(ratios[-3:]).sum() > 0.8 * mean_distance_from_1(ratios[:3]).sum()


# ---------------------------------------------------------------------------------------------------------------
# No other effects.
def test_lcr_weight_0_is_bit_equal_to_no_retention() -> None:
    plain, with_weight_0 = make_small_model(), make_small_model()
    train_steps(plain, None, 5)
    retention = Retention(with_weight_0, lcr_weight=0.0)
    assert count_hooks(with_weight_0) == 0
    train_steps(with_weight_0, retention, 5)
    assert all(
        torch.equal(a, b) for a, b in zip(plain.state_dict().values(), with_weight_0.state_dict().values(), strict=True)
    )
    assert list(retention.parameters()) == []


@pytest.mark.parametrize("reference", ["pre-binarization", "latent-weights", "teacher"])
def test_measurement_with_weight_0_does_not_change_training(reference: str) -> None:
    plain, hooked = make_small_model(), make_small_model()
    train_steps(plain, None, 5)
    teacher = make_small_model(None) if reference == "teacher" else None
    retention = Retention(hooked, reference=reference, teacher=teacher)
    train_steps(hooked, retention, 5, lcr_weight=0.0)
    assert all(
        torch.equal(a, b) for a, b in zip(plain.state_dict().values(), hooked.state_dict().values(), strict=True)
    )


def test_model_and_teacher_are_not_in_the_state_dict() -> None:
    model, teacher = make_small_model(), make_small_model(None)
    retention = Retention(model, reference="teacher", teacher=teacher)
    assert list(retention.state_dict()) == []
    assert list(retention.parameters()) == []


def test_lcr_weight_of_loss_scales_the_loss() -> None:
    model = make_small_model()
    retention = Retention(model, lcr_weight=4.0)
    values = []
    for lcr_weight in (None, 2.0, torch.tensor(1.0)):
        model(IMAGES[:16])
        values.append(float(retention.loss(lcr_weight).detach()))
    # batch norms in training mode use the statistics of the same batch, so the maps are equal
    assert values == pytest.approx([values[0], values[0] / 2, values[0] / 4])


def test_model_inside_torch_compile_is_hooked() -> None:
    model = make_small_model()
    retention = Retention(torch.compile(model, backend="eager"))
    model(IMAGES[:4])
    assert retention.loss() > 0


def test_autocast_gives_nearly_the_same_sigma_ratios() -> None:
    model = make_small_model()
    retention = Retention(model)
    model(IMAGES[:64])
    retention.loss()
    plain = retention.sigma_ratios
    with torch.autocast("cpu", torch.bfloat16):
        model(IMAGES[:64])
        assert retention.loss().dtype == torch.float32
    # bfloat16 changes the sign of some activations
    torch.testing.assert_close(retention.sigma_ratios, plain, atol=0.03, rtol=0)


@pytest.mark.parametrize(
    ("name", "bits"),
    [(m.name, f"1/{b}") for m in lcrbnn.METHODS.values() for b in m.supported_activation_bits if b in (1, 2, 32)],
)
def test_retention_works_with_every_method(name: str, bits: str) -> None:
    model = make_small_model(name, bits=bits)
    retention = Retention(model, reference="latent-weights" if bits == "1/32" else "pre-binarization")
    model(IMAGES[:16])
    loss = retention.loss()
    assert torch.isfinite(loss)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
