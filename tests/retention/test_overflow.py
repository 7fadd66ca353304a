"""Feature maps of extreme magnitude: the loss is finite, or the call fails and names the block."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lcrbnn import Retention
from lcrbnn.errors import Failed
from lcrbnn.retention import Form, retention_loss
from lcrbnn.retention.form import CHOICES
from lcrbnn.retention.spectral import random_start
from tests.kernels.interpreted import run_interpreted

START = random_start(64)
SCALED = [name for name in CHOICES["normalization"] if name != "raw"]


def loss_and_gradient(ours: Tensor, theirs: Tensor, form: Form) -> tuple[Tensor, Tensor]:
    maps = ours.clone().requires_grad_()
    loss = retention_loss([(maps, maps)], [(theirs, theirs)], form, START).loss
    loss.backward()
    assert maps.grad is not None
    return loss.detach(), maps.grad


def draw(seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(6, 4, 5, 5, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("matrix", CHOICES["matrix"])
@pytest.mark.parametrize("normalization", SCALED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("exponent", [50, 60, 63, 64, 80, 124])
def test_a_normalised_loss_does_not_depend_on_the_magnitude(
    matrix: str, normalization: str, dtype: torch.dtype, exponent: int
) -> None:
    form = Form(matrix=matrix, normalization=normalization)
    ours, theirs = draw(0, dtype), draw(1, dtype)
    expected, direction = loss_and_gradient(ours, theirs, form)
    large = 2.0**exponent
    for one, other in ((large, large), (1.0, large), (large, 1.0)):
        loss, gradient = loss_and_gradient(ours * one, theirs * other, form)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
        assert gradient.isfinite().all()
        if exponent <= 80:  # the gradient is as small as the map is large; float32 ends at 1e-38
            torch.testing.assert_close(gradient.double() * one, direction.double(), rtol=2e-2, atol=1e-4)


def test_a_batch_may_mix_magnitudes() -> None:
    factors = 10.0 ** torch.tensor([0.0, 18, -5, 25, 38, 3])[:, None, None, None]
    maps = draw(1).clamp(-3, 3)
    for normalization in SCALED:
        for matrix in ("square", "batch"):
            form = Form(matrix=matrix, normalization=normalization)
            expected, _ = loss_and_gradient(draw(0), maps, form)
            loss, _ = loss_and_gradient(draw(0), maps * factors, form)
            torch.testing.assert_close(loss, expected, rtol=1e-4, atol=0)


def test_numbers_that_are_not_finite_are_not_hidden() -> None:
    for bad in (float("inf"), float("nan")):
        theirs = draw(1)
        theirs[2, 1, 0, 0] = bad
        assert not loss_and_gradient(draw(0), theirs, Form())[0].isfinite()


def kernels() -> dict[str, list[float]]:
    """Loss and length of the gradient, where a Triton kernel reads the maps (its interpreter has no bfloat16)."""
    found: dict[str, list[float]] = {}
    factors = torch.tensor([1.0, 1e18, 1e25, 1, 1, 1e37])[:, None, None, None]
    for matrix in ("square", "batch"):
        for name, factor in {"some": factors, "all": factors[2]}.items():
            for one, other in ((factor, 1.0), (1.0, factor), (factor, factor)):
                loss, gradient = loss_and_gradient(draw(0) * one, draw(1) * other, Form(matrix=matrix))
                found.setdefault(f"{matrix}, {name}", []).extend([float(loss), float(gradient.norm())])
    return found


def test_the_kernels_leave_out_samples_that_are_too_long() -> None:
    for case, values in run_interpreted(kernels).items():
        assert torch.tensor(values).isfinite().all(), case


def network(factor: float) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        model[1].weight *= factor
    return model


def test_the_default_form_trains_on_with_very_large_maps() -> None:
    model = network(1e18)
    with Retention(model, blocks=["0", "1"]) as retention:
        model(torch.randn(16, 8))
        loss = retention.loss()
        loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_an_overflow_of_raw_maps_fails_and_names_the_block() -> None:
    model = network(1e18)
    with Retention(model, "paper", blocks=["0", "1"], matrix="square") as retention:
        model(torch.randn(16, 8) * 100)
        with pytest.raises(Failed, match="'1'"):
            retention.loss()
    with Retention(model, "paper", blocks=["0", "1"], matrix="square", check_overflow=False) as retention:
        model(torch.randn(16, 8) * 100)
        assert not retention.loss().isfinite()
        assert "'1'" in retention.describe_overflow()
