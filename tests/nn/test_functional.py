from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch._dynamo.testing
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import lcrbnn
from lcrbnn.nn import functional as ops


def test_sign_of_zero_is_plus_one() -> None:
    assert ops.sign(torch.tensor([0.0, -0.0, -1e-30, 1e-30, -2.0, 2.0])).tolist() == [1, 1, -1, 1, -1, 1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_sign_and_gradient_keep_the_dtype(dtype: torch.dtype) -> None:
    x = torch.tensor([-0.5, 0.0], dtype=dtype, requires_grad=True)
    y = ops.surrogate_sign(x, ops.approx_sign_slope)
    assert y.dtype == dtype
    assert ops.sign(x).dtype == dtype
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype


@given(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=20))
def test_signs_are_exactly_plus_or_minus_one(values: list[float]) -> None:
    y = ops.surrogate_sign(torch.tensor(values), ops.closed_clip_slope)
    assert [float(v) for v in y] == [-1.0 if v < 0 else 1.0 for v in values]


# Values computed by hand from the published formulas.
SLOPES = [
    (ops.identity_slope, None, None, {-2.0: 1, 0.0: 1, 2.0: 1}),
    (ops.closed_clip_slope, None, None, {-1.5: 0, -1.0: 1, 0.0: 1, 1.0: 1, 1.5: 0}),
    (ops.open_clip_slope, None, None, {-1.5: 0, -1.0: 0, 0.0: 1, 0.9: 1, 1.0: 0}),
    (ops.approx_sign_slope, None, None, {-1.0: 0, -0.5: 1, 0.0: 2, 0.25: 1.5, 1.5: 0}),
    (ops.tanh_slope, 2.0, 3.0, {0.0: 6.0, 0.5: 6 * (1 - math.tanh(1.0) ** 2)}),
    (
        ops.tent_slope,
        2.0,
        3.0,
        {0.0: 6 * math.sqrt(2), 0.5: 3 * (2 * math.sqrt(2) - 2), 1.0: 0.0, -0.5: 3 * (2 * math.sqrt(2) - 2)},
    ),
]


@pytest.mark.parametrize(("slope", "p", "q", "table"), SLOPES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_slope_has_its_published_values(
    slope: ops.SlopeFunction, p: float | None, q: float | None, table: dict[float, float]
) -> None:
    x = torch.tensor(list(table), dtype=torch.float64, requires_grad=True)
    parameters = [None if v is None else torch.tensor(v, dtype=torch.float64) for v in (p, q)]
    ops.surrogate_sign(x, slope, *parameters).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.tensor(list(table.values()), dtype=torch.float64))


# ---------------------------------------------------------------------------------------------------------------
# torch.func and torch.compile support every function with a surrogate gradient.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "surrogate": lambda x: ops.surrogate_sign(x, ops.approx_sign_slope),
    "state": lambda x: ops.surrogate_sign(x, ops.tanh_slope, x.new_full((), 2.0), x.new_full((), 3.0)),
    "dressed": lambda x: ops.soft_sign(x, torch.tanh(x)),
    "slowed": lambda x: ops.scale_gradient(x, 4),
}


def sum_of_squares(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return ((function(x) + 0.5 * x) ** 2).sum()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_func_gradients_per_row_equal_those_of_backward(name: str) -> None:
    x = torch.linspace(-1.5, 1.5, 12).reshape(3, 4).requires_grad_()
    sum_of_squares(FUNCTIONS[name], x).backward()
    row_gradients = vmap(grad(lambda row: sum_of_squares(FUNCTIONS[name], row)))(x.detach())
    torch.testing.assert_close(row_gradients, x.grad)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # raised inside torch.compile
def test_each_function_compiles_into_one_graph_with_the_same_gradient(name: str) -> None:
    torch._dynamo.reset()
    x = torch.linspace(-1.5, 1.5, 12).requires_grad_()
    sum_of_squares(FUNCTIONS[name], x).backward()
    expected, x.grad = x.grad, None
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    torch.compile(lambda x: sum_of_squares(FUNCTIONS[name], x), fullgraph=True, backend=counter)(x).backward()
    assert counter.frame_count == 1
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("method", ["bnn", "irnet", "reactnet", "adabin"])
def test_per_sample_gradients_of_a_binary_network_equal_single_sample_gradients(method: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Hardtanh(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 2))
    lcrbnn.binarize(model, method).eval()
    images, labels = torch.randn(3, 3, 8, 8), torch.tensor([0, 1, 0])
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, weights, (image[None],)), label[None])

    per_sample_gradients = vmap(grad(loss), (None, 0, 0))(weights, images, labels)
    for i in range(3):
        model.zero_grad()
        nn.functional.cross_entropy(model(images[i : i + 1]), labels[i : i + 1]).backward()
        for name, p in model.named_parameters():
            torch.testing.assert_close(per_sample_gradients[name][i], torch.zeros_like(p) if p.grad is None else p.grad)
