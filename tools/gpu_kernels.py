"""Compare every Triton kernel in lcrbnn/nn/kernels with the same computation in float64, on this GPU.

    python -m tools.gpu_kernels [--device cuda] [--record bench/records/kernels/h200.json]

It needs no data. It prints a line for each task as soon as the result is known. Most of the time is spent on compiling
some hundreds of kernel variants, so the tasks run in several processes. The exit code is 1 if an error exceeds its
bound or if a repeated launch gives other bits. tests/nn/kernels runs the same cases in Triton's CPU interpreter.
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

from lcrbnn.device import can_run_triton, find_device
from lcrbnn.errors import InputError
from lcrbnn.lcr.spectral_norm import power_iterate
from lcrbnn.nn.kernels import batch_norm as norm
from lcrbnn.nn.kernels import conv
from lcrbnn.nn.kernels.gram import gram_matrices, pairwise_products, product_parts
from lcrbnn.nn.kernels.power_iteration import power_iteration
from lcrbnn.runs.record import write_record

# Factor by which the error bounds are larger than in the interpreter, because a GPU adds numbers in another order
BOUND_FACTOR = 4
NUM_REPEATS = 50  # number of repeated launches, which must all give the same bits
HALF_PRECISION_TYPES = (torch.float16, torch.bfloat16)

# (Input channels, output channels, height, width, images, stride). The cases include odd sides, more pixels than a
# block, and different numbers of input and output channels. The last case is an image.
CONVOLUTION_SHAPES = [
    (16, 16, 8, 8, 3, 1),
    (16, 32, 4, 6, 2, 1),
    (32, 32, 5, 7, 4, 1),
    (64, 64, 3, 3, 2, 1),
    (64, 32, 9, 8, 2, 1),
    (16, 32, 8, 6, 3, 2),
    (32, 16, 4, 10, 2, 2),
    (conv.IMAGE_CHANNELS, 16, 9, 8, 2, 1),
]
# (Rows, columns of each map). The cases are: a single row, more maps than one launch takes, columns that do not fill a
# block, the most columns that one program takes, and columns for several programs, with and without a remainder.
MAP_SHAPES = [
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
MATRIX_SIZES = [1, 2, 5, 16, 33, 128, 129, 256]
# Sizes of batch norms: one pixel more than one, a single channel, channels that do not fill a block, and several
# programs of which the last is not full.
BATCH_NORM_SHAPES = [
    (2, 1, 1, 1),
    (1, 1, 2, 2),
    (2, 16, 4, 4),
    (3, 70, 5, 7),
    (2, 200, 3, 3),
    (9, 16, 31, 33),
    (70, 64, 9, 8),
]


class Finding(NamedTuple):
    """The error of a kernel in one case, and the largest error that rounding explains."""

    case: str
    error: float
    bound: float


Findings = Iterator[Finding]


def list_matmul_types() -> tuple[torch.dtype, ...]:
    """Return the half-precision types that matrix units support.

    Triton's interpreter cannot multiply bfloat16 on a CPU.
    """
    return HALF_PRECISION_TYPES if torch.get_default_device().type == "cuda" else HALF_PRECISION_TYPES[:1]


def check_convolutions(cases: Sequence[Any] = CONVOLUTION_SHAPES) -> Findings:
    """Compare outputs and gradients of convolutions in both memory formats.

    Errors are relative to the largest entry.
    """
    for cin, cout, h, w, n, stride in cases:
        variants = [(torch.float32, torch.contiguous_format), (torch.float32, torch.channels_last)]
        for dtype, layout in [*variants, *((short, torch.channels_last) for short in list_matmul_types())]:
            x = (
                torch.randn(n, cin, h, w)
                .to(dtype)
                .contiguous(memory_format=layout)
                .requires_grad_(cin != conv.IMAGE_CHANNELS)
            )
            weight = torch.randn(cout, cin, 3, 3).to(dtype).contiguous(memory_format=layout).requires_grad_()
            output = conv.convolve(x, weight, stride)
            exact = F.conv2d(x.double(), weight.double(), padding=1, stride=stride)
            g = torch.randn_like(output)
            inputs = [t for t in (x, weight) if t.requires_grad]
            gradients = (torch.autograd.grad(output, inputs, g), torch.autograd.grad(exact, inputs, g.double()))
            pairs = [(output.detach(), exact.detach()), *zip(*gradients, strict=True)]
            error = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
            yield Finding(f"{cin} to {cout}, stride {stride}, {dtype}, {layout}", error, _choose_bound(dtype, 1e-6))


def check_matrices(cases: Sequence[Any] = MAP_SHAPES) -> Findings:
    """Compare Gram matrices and products of two maps. Errors are relative to the lengths of the rows."""
    for rows, columns in cases:
        for dtype in (torch.float32, *list_matmul_types()):
            yield _compare_matrices(f"{rows} x {columns}, {dtype}", [torch.randn(rows, d).to(dtype) for d in columns])
        left, right = ([torch.randn(rows, d).half() for d in columns] for _ in range(2))
        yield _compare_matrices(f"{rows} x {columns}, of two", left, right)


def check_mixed_matrices() -> Findings:
    """Compare Gram matrices and products, for maps of different types and for maps that are views."""
    yield _compare_matrices("mixed types", [torch.randn(9, 50), torch.randn(9, 50).half()])
    types = [torch.float16, torch.float32, torch.float16, torch.float32]
    maps = [[torch.randn(9, 50).to(dtype) for dtype in dtypes] for dtypes in (types, types[::-1])]
    yield _compare_matrices("pairs of other types, among pairs of one", [*maps[0], maps[0][0]], [*maps[1], maps[0][2]])
    matrix = torch.randn(12, 90)
    yield _compare_matrices(
        "a slice, a transpose and a repeated row", [matrix[:, 5:70], matrix.T[:12], matrix[:1].expand(12, -1)]
    )


def compute_exact_products(left_maps: list[Tensor], right_maps: list[Tensor] | None = None) -> Tensor:
    """Return the exact result of `gram_matrices` or `pairwise_products` in float64."""
    return torch.stack([x.double() @ y.double().T for x, y in zip(left_maps, right_maps or left_maps, strict=True)])


def _compare_matrices(case: str, maps: list[Tensor], right_maps: list[Tensor] | None = None) -> Finding:
    result = gram_matrices(maps) if right_maps is None else pairwise_products(maps, right_maps)
    left, right = (
        torch.stack([x.double().norm(dim=1) for x in maps_of_side]) for maps_of_side in (maps, right_maps or maps)
    )
    errors = (result - compute_exact_products(maps, right_maps)).abs() / (left[:, :, None] * right[:, None])
    return Finding(case, float(errors.max()), 1e-6)


def check_iterations(cases: Sequence[int] = MATRIX_SIZES) -> Findings:
    """Compare the last two vectors of the power iteration with those in float64."""
    for n in cases:
        for squared in (False, True):
            for num_iterations in (1, 2, 5):
                matrices, start = torch.randn(3, n, n), torch.randn(3, n)
                result = power_iteration(matrices, start, num_iterations, squared)
                expected = power_iterate(matrices.double(), start.double(), num_iterations, squared=squared)
                error = max(float((a - b).abs().max()) for a, b in zip(result, expected, strict=True))
                yield Finding(f"{n} x {n}, {num_iterations} times{', squared' if squared else ''}", error, 2e-5)


def check_norms(cases: Sequence[tuple[int, ...]] = BATCH_NORM_SHAPES) -> Findings:
    """Compare the output, the gradients and the running statistics of batch norm with float64."""
    for shape in cases:
        for dtype in (torch.float32, torch.bfloat16):
            x, g = (to_channels_last(torch.randn(shape).add(shift).to(dtype)) for shift in (7, 0))
            affine = [torch.randn(shape[1]) for _ in range(2)]
            statistics = [torch.randn(shape[1]), torch.rand(shape[1])]
            exact = [t.double().requires_grad_() for t in (x, *affine)]
            running = [t.double() for t in statistics]
            expected = F.batch_norm(
                exact[0], running[0], running[1], exact[1], exact[2], training=True, momentum=0.2, eps=1e-3
            )
            expected.backward(g.double())
            counters = [norm.make_arrival_counters(shape[1], x.device) for _ in range(2)]
            for _ in range(2):  # the second launch shows whether the first one has reset the counters
                running_copy = [t.clone() for t in statistics]
                batch_statistics = norm.forward_statistics(
                    x, affine[0], affine[1], running_copy[0], running_copy[1], 1e-3, 0.2, counters[0]
                )
                leaves = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, *affine)]
                y = norm.normalize(leaves[0], leaves[1], leaves[2], batch_statistics, counters[1])
                y.backward(g)
            grads = [(a.grad, b.grad) for a, b in zip(leaves, exact, strict=True)]
            has_right_types = y.dtype == dtype and all(a.grad is not None and a.grad.dtype == a.dtype for a in leaves)
            is_valid = has_right_types and not any(bool(counter.any()) for counter in counters)
            maps, sums = [(y, expected), grads[0]], [*grads[1:], *zip(running_copy, running, strict=True)]
            for name, pairs, bound in (("map", maps, _choose_bound(dtype, 3e-6)), ("sums", sums, 2e-5)):
                error = max(_relative_error(a, b) for a, b in pairs) if is_valid else torch.inf
                yield Finding(f"{shape}, {dtype}, {name}", error, bound)


def _relative_error(result: Tensor | None, expected: Tensor | None) -> float:
    assert result is not None
    assert expected is not None
    return float(
        (result.detach().double() - expected.detach()).abs().max() / expected.detach().abs().max().clamp_min(1.0)
    )


def _choose_bound(dtype: torch.dtype, float32_bound: float) -> float:
    """Return the error bound: that of one rounding to the type of the map, or of a sum in float32."""
    return 5e-3 if dtype in HALF_PRECISION_TYPES else float32_bound


def to_channels_last(x: Tensor) -> Tensor:
    """Return the tensor in channels-last memory format."""
    return x.contiguous(memory_format=torch.channels_last)


class Check(NamedTuple):
    """A function that compares kernels with float64, and its cases. If there are no cases, it takes no argument."""

    function: Callable[..., Findings]
    cases: Sequence[Any] = ()

    def split_cases(self) -> list[Callable[[], Findings]]:
        """Return one function per case. Each function is a separate task."""
        if not self.cases:
            return [self.function]
        return [partial(self.function, [case]) for case in self.cases]


CHECKS: dict[str, Check] = {
    "convolution": Check(check_convolutions, CONVOLUTION_SHAPES),
    "matrices": Check(check_matrices, MAP_SHAPES),
    "mixed matrices": Check(check_mixed_matrices),
    "power iteration": Check(check_iterations, MATRIX_SIZES),
    "batch norm": Check(check_norms, BATCH_NORM_SHAPES),
}


def make_repeated_launches(images: int = 128) -> dict[str, Callable[[], Tensor]]:
    """Return functions that launch each kernel once. The sizes are those of a network stage."""
    dtype = list_matmul_types()[-1]
    x, g = (to_channels_last(torch.randn(images, 64, 16, 16).to(dtype)) for _ in range(2))
    weight, maps = torch.randn(64, 64, 3, 3).to(dtype), [torch.randn(images, 8192).to(dtype) for _ in range(4)]
    matrices, start = torch.randn(4, images, images), torch.randn(4, images)
    ones, zeros, counters = torch.ones(64), torch.zeros(64), norm.make_arrival_counters(64, x.device)

    def statistics() -> Tensor:
        return norm.forward_statistics(x, ones, zeros, zeros.clone(), ones.clone(), 1e-5, 0.1, counters)

    return {
        "convolution": lambda: conv.convolve(x, weight, 1),
        "its weights' gradient": lambda: conv.convolve_weight(x, g, 1),
        "matrices": lambda: product_parts(maps, []),
        "power iteration": lambda: power_iteration(matrices, start, 5, True)[0],
        "statistics": statistics,
        "coefficients": lambda: norm.backward_coefficients(g, x, statistics(), counters),
    }


def gives_same_bits(launch: Callable[[], Tensor], num_repeats: int = NUM_REPEATS) -> bool:
    """Return whether a kernel gives the same bits each time, although other programs of it may end last."""
    first = launch()
    return all(torch.equal(launch(), first) for _ in range(num_repeats))


class Task(NamedTuple):
    """A case of a check or, if `is_repeated`, the repeated launches of one kernel.

    Tasks can be sent to other processes.
    """

    check: str
    case_index: int = 0
    is_repeated: bool = False


def list_tasks() -> list[Task]:
    """Return all tasks. The repeated launches come first, because compiling them takes longest."""
    cases = [Task(name, part) for name, check in CHECKS.items() for part in range(len(check.split_cases()))]
    return [*(Task(name, is_repeated=True) for name in REPEATED_KERNELS), *cases]


REPEATED_KERNELS = ("convolution", "its weights' gradient", "matrices", "power iteration", "statistics", "coefficients")


def run_task(task: Task, device: str) -> list[Finding] | bool:
    """Return the findings of a case. For repeated launches, return whether all of them gave the same bits."""
    with find_device(device):
        torch.manual_seed(0)
        if task.is_repeated:
            return gives_same_bits(make_repeated_launches()[task.check])
        return list(CHECKS[task.check].split_cases()[task.case_index]())


def run_tasks(tasks: Sequence[Task], device: str, processes: int) -> Iterator[tuple[Task, list[Finding] | bool]]:
    """Yield each task with its result as soon as it is known. With one process, no other process is started."""
    if processes == 1:
        for task in tasks:
            yield task, run_task(task, device)
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        running: dict[Future[list[Finding] | bool], Task] = {pool.submit(run_task, t, device): t for t in tasks}
        for future in as_completed(running):
            yield running[future], future.result()


def describe_result(task: Task, result: list[Finding] | bool) -> str:
    """Return one line about the result of a task."""
    if isinstance(result, bool):
        return (
            f"{task.check}: {NUM_REPEATS} launches {'gave the same bits' if result else 'did NOT give the same bits'}"
        )
    worst = max(result, key=lambda finding: finding.error / finding.bound)
    at_worst = f"{worst.error / worst.bound:.2f} of its bound at worst"
    return f"{task.check}: {len(result)} cases, {at_worst} ({worst.case})"


def main() -> int:
    """Run all tasks, print each result and write the record. Return 1 if a kernel fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda", help="device that runs the kernels: auto, cpu or cuda")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write all errors and bounds to this file")
    parser.add_argument(
        "--processes",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="number of parallel processes (default: number of CPU cores)",
    )
    args = parser.parse_args()
    start = time.perf_counter()
    try:
        device = find_device(args.device)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    with device:
        if not can_run_triton(torch.zeros(1)):
            print(f"no kernel runs on the device {device}: they need an NVIDIA GPU, and Triton", file=sys.stderr)
            return 2
    errors: dict[str, dict[str, list[float]]] = {name: {} for name in CHECKS}
    same_bits: dict[str, bool] = {}
    failures = []
    for task, result in run_tasks(list_tasks(), args.device, args.processes):
        print(describe_result(task, result), flush=True)
        if isinstance(result, bool):
            same_bits[task.check] = result
            continue
        errors[task.check] |= {finding.case: [finding.error, finding.bound] for finding in result}
        failures += [(task.check, finding) for finding in result if not finding.error <= BOUND_FACTOR * finding.bound]
    for name, finding in failures:
        print(f"off: {name}, {finding.case}: {finding.error:.2g}, at most {BOUND_FACTOR * finding.bound:.2g}")
    seconds = round(time.perf_counter() - start, 1)
    print(f"{sum(map(len, errors.values()))} cases, {len(failures)} beyond their bounds, {seconds} s")
    if args.record is not None:
        figures = {"errors": errors, "same_bits": same_bits, "seconds": seconds}
        write_record(args.record, "kernels", {"room": BOUND_FACTOR, "again": NUM_REPEATS}, figures)
    return int(bool(failures) or not all(same_bits.values()))


if __name__ == "__main__":
    sys.exit(main())
