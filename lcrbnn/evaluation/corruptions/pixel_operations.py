"""Pixel operations that give the same bits on every device, such as conversions, shifts, filters and HSV colors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

NEGLIGIBLE_WEIGHT = 1e-12  # filter weights below this value change no pixel


def divide(x: Tensor, divisor: float) -> Tensor:
    """Return x / divisor with a single rounding.

    If the divisor is a Python number, torch on a GPU multiplies by its reciprocal instead. That rounds twice.
    """
    return x / torch.full((), divisor, dtype=x.dtype, device=x.device)


def to_unit_range(images: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return uint8 images as numbers from 0 to 1."""
    return divide(images.to(dtype), 255)


def to_uint8(x: Tensor) -> Tensor:
    """Return numbers from 0 to 1 as uint8 images. Values are clipped, and decimals are cut off."""
    return (x.clamp(0, 1) * 255).to(torch.uint8)


def gather_pixels(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return the pixels of x (n, c, h, w) at these rows and columns, each (n, h', w')."""
    n, c, _, w = x.shape
    flat_index = (row * w + column).reshape(n, 1, -1)
    return x.reshape(n, c, -1).gather(2, flat_index.expand(n, c, -1)).view(n, c, *row.shape[1:])


EdgeRule = Callable[[np.ndarray, int], np.ndarray]


def nearest_index(index: np.ndarray, side: int) -> np.ndarray:
    """Return indices that repeat the pixel at the edge: a a | a b c | c c."""
    return index.clip(0, side - 1)


def symmetric_index(index: np.ndarray, side: int) -> np.ndarray:
    """Return indices that mirror the image at its edge, with the edge pixel repeated: b a | a b c | c b."""
    phase = np.mod(index, 2 * side)
    return np.where(phase < side, phase, 2 * side - 1 - phase)


def reflected_index(index: np.ndarray, side: int) -> np.ndarray:
    """Return indices that mirror the image at its edge, without repeating the edge pixel: c b | a b c | b a."""
    phase = np.mod(index, 2 * side - 2)
    return np.where(phase < side, phase, 2 * side - 2 - phase)


def pad_image(x: Tensor, width: int, edge_rule: EdgeRule) -> Tensor:
    """Return images with `width` more pixels on each side: (..., h, w) -> (..., h + 2 width, w + 2 width)."""
    h, w = x.shape[-2:]
    row, column = (torch.from_numpy(edge_rule(np.arange(-width, side + width), side)).to(x.device) for side in (h, w))
    return x.index_select(-2, row).index_select(-1, column)


def correlate(x: Tensor, kernel: np.ndarray) -> Tensor:
    """Return the cross-correlation of images with a square kernel of odd side, in float64."""
    half_width, (h, w) = len(kernel) // 2, x.shape[-2:]
    padded, total = pad_image(x.double(), half_width, reflected_index), torch.zeros_like(x, dtype=torch.float64)
    for i, j in zip(*np.nonzero(np.abs(kernel) > NEGLIGIBLE_WEIGHT), strict=True):
        shifted = padded[..., i : i + h, j : j + w]
        total += shifted if kernel[i, j] == 1 else shifted * float(kernel[i, j])
    return total


@lru_cache(maxsize=256)
def gaussian_weights(std: float, truncate_stds: float) -> np.ndarray:
    """Return the weights of a Gaussian that is cut off at `truncate_stds` std: float64, odd length, sum 1."""
    half_width = int(truncate_stds * std + 0.5)
    weights = np.exp(-0.5 / (std * std) * np.arange(-half_width, half_width + 1) ** 2)
    return weights / weights.sum()


def gaussian_filter(x: Tensor, std: float) -> Tensor:
    """Return images (..., h, w) after a Gaussian blur. Beyond the edges, the edge pixels are repeated.

    The order of the sums is that of SciPy, so that all bits are equal. For float32 images, the sums are float64. The
    result of each of the two passes is rounded once.
    """
    weights = gaussian_weights(std, 4.0)
    half_width = len(weights) // 2
    for dim in (-2, -1):
        side = x.shape[dim]
        indices = torch.from_numpy(nearest_index(np.arange(-half_width, side + half_width), side)).to(x.device)
        padded = x.double().index_select(dim, indices)
        total = padded.narrow(dim, half_width, side) * float(weights[half_width])
        for distance in range(half_width, 0, -1):
            pair_sum = padded.narrow(dim, half_width - distance, side) + padded.narrow(dim, half_width + distance, side)
            total += pair_sum.mul_(float(weights[half_width - distance]))
        x = total.to(x.dtype)
    return x


def apply_rows_and_columns(x: Tensor, matrix: Tensor) -> Tensor:
    """Return matrix @ x @ matrix.T for images x (n, c, h, w), in float64."""
    return apply_columns(apply_columns(x, matrix).mT, matrix).mT


def apply_columns(x: Tensor, matrix: Tensor) -> Tensor:
    """Return x @ matrix.T for images x (n, c, h, w)."""
    return (x.reshape(-1, x.shape[-1]) @ matrix.T).view(*x.shape[:-1], len(matrix))


def to_tensor_like(array: np.ndarray | Sequence[float], like: Tensor) -> Tensor:
    """Return an array as a tensor on the device of another tensor."""
    return torch.from_numpy(np.asarray(array)).to(like.device)


def rgb_to_hsv(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return hue, saturation and value of RGB images (n, 3, h, w). Each is (n, h, w), from 0 to 1 like the inputs."""
    red, green, blue = x.unbind(1)
    value = x.amax(1)
    chroma = value - x.amin(1)
    is_gray = chroma == 0
    nonzero_chroma = chroma.masked_fill(is_gray, 1.0)
    hue = torch.where(red == value, (green - blue) / nonzero_chroma, 0.0)
    hue = torch.where(green == value, (blue - red) / nonzero_chroma + 2, hue)
    hue = torch.where(blue == value, (red - green) / nonzero_chroma + 4, hue)
    hue = divide(hue, 6)
    hue = torch.where(hue < 0, hue + 1, hue).masked_fill(is_gray, 0.0)
    saturation = (chroma / value.masked_fill(is_gray, 1.0)).masked_fill(is_gray, 0.0)
    return hue, saturation, value


def hsv_to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Return RGB images for this hue, saturation and value. This function is the inverse of rgb_to_hsv."""
    scaled_hue = hue * 6
    sector = torch.floor(scaled_hue)
    fraction = scaled_hue - sector
    dark = value * (1 - saturation)
    falling = value * (1 - fraction * saturation)
    rising = value * (1 - (1 - fraction) * saturation)
    sector_index = (sector.long() % 6)[:, None]
    # For each of the six sectors of the hue: the indices of red, green and blue in (value, rising, falling, dark).
    table = torch.tensor([[0, 1, 3], [2, 0, 3], [3, 0, 1], [3, 2, 0], [1, 3, 0], [0, 3, 2]], device=hue.device)
    candidates = torch.stack([value, rising, falling, dark], 1)
    return candidates.gather(1, table[sector_index[:, 0]].permute(0, 3, 1, 2))
