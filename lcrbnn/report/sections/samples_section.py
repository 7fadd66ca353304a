"""Section of a report that shows one image under every corruption, at severity 3 of 5."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.image_files.decode import load_image
from lcrbnn.data.image_files.image_index import BrokenImage
from lcrbnn.errors import InputError
from lcrbnn.evaluation.corruptions.corruption_registry import CORRUPTIONS, apply_corruption
from lcrbnn.evaluation.corruptions.frost_photos import FrostPhotos
from lcrbnn.evaluation.corruptions.severities import IMAGE_SIDES
from lcrbnn.report.elements import CommandHint, Element, Gallery, GalleryImage

SEVERITY = 3
# Image side in pixels. It is used if no corruption parameters exist for the image size of the data set.
DEFAULT_IMAGE_SIZE = 64


def build_samples_section(dataset: str, sample_image: Path | None, frost_folder: Path) -> list[Element]:
    """Return the section with a gallery of the image, clean and under each corruption.

    The corruption frost is included if its photos exist.
    """
    image_size = (
        DATASETS[dataset].image_size
        if dataset in DATASETS and DATASETS[dataset].image_size in IMAGE_SIDES
        else DEFAULT_IMAGE_SIZE
    )
    image = draw_scene(image_size) if sample_image is None else _read_image(sample_image, image_size)
    photos = FrostPhotos(frost_folder) if frost_folder.is_dir() else None
    images = [GalleryImage("clean", _encode_png(image))]
    for name in CORRUPTIONS:
        if name != "frost" or photos is not None:
            corrupted = apply_corruption(image[None], name, SEVERITY, torch.zeros(1, dtype=torch.long), photos)[0]
            images.append(GalleryImage(name.replace("_", " "), _encode_png(corrupted)))
    source = "a generated image" if sample_image is None else sample_image.name
    description = f"{source}, {image_size} × {image_size} pixels, severity {SEVERITY} of 5, "
    description += "with the corruption constants of that size."
    elements: list[Element] = [Gallery("Each corruption", description[0].upper() + description[1:], tuple(images))]
    if photos is None:
        elements.append(CommandHint("Frost needs its photos. This command downloads them:", "lcrbnn data frost"))
    return elements


def draw_scene(image_size: int) -> Tensor:
    """Return a drawn landscape with edges, colours and fine stripes, uint8 (3, image_size, image_size)."""
    grid = (torch.arange(image_size, dtype=torch.float64) + 0.5) / image_size
    y, x = grid[:, None].expand(image_size, image_size), grid[None].expand(image_size, image_size)
    image = torch.stack([0.35 + 0.4 * y, 0.6 + 0.25 * y, 0.95 - 0.1 * y])  # draw the sky

    def paint(mask: Tensor, red: float, green: float, blue: float) -> None:
        for channel, value in zip(image, (red, green, blue), strict=True):
            channel[mask] = value

    paint((x - 0.78).square() + (y - 0.22).square() < 0.012, 1.0, 0.85, 0.2)  # draw the sun
    paint(y > 0.72 - 0.12 * torch.sin(4 * x), 0.25, 0.55, 0.2)  # draw a hill
    paint((x > 0.2) & (x < 0.55) & (y > 0.45) & (y < 0.82), 0.85, 0.8, 0.7)  # draw the wall of a house
    paint((y > 0.25) & (y < 0.45) & ((x - 0.375).abs() < (y - 0.22) * 1.05), 0.7, 0.2, 0.15)  # draw the roof
    paint((x > 0.26) & (x < 0.36) & (y > 0.55) & (y < 0.67), 0.15, 0.25, 0.4)  # draw a window
    paint((x > 0.41) & (x < 0.5) & (y > 0.6) & (y < 0.82), 0.4, 0.25, 0.1)  # draw a door
    paint((y > 0.74) & (y < 0.82) & (x > 0.6) & ((x * image_size).floor() % 2 == 0), 0.95, 0.95, 0.95)  # draw a fence
    return (image * 255).round().to(torch.uint8)


def _read_image(path: Path, image_size: int) -> Tensor:
    from PIL import Image

    try:
        resized = load_image(path).resize((image_size, image_size), Image.Resampling.BOX)
    except BrokenImage as error:
        raise InputError(f"the sample image {path} cannot be read: {error}") from None
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1).contiguous()


def _encode_png(image: Tensor) -> bytes:
    from PIL import Image

    file = BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "PNG", optimize=True)
    return file.getvalue()
