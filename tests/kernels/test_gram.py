from __future__ import annotations

import torch

from lcrbnn.kernels.gram import PARTS, grams, product_parts, products
from tests.kernels.interpreted import check_interpreted, run_interpreted
from tools.gpu import exact_products, matrices


def chosen() -> dict[str, list[str]]:
    """Type and whether the answer is the kernel's, bit by bit."""
    torch.manual_seed(0)
    x = torch.randn(128, 300)
    rows = {}
    more = torch.randn(257, 300).half()
    given = {"suits": x, "float64": x.double(), "short": more[:256], "rows": more, "wide rows": more[:129].float()}
    for name, one in given.items():
        maps, taken = [one], one.float() if one.dtype == torch.float64 else one
        same = torch.equal(grams(maps), product_parts([taken[:256]], []).sum(1))
        rows[name] = [str(grams(maps).dtype), str(same)]
    y = torch.randn(128, 300).half()
    for name, left in {"pair": x.half(), "pair of two types": x}.items():
        same = torch.equal(products([left], [y]), product_parts([x.half()], [y]).sum(1))
        rows[name] = [str(products([left], [y]).dtype), str(same)]
    return rows


def test_the_kernel_agrees_with_float64() -> None:
    check_interpreted(matrices)


def test_only_what_the_kernel_can_do_goes_to_it() -> None:
    assert run_interpreted(chosen) == {
        "suits": ["torch.float32", "True"],
        "float64": ["torch.float64", "False"],
        "short": ["torch.float32", "True"],
        "rows": ["torch.float32", "False"],
        "wide rows": ["torch.float32", "False"],
        "pair": ["torch.float32", "True"],
        "pair of two types": ["torch.float32", "False"],
    }


def test_without_a_gpu_torch_does_it() -> None:
    x = torch.randn(6, 50)
    assert torch.equal(grams([x, 2 * x]), torch.stack([x @ x.T, 4 * (x @ x.T)]))
    assert torch.equal(grams([x.bfloat16()])[0], x.bfloat16().float() @ x.bfloat16().float().T)
    torch.testing.assert_close(grams([x.double()]), exact_products([x]), rtol=1e-14, atol=1e-14)
    y = torch.randn(4, 50).half()
    assert torch.equal(products([x], [y])[0], x @ y.float().T)


def test_the_compiler_is_told_the_shape_of_the_parts() -> None:
    with torch._subclasses.FakeTensorMode():
        parts = product_parts([torch.empty(7, 50, dtype=torch.bfloat16), torch.empty(7, 20, dtype=torch.bfloat16)], [])
    assert parts.shape == (2, PARTS, 7, 7)
    assert parts.dtype == torch.float32
