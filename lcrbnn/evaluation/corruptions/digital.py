"""Digital corruptions, which are contrast, elastic deformation, pixelation, JPEG compression and saturation."""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from lcrbnn.data.image_files.decode import decode_rgb, open_image
from lcrbnn.evaluation.corruptions.counter_random import ImageRandom
from lcrbnn.evaluation.corruptions.pixel_operations import (
    apply_columns,
    apply_rows_and_columns,
    divide,
    gather_pixels,
    gaussian_weights,
    hsv_to_rgb,
    rgb_to_hsv,
    symmetric_index,
    to_tensor_like,
    to_uint8,
    to_unit_range,
)

PILLOW_FRACTION_BITS = 22  # number of fractional bits in Pillow's resampling weights


def contrast(images: Tensor, factor: float) -> Tensor:
    """Return images whose pixels are moved towards the mean of their channel."""
    x = to_unit_range(images)
    mean = images.long().sum((2, 3), keepdim=True).double()
    mean = divide(divide(mean, 255), images[0, 0].numel())
    return to_uint8((x - mean) * factor + mean)


def saturate(images: Tensor, parameters: tuple[float, float]) -> Tensor:
    """Return images with another saturation, which is multiplied by a factor and increased by an offset."""
    factor, offset = parameters
    hue, saturation, value = rgb_to_hsv(to_unit_range(images))
    return to_uint8(hsv_to_rgb(hue, (saturation * factor + offset).clamp(0, 1), value))


def jpeg_compression(images: Tensor, quality: int) -> Tensor:
    """Return images after JPEG compression. Pillow compresses them on the CPU, one image at a time."""
    from PIL import Image

    decoded_images = []
    for pixels in images.permute(0, 2, 3, 1).cpu().numpy():
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
        decoded_images.append(np.asarray(decode_rgb(open_image(buffer.getvalue()))))
    return torch.from_numpy(np.stack(decoded_images)).permute(0, 3, 1, 2).contiguous().to(images.device)


# -- pixelate --------------------------------------------------------------------------------------------------------


def pixelate(images: Tensor, scale: float) -> Tensor:
    """Return images made smaller and then larger again with Pillow's box filter.

    The filter runs along columns, then along rows, and rounds after each.
    """
    x, side = images.double(), images.shape[-1]
    small_side = int(side * scale)
    for old_side, new_side in ((side, small_side), (small_side, side)):
        matrix = to_tensor_like(box_matrix(old_side, new_side), images)
        for _ in range(2):
            # All numbers are integers below 2^53. So float64 sums are exact in any order.
            x = (
                torch.floor((apply_columns(x, matrix) + 2 ** (PILLOW_FRACTION_BITS - 1)) / 2**PILLOW_FRACTION_BITS)
                .clamp(0, 255)
                .mT
            )
    return x.to(torch.uint8)


@lru_cache(maxsize=64)
def box_matrix(old_side: int, new_side: int) -> np.ndarray:
    """Return the integer weights (new_side, old_side) of Pillow's box filter, in units of 2^-PILLOW_FRACTION_BITS."""
    scale = old_side / new_side
    box_width = max(scale, 1.0)
    matrix = np.zeros((new_side, old_side))
    for i in range(new_side):
        center = (i + 0.5) * scale
        low, high = max(int(center - box_width / 2 + 0.5), 0), min(int(center + box_width / 2 + 0.5), old_side)
        relative_positions = (np.arange(low, high) - center + 0.5) / box_width
        weights = ((relative_positions > -0.5) & (relative_positions <= 0.5)).astype(np.float64)
        matrix[i, low:high] = np.floor(weights / weights.sum() * 2**PILLOW_FRACTION_BITS + 0.5)
    return matrix


# -- elastic ---------------------------------------------------------------------------------------------------------

ElasticParameters = tuple[
    float, float, float
]  # amplitude of the field in pixels, standard deviation of its smoothing, largest shift of the points


def draw_elastic(rng: ImageRandom, images: Tensor, parameters: ElasticParameters) -> tuple[Tensor, Tensor]:
    """Return random shifts of three points (n, 3, 2) and a random field from -1 to 1 (n, 2, h, w). x comes before y."""
    max_shift = parameters[2]
    return rng.uniform(3, 2) * (2 * max_shift) - max_shift, rng.uniform(2, *images.shape[-2:]) * 2 - 1


