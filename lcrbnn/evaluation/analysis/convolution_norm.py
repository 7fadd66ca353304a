"""Lower and upper bound of the spectral norm of a convolution as a linear map. Input size and stride are included.

The lower bound comes from Lanczos iteration. It is power iteration that keeps all of its vectors. After the same number
of steps, its result is at least as large as that of power iteration. It never exceeds the norm.

The upper bound comes from the Fourier transform. A convolution with zero padding is a part of a circular convolution on
a torus that is large enough: there are zeros around the image, and some outputs are left out. The norm of the circular
convolution is the largest norm of small matrices, one per frequency. With a stride s, only every s-th output is kept,
so s frequencies per axis coincide. Their matrices form one larger matrix, which takes the stride into account.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.errors import InputError

MAX_LANCZOS_STEPS = 300
STEPS_BETWEEN_CHECKS = 5  # number of Lanczos steps between two checks of convergence
CONVERGED_RESIDUAL = 1e-6  # Limit of |A^T A v - s^2 v| / s^2. The relative error of s is proportional to its square.
# The upper bound is increased by this fraction, so that rounding errors cannot make it too small.
ROUNDING_MARGIN = 1e-9


class NormInterval(NamedTuple):
    """Lower and upper bound of a norm. The number of steps and the residual describe the lower bound."""

    low: float
    high: float
    steps: int = 0
    residual: float = 0.0  # relative residual; it is at most CONVERGED_RESIDUAL if the lower bound has converged


@dataclass(frozen=True)
class Convolution:
    """The linear map y = gain * conv(pad(x)), in double precision."""

    kernel: Tensor  # weights of the convolution, (out, in / groups, kh, kw)
    gain: Tensor  # output scale, or factors of a batch norm; the gain broadcasts to (out, h', w')
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]  # number of padded pixels at the left, right, top and bottom
    dilation: tuple[int, int]
    groups: int
    is_circular: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the linear map to (n, in, h, w), which gives (n, out, h', w')."""
        x = F.pad(x, self.padding, mode="circular" if self.is_circular else "constant")
        return self.gain * F.conv2d(x, self.kernel, None, self.stride, 0, self.dilation, self.groups)


def bound_norm(conv: Convolution, shape: tuple[int, int, int]) -> NormInterval:
    """Return bounds of the norm for inputs of this shape (channels, height, width)."""
    low, steps, residual = bound_norm_below(conv, shape)
    return NormInterval(low, bound_norm_above(conv, shape[1:]), steps, residual)


