"""CORRUPTIONS contains the 19 corruptions of ImageNet-C, Tiny-ImageNet-C and CIFAR-10-C.

`apply_corruption` applies one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lcrbnn.errors import InputError, check_number, lookup
from lcrbnn.evaluation.corruptions import blur, digital, noise, spatter, weather
from lcrbnn.evaluation.corruptions.counter_random import ImageRandom
from lcrbnn.evaluation.corruptions.frost_photos import FrostPhotos
from lcrbnn.evaluation.corruptions.severities import IMAGE_SIDES, SEVERITY_PARAMETERS

SEVERITIES = (1, 2, 3, 4, 5)
SEED = 0  # fixed seed, so that all networks are evaluated on the same corrupted images
PIXELS_PER_CPU_BATCH = 1 << 16  # number of pixels per batch that fits into the cache of a CPU
GPU_BATCH_FACTOR = 64  # factor by which a batch on a GPU is larger than a batch on a CPU
MIN_BATCH_IMAGES = 8  # minimum number of images in a batch; the limit matters for large images


def _draw_nothing(rng: ImageRandom, images: Tensor, parameters: Any) -> tuple[()]:
    return ()


@dataclass(frozen=True)
class Corruption:
    """A row of CORRUPTIONS, with functions that draw random numbers and corrupt images.

    `draw(rng, images, parameters)` returns the random numbers, and `apply(images, parameters, *draws)` is the
    deterministic corruption, uint8 to uint8. With the random numbers of the published code, `apply` reproduces the
    published images.
    """

    name: str
    family: str  # family of the corruption: noise, blur, weather or digital
    is_main: bool  # True for the 15 corruptions that are averaged, False for the four validation corruptions
    apply: Callable[..., Tensor]
    draw: Callable[[ImageRandom, Tensor, Any], tuple[Any, ...]] = _draw_nothing

    def get_parameters(self, side: int, severity: int) -> Any:
        """Return the parameters of a severity from 1 to 5 for images of this side."""
        return SEVERITY_PARAMETERS[self.name][side][severity - 1]


_ROWS = [
    Corruption("gaussian_noise", "noise", True, noise.gaussian_noise, noise.draw_normal),
    Corruption("shot_noise", "noise", True, noise.shot_noise, noise.draw_photon_counts),
    Corruption("impulse_noise", "noise", True, noise.impulse_noise, noise.draw_impulses),
    Corruption("defocus_blur", "blur", True, blur.defocus_blur),
    Corruption("glass_blur", "blur", True, blur.glass_blur, blur.draw_glass_shifts),
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


def check_image_side(channels: int, side: int, image_source: str) -> None:
    """Raise InputError if corruptions are not defined for images of this size."""
    if channels != 3 or side not in IMAGE_SIDES:
        shape = " x ".join(map(str, (channels, side, side)))
        raise InputError(
            "corruptions are defined for colour images of "
            f"{', '.join(map(str, IMAGE_SIDES[:-1]))} or {IMAGE_SIDES[-1]} pixels, "
            f"and {image_source} has images of {shape}"
        )


def apply_corruption(
    images: Tensor, name: str, severity: int, indices: Tensor, photos: FrostPhotos | None = None, *, split: str = "test"
) -> Tensor:
    """Return corrupted images for uint8 images (n, 3, h, w).

    Random numbers depend only on the corruption, the severity, the split and `indices` (the positions of the images in
    the split). The corruption frost needs its photos on the device of the images.
    """
    corruption = lookup(CORRUPTIONS, name, "corruption", "docs/corruptions.md")
    check_number(severity, "a severity", low=SEVERITIES[0], high=SEVERITIES[-1], integer=True)
    if images.ndim != 4 or images.dtype != torch.uint8 or images.shape[2] != images.shape[3]:
        raise InputError(
            f"images to corrupt must be square, uint8 (n, 3, h, w); got {images.dtype} {tuple(images.shape)}"
        )
    check_image_side(images.shape[1], images.shape[3], "this batch")
    if name == "frost" and photos is None:
        raise InputError("the corruption frost needs photos; download them with `lcrbnn data frost`")
    parameters, corrupted_batches = corruption.get_parameters(images.shape[-1], severity), []
    pixels_per_batch = PIXELS_PER_CPU_BATCH if images.device.type == "cpu" else PIXELS_PER_CPU_BATCH * GPU_BATCH_FACTOR
    batch_size = max(pixels_per_batch // images.shape[-1] ** 2, MIN_BATCH_IMAGES)
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        rng = ImageRandom(
            f"{SEED}/{split}/{name}/{severity}", indices[start : start + batch_size].to(images.device), photos
        )
        corrupted_batches.append(corruption.apply(batch, parameters, *corruption.draw(rng, batch, parameters)))
    return torch.cat(corrupted_batches) if corrupted_batches else images.clone()
