from __future__ import annotations

import torch

from lcrbnn.nn.kernels.gram import NUM_PARTS, gram_matrices, pairwise_products, product_parts
from tests.nn.kernels.interpreted import assert_interpreted_within_bounds, run_interpreted
from tools.gpu_kernels import check_matrices, compute_exact_products


def compare_with_kernel() -> dict[str, list[str]]:
    """Return, per case, the dtype and whether the result equals that of the kernel bit by bit."""
    torch.manual_seed(0)
    x = torch.randn(128, 300)
    rows = {}
    many_rows = torch.randn(257, 300).half()
    inputs = {
        "suits": x,
        "float64": x.double(),
        "short": many_rows[:256],
        "rows": many_rows,
        "wide rows": many_rows[:129].float(),
    }
    for name, tensor in inputs.items():
        maps, kernel_input = [tensor], tensor.float() if tensor.dtype == torch.float64 else tensor
        same = torch.equal(gram_matrices(maps), product_parts([kernel_input[:256]], []).sum(1))
        rows[name] = [str(gram_matrices(maps).dtype), str(same)]
    y = torch.randn(128, 300).half()
    for name, left in {"pair": x.half(), "pair of two types": x}.items():
        same = torch.equal(pairwise_products([left], [y]), product_parts([x.half()], [y]).sum(1))
        rows[name] = [str(pairwise_products([left], [y]).dtype), str(same)]
    return rows


def test_the_kernel_agrees_with_float64() -> None:
    assert_interpreted_within_bounds(check_matrices)


def test_gram_uses_the_kernel_only_for_supported_inputs() -> None:
    assert run_interpreted(compare_with_kernel) == {
        "suits": ["torch.float32", "True"],
        "float64": ["torch.float64", "False"],
        "short": ["torch.float32", "True"],
        "rows": ["torch.float32", "False"],
        "wide rows": ["torch.float32", "False"],
        "pair": ["torch.float32", "True"],
        "pair of two types": ["torch.float32", "False"],
    }


def test_gram_equals_torch_without_a_gpu() -> None:
    x = torch.randn(6, 50)
    assert torch.equal(gram_matrices([x, 2 * x]), torch.stack([x @ x.T, 4 * (x @ x.T)]))
    assert torch.equal(gram_matrices([x.bfloat16()])[0], x.bfloat16().float() @ x.bfloat16().float().T)
    torch.testing.assert_close(gram_matrices([x.double()]), compute_exact_products([x]), rtol=1e-14, atol=1e-14)
    y = torch.randn(4, 50).half()
    assert torch.equal(pairwise_products([x], [y])[0], x @ y.float().T)


def test_fake_tensors_have_the_shape_of_the_parts() -> None:
    with torch._subclasses.FakeTensorMode():
        parts = product_parts([torch.empty(7, 50, dtype=torch.bfloat16), torch.empty(7, 20, dtype=torch.bfloat16)], [])
    assert parts.shape == (2, NUM_PARTS, 7, 7)
    assert parts.dtype == torch.float32
