"""Compare every Triton kernel of lcrbnn/kernels on this GPU with the same computation in float64.

    python -m tools.gpu [--device cuda] [--record results/kernels/h200.json]

It needs no data and prints a line for each task as soon as its result is known. Most of the time goes into compiling
some hundreds of kernel variants, so the tasks run in several processes. The exit code is 1 if an error exceeds its
bound or if a repeated launch gives different bits. tests/kernels runs the same cases in Triton's interpreter on a CPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.errors import InputError
from lcrbnn.kernels import conv, norm
from lcrbnn.kernels.gram import grams, product_parts, products
from lcrbnn.kernels.power import power
from lcrbnn.kernels.support import usable
from lcrbnn.retention.spectral import iterate
from lcrbnn.runs.record import write_record
from lcrbnn.train.numerics import find_device

ROOM = 4  # times the bound: a GPU adds up in another order than the interpreter
AGAIN = 50  # launches of the same, which must give the same bits
SHORT = (torch.float16, torch.bfloat16)

# Input and output channels, height, width, images, stride: odd sides, more pixels than a block, weights not square; the
# last is an image.
CONVOLUTIONS = [
    (16, 16, 8, 8, 3, 1),
    (16, 32, 4, 6, 2, 1),
    (32, 32, 5, 7, 4, 1),
    (64, 64, 3, 3, 2, 1),
    (64, 32, 9, 8, 2, 1),
    (16, 32, 8, 6, 3, 2),
    (32, 16, 4, 10, 2, 2),
    (conv.THIN, 16, 9, 8, 2, 1),
]
# Rows, then the columns of each map: one row, more maps than a launch takes, columns that fill no block, all that one
# program takes, and what takes several, whole and not.
MAPS = [
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
SIZES = [1, 2, 5, 16, 33, 128, 129, 256]  # of matrices
# One pixel more than one, one channel, channels that fill no block, several programs with a last one that is not full.
SHAPES = [(2, 1, 1, 1), (1, 1, 2, 2), (2, 16, 4, 4), (3, 70, 5, 7), (2, 200, 3, 3), (9, 16, 31, 33), (70, 64, 9, 8)]


class Finding(NamedTuple):
    """How far a kernel is off in one case, and how far it may be by rounding alone."""

    case: str
    error: float
    bound: float


Findings = Iterator[Finding]


def multiplied() -> tuple[torch.dtype, ...]:
    """The short types that matrix units take; Triton's interpreter, on a CPU, does not multiply bfloat16."""
    return SHORT if torch.get_default_device().type == "cuda" else SHORT[:1]


def convolutions(cases: Sequence[Any] = CONVOLUTIONS) -> Findings:
    """Output and gradients, over their largest entry; maps stored either way, and short ones as training has them."""
    for cin, cout, h, w, n, stride in cases:
        ways = [(torch.float32, torch.contiguous_format), (torch.float32, torch.channels_last)]
        for dtype, layout in [*ways, *((short, torch.channels_last) for short in multiplied())]:
            x = torch.randn(n, cin, h, w).to(dtype).contiguous(memory_format=layout).requires_grad_(cin != conv.THIN)
            weight = torch.randn(cout, cin, 3, 3).to(dtype).contiguous(memory_format=layout).requires_grad_()
            ours = conv.convolve(x, weight, stride)
            theirs = F.conv2d(x.double(), weight.double(), padding=1, stride=stride)
            g = torch.randn_like(ours)
            wanted = [t for t in (x, weight) if t.requires_grad]
            back = (torch.autograd.grad(ours, wanted, g), torch.autograd.grad(theirs, wanted, g.double()))
            pairs = [(ours.detach(), theirs.detach()), *zip(*back, strict=True)]
            error = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
            yield Finding(f"{cin} to {cout}, stride {stride}, {dtype}, {layout}", error, _bound(dtype, 1e-6))


def matrices(cases: Sequence[Any] = MAPS) -> Findings:
    """Gram matrices and products of two maps, over what rounding may leave of their entries."""
    for rows, columns in cases:
        for dtype in (torch.float32, *multiplied()):
            yield _matrix(f"{rows} x {columns}, {dtype}", [torch.randn(rows, d).to(dtype) for d in columns])
        left, right = ([torch.randn(rows, d).half() for d in columns] for _ in range(2))
        yield _matrix(f"{rows} x {columns}, of two", left, right)


def mixed_matrices() -> Findings:
    """The same for maps of different types and for maps that are views."""
    yield _matrix("mixed types", [torch.randn(9, 50), torch.randn(9, 50).half()])
    types = [torch.float16, torch.float32, torch.float16, torch.float32]
    two = [[torch.randn(9, 50).to(dtype) for dtype in some] for some in (types, types[::-1])]
    yield _matrix("pairs of other types, among pairs of one", [*two[0], two[0][0]], [*two[1], two[0][2]])
    wide = torch.randn(12, 90)
    yield _matrix("a slice, a transpose and a repeated row", [wide[:, 5:70], wide.T[:12], wide[:1].expand(12, -1)])


