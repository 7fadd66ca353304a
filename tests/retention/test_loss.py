"""L_Lip by hand, its gradient against the calculus, and the published code's numbers."""

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
from lcrbnn.retention import PRESETS, Form, retention_loss
from lcrbnn.retention.form import CHOICES
from lcrbnn.retention.loss import COEFFICIENTS, DISTANCES, STARTS, Pair, quantization_error, spectral_norms, weighted
from lcrbnn.retention.matrix import MATRICES, NORMALIZATIONS
from lcrbnn.retention.regularizer import REFERENCES
from lcrbnn.retention.spans import SPANS
from lcrbnn.retention.spectral import random_start

START = random_start(64)
PAPER = PRESETS["paper"]


def pairs(count: int, *, grad: bool = False, seed: int = 0) -> list[Pair]:
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        return torch.randn(6, 4, 3, 3, generator=generator, dtype=torch.float64).requires_grad_(grad)

    return [(draw(), draw()) for _ in range(count)]


# ---------------------------------------------------------------------------------------------------------------
# Values.


def test_eq_11_by_hand() -> None:
    ours = [torch.tensor([v]) for v in (3.0, 1.0, 6.0)]
    theirs = [torch.tensor([v]) for v in (2.0, 4.0, 4.0)]
    # L = 4, beta = 2: [(1.5 - 1) / 8]^2 + [(0.25 - 1) / 4]^2 + [(1.5 - 1) / 2]^2
    assert float(weighted(ours, theirs, PAPER)) == pytest.approx(0.0625**2 + 0.1875**2 + 0.25**2)
    assert float(weighted(ours, theirs, PAPER.but(beta=1.0))) == pytest.approx(0.25 + 0.5625 + 0.25)


def test_the_last_term_weighs_a_quarter() -> None:
    one, two = [torch.tensor([1.0])], [torch.tensor([2.0])]
    assert float(weighted(two, one, PAPER)) == pytest.approx(0.25)


def test_the_logarithm_of_the_ratio_by_hand() -> None:
    ours = [torch.tensor([v]) for v in (3.0, 1.0, 0.0)]
    theirs = [torch.tensor([v]) for v in (1.0, 2.0, 0.0)]  # a reference of 0 has a ratio of 1
    expected = (math.log(3) / 8) ** 2 + (math.log(2) / 4) ** 2
    assert float(weighted(ours, theirs, PAPER.but(distance="log"))) == pytest.approx(expected)


def test_below_leaves_alone_what_is_larger_than_its_reference() -> None:
    ours = [torch.tensor([v], requires_grad=True) for v in (3.0, 1.0, 6.0)]
    theirs = [torch.tensor([v]) for v in (2.0, 4.0, 4.0)]
    loss = weighted(ours, theirs, PAPER.but(distance="below"))
    slopes = [float(slope) for slope in torch.autograd.grad(loss, ours)]
    assert float(loss.detach()) == pytest.approx(0.1875**2)  # of the three above, the second alone
    assert slopes == [0, pytest.approx(-2 * 0.1875 / 16), 0]  # upwards, as the printed Eq. 13 always pushes


def test_the_official_distance_by_hand() -> None:
    ours = [torch.tensor([3.0, 1.0]), torch.tensor([2.0, 2.0])]
    theirs = [torch.tensor([1.0, 1.0]), torch.tensor([2.0, 5.0])]
    # means of squares 2 and 4.5, over 2^(L - k) = 4 and 2
    assert float(weighted(ours, theirs, PRESETS["official"])) == pytest.approx(2 / 4 + 4.5 / 2)


def test_coefficients_are_eq_12s_and_the_official_codes() -> None:
    assert COEFFICIENTS["half"](128) == 0.5
    assert 8 * COEFFICIENTS["batch"](200) == pytest.approx(4e-6)


def test_a_network_that_equals_its_reference_loses_nothing() -> None:
    maps = pairs(3, grad=True)  # the binary side goes through the differentiable product, the reference does not
    for form in PRESETS.values():
        assert float(retention_loss(maps, maps, form, START).loss.detach()) == pytest.approx(0, abs=1e-18)


