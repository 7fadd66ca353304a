from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn.kernels.norm import coefficients, counts_for, statistics, takes_norm
from tests.kernels.interpreted import check_interpreted, run_interpreted
from tools.gpu import last, norms


def test_batch_norm_by_the_kernels_agrees_with_float64() -> None:
    check_interpreted(norms)


def far_off() -> dict[str, float]:
    """A mean a thousand times the deviation, in sums of one program and of many."""
    torch.manual_seed(0)
    found = {}
    for shape in ((2, 16, 3, 3), (70, 16, 9, 80)):
        x = last(torch.randn(shape) + 1000)
        kept = statistics(
            x, torch.ones(16), torch.zeros(16), torch.zeros(16), torch.ones(16), 0.0, 0.1, counts_for(16, x.device)
        )
        deviation = x.double().std(dim=(0, 2, 3), correction=0)
        found[str(shape)] = float((1 / kept[3] - deviation).abs().max())
    return found


def test_nothing_cancels_where_the_mean_is_far_from_0() -> None:
    for case, found in run_interpreted(far_off).items():
        assert found < 1e-4, case


def taken() -> dict[str, bool]:
    x = torch.zeros(4, 8, 5, 5)
    return {
        "channels last": takes_norm(last(x)),
        "channels first": takes_norm(x),
        "one row": takes_norm(last(x[:1, :, :1, :1])),
        "a table": takes_norm(x[:, :, 0, 0]),
        "float64": takes_norm(last(x.double())),
    }


def test_what_the_kernels_take() -> None:
    assert run_interpreted(taken) == {
        "channels last": True,
        "channels first": False,
        "one row": False,
        "a table": False,
        "float64": False,
    }
    assert not takes_norm(last(torch.zeros(4, 8, 5, 5)))  # on a CPU


def test_compilers_are_told_the_right_shapes() -> None:
    x = last(torch.zeros(2, 5, 3, 3))
    mean, variance = torch.zeros(5), torch.ones(5)
    given = (x, mean, variance, mean.clone(), variance.clone(), 1e-5, 0.1, counts_for(5, x.device))
    with torch._subclasses.FakeTensorMode() as fake:
        there = [fake.from_tensor(t) if isinstance(t, Tensor) else t for t in given]
        kept = statistics(*there)
        assert (kept.shape, kept.dtype) == ((4, 5), torch.float32)
        found = coefficients(there[0], there[0], kept, there[-1])
        assert (found.shape, found.dtype) == ((4, 5), torch.float32)
