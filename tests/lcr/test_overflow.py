"""Feature maps of extreme magnitude: the loss is finite, or an error names the block."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lcrbnn import Retention
from lcrbnn.errors import RunFailed
from lcrbnn.lcr.lcr_variants import LCR_CHOICES, LCR_VARIANTS, LcrVariant
from lcrbnn.lcr.retention_loss import retention_loss
from lcrbnn.lcr.spectral_norm import draw_start_vector
from tests.nn.kernels.interpreted import run_interpreted

START = draw_start_vector(64)
MAGNITUDE_INVARIANT_NORMALIZATIONS = [name for name in LCR_CHOICES["normalization"] if name != "none"]


def compute_loss_and_gradient(binary_map: Tensor, reference_map: Tensor, variant: LcrVariant) -> tuple[Tensor, Tensor]:
    leaf = binary_map.clone().requires_grad_()
    loss = retention_loss([(leaf, leaf)], [(reference_map, reference_map)], variant, START).loss
    loss.backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad


def draw(seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(6, 4, 5, 5, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("matrix", LCR_CHOICES["matrix"])
@pytest.mark.parametrize("normalization", MAGNITUDE_INVARIANT_NORMALIZATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("exponent", [50, 60, 63, 64, 80, 124])
def test_normalized_loss_does_not_depend_on_the_magnitude_of_the_maps(
    matrix: str, normalization: str, dtype: torch.dtype, exponent: int
) -> None:
    variant = LcrVariant(matrix=matrix, normalization=normalization)
    binary_map, reference_map = draw(0, dtype), draw(1, dtype)
    expected, expected_gradient = compute_loss_and_gradient(binary_map, reference_map, variant)
    large = 2.0**exponent
    for binary_factor, reference_factor in ((large, large), (1.0, large), (large, 1.0)):
        loss, gradient = compute_loss_and_gradient(
            binary_map * binary_factor, reference_map * reference_factor, variant
        )
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
        assert gradient.isfinite().all()
        if exponent <= 80:  # the gradient is inversely proportional to the map, and float32 ends at 1e-38
            torch.testing.assert_close(
                gradient.double() * binary_factor, expected_gradient.double(), rtol=2e-2, atol=1e-4
            )


def test_samples_of_one_batch_may_have_different_magnitudes() -> None:
    factors = 10.0 ** torch.tensor([0.0, 18, -5, 25, 38, 3])[:, None, None, None]
    maps = draw(1).clamp(-3, 3)
    for normalization in MAGNITUDE_INVARIANT_NORMALIZATIONS:
        for matrix in ("gram", "cross-gram"):
            variant = LcrVariant(matrix=matrix, normalization=normalization)
            expected, _ = compute_loss_and_gradient(draw(0), maps, variant)
            loss, _ = compute_loss_and_gradient(draw(0), maps * factors, variant)
            torch.testing.assert_close(loss, expected, rtol=1e-4, atol=0)


def test_non_finite_maps_give_a_non_finite_loss() -> None:
    for value in (float("inf"), float("nan")):
        reference_map = draw(1)
        reference_map[2, 1, 0, 0] = value
        assert not compute_loss_and_gradient(draw(0), reference_map, LcrVariant())[0].isfinite()


def compute_losses_with_kernels() -> dict[str, list[float]]:
    """Return losses and gradient norms with the Triton kernels (the Triton interpreter does not support bfloat16)."""
    values_by_case: dict[str, list[float]] = {}
    factors = torch.tensor([1.0, 1e18, 1e25, 1, 1, 1e37])[:, None, None, None]
    for matrix in ("gram", "cross-gram"):
        for name, factor in {"some": factors, "all": factors[2]}.items():
            for binary_factor, reference_factor in ((factor, 1.0), (1.0, factor), (factor, factor)):
                loss, gradient = compute_loss_and_gradient(
                    draw(0) * binary_factor, draw(1) * reference_factor, LcrVariant(matrix=matrix)
                )
                values_by_case.setdefault(f"{matrix}, {name}", []).extend([float(loss), float(gradient.norm())])
    return values_by_case


def test_kernels_ignore_samples_that_are_too_long() -> None:
    for case, values in run_interpreted(compute_losses_with_kernels).items():
        assert torch.tensor(values).isfinite().all(), case


def make_model(factor: float) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        model[1].weight *= factor
    return model


def test_default_variant_trains_with_very_large_maps() -> None:
    model = make_model(1e18)
    with Retention(model, blocks=["0", "1"]) as retention:
        model(torch.randn(16, 8))
        loss = retention.loss()
        loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_overflow_error_names_the_block() -> None:
    model = make_model(1e18)
    with Retention(model, "paper", blocks=["0", "1"], matrix="gram") as retention:
        model(torch.randn(16, 8) * 100)
        with pytest.raises(RunFailed, match="'1'"):
            retention.loss()
    with Retention(model, "paper", blocks=["0", "1"], matrix="gram", check_overflow=False) as retention:
        model(torch.randn(16, 8) * 100)
        assert not retention.loss().isfinite()
        assert "'1'" in retention.describe_overflow()


@pytest.mark.parametrize("name", ["official", "paper"])
def test_pure_loss_raises_an_error_for_overflowing_maps(name: str) -> None:
    small, large = draw(0), draw(1) * 1e18
    variant = LCR_VARIANTS[name]
    pairs, reference = [(small, small), (large, large)], [(draw(2), draw(3)), (draw(4), draw(5))]
    with pytest.raises(RunFailed, match=r"^the LCR loss overflows at pair 1: the feature maps are finite, .*prevents"):
        retention_loss(pairs, reference, variant, START)
    assert not retention_loss(pairs, reference, variant, START, check_overflow=False).loss.isfinite()
    with pytest.raises(RunFailed, match="the LCR loss overflows at pair 1"):
        retention_loss(pairs, pairs, variant, START)  # inf / inf is NaN
    large[0, 0, 0, 0] = float("nan")
    assert not retention_loss(
        pairs, reference, variant, START
    ).loss.isfinite()  # the maps are the cause, not an overflow