def exact_products(maps: list[Tensor], others: list[Tensor] | None = None) -> Tensor:
    """What `grams` or `products` should give, in float64."""
    return torch.stack([x.double() @ y.double().T for x, y in zip(maps, others or maps, strict=True)])


def _matrix(case: str, maps: list[Tensor], others: list[Tensor] | None = None) -> Finding:
    got = grams(maps) if others is None else products(maps, others)
    left, right = (torch.stack([x.double().norm(dim=1) for x in some]) for some in (maps, others or maps))
    off = (got - exact_products(maps, others)).abs() / (left[:, :, None] * right[:, None])
    return Finding(case, float(off.max()), 1e-6)


def iterations(cases: Sequence[int] = SIZES) -> Findings:
    """Power iteration: its last two vectors."""
    for n in cases:
        for squared in (False, True):
            for times in (1, 2, 5):
                small, start = torch.randn(3, n, n), torch.randn(3, n)
                got = power(small, start, times, squared)
                want = iterate(small.double(), start.double(), times, squared=squared)
                error = max(float((a - b).abs().max()) for a, b in zip(got, want, strict=True))
                yield Finding(f"{n} x {n}, {times} times{', squared' if squared else ''}", error, 2e-5)


def norms(cases: Sequence[tuple[int, ...]] = SHAPES) -> Findings:
    """Batch norm: the map and its gradient; then what is added up, as gradients of its weights and as statistics."""
    for shape in cases:
        for dtype in (torch.float32, torch.bfloat16):
            x, g = (last(torch.randn(shape).add(shift).to(dtype)) for shift in (7, 0))
            own = [torch.randn(shape[1]) for _ in range(2)]
            seen = [torch.randn(shape[1]), torch.rand(shape[1])]
            exact = [t.double().requires_grad_() for t in (x, *own)]
            running = [t.double() for t in seen]
            wanted = F.batch_norm(
                exact[0], running[0], running[1], exact[1], exact[2], training=True, momentum=0.2, eps=1e-3
            )
            wanted.backward(g.double())
            counts = [norm.counts_for(shape[1], x.device) for _ in range(2)]
            for _ in range(2):  # the second time the counts must be what they were
                moving = [t.clone() for t in seen]
                kept = norm.statistics(x, own[0], own[1], moving[0], moving[1], 1e-3, 0.2, counts[0])
                mine = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, *own)]
                y = norm.normalize(mine[0], mine[1], mine[2], kept, counts[1])
                y.backward(g)
            grads = [(a.grad, b.grad) for a, b in zip(mine, exact, strict=True)]
            of_type = y.dtype == dtype and all(a.grad is not None and a.grad.dtype == a.dtype for a in mine)
            whole = of_type and not any(bool(some.any()) for some in counts)
            maps, sums = [(y, wanted), grads[0]], [*grads[1:], *zip(moving, running, strict=True)]
            for name, pairs, bound in (("map", maps, _bound(dtype, 3e-6)), ("sums", sums, 2e-5)):
                error = max(_off(a, b) for a, b in pairs) if whole else torch.inf
                yield Finding(f"{shape}, {dtype}, {name}", error, bound)


def _off(got: Tensor | None, wanted: Tensor | None) -> float:
    assert got is not None
    assert wanted is not None
    return float((got.detach().double() - wanted.detach()).abs().max() / wanted.detach().abs().max().clamp_min(1.0))


def _bound(dtype: torch.dtype, whole: float) -> float:
    """One rounding to the map's type, or the rounding of a sum in float32."""
    return 5e-3 if dtype in SHORT else whole


def last(x: Tensor) -> Tensor:
    """With its channels last in memory."""
    return x.contiguous(memory_format=torch.channels_last)


class Check(NamedTuple):
    """A function that compares kernels with float64, and its cases; without cases it takes no argument."""

    function: Callable[..., Findings]
    cases: Sequence[Any] = ()

    def parts(self) -> list[Callable[[], Findings]]:
        """One function per case, each a task of its own."""
        if not self.cases:
            return [self.function]
        return [partial(self.function, [case]) for case in self.cases]


CHECKS: dict[str, Check] = {
    "convolution": Check(convolutions, CONVOLUTIONS),
    "matrices": Check(matrices, MAPS),
    "mixed matrices": Check(mixed_matrices),
    "power iteration": Check(iterations, SIZES),
    "batch norm": Check(norms, SHAPES),
}