def elastic_transform(images: Tensor, parameters: ElasticParameters, point_shifts: Tensor, field: Tensor) -> Tensor:
    """Return images that are deformed by an affine map, which shifts three points, and by a smooth random field."""
    amount, std, _ = parameters
    side = images.shape[-1]
    x = _apply_affine(to_unit_range(images, torch.float32), point_shifts)
    if std > 0:
        field = apply_rows_and_columns(field, to_tensor_like(_smoothing_matrix(side, std), images))
    field = (field * amount).float().double()
    coordinates = torch.arange(side, device=images.device)
    column, row = field[:, 0] + coordinates, field[:, 1] + coordinates[:, None]
    return to_uint8(_interpolate_pixels(x, row, column))


@lru_cache(maxsize=32)
def _smoothing_matrix(side: int, std: float) -> np.ndarray:
    """Return the matrix (side, side) of a Gaussian filter that ends at three std and mirrors the image at its edges."""
    weights = gaussian_weights(std, 3.0)
    half_width = len(weights) // 2
    matrix = np.zeros((side, side))
    for i in range(side):
        np.add.at(matrix[i], symmetric_index(np.arange(i - half_width, i + half_width + 1), side), weights)
    return matrix


def _interpolate_pixels(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return float32 pixels (n, c, h, w) at fractional positions. Interpolation is bilinear, edges are mirrored."""
    side = x.shape[-1]
    top, left = torch.floor(row), torch.floor(column)
    fraction_y, fraction_x = (row - top)[:, None], (column - left)[:, None]

    def mirror(position: Tensor) -> Tensor:
        phase = position.long().remainder(2 * side)
        return torch.minimum(phase, 2 * side - 1 - phase)

    total = torch.zeros_like(x, dtype=torch.float64)
    for i, vertical in ((0, 1 - fraction_y), (1, fraction_y)):
        for j, horizontal in ((0, 1 - fraction_x), (1, fraction_x)):
            total += gather_pixels(x, mirror(top + i), mirror(left + j)).double() * vertical * horizontal
    return total.float()


def _apply_affine(x: Tensor, point_shifts: Tensor) -> Tensor:
    """Return images after an affine map, computed as in OpenCV before version 5.

    OpenCV rounds positions to 1/32 of a pixel. It reflects the image at its edges, without repeating the edge pixel.
    """
    side = x.shape[-1]
    middle, third = side // 2, side // 3
    high, low = middle + third, middle - third
    source_points = torch.tensor([[high, high], [high, low], [low, low]], dtype=torch.float32, device=x.device)
    target_points = (source_points + point_shifts.float()).double()
    forward_matrix = torch.stack(
        [target_points[:, 1] - target_points[:, 2], target_points[:, 0] - target_points[:, 1]], 2
    )
    # Affine matrix (n, xy, xy) from input positions to output positions
    forward_matrix = divide(forward_matrix, high - low)
    forward_shift = target_points[:, 2] - (forward_matrix[:, :, 0] + forward_matrix[:, :, 1]) * low
    a, b, c, d = forward_matrix[:, 0, 0], forward_matrix[:, 0, 1], forward_matrix[:, 1, 0], forward_matrix[:, 1, 1]
    determinant = a * d - b * c
    inverse_matrix = torch.stack(
        [d / determinant, -b / determinant, -c / determinant, a / determinant], 1
    )  # affine map from output positions to input positions
    x0 = -(inverse_matrix[:, 0] * forward_shift[:, 0] + inverse_matrix[:, 1] * forward_shift[:, 1])
    y0 = -(inverse_matrix[:, 2] * forward_shift[:, 0] + inverse_matrix[:, 3] * forward_shift[:, 1])
    coordinates = torch.arange(side, device=x.device)

    def compute_positions(along: Tensor, across: Tensor, first: Tensor) -> Tensor:
        """Return one coordinate of the input positions, in units of 1/32 pixel, (n, h, w)."""
        columns = torch.round(along[:, None] * coordinates * 1024).long()
        rows = torch.round((across[:, None] * coordinates + first[:, None]) * 1024).long() + 16
        return (rows[:, :, None] + columns[:, None]) >> 5

    column, row = (
        compute_positions(inverse_matrix[:, 0], inverse_matrix[:, 1], x0),
        compute_positions(inverse_matrix[:, 2], inverse_matrix[:, 3], y0),
    )

    def mirror(position: Tensor) -> Tensor:
        phase = position.remainder(2 * side - 2)
        return torch.minimum(phase, 2 * side - 2 - phase)

    fraction_y, fraction_x = ((p & 31)[:, None].float() / 32 for p in (row, column))
    total = torch.zeros_like(x)
    for i, vertical in ((0, 1 - fraction_y), (1, fraction_y)):
        for j, horizontal in ((0, 1 - fraction_x), (1, fraction_x)):
            total = total + gather_pixels(x, mirror((row >> 5) + i), mirror((column >> 5) + j)) * (
                vertical * horizontal
            )
    return total
