"""A picture under every corruption, at the middle severity."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lcrbnn.corrupt.constants import SIDES
from lcrbnn.corrupt.photos import Photos
from lcrbnn.corrupt.table import CORRUPTIONS, corrupt
from lcrbnn.data import DATASETS
from lcrbnn.data.decode import load_picture
from lcrbnn.data.listing import Broken
from lcrbnn.errors import InputError
from lcrbnn.report.charts import Gallery, Hint, Part, Picture

SEVERITY = 3
SIDE = 64  # of the picture, where the data set's own size has no corruptions


def samples(data: str, picture: Path | None, frost: Path) -> list[Part]:
    """The picture, clean and under each corruption; frost only where its photos are."""
    side = DATASETS[data].image if data in DATASETS and DATASETS[data].image in SIDES else SIDE
    image = scene(side) if picture is None else _read(picture, side)
    photos = Photos(frost) if frost.is_dir() else None
    pictures = [Picture("clean", _png(image))]
    for name in CORRUPTIONS:
        if name != "frost" or photos is not None:
            made = corrupt(image[None], name, SEVERITY, torch.zeros(1, dtype=torch.long), photos)[0]
            pictures.append(Picture(name.replace("_", " "), _png(made)))
    source = "a drawn picture" if picture is None else picture.name
    about = f"{source}, {side} × {side} pixels, severity {SEVERITY} of 5, with the constants of that size."
    parts: list[Part] = [Gallery("Each corruption", about[0].upper() + about[1:], tuple(pictures))]
    if photos is None:
        parts.append(Hint("Frost needs its photos. This fetches them:", "lcrbnn data frost"))
    return parts


def scene(side: int) -> Tensor:
    """A drawn picture, uint8 (3, side, side): sky, sun, hill, house; edges, colours and fine stripes to be spoiled."""
    grid = (torch.arange(side, dtype=torch.float64) + 0.5) / side
    y, x = grid[:, None].expand(side, side), grid[None].expand(side, side)
    image = torch.stack([0.35 + 0.4 * y, 0.6 + 0.25 * y, 0.95 - 0.1 * y])  # sky

    def paint(where: Tensor, red: float, green: float, blue: float) -> None:
        for channel, value in zip(image, (red, green, blue), strict=True):
            channel[where] = value

    paint((x - 0.78).square() + (y - 0.22).square() < 0.012, 1.0, 0.85, 0.2)  # sun
    paint(y > 0.72 - 0.12 * torch.sin(4 * x), 0.25, 0.55, 0.2)  # hill
    paint((x > 0.2) & (x < 0.55) & (y > 0.45) & (y < 0.82), 0.85, 0.8, 0.7)  # wall
    paint((y > 0.25) & (y < 0.45) & ((x - 0.375).abs() < (y - 0.22) * 1.05), 0.7, 0.2, 0.15)  # roof
    paint((x > 0.26) & (x < 0.36) & (y > 0.55) & (y < 0.67), 0.15, 0.25, 0.4)  # window
    paint((x > 0.41) & (x < 0.5) & (y > 0.6) & (y < 0.82), 0.4, 0.25, 0.1)  # door
    paint((y > 0.74) & (y < 0.82) & (x > 0.6) & ((x * side).floor() % 2 == 0), 0.95, 0.95, 0.95)  # fence
    return (image * 255).round().to(torch.uint8)


def _read(path: Path, side: int) -> Tensor:
    from PIL import Image

    try:
        small = load_picture(path).resize((side, side), Image.Resampling.BOX)
    except Broken as error:
        raise InputError(f"the picture {path} cannot be read: {error}") from None
    return torch.from_numpy(np.array(small)).permute(2, 0, 1).contiguous()


def _png(image: Tensor) -> bytes:
    from PIL import Image

    file = BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "PNG", optimize=True)
    return file.getvalue()
