"""Statements of the paper about matrices and functions that can be checked without a network."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lcrbnn.lcr.spectral_norm import spectral_norm
from lcrbnn.nn import functional as ops


def test_lemma_2_the_gradient_of_half_the_squared_output_is_wt_w_x() -> None:
    weight, bias = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    (0.5 * ((weight @ x + bias) - bias).square().sum()).backward()
    torch.testing.assert_close(x.grad, weight.T @ weight @ x.detach())


def test_eq_3_the_spectral_norm_is_the_largest_gain() -> None:
    weight = torch.randn(5, 8, dtype=torch.float64)
    norm = torch.linalg.matrix_norm(weight, 2)
    x = torch.randn(8, 5000, dtype=torch.float64)
    assert ((weight @ x).norm(dim=0) / x.norm(dim=0)).max() <= norm
    top = torch.linalg.svd(weight)[2][0]
    assert float((weight @ top).norm()) == pytest.approx(float(norm))


def test_the_printed_definition_of_the_spectral_norm_lacks_a_root() -> None:
    weight = torch.randn(5, 8, dtype=torch.float64)
    largest = float(torch.linalg.eigvalsh(weight.T @ weight)[-1])  # what the text before Algorithm 1 calls ||W||_SN
    norm = float(torch.linalg.matrix_norm(weight, 2))  # what Eq. 3 defines
    assert largest == pytest.approx(norm**2)
    assert largest != pytest.approx(norm)


def test_eq_5_the_product_of_spectral_norms_bounds_a_network_of_relus() -> None:
    layers = [torch.randn(16, 16, dtype=torch.float64) / 4 for _ in range(3)]

    def network(x: torch.Tensor) -> torch.Tensor:
        for weight in layers:
            x = torch.relu(x @ weight.T)
        return x

    bound = torch.stack([torch.linalg.matrix_norm(w, 2) for w in layers]).prod()
    x, y = torch.randn(2, 2000, 16, dtype=torch.float64)
    assert ((network(x) - network(y)).norm(dim=1) / (x - y).norm(dim=1)).max() <= bound


def test_eq_14_a_matrix_is_the_sum_of_its_singular_parts() -> None:
    weight = ops.sign(torch.randn(6, 9, dtype=torch.float64))
    u, s, vh = torch.linalg.svd(weight, full_matrices=False)
    torch.testing.assert_close(sum(s[j] * torch.outer(u[:, j], vh[j]) for j in range(6)), weight)


def test_a_binary_weight_matrix_is_dense_and_its_norm_is_computable() -> None:
    """The paper: extremely sparse, and its spectral norm inaccessible."""
    weight = ops.sign(torch.randn(64, 576, dtype=torch.float64))
    assert torch.count_nonzero(weight) == weight.numel()
    value, _ = spectral_norm(weight[None], squared=True)
    truth = float(torch.linalg.matrix_norm(weight, 2))
    assert float(value) == pytest.approx(truth**2, rel=1e-6)
    assert truth == pytest.approx(64**0.5 + 576**0.5, rel=0.05)  # as for any matrix of independent +-1


def test_dividing_by_the_spectral_norm_has_no_effect_before_a_sign_or_a_batch_norm() -> None:
    """Why spectral normalisation fails on binary networks: not sparsity but invariance to scale."""
    weight, x = torch.randn(8, 32, dtype=torch.float64), torch.randn(16, 32, dtype=torch.float64)
    norm = torch.linalg.matrix_norm(weight, 2)
    assert torch.equal(ops.sign(weight), ops.sign(weight / norm))
    batch_norm = nn.BatchNorm1d(8, eps=1e-30, affine=False).double()
    signs = ops.sign(weight)
    plain, divided = (batch_norm(x @ (signs / s).T) for s in (1.0, torch.linalg.matrix_norm(signs, 2)))
    torch.testing.assert_close(plain, divided)


def test_a_batch_norm_has_no_fixed_lipschitz_constant() -> None:
    """Its gain is gamma / sigma of the data: ten times smaller activations, ten times the gain."""
    norm = nn.BatchNorm1d(1, eps=1e-30).double()
    gains = []
    for size in (1.0, 0.1):
        x = (
            size * torch.randn(1000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        ).requires_grad_()
        y = norm(x)
        spread = (y.max() - y.min()) / (x.max() - x.min())
        gains.append(float(spread.detach()))
    assert gains[1] == pytest.approx(10 * gains[0])


def test_the_sign_has_no_finite_lipschitz_constant() -> None:
    x = torch.tensor([-1e-6, 1e-6], dtype=torch.float64)
    y = ops.sign(x)
    assert float((y[1] - y[0]) / (x[1] - x[0])) > 1e5


def test_relu_activations_cannot_be_orthogonal_and_signs_nearly_are() -> None:
    """Eq. 7 asks for inner products near 0; for i.i.d. maps ReLU has a mean cosine of 1/pi, signs of 0."""
    maps = torch.randn(64, 4096, dtype=torch.float64)
    off = ~torch.eye(64, dtype=torch.bool)
    for mapped, mean in ((torch.relu(maps), 1 / torch.pi), (ops.sign(maps), 0.0)):
        unit = mapped / mapped.norm(dim=1, keepdim=True)
        assert float((unit @ unit.T)[off].mean()) == pytest.approx(mean, abs=0.01)


def make_two_layers() -> tuple[torch.Tensor, torch.Tensor]:
    """W1 with the h_i as columns and W2 with a first row of ones, as the supplement's (22) and (23); H of full rank."""
    h = torch.tensor([[2.0, -1.0, 0.5], [0.3, 1.5, -0.7], [-0.4, 0.6, 1.2]], dtype=torch.float64)
    first = torch.zeros(3, 3, dtype=torch.float64)
    first[0] = 1
    return h, first


