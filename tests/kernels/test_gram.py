from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn.kernels.gram import PARTS, grams, product_parts, products
from tests.kernels.interpreted import run_interpreted

# Rows, then the columns of each map: one row, more maps than a launch takes, columns that fill no block, all that one
# program takes, and what takes several, whole and not.
CASES = [
    (1, [1]),
    (2, [7, 40]),
    (5, [64, 1, 130, 2000, 33, 20, 20, 20, 20]),
    (16, [100] * 4),
    (100, [300, 70]),
    (128, [4099] * 3),
    (129, [300]),
    (200, [70, 130]),
    (256, [1030] * 2),
]


def exact(maps: list[Tensor], others: list[Tensor] | None = None) -> Tensor:
    return torch.stack([x.double() @ y.double().T for x, y in zip(maps, others or maps, strict=True)])


def error(maps: list[Tensor], others: list[Tensor] | None = None) -> float:
    """Of the largest entry, over what rounding may leave there."""
    got = grams(maps) if others is None else products(maps, others)
    left, right = (torch.stack([x.double().norm(dim=1) for x in some]) for some in (maps, others or maps))
    return float(((got - exact(maps, others)).abs() / (left[:, :, None] * right[:, None])).max())


def largest_errors() -> dict[str, float]:
    torch.manual_seed(0)
    errors = {}
    for rows, columns in CASES:
        for dtype in (torch.float32, torch.float16):
            errors[f"{rows} {columns} {dtype}"] = error([torch.randn(rows, d).to(dtype) for d in columns])
        others = [torch.randn(rows, d).half() for d in columns]
        errors[f"{rows} {columns} of two"] = error([torch.randn(rows, d).half() for d in columns], others)
    errors["mixed types"] = error([torch.randn(9, 50), torch.randn(9, 50).half()])
    types = [torch.float16, torch.float32, torch.float16, torch.float32]
    two = [[torch.randn(9, 50).to(dtype) for dtype in some] for some in (types, types[::-1])]
    errors["pairs of other types, among pairs of one"] = error([*two[0], two[0][0]], [*two[1], two[0][2]])
    wide = torch.randn(12, 90)
    errors["a slice, a transpose and a repeated row"] = error([wide[:, 5:70], wide.T[:12], wide[:1].expand(12, -1)])
    return errors


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
    for case, error in run_interpreted(largest_errors).items():
        assert error < 1e-6, case


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
    torch.testing.assert_close(grams([x.double()]), exact([x]), rtol=1e-14, atol=1e-14)
    y = torch.randn(4, 50).half()
    assert torch.equal(products([x], [y])[0], x @ y.float().T)


def test_the_compiler_is_told_the_shape_of_the_parts() -> None:
    with torch._subclasses.FakeTensorMode():
        parts = product_parts([torch.empty(7, 50, dtype=torch.bfloat16), torch.empty(7, 20, dtype=torch.bfloat16)], [])
    assert parts.shape == (2, PARTS, 7, 7)
    assert parts.dtype == torch.float32
