"""The norm of a convolution as the linear map that it is, at its true size and stride: an interval that holds it.

From below by Lanczos iteration, which is power iteration that keeps all of its vectors: its value is never under that
of plain power iteration after as many steps, and never over the norm. From above by Fourier transform: a convolution
with zero padding is a part of one on a large enough torus (zeros around the image, some outputs left out), whose norm
is that of small matrices, one a frequency. With a stride s only every s-th output is kept; frequencies that then fall
together form one matrix, so that the bound knows of the stride.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.errors import InputError

STEPS = 300  # of the iteration, at most
LOOK = 5  # steps between two looks at whether it has converged
CLOSE = 1e-6  # residual |A^T A v - s^2 v| / s^2 at which it has converged: the error of s is of its square
SLACK = 1e-9  # by which the upper end is raised against rounding


class Interval(NamedTuple):
    """What a norm lies in; and how the lower end was found."""

    low: float
    high: float
    steps: int = 0
    residual: float = 0.0  # relative; at most CLOSE if the lower end has converged


@dataclass(frozen=True)
class Convolution:
    """y = gain * conv(pad(x)): everything linear between two maps, in double precision."""

    kernel: Tensor  # (out, in / groups, kh, kw)
    gain: Tensor  # broadcasts over (out, h', w'): a scale, a batch norm
    stride: tuple[int, int]
    pads: tuple[int, int, int, int]  # left, right, top, bottom
    dilation: tuple[int, int]
    groups: int
    circular: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """(n, in, h, w) -> (n, out, h', w')."""
        x = F.pad(x, self.pads, mode="circular" if self.circular else "constant")
        return self.gain * F.conv2d(x, self.kernel, None, self.stride, 0, self.dilation, self.groups)


def norm_of(conv: Convolution, shape: tuple[int, int, int], *, seed: int = 0) -> Interval:
    """The norm for inputs of this shape (channels, height, width), from below and from above."""
    low, steps, residual = lower_norm(conv, shape, seed=seed)
    return Interval(low, upper_norm(conv, shape[1:]), steps, residual)


def lower_norm(
    conv: Convolution, shape: tuple[int, int, int], *, steps: int = STEPS, seed: int = 0
) -> tuple[float, int, float]:
    """|A v| of the best unit vector found, the steps it took, and its residual. Never more than the norm."""
    most = min(steps, math.prod(shape))
    start = torch.randn(math.prod(shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    basis = conv.kernel.new_empty(most, len(start))
    basis[0] = start / start.norm()
    diagonal: list[float] = []
    beside: list[float] = []
    top, residual = torch.ones(1, dtype=torch.float64), math.inf
    while len(diagonal) < most:
        count = len(diagonal) + 1
        w = _normal(conv, basis[count - 1].reshape(1, *shape)).flatten()
        diagonal.append((w @ basis[count - 1]).item())
        for _ in range(2):  # once is not enough in floating point
            w = w - (basis[:count] @ w) @ basis[:count]
        beside.append(w.norm().item())
        if count % LOOK == 0 or count == most or beside[-1] <= CLOSE * abs(diagonal[0]):
            top, residual = _top(diagonal, beside)
            if residual <= CLOSE:
                break
        if count < most:
            basis[count] = w / beside[-1]
    best = top.to(basis) @ basis[: len(diagonal)]
    with torch.no_grad():
        found = conv((best / best.norm()).reshape(1, *shape)).norm().item()
    return found, len(diagonal), residual


def _normal(conv: Convolution, x: Tensor) -> Tensor:
    """A^T A x; the transpose is what gradients go through."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = conv(x)
        return torch.autograd.grad(y, x, y.detach())[0]


def _top(diagonal: list[float], beside: list[float]) -> tuple[Tensor, float]:
    """The top eigenvector of A^T A in terms of the basis, and its relative residual."""
    d, b = torch.tensor(diagonal, dtype=torch.float64), torch.tensor(beside[:-1], dtype=torch.float64)
    values, vectors = torch.linalg.eigh(torch.diag(d) + torch.diag(b, 1) + torch.diag(b, -1))
    return vectors[:, -1], abs(beside[-1] * vectors[-1, -1].item()) / max(values[-1].item(), 1e-300)


def upper_norm(conv: Convolution, sides: tuple[int, int]) -> float:
    """The norm on a torus: never less than that with zero padding, exact for circular padding."""
    spread = conv.gain.abs().expand(conv.kernel.shape[0], *conv.gain.shape[1:]).flatten(1).amax(1)
    kernel = conv.kernel * spread.reshape(-1, 1, 1, 1)
    torus = tuple(_torus(conv, axis, sides[axis]) for axis in (0, 1))
    kernel = kernel.unflatten(0, (conv.groups, -1))
    seen = torch.stack([_spectrum(one, conv, torus) for one in kernel]).max().item()
    return seen * (1 + SLACK)


def _torus(conv: Convolution, axis: int, side: int) -> int:
    """Its side: an image and the zeros that a kernel can see around it, so that no two outputs fall on one place."""
    stride = conv.stride[axis]
    if conv.circular:
        reach = conv.dilation[axis] * (conv.kernel.shape[2 + axis] - 1)
        before, after = conv.pads[2 - 2 * axis : 4 - 2 * axis]
        if side % stride or before + after != reach or side <= reach:
            raise InputError("a circular convolution has a bound where its output covers the image once")
        return side
    before, after = conv.pads[2 - 2 * axis : 4 - 2 * axis]
    reach = conv.dilation[axis] * (conv.kernel.shape[2 + axis] - 1)
    least = max(side + max(before, after), side + before + after - reach)
    return -(-least // stride) * stride


def _spectrum(kernel: Tensor, conv: Convolution, torus: tuple[int, ...]) -> Tensor:
    """The largest singular value over all frequencies, of one group (out, in, kh, kw)."""
    out, inside, kh, kw = kernel.shape
    placed = kernel.new_zeros(out, inside, *torus)
    for i in range(kh):  # a torus smaller than the kernel wraps it around
        for j in range(kw):
            placed[:, :, i * conv.dilation[0] % torus[0], j * conv.dilation[1] % torus[1]] += kernel[:, :, i, j]
    seen = torch.fft.fft2(placed)
    (sy, sx), (my, mx) = conv.stride, (torus[0] // conv.stride[0], torus[1] // conv.stride[1])
    # Frequencies f, f + m, f + 2m ... are one after taking every s-th output.
    blocks = seen.reshape(out, inside, sy, my, sx, mx).permute(3, 5, 0, 1, 2, 4).reshape(my * mx, out, -1)
    gram = blocks @ blocks.mH if out <= blocks.shape[2] else blocks.mH @ blocks
    return torch.linalg.eigvalsh(gram)[:, -1].amax().clamp_min(0).sqrt() / math.sqrt(sy * sx)


def matrix_norm(matrix: Tensor) -> Interval:
    """The largest singular value of a matrix, by a full decomposition."""
    value = torch.linalg.matrix_norm(matrix.double(), 2).item()
    return Interval(value, value * (1 + SLACK))