def test_lemma_1_and_eq_19_the_constant_of_two_layers_is_the_largest_norm_of_a_gradient() -> None:
    w1, w2 = make_two_layers()

    def f(x: torch.Tensor) -> torch.Tensor:
        return w2 @ torch.relu(w1 @ x)

    patterns = torch.tensor(list(product((0.0, 1.0), repeat=3)), dtype=torch.float64)
    slopes = []
    for p in patterns:  # W1 is invertible, so that each pattern is met: there f is linear, and differentiable
        x = torch.linalg.solve(w1, 2 * p - 1)
        gradient = torch.autograd.functional.jacobian(f, x)
        torch.testing.assert_close(gradient, w2 @ torch.diag(p) @ w1)
        slopes.append(float(torch.linalg.matrix_norm(gradient, 2)))
    x, y = torch.randn(2, 3, 5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gains = (f(x) - f(y)).norm(dim=0) / (x - y).norm(dim=0)
    assert 0.9 * max(slopes) < float(gains.max()) <= max(slopes)


def test_eq_24_the_product_has_rank_one_and_its_printed_norm_lacks_a_root() -> None:
    w1, w2 = make_two_layers()
    p = torch.tensor([0.2, 0.9, 0.5], dtype=torch.float64)
    product_matrix = w2 @ torch.diag(p) @ w1
    entries = torch.stack([w1[:, i] @ p for i in range(3)])
    torch.testing.assert_close(product_matrix[0], entries)
    assert torch.count_nonzero(product_matrix[1:]) == 0
    norm, printed = torch.linalg.matrix_norm(product_matrix, 2), entries.square().sum()
    torch.testing.assert_close(norm.square(), printed)  # what (25) maximises
    assert float(norm) != pytest.approx(float(printed))


@pytest.mark.parametrize(
    ("function", "constant"),
    [
        (torch.relu, 1.0),
        (torch.tanh, 1.0),
        (torch.sigmoid, 0.25),
        (lambda x: F.max_pool2d(x, 2), 1.0),
        (lambda x: F.avg_pool2d(x, 2), 0.5),  # the mean of four: |sum| / 4 <= |x| / 2
    ],
    ids=["ReLU", "tanh", "sigmoid", "max pool", "average pool"],
)
def test_activations_and_pools_have_explicit_constants(
    function: Callable[[torch.Tensor], torch.Tensor], constant: float
) -> None:
    source = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 2000, 1, 4, 4, dtype=torch.float64, generator=source)
    gains = (function(x) - function(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
    assert float(gains.max()) <= constant
    near = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    near[..., 0, 0] = 1e-6  # one number alone, or all alike: where each of them is steepest
    alike = torch.full_like(near, 1e-6)
    steepest = max(float((function(d) - function(0 * d)).norm() / d.norm()) for d in (near, alike))
    assert steepest == pytest.approx(constant, rel=1e-6)