def bound_norm_below(
    conv: Convolution, shape: tuple[int, int, int], *, steps: int = MAX_LANCZOS_STEPS
) -> tuple[float, int, float]:
    """Return a lower bound of the norm, the number of Lanczos steps, and the residual.

    The lower bound is |A v| for the best unit vector v that Lanczos iteration finds.
    """
    max_steps = min(steps, math.prod(shape))
    start = torch.randn(math.prod(shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    basis = conv.kernel.new_empty(max_steps, len(start))
    basis[0] = start / start.norm()
    diagonal: list[float] = []
    # Lanczos iteration builds an orthonormal basis in which A^T A is a tridiagonal matrix. The top eigenvector of that
    # small matrix gives the best vector v in the space of the basis.
    off_diagonal: list[float] = []
    top_eigenvector, residual = torch.ones(1, dtype=torch.float64), math.inf
    while len(diagonal) < max_steps:
        count = len(diagonal) + 1
        w = _apply_gram(conv, basis[count - 1].reshape(1, *shape)).flatten()
        diagonal.append((w @ basis[count - 1]).item())
        for _ in range(2):  # In floating point, orthogonalizing once is not enough.
            w = w - (basis[:count] @ w) @ basis[:count]
        off_diagonal.append(w.norm().item())
        if (
            count % STEPS_BETWEEN_CHECKS == 0
            or count == max_steps
            or off_diagonal[-1] <= CONVERGED_RESIDUAL * abs(diagonal[0])
        ):
            top_eigenvector, residual = _top_eigenvector(diagonal, off_diagonal)
            if residual <= CONVERGED_RESIDUAL:
                break
        if count < max_steps:
            basis[count] = w / off_diagonal[-1]
    singular_vector = top_eigenvector.to(basis) @ basis[: len(diagonal)]
    with torch.no_grad():
        norm = conv((singular_vector / singular_vector.norm()).reshape(1, *shape)).norm().item()
    return norm, len(diagonal), residual


def _apply_gram(conv: Convolution, x: Tensor) -> Tensor:
    """Return A^T A x. The multiplication by A^T is the backward pass of A."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = conv(x)
        return torch.autograd.grad(y, x, y.detach())[0]


def _top_eigenvector(diagonal: list[float], off_diagonal: list[float]) -> tuple[Tensor, float]:
    """Return the eigenvector of the tridiagonal matrix with the largest eigenvalue, and its relative residual."""
    main_diagonal = torch.tensor(diagonal, dtype=torch.float64)
    side_diagonal = torch.tensor(off_diagonal[:-1], dtype=torch.float64)
    values, vectors = torch.linalg.eigh(
        torch.diag(main_diagonal) + torch.diag(side_diagonal, 1) + torch.diag(side_diagonal, -1)
    )
    return vectors[:, -1], abs(off_diagonal[-1] * vectors[-1, -1].item()) / max(values[-1].item(), 1e-300)


def bound_norm_above(conv: Convolution, image_size: tuple[int, int]) -> float:
    """Return the norm of the circular convolution on a torus.

    It is an upper bound for zero padding, and exact for circular padding.
    """
    max_gains = conv.gain.abs().expand(conv.kernel.shape[0], *conv.gain.shape[1:]).flatten(1).amax(1)
    kernel = conv.kernel * max_gains.reshape(-1, 1, 1, 1)
    torus_size = tuple(_torus_side(conv, axis, image_size[axis]) for axis in (0, 1))
    kernel = kernel.unflatten(0, (conv.groups, -1))
    norm = torch.stack([_max_singular_value(group_kernel, conv, torus_size) for group_kernel in kernel]).max().item()
    return norm * (1 + ROUNDING_MARGIN)


def _torus_side(conv: Convolution, axis: int, side: int) -> int:
    """Return the side length of the torus.

    It is a multiple of the stride, and so large that no two outputs coincide.
    """
    stride = conv.stride[axis]
    before, after = conv.padding[2 - 2 * axis : 4 - 2 * axis]
    kernel_reach = conv.dilation[axis] * (conv.kernel.shape[2 + axis] - 1)
    if conv.is_circular:
        if side % stride or before + after != kernel_reach or side <= kernel_reach:
            raise InputError("a circular convolution has a bound only if its output covers the image exactly once")
        return side
    min_side = max(side + max(before, after), side + before + after - kernel_reach)
    return -(-min_side // stride) * stride


def _max_singular_value(kernel: Tensor, conv: Convolution, torus_size: tuple[int, ...]) -> Tensor:
    """Return the largest singular value over all frequencies for the kernel of one group, (out, in, kh, kw)."""
    out_channels, in_channels, kh, kw = kernel.shape
    padded_kernel = kernel.new_zeros(out_channels, in_channels, *torus_size)
    for i in range(kh):
        # The indices are modulo the side of the torus, so a kernel larger than the torus wraps around.
        for j in range(kw):
            y, x = i * conv.dilation[0] % torus_size[0], j * conv.dilation[1] % torus_size[1]
            padded_kernel[:, :, y, x] += kernel[:, :, i, j]
    spectrum = torch.fft.fft2(padded_kernel)
    (sy, sx), (my, mx) = conv.stride, (torus_size[0] // conv.stride[0], torus_size[1] // conv.stride[1])
    # If only every s-th output is kept, the frequencies f, f + m, f + 2m, ... coincide (m = side of the torus / s).
    blocks = spectrum.reshape(out_channels, in_channels, sy, my, sx, mx).permute(3, 5, 0, 1, 2, 4)
    blocks = blocks.reshape(my * mx, out_channels, -1)
    gram = blocks @ blocks.mH if out_channels <= blocks.shape[2] else blocks.mH @ blocks
    return torch.linalg.eigvalsh(gram)[:, -1].amax().clamp_min(0).sqrt() / math.sqrt(sy * sx)


def exact_matrix_norm(matrix: Tensor) -> NormInterval:
    """Return the largest singular value of a matrix, computed with a full decomposition."""
    value = torch.linalg.matrix_norm(matrix.double(), 2).item()
    return NormInterval(value, value * (1 + ROUNDING_MARGIN))