def test_the_order_of_a_batch_does_not_matter_to_converged_norms() -> None:
    maps = pairs(2)
    order = torch.randperm(6)
    shuffled = [(a[order], b[order]) for a, b in maps]
    form = PAPER.but(iterations=300)
    for one, other in zip(spectral_norms(maps, form, START), spectral_norms(shuffled, form, START), strict=True):
        torch.testing.assert_close(one, other)


def test_eq_8_equals_the_squared_norm_of_the_cross_correlation() -> None:
    maps = pairs(2)
    for sigma, (a, b) in zip(spectral_norms(maps, PAPER.but(iterations=300), START), maps, strict=True):
        g = a.flatten(1) @ b.flatten(1).T
        assert float(sigma) == pytest.approx(float(torch.linalg.matrix_norm(g, 2) ** 2))


def test_norms_of_channel_matrices_are_the_same_together_and_alone() -> None:
    """Of one height and width, with other numbers of channels before or after."""
    sizes = [(4, 6), (4, 5), (3, 6), (4, 6)]
    maps = [tuple(torch.randn(2, c, 3, 3, dtype=torch.float64) for c in pair) for pair in sizes]
    form = PRESETS["official"].but(iterations=5)
    for sigma, pair in zip(spectral_norms(maps, form, START), maps, strict=True):
        torch.testing.assert_close(sigma, spectral_norms([pair], form, START)[0])


def test_ratios_carry_no_gradient_and_are_1_where_the_reference_is_0() -> None:
    ours, theirs = pairs(2, grad=True), pairs(2, seed=1)
    theirs[0] = (torch.zeros_like(theirs[0][0]), torch.zeros_like(theirs[0][1]))
    found = retention_loss(ours, theirs, PAPER, START)
    ratios = found.ratios()
    assert found.loss.requires_grad
    assert not ratios.requires_grad
    assert ratios.tolist() == [1, pytest.approx(float(found.binary[1].detach() / found.reference[1]))]


def test_the_quantisation_error_by_hand() -> None:
    w = torch.tensor([[1.0, -3.0], [0.5, 0.5]], requires_grad=True)
    loss = quantization_error([w])  # alpha 2 and 0.5: residuals -1, -1 and 0, 0
    assert loss.item() == pytest.approx(2.0)
    loss.backward()
    assert w.grad is not None
    torch.testing.assert_close(w.grad, torch.tensor([[-2.0, -2.0], [0.0, 0.0]]))


# ---------------------------------------------------------------------------------------------------------------
# Theorem 1 and what the retention matrix says of the weights.


def orthonormal(d: int, n: int) -> Tensor:
    return torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0][:, :n]


def sigma(matrix: str, a: Tensor, b: Tensor) -> float:
    """Of a batch with samples in columns, as the paper writes it."""
    (value,) = spectral_norms([(a.T, b.T)], PAPER.but(matrix=matrix, iterations=2000), START)
    return float(value)


def test_theorem_1_holds_for_a_full_orthonormal_batch() -> None:
    d = 24
    weight, a = torch.randn(d, d, dtype=torch.float64), orthonormal(d, d)
    truth = float(torch.linalg.matrix_norm(weight, 2) ** 2)
    for matrix in ("batch", "square"):  # Eq. 8 and Eq. 9 coincide when A A^T = I
        assert sigma(matrix, a, weight @ a) == pytest.approx(truth, rel=1e-6)


def test_theorem_1_fails_for_fewer_samples_than_dimensions_and_only_bounds_from_below() -> None:
    # Orthonormal columns give A^T A = I, not the A A^T = I that the step from Eq. 8 to 9 needs.
    d, n = 64, 16
    weight, a = torch.randn(d, d, dtype=torch.float64), orthonormal(d, n)
    truth = float(torch.linalg.matrix_norm(weight, 2) ** 2)
    eq8, eq9 = sigma("batch", a, weight @ a), sigma("square", a, weight @ a)
    assert eq8 < eq9 < truth
    assert eq8 < 0.5 * truth


