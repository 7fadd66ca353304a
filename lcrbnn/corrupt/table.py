"""CORRUPTIONS: the 19 of ImageNet-C, Tiny-ImageNet-C and CIFAR-10-C, a row each; and `corrupt`, which applies one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lcrbnn.corrupt import blur, digital, noise, spatter, weather
from lcrbnn.corrupt.constants import CONSTANTS, SIDES
from lcrbnn.corrupt.photos import Photos
from lcrbnn.corrupt.source import Source
from lcrbnn.errors import InputError, choose, number

SEVERITIES = (1, 2, 3, 4, 5)
SEED = 0  # of all draws: the same corrupted images for every network
PIXELS = 1 << 16  # of images that a CPU corrupts at once: what fits its cache
WIDER = 64  # times as many on a GPU, to fill it
FEWEST = 8  # images at once, however large


def _nothing(source: Source, images: Tensor, constant: Any) -> tuple[()]:
    return ()


@dataclass(frozen=True)
class Corruption:
    """A row of CORRUPTIONS.

    `apply(images, constant, *draws)` is the corruption itself, uint8 to uint8; `draw(source, images, constant)` is its
    randomness. With other draws, such as those of a published code, `apply` does the same.
    """

    name: str
    family: str  # noise, blur, weather, digital
    main: bool  # one of the 15 that are averaged; the other four are for validation
    apply: Callable[..., Tensor]
    draw: Callable[[Source, Tensor, Any], tuple[Any, ...]] = _nothing

    def constant(self, side: int, severity: int) -> Any:
        """What this severity, 1 to 5, is for images of this side."""
        return CONSTANTS[self.name][side][severity - 1]


_ROWS = [
    Corruption("gaussian_noise", "noise", True, noise.gaussian_noise, noise.draw_normal),
    Corruption("shot_noise", "noise", True, noise.shot_noise, noise.draw_counts),
    Corruption("impulse_noise", "noise", True, noise.impulse_noise, noise.draw_impulses),
    Corruption("defocus_blur", "blur", True, blur.defocus_blur),
    Corruption("glass_blur", "blur", True, blur.glass_blur, blur.draw_moves),
    Corruption("motion_blur", "blur", True, blur.motion_blur, blur.draw_angle),
    Corruption("zoom_blur", "blur", True, blur.zoom_blur),
    Corruption("snow", "weather", True, weather.snow, weather.draw_snow),
    Corruption("frost", "weather", True, weather.frost, weather.draw_crop),
    Corruption("fog", "weather", True, weather.fog, weather.draw_plasma),
    Corruption("brightness", "weather", True, weather.brightness),
    Corruption("contrast", "digital", True, digital.contrast),
    Corruption("elastic_transform", "digital", True, digital.elastic_transform, digital.draw_elastic),
    Corruption("pixelate", "digital", True, digital.pixelate),
    Corruption("jpeg_compression", "digital", True, digital.jpeg_compression),
    Corruption("speckle_noise", "noise", False, noise.speckle_noise, noise.draw_normal),
    Corruption("gaussian_blur", "blur", False, blur.gaussian_blur),
    Corruption("spatter", "weather", False, spatter.spatter, spatter.draw_liquid),
    Corruption("saturate", "digital", False, digital.saturate),
]

CORRUPTIONS: dict[str, Corruption] = {row.name: row for row in _ROWS}


def check_size(channels: int, side: int, what: str) -> None:
    """Raise unless corruptions are defined for such images."""
    if channels != 3 or side not in SIDES:
        sizes = " x ".join(map(str, (channels, side, side)))
        raise InputError(
            f"corruptions are defined for colour images of {', '.join(map(str, SIDES[:-1]))} or {SIDES[-1]} pixels, "
            f"and {what} has images of {sizes}"
        )


def corrupt(
    images: Tensor, name: str, severity: int, rows: Tensor, photos: Photos | None = None, *, split: str = "test"
) -> Tensor:
    """uint8 (n, 3, h, w) -> the same, corrupted; what is drawn depends on the split and on `rows`, the places in it.

    Frost needs its photos, on the device of the images.
    """
    row = choose(CORRUPTIONS, name, "corruption")
    number(severity, "a severity", low=SEVERITIES[0], high=SEVERITIES[-1], whole=True)
    if images.ndim != 4 or images.dtype != torch.uint8 or images.shape[2] != images.shape[3]:
        raise InputError(f"images to corrupt are square, uint8 (n, 3, h, w); got {images.dtype} {tuple(images.shape)}")
    check_size(images.shape[1], images.shape[3], "this batch")
    if name == "frost" and photos is None:
        raise InputError("frost needs its photos: `lcrbnn data frost` fetches them")
    constant, made = row.constant(images.shape[-1], severity), []
    pixels = PIXELS if images.device.type == "cpu" else PIXELS * WIDER
    count = max(pixels // images.shape[-1] ** 2, FEWEST)
    for start in range(0, len(images), count):
        part = images[start : start + count]
        source = Source(f"{SEED}/{split}/{name}/{severity}", rows[start : start + count].to(images.device), photos)
        made.append(row.apply(part, constant, *row.draw(source, part, constant)))
    return torch.cat(made) if made else images.clone()
