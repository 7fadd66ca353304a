from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.kernels.norm import coefficients, counts_for, normalize, statistics, takes_norm
from tests.kernels.interpreted import run_interpreted

# One pixel more than one, one channel, channels that fill no block, several programs with a last one that is not full.
SHAPES = [(2, 1, 1, 1), (1, 1, 2, 2), (2, 16, 4, 4), (3, 70, 5, 7), (2, 200, 3, 3), (9, 16, 31, 33), (70, 64, 9, 8)]


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def error(got: Tensor | None, wanted: Tensor | None) -> float:
    assert got is not None
    assert wanted is not None
    return float((got.double() - wanted).abs().max() / wanted.abs().max().clamp_min(1.0))


def errors() -> dict[str, list[float]]:
    """Of the map, its gradient, those of weight and bias, and the running statistics, against float64."""
    torch.manual_seed(0)
    found = {}
    for shape in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            x, g = (last(torch.randn(shape).add(shift).to(dtype)) for shift in (7, 0))
            own = [torch.randn(shape[1]) for _ in range(2)]
            seen = [torch.randn(shape[1]), torch.rand(shape[1])]
            exact = [t.double().requires_grad_() for t in (x, *own)]
            running = [t.double() for t in seen]
            wanted = F.batch_norm(exact[0], *running, *exact[1:], training=True, momentum=0.2, eps=1e-3)
            wanted.backward(g.double())
            ahead, back = (counts_for(shape[1], x.device) for _ in range(2))
            for _ in range(2):  # the second time the counts must be what they were
                moving = [t.clone() for t in seen]
                kept = statistics(x, *own, *moving, 1e-3, 0.2, ahead)
                mine = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, *own)]
                y = normalize(*mine, kept, back)
                y.backward(g)
            pairs = [(y, wanted), *((a.grad, b.grad) for a, b in zip(mine, exact, strict=True))]
            pairs += zip(moving, running, strict=True)
            assert y.dtype == mine[0].grad.dtype == dtype
            assert not ahead.any()
            assert not back.any()
            found[f"{shape} {dtype}"] = [error(a.detach(), b.detach()) for a, b in pairs]
    return found


def test_batch_norm_by_the_kernels_agrees_with_float64() -> None:
    for case, found in run_interpreted(errors).items():
        y, gx, *sums = found
        short = "bfloat16" in case
        assert max(y, gx) < (5e-3 if short else 3e-6), case  # one rounding to the map's type
        assert max(sums) < 2e-5, case


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
        found[str(shape)] = error(1 / kept[3], deviation)
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