def test_a_raw_retention_matrix_grows_with_the_fourth_power_of_activations() -> None:
    a, weight = torch.randn(16, 16, dtype=torch.float64), torch.randn(16, 16, dtype=torch.float64)
    assert sigma("batch", 2 * a, weight @ (2 * a)) == pytest.approx(16 * sigma("batch", a, weight @ a))


# ---------------------------------------------------------------------------------------------------------------
# Gradients.


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("distance", DISTANCES)
def test_gradients_of_converged_norms_pass_finite_differences(matrix: str, normalization: str, distance: str) -> None:
    form = Form(matrix=matrix, normalization=normalization, distance=distance, iterations=150, root=distance == "mse")
    generator = torch.Generator().manual_seed(0)
    front = torch.randn(3, 2, 2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    back = torch.randn(3, 2, 2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    reference = [
        (torch.randn(3, 2, 2, 2, generator=generator).double(), torch.randn(3, 2, 2, 2, generator=generator).double())
    ]
    assert torch.autograd.gradcheck(
        lambda f, b: retention_loss([(f, b)], reference, form, START).loss, (front, back), atol=1e-5, rtol=1e-3
    )


def test_gradient_flows_to_the_binary_maps_only() -> None:
    ours, theirs = pairs(2, grad=True), pairs(2, grad=True, seed=1)
    retention_loss(ours, theirs, PAPER, START).loss.backward()
    assert all(t.grad is not None and t.grad.abs().sum() > 0 for pair in ours for t in pair)
    assert all(t.grad is None for pair in theirs for t in pair)


def test_the_derivative_of_a_spectral_norm_is_u1_v1_transposed() -> None:
    weight = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    u, s, vh = torch.linalg.svd(weight.detach())
    torch.linalg.matrix_norm(weight, 2).backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, torch.outer(u[:, 0], vh[0]))  # u1 v1^T; the supplement also prints v1 u1^T
    # Through a retention matrix over a full orthonormal batch: d sigma_1(W)^2 = 2 sigma_1 u1 v1^T.
    again = weight.detach().requires_grad_()
    a = orthonormal(7, 7)
    (value,) = spectral_norms([(a.T, (again @ a).T)], PAPER.but(matrix="square", iterations=3000), START)
    value.backward()
    assert again.grad is not None
    torch.testing.assert_close(again.grad, 2 * s[0] * torch.outer(u[:, 0], vh[0]), atol=1e-8, rtol=1e-6)


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
    # The package's own loss, with these norms for its spectral norms, has the true gradient.
    own = weight.detach().requires_grad_()
    norms = [torch.linalg.matrix_norm(own, 2)[None]], [torch.tensor([f], dtype=torch.float64)]
    (COEFFICIENTS["half"](1) * weighted(*norms, PAPER)).backward()
    torch.testing.assert_close(own.grad, true)
    direction = float((weight.grad * printed).sum())
    assert (direction > 0) == (size < 1)  # same way below the reference, the opposite way above it
    assert not torch.allclose(weight.grad, printed)


# ---------------------------------------------------------------------------------------------------------------
# The published code.


@pytest.fixture(scope="module")
def official() -> Mapping[str, np.ndarray]:
    with np.load(Path(__file__).parents[1] / "golden" / "lcr-official.npz") as stored:
        return dict(stored)


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize(("case", "stages"), [("a", 4), ("b", 3)])
def test_the_official_form_is_the_published_loss(
    official: Mapping[str, np.ndarray], case: str, stages: int, kind: str
) -> None:
    dtype = torch.float32 if kind == "f32" else torch.float64
    student = [torch.from_numpy(official[f"{case}_student_{i}"]).to(dtype).requires_grad_() for i in range(stages)]
    teacher = [torch.from_numpy(official[f"{case}_teacher_{i}"]).to(dtype) for i in range(stages)]
    retained = retention_loss(
        list(itertools.pairwise(student)), list(itertools.pairwise(teacher)), PRESETS["official"], START
    )
    exact = 1e-5 if kind == "f32" else 1e-11
    assert float(retained.loss.detach()) == pytest.approx(float(official[f"{case}_loss_{kind}"]), rel=exact)
    for name, values in (("student", retained.binary), ("teacher", retained.reference)):
        np.testing.assert_allclose(
            torch.stack(values).detach().numpy(), official[f"{case}_eig_{name}_{kind}"], rtol=exact
        )
    retained.loss.backward()
    for i, maps in enumerate(student):
        expected = official[f"{case}_grad_{i}_{kind}"]
        assert maps.grad is not None
        assert np.abs(maps.grad.numpy() - expected).max() <= 2 * exact * max(np.abs(expected).max(), 1e-30)


# ---------------------------------------------------------------------------------------------------------------
# Degenerate maps, precision, mistakes.


@pytest.mark.parametrize("name", PRESETS)
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
        for ours, theirs in (
            (degenerate, degenerate),
            (torch.randn(shape), degenerate),
            (degenerate, torch.randn(shape)),
        ):
            maps = ours.clone().requires_grad_()
            retained = retention_loss(
                [(maps, maps)], [(theirs, theirs)], PRESETS[name].but(normalization=normalization), START
            )
            assert torch.isfinite(retained.loss)
            assert torch.isfinite(retained.ratios()).all()
            retained.loss.backward()
            assert maps.grad is not None
            assert torch.isfinite(maps.grad).all()


def test_the_paper_form_has_no_guard_against_a_tiny_reference_and_the_default_needs_none() -> None:
    """What nearly black images do; docs/method.md tells."""
    real = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 1e-4
    ours, theirs = [(real.sign(), real.sign())], [(real, real)]
    assert retention_loss(ours, theirs, PAPER, START).loss > 1e27
    assert retention_loss(ours, theirs, Form(), START).loss < 0.1
    black = [(torch.zeros_like(real), torch.zeros_like(real))]
    for form in (PAPER, Form()):
        assert retention_loss(ours, black, form, START).loss == 0  # a reference of 0 sets no target


def test_autocast_does_not_reach_the_loss() -> None:
    ours = [(a.float(), b.float()) for a, b in pairs(2)]
    theirs = [(a.float(), b.float()) for a, b in pairs(2, seed=1)]
    plain = retention_loss(ours, theirs, PAPER, START).loss
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(retention_loss(ours, theirs, PAPER, START).loss, plain)
        half = [(a.bfloat16(), b.bfloat16()) for a, b in ours]
        loss = retention_loss(half, theirs, PAPER, START).loss
    assert loss.dtype == torch.float32


def test_every_choice_has_its_row_of_code() -> None:
    tables = {
        "matrix": MATRICES, "normalization": NORMALIZATIONS, "start": STARTS, "distance": DISTANCES,
        "coefficient": COEFFICIENTS, "reference": REFERENCES, "spans": SPANS,
    }  # fmt: skip
    for field, table in tables.items():
        assert set(table) == set(CHOICES[field])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"matrix": "gram"}, "no retention matrix is called 'gram'; there are batch, square, channel"),
        ({"normalization": None}, "no retention normalization is called None"),
        ({"iterations": 0}, "iterations must be a whole number of at least 1; got 0"),
        ({"beta": 0.5}, "beta must be a number of at least 1; got 0.5"),
        ({"weight": -1}, "weight .lambda. must be a number of at least 0"),
        ({"lambda_": 1}, "no setting of the retention loss is called 'lambda_'; there are matrix"),
    ],
)
def test_a_mistaken_form_is_answered_with_a_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Form().but(**changes)


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(InputError, match="as many reference as binary maps, and some; got 1 and 2"):
        retention_loss(pairs(2), pairs(1), PAPER, START)