def repeated_launches(images: int = 128) -> dict[str, Callable[[], Tensor]]:
    """One launch of each kernel, at the sizes of a stage of a network."""
    short = multiplied()[-1]
    x, g = (last(torch.randn(images, 64, 16, 16).to(short)) for _ in range(2))
    weight, maps = torch.randn(64, 64, 3, 3).to(short), [torch.randn(images, 8192).to(short) for _ in range(4)]
    small, start = torch.randn(4, images, images), torch.randn(4, images)
    one, zero, counts = torch.ones(64), torch.zeros(64), norm.counts_for(64, x.device)

    def statistics() -> Tensor:
        return norm.statistics(x, one, zero, zero.clone(), one.clone(), 1e-5, 0.1, counts)

    return {
        "convolution": lambda: conv.convolve(x, weight, 1),
        "its weights' gradient": lambda: conv.convolve_weight(x, g, 1),
        "matrices": lambda: product_parts(maps, []),
        "power iteration": lambda: power(small, start, 5, True)[0],
        "statistics": statistics,
        "coefficients": lambda: norm.coefficients(g, x, statistics(), counts),
    }


def gives_same_bits(launch: Callable[[], Tensor], times: int = AGAIN) -> bool:
    """Whether a kernel gives the same bits each time, whichever of its programs ends last."""
    first = launch()
    return all(torch.equal(launch(), first) for _ in range(times))


class Task(NamedTuple):
    """A case of a check, or, with `repeats`, the repeated launches of one kernel. It can be sent to another process."""

    check: str
    part: int = 0
    repeats: bool = False


def all_tasks() -> list[Task]:
    """Every case of every check, then the repeated launches; the tasks that compile longest come first."""
    cases = [Task(name, part) for name, check in CHECKS.items() for part in range(len(check.parts()))]
    return [*(Task(name, repeats=True) for name in REPEATED), *cases]


REPEATED = ("convolution", "its weights' gradient", "matrices", "power iteration", "statistics", "coefficients")


def run_task(task: Task, device: str) -> list[Finding] | bool:
    """The findings of a case, or whether repeated launches gave the same bits."""
    with find_device(device):
        torch.manual_seed(0)
        if task.repeats:
            return gives_same_bits(repeated_launches()[task.check])
        return list(CHECKS[task.check].parts()[task.part]())


def run_tasks(tasks: Sequence[Task], device: str, processes: int) -> Iterator[tuple[Task, list[Finding] | bool]]:
    """Each task with its result, in the order in which they end. A single process runs them here."""
    if processes == 1:
        for task in tasks:
            yield task, run_task(task, device)
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        running: dict[Future[list[Finding] | bool], Task] = {pool.submit(run_task, t, device): t for t in tasks}
        for future in as_completed(running):
            yield running[future], future.result()


def describe(task: Task, result: list[Finding] | bool) -> str:
    """One line about the result of a task."""
    if isinstance(result, bool):
        return f"{task.check}: {AGAIN} launches {'gave the same bits' if result else 'did NOT give the same bits'}"
    worst = max(result, key=lambda finding: finding.error / finding.bound)
    at_worst = f"{worst.error / worst.bound:.2f} of its bound at worst"
    return f"{task.check}: {len(result)} cases, {at_worst} ({worst.case})"


def main() -> int:
    """Run all tasks, print each result when it is known, write the record; 1 if something is off."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda", help="auto, cpu or cuda")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write all errors and bounds to this file")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="default: one per CPU core"
    )
    args = parser.parse_args()
    start = time.perf_counter()
    try:
        device = find_device(args.device)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    with device:
        if not usable(torch.zeros(1)):
            print(f"no kernel runs on the device {device}: they need an NVIDIA GPU, and Triton", file=sys.stderr)
            return 2
    errors: dict[str, dict[str, list[float]]] = {name: {} for name in CHECKS}
    same_bits: dict[str, bool] = {}
    failures = []
    for task, result in run_tasks(all_tasks(), args.device, args.processes):
        print(describe(task, result), flush=True)
        if isinstance(result, bool):
            same_bits[task.check] = result
            continue
        errors[task.check] |= {finding.case: [finding.error, finding.bound] for finding in result}
        failures += [(task.check, finding) for finding in result if not finding.error <= ROOM * finding.bound]
    for name, finding in failures:
        print(f"off: {name}, {finding.case}: {finding.error:.2g}, at most {ROOM * finding.bound:.2g}")
    seconds = round(time.perf_counter() - start, 1)
    print(f"{sum(map(len, errors.values()))} cases, {len(failures)} beyond their bounds, {seconds} s")
    if args.record is not None:
        figures = {"errors": errors, "same_bits": same_bits, "seconds": seconds}
        write_record(args.record, "kernels", {"room": ROOM, "again": AGAIN}, figures)
    return int(bool(failures) or not all(same_bits.values()))


if __name__ == "__main__":
    sys.exit(main())
