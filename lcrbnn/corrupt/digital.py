"""Digital: contrast, elastic deformation, coarse pixels, JPEG, saturation."""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from lcrbnn.corrupt.colors import from_hsv, to_hsv
from lcrbnn.corrupt.pixels import (
    apply_columns,
    apply_rows_and_columns,
    at,
    gaussian_weights,
    levels,
    mirrored,
    on,
    over,
    unit,
)
from lcrbnn.corrupt.source import Source
from lcrbnn.data.decode import open_picture, pixels

FIXED = 22  # bits of the fraction in Pillow's weights


def contrast(images: Tensor, kept: float) -> Tensor:
    """Each channel nearer to its mean."""
    x = unit(images)
    mean = images.long().sum((2, 3), keepdim=True).double()
    mean = over(over(mean, 255), images[0, 0].numel())
    return levels((x - mean) * kept + mean)


def saturate(images: Tensor, constant: tuple[float, float]) -> Tensor:
    """Saturation multiplied and raised."""
    factor, more = constant
    hue, saturation, value = to_hsv(unit(images))
    return levels(from_hsv(hue, (saturation * factor + more).clamp(0, 1), value))


def jpeg_compression(images: Tensor, quality: int) -> Tensor:
    """Through a JPEG file: Pillow, an image at a time, on the CPU."""
    from PIL import Image

    made = []
    for picture in images.permute(0, 2, 3, 1).cpu().numpy():
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "JPEG", quality=quality)
        made.append(np.asarray(pixels(open_picture(file.getvalue()))))
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).contiguous().to(images.device)


# -- pixelate --------------------------------------------------------------------------------------------------------


def pixelate(images: Tensor, share: float) -> Tensor:
    """Made smaller and large again by Pillow's box filter: columns, then rows, rounded after each."""
    x, side = images.double(), images.shape[-1]
    small = int(side * share)
    for before, after in ((side, small), (small, side)):
        matrix = on(box_matrix(before, after), images)
        for _ in range(2):
            # whole numbers below 2^53: exact in any order
            x = torch.floor((apply_columns(x, matrix) + 2 ** (FIXED - 1)) / 2**FIXED).clamp(0, 255).mT
    return x.to(torch.uint8)


@lru_cache(maxsize=64)
def box_matrix(before: int, after: int) -> np.ndarray:
    """(after, before): the weights of Pillow's box filter as whole numbers, of which 2^FIXED stands for 1."""
    scale = before / after
    wide = max(scale, 1.0)
    matrix = np.zeros((after, before))
    for i in range(after):
        center = (i + 0.5) * scale
        low, high = max(int(center - wide / 2 + 0.5), 0), min(int(center + wide / 2 + 0.5), before)
        place = (np.arange(low, high) - center + 0.5) / wide
        weights = ((place > -0.5) & (place <= 0.5)).astype(np.float64)
        matrix[i, low:high] = np.floor(weights / weights.sum() * 2**FIXED + 0.5)
    return matrix


# -- elastic ---------------------------------------------------------------------------------------------------------

Elastic = tuple[float, float, float]  # pixels of the deformation, deviation of its smoothing, pixels of the affine part


def draw_elastic(source: Source, images: Tensor, constant: Elastic) -> tuple[Tensor, Tensor]:
    """The moves (n, 3, 2), x then y, of three points; and a field (n, 2, h, w) from -1 to 1, x then y."""
    reach = constant[2]
    return source.uniform(3, 2) * (2 * reach) - reach, source.uniform(2, *images.shape[-2:]) * 2 - 1


def elastic_transform(images: Tensor, constant: Elastic, points: Tensor, field: Tensor) -> Tensor:
    """Bent by an affine map that moves three points, then by a smooth random field."""
    amount, sigma, _ = constant
    side = images.shape[-1]
    x = _affine(unit(images, torch.float32), points)
    if sigma > 0:
        field = apply_rows_and_columns(field, on(_smoothing(side, sigma), images))
    field = (field * amount).float().double()
    line = torch.arange(side, device=images.device)
    column, row = field[:, 0] + line, field[:, 1] + line[:, None]
    return levels(_between(x, row, column))


@lru_cache(maxsize=32)
def _smoothing(side: int, sigma: float) -> np.ndarray:
    """(side, side): a Gaussian of three deviations on a line whose ends are mirrored."""
    weights = gaussian_weights(sigma, 3.0)
    reach = len(weights) // 2
    matrix = np.zeros((side, side))
    for i in range(side):
        np.add.at(matrix[i], mirrored(np.arange(i - reach, i + reach + 1), side), weights)
    return matrix


def _between(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """float32 (n, c, h, w) at places between the pixels, by straight interpolation; mirrored beyond the edges."""
    side = x.shape[-1]
    top, left = torch.floor(row), torch.floor(column)
    down, right = (row - top)[:, None], (column - left)[:, None]

    def inside(place: Tensor) -> Tensor:
        turn = place.long().remainder(2 * side)
        return torch.minimum(turn, 2 * side - 1 - turn)

    total = torch.zeros_like(x, dtype=torch.float64)
    for i, vertical in ((0, 1 - down), (1, down)):
        for j, horizontal in ((0, 1 - right), (1, right)):
            total += at(x, inside(top + i), inside(left + j)).double() * vertical * horizontal
    return total.float()


def _affine(x: Tensor, points: Tensor) -> Tensor:
    """OpenCV's affine map (before version 5): places rounded to 1/32 of a pixel, borders mirrored without the edge."""
    side = x.shape[-1]
    middle, reach = side // 2, side // 3
    high, low = middle + reach, middle - reach
    before = torch.tensor([[high, high], [high, low], [low, low]], dtype=torch.float32, device=x.device)
    after = (before + points.float()).double()
    ahead = torch.stack([after[:, 1] - after[:, 2], after[:, 0] - after[:, 1]], 2)
    ahead = over(ahead, high - low)  # (n, xy, xy)
    start = after[:, 2] - (ahead[:, :, 0] + ahead[:, :, 1]) * low
    a, b, c, d = ahead[:, 0, 0], ahead[:, 0, 1], ahead[:, 1, 0], ahead[:, 1, 1]
    size = a * d - b * c
    back = torch.stack([d / size, -b / size, -c / size, a / size], 1)  # the map from the result to the image
    x0 = -(back[:, 0] * start[:, 0] + back[:, 1] * start[:, 1])
    y0 = -(back[:, 2] * start[:, 0] + back[:, 3] * start[:, 1])
    line = torch.arange(side, device=x.device)

    def places(along: Tensor, across: Tensor, first: Tensor) -> Tensor:
        """In 1/32 of a pixel, (n, h, w)."""
        columns = torch.round(along[:, None] * line * 1024).long()
        rows = torch.round((across[:, None] * line + first[:, None]) * 1024).long() + 16
        return (rows[:, :, None] + columns[:, None]) >> 5

    column, row = places(back[:, 0], back[:, 1], x0), places(back[:, 2], back[:, 3], y0)

    def inside(place: Tensor) -> Tensor:
        turn = place.remainder(2 * side - 2)
        return torch.minimum(turn, 2 * side - 2 - turn)

    down, right = ((p & 31)[:, None].float() / 32 for p in (row, column))
    total = torch.zeros_like(x)
    for i, vertical in ((0, 1 - down), (1, down)):
        for j, horizontal in ((0, 1 - right), (1, right)):
            total = total + at(x, inside((row >> 5) + i), inside((column >> 5) + j)) * (vertical * horizontal)
    return total
