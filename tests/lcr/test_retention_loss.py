"""L_Lip compared with hand-computed values, its gradient with finite differences, and both with the published code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lcrbnn.errors import InputError
from lcrbnn.lcr.lcr_variants import LCR_CHOICES, LCR_VARIANTS, LcrVariant
from lcrbnn.lcr.measurement_points import SPAN_FINDERS
from lcrbnn.lcr.retention import REFERENCES
from lcrbnn.lcr.retention_loss import (
    COEFFICIENTS,
    DISTANCES,
    START_VECTORS,
    compute_spectral_norms,
    quantization_error,
    retention_loss,
    sum_weighted_distances,
)
from lcrbnn.lcr.retention_matrix import MATRIX_STACKS, NORMALIZATIONS, Pair
from lcrbnn.lcr.spectral_norm import draw_start_vector

START = draw_start_vector(64)
PAPER = LCR_VARIANTS["paper"]


def draw_pairs(count: int, *, grad: bool = False, seed: int = 0) -> list[Pair]:
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        return torch.randn(6, 4, 3, 3, generator=generator, dtype=torch.float64).requires_grad_(grad)

    return [(draw(), draw()) for _ in range(count)]


# ---------------------------------------------------------------------------------------------------------------
# Values.


def test_ratio_distance_equals_eq_11_by_hand() -> None:
    binary_sigmas = [torch.tensor([v]) for v in (3.0, 1.0, 6.0)]
    reference_sigmas = [torch.tensor([v]) for v in (2.0, 4.0, 4.0)]
    # L = 4, beta = 2: [(1.5 - 1) / 8]^2 + [(0.25 - 1) / 4]^2 + [(1.5 - 1) / 2]^2
    assert float(sum_weighted_distances(binary_sigmas, reference_sigmas, PAPER)) == pytest.approx(
        0.0625**2 + 0.1875**2 + 0.25**2
    )
    assert float(sum_weighted_distances(binary_sigmas, reference_sigmas, PAPER.replace(beta=1.0))) == pytest.approx(
        0.25 + 0.5625 + 0.25
    )


def test_last_term_has_weight_one_quarter() -> None:
    reference_sigmas, binary_sigmas = [torch.tensor([1.0])], [torch.tensor([2.0])]
    assert float(sum_weighted_distances(binary_sigmas, reference_sigmas, PAPER)) == pytest.approx(0.25)


def test_log_ratio_distance_by_hand() -> None:
    binary_sigmas = [torch.tensor([v]) for v in (3.0, 1.0, 0.0)]
    reference_sigmas = [torch.tensor([v]) for v in (1.0, 2.0, 0.0)]  # a reference of 0 has a ratio of 1
    expected = (math.log(3) / 8) ** 2 + (math.log(2) / 4) ** 2
    assert float(
        sum_weighted_distances(binary_sigmas, reference_sigmas, PAPER.replace(distance="log-ratio"))
    ) == pytest.approx(expected)


def test_mse_distance_of_the_official_code_by_hand() -> None:
    binary_sigmas = [torch.tensor([3.0, 1.0]), torch.tensor([2.0, 2.0])]
    reference_sigmas = [torch.tensor([1.0, 1.0]), torch.tensor([2.0, 5.0])]
    # means of squares 2 and 4.5, over 2^(L - k) = 4 and 2
    assert float(sum_weighted_distances(binary_sigmas, reference_sigmas, LCR_VARIANTS["official"])) == pytest.approx(
        2 / 4 + 4.5 / 2
    )


def test_coefficients_are_those_of_eq_12_and_of_the_official_code() -> None:
    assert COEFFICIENTS["half"](128) == 0.5
    assert 8 * COEFFICIENTS["inverse-batch-size"](200) == pytest.approx(4e-6)


def test_loss_is_0_if_binary_and_reference_maps_are_equal() -> None:
    maps = draw_pairs(3, grad=True)  # the binary side uses the differentiable product, the reference side does not
    for variant in LCR_VARIANTS.values():
        assert float(retention_loss(maps, maps, variant, START).loss.detach()) == pytest.approx(0, abs=1e-18)


def test_converged_norms_do_not_depend_on_the_order_of_samples() -> None:
    maps = draw_pairs(2)
    order = torch.randperm(6)
    shuffled = [(a[order], b[order]) for a, b in maps]
    variant = PAPER.replace(power_iterations=300)
    for sigma, shuffled_sigma in zip(
        compute_spectral_norms(maps, variant, START), compute_spectral_norms(shuffled, variant, START), strict=True
    ):
        torch.testing.assert_close(sigma, shuffled_sigma)


def test_eq_8_is_the_squared_norm_of_the_cross_gram_matrix() -> None:
    maps = draw_pairs(2)
    for sigma, (a, b) in zip(
        compute_spectral_norms(maps, PAPER.replace(power_iterations=300), START), maps, strict=True
    ):
        g = a.flatten(1) @ b.flatten(1).T
        assert float(sigma) == pytest.approx(float(torch.linalg.matrix_norm(g, 2) ** 2))


def test_norms_of_per_sample_matrices_do_not_depend_on_other_pairs() -> None:
    """All maps have the same height and width. The numbers of channels differ."""
    sizes = [(4, 6), (4, 5), (3, 6), (4, 6)]
    maps = [tuple(torch.randn(2, c, 3, 3, dtype=torch.float64) for c in pair) for pair in sizes]
    variant = LCR_VARIANTS["official"].replace(power_iterations=5)
    for sigma, pair in zip(compute_spectral_norms(maps, variant, START), maps, strict=True):
        torch.testing.assert_close(sigma, compute_spectral_norms([pair], variant, START)[0])


def test_sigma_ratios_have_no_gradient_and_are_1_if_the_reference_is_0() -> None:
    binary, reference = draw_pairs(2, grad=True), draw_pairs(2, seed=1)
    reference[0] = (torch.zeros_like(reference[0][0]), torch.zeros_like(reference[0][1]))
    result = retention_loss(binary, reference, PAPER, START)
    ratios = result.sigma_ratios()
    assert result.loss.requires_grad
    assert not ratios.requires_grad
    assert ratios.tolist() == [1, pytest.approx(float(result.binary_sigmas[1].detach() / result.reference_sigmas[1]))]


def test_quantization_error_by_hand() -> None:
    w = torch.tensor([[1.0, -3.0], [0.5, 0.5]], requires_grad=True)
    loss = quantization_error([w])  # alpha 2 and 0.5: residuals -1, -1 and 0, 0
    assert loss.item() == pytest.approx(2.0)
    loss.backward()
    assert w.grad is not None
    torch.testing.assert_close(w.grad, torch.tensor([[-2.0, -2.0], [0.0, 0.0]]))


# ---------------------------------------------------------------------------------------------------------------
# Theorem 1: the retention matrix and the weights.


def draw_orthonormal_columns(d: int, n: int) -> Tensor:
    return torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0][:, :n]


def compute_sigma(matrix: str, a: Tensor, b: Tensor) -> float:
    """Return sigma for a batch with samples in columns, as in the paper."""
    (value,) = compute_spectral_norms([(a.T, b.T)], PAPER.replace(matrix=matrix, power_iterations=2000), START)
    return float(value)


def test_theorem_1_holds_for_a_full_orthonormal_batch() -> None:
    d = 24
    weight, a = torch.randn(d, d, dtype=torch.float64), draw_orthonormal_columns(d, d)
    expected = float(torch.linalg.matrix_norm(weight, 2) ** 2)
    for matrix in ("cross-gram", "gram"):  # Eq. 8 and Eq. 9 coincide when A A^T = I
        assert compute_sigma(matrix, a, weight @ a) == pytest.approx(expected, rel=1e-6)


def test_theorem_1_is_only_a_lower_bound_for_fewer_samples_than_dimensions() -> None:
    # Orthonormal columns give A^T A = I, but the step from Eq. 8 to Eq. 9 needs A A^T = I.
    d, n = 64, 16
    weight, a = torch.randn(d, d, dtype=torch.float64), draw_orthonormal_columns(d, n)
    squared_norm = float(torch.linalg.matrix_norm(weight, 2) ** 2)
    eq8, eq9 = compute_sigma("cross-gram", a, weight @ a), compute_sigma("gram", a, weight @ a)
    assert eq8 < eq9 < squared_norm
    assert eq8 < 0.5 * squared_norm


def test_unnormalized_sigma_grows_with_the_fourth_power_of_activations() -> None:
    a, weight = torch.randn(16, 16, dtype=torch.float64), torch.randn(16, 16, dtype=torch.float64)
    assert compute_sigma("cross-gram", 2 * a, weight @ (2 * a)) == pytest.approx(
        16 * compute_sigma("cross-gram", a, weight @ a)
    )


# ---------------------------------------------------------------------------------------------------------------
# Gradients.


@pytest.mark.parametrize("matrix", MATRIX_STACKS)
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("distance", DISTANCES)
def test_gradients_of_converged_norms_pass_gradcheck(matrix: str, normalization: str, distance: str) -> None:
    variant = LcrVariant(
        matrix=matrix,
        normalization=normalization,
        distance=distance,
        power_iterations=150,
        sqrt_eigenvalue=distance == "mse",
    )
    generator = torch.Generator().manual_seed(0)
    front = torch.randn(3, 2, 2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    back = torch.randn(3, 2, 2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    reference = [
        (torch.randn(3, 2, 2, 2, generator=generator).double(), torch.randn(3, 2, 2, 2, generator=generator).double())
    ]
    assert torch.autograd.gradcheck(
        lambda f, b: retention_loss([(f, b)], reference, variant, START).loss, (front, back), atol=1e-5, rtol=1e-3
    )


def test_gradient_flows_to_the_binary_maps_only() -> None:
    binary, reference = draw_pairs(2, grad=True), draw_pairs(2, grad=True, seed=1)
    retention_loss(binary, reference, PAPER, START).loss.backward()
    assert all(t.grad is not None and t.grad.abs().sum() > 0 for pair in binary for t in pair)
    assert all(t.grad is None for pair in reference for t in pair)


def test_the_derivative_of_a_spectral_norm_is_u1_v1_transposed() -> None:
    weight = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    u, s, vh = torch.linalg.svd(weight.detach())
    torch.linalg.matrix_norm(weight, 2).backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, torch.outer(u[:, 0], vh[0]))  # u1 v1^T. The supplement also states v1 u1^T
    # Through a retention matrix over a full orthonormal batch: d sigma_1(W)^2 = 2 sigma_1 u1 v1^T.
    leaf = weight.detach().requires_grad_()
    a = draw_orthonormal_columns(7, 7)
    (value,) = compute_spectral_norms([(a.T, (leaf @ a).T)], PAPER.replace(matrix="gram", power_iterations=3000), START)
    value.backward()
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, 2 * s[0] * torch.outer(u[:, 0], vh[0]), atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("size", [0.5, 2.0])
def test_the_printed_eq_13_is_not_the_gradient_of_eq_11_and_12(size: float) -> None:
    """One layer, L = 2, beta = 2, lambda = 1: the printed term never changes sign, the true gradient does."""
    torch.manual_seed(1)
    reference = torch.randn(6, 6, dtype=torch.float64)
    weight = (size * reference).requires_grad_()
    f = float(torch.linalg.matrix_norm(reference, 2))
    b = torch.linalg.matrix_norm(weight, 2)
    loss = 0.5 * ((b / f - 1) * 2.0 ** (1 - 2)) ** 2  # lambda/2 of Eq. 11's only term
    loss.backward()
    u, _, vh = torch.linalg.svd(weight.detach())
    rank_one = torch.outer(u[:, 0], vh[0])
    printed = -1.0 * 2.0 ** (1 - 2) * (f / float(b.detach())) * rank_one  # -lambda beta^(k-L) (F/B) u v^T
    true = 2.0 ** (2 * (1 - 2)) * (size - 1) / f * rank_one  # lambda beta^(2(k-L)) (r - 1) / F u v^T
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, true)
    # The loss of this package has the true gradient for these norms.
    leaf = weight.detach().requires_grad_()
    norms = [torch.linalg.matrix_norm(leaf, 2)[None]], [torch.tensor([f], dtype=torch.float64)]
    (COEFFICIENTS["half"](1) * sum_weighted_distances(*norms, PAPER)).backward()
    torch.testing.assert_close(leaf.grad, true)
    direction = float((weight.grad * printed).sum())
    assert (direction > 0) == (size < 1)  # the same direction below the reference, the opposite direction above it
    assert not torch.allclose(weight.grad, printed)


# ---------------------------------------------------------------------------------------------------------------
# The published code.


@pytest.fixture(scope="module")
def official() -> Mapping[str, np.ndarray]:
    with np.load(Path(__file__).parents[1] / "golden" / "lcr-official.npz") as stored:
        return dict(stored)


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize(("case", "stages"), [("a", 4), ("b", 3)])
def test_official_variant_equals_the_published_code(
    official: Mapping[str, np.ndarray], case: str, stages: int, kind: str
) -> None:
    dtype = torch.float32 if kind == "f32" else torch.float64
    student = [torch.from_numpy(official[f"{case}_student_{i}"]).to(dtype).requires_grad_() for i in range(stages)]
    teacher = [torch.from_numpy(official[f"{case}_teacher_{i}"]).to(dtype) for i in range(stages)]
    result = retention_loss(
        list(itertools.pairwise(student)), list(itertools.pairwise(teacher)), LCR_VARIANTS["official"], START
    )
    tolerance = 1e-5 if kind == "f32" else 1e-11
    assert float(result.loss.detach()) == pytest.approx(float(official[f"{case}_loss_{kind}"]), rel=tolerance)
    for name, values in (("student", result.binary_sigmas), ("teacher", result.reference_sigmas)):
        np.testing.assert_allclose(
            torch.stack(values).detach().numpy(), official[f"{case}_eig_{name}_{kind}"], rtol=tolerance
        )
    result.loss.backward()
    for i, maps in enumerate(student):
        expected = official[f"{case}_grad_{i}_{kind}"]
        assert maps.grad is not None
        assert np.abs(maps.grad.numpy() - expected).max() <= 2 * tolerance * max(np.abs(expected).max(), 1e-30)


# ---------------------------------------------------------------------------------------------------------------
# Degenerate maps, precision, mistakes.


@pytest.mark.parametrize("name", LCR_VARIANTS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "make",
    [torch.zeros, torch.ones, lambda *s: torch.full(s, -0.3), lambda *s: torch.full(s, 1e-20)],
    ids=["zero", "one", "constant", "tiny"],
)
def test_degenerate_maps_give_a_finite_loss_and_gradient(name: str, batch: int, make: object) -> None:
    shape = (batch, 4, 3, 3)
    degenerate = make(*shape)
    for normalization in NORMALIZATIONS:
        for binary_map, reference_map in (
            (degenerate, degenerate),
            (torch.randn(shape), degenerate),
            (degenerate, torch.randn(shape)),
        ):
            leaf = binary_map.clone().requires_grad_()
            result = retention_loss(
                [(leaf, leaf)],
                [(reference_map, reference_map)],
                LCR_VARIANTS[name].replace(normalization=normalization),
                START,
            )
            assert torch.isfinite(result.loss)
            assert torch.isfinite(result.sigma_ratios()).all()
            result.loss.backward()
            assert leaf.grad is not None
            assert torch.isfinite(leaf.grad).all()


def test_tiny_reference_maps_make_the_loss_of_the_paper_variant_huge() -> None:
    """Nearly black images cause this (docs/method.md)."""
    real = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 1e-4
    binary, reference = [(real.sign(), real.sign())], [(real, real)]
    assert retention_loss(binary, reference, PAPER, START).loss > 1e27
    assert retention_loss(binary, reference, LcrVariant(), START).loss < 0.1
    black = [(torch.zeros_like(real), torch.zeros_like(real))]
    for variant in (PAPER, LcrVariant()):
        assert retention_loss(binary, black, variant, START).loss == 0  # a reference of 0 sets no target


def test_loss_is_float32_under_autocast() -> None:
    binary = [(a.float(), b.float()) for a, b in draw_pairs(2)]
    reference = [(a.float(), b.float()) for a, b in draw_pairs(2, seed=1)]
    expected = retention_loss(binary, reference, PAPER, START).loss
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(retention_loss(binary, reference, PAPER, START).loss, expected)
        half = [(a.bfloat16(), b.bfloat16()) for a, b in binary]
        loss = retention_loss(half, reference, PAPER, START).loss
    assert loss.dtype == torch.float32


def test_every_allowed_value_has_a_function() -> None:
    tables = {
        "matrix": MATRIX_STACKS, "normalization": NORMALIZATIONS, "power_iteration_init": START_VECTORS,
        "distance": DISTANCES, "coefficient": COEFFICIENTS, "reference": REFERENCES, "granularity": SPAN_FINDERS,
    }  # fmt: skip
    for field, table in tables.items():
        assert set(table) == set(LCR_CHOICES[field])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"matrix": "square"}, "no retention matrix is called 'square'"),
        ({"normalization": None}, "no retention normalization is called None"),
        ({"power_iterations": 0}, "power_iterations must be a whole number of at least 1; got 0"),
        ({"beta": 0.5}, "beta must be a number of at least 1; got 0.5"),
        ({"weight": -1}, "weight .lambda. must be a number of at least 0"),
        ({"lambda_": 1}, "no setting of the LCR loss is called 'lambda_'"),
    ],
)
def test_invalid_variant_is_rejected(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        LcrVariant().replace(**changes)


def test_lists_of_different_length_are_rejected() -> None:
    with pytest.raises(InputError, match="got 2 binary and 1 reference pairs"):
        retention_loss(draw_pairs(2), draw_pairs(1), PAPER, START)
