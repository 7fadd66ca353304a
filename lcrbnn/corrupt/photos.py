"""The frost's photos: read from a folder, resized as OpenCV would, cropped for a batch."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lcrbnn.data.decode import load_picture
from lcrbnn.data.frost import PHOTOS
from lcrbnn.data.listing import Broken
from lcrbnn.errors import InputError

SHARE = {32: 0.2, 64: 0.3, 224: 1.0}  # of a photo's size, by the side of the images


class Photos:
    """Five photos (the sixth of the published set is never drawn), and pieces of them at each image size."""

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        """Read them."""
        self.device = torch.device(device)
        self.count = len(PHOTOS)
        self._whole = [_read(folder / name, folder) for name in PHOTOS]
        self._sheets: dict[int, tuple[Tensor, Tensor]] = {}

    def sizes(self, side: int) -> Tensor:
        """(count, 2): heights and widths, for images of this side."""
        return self._at(side)[1]

    def crops(self, side: int, which: Tensor, corner: Tensor) -> Tensor:
        """uint8 (n, 3, side, side): of photo which[i] the piece whose upper left pixel is corner[i]."""
        sheets, _ = self._at(side)
        line = torch.arange(side, device=sheets.device)
        row, column = corner[:, :1] + line, corner[:, 1:] + line
        return sheets[which[:, None, None], :, row[:, :, None], column[:, None]].permute(0, 3, 1, 2)

    def _at(self, side: int) -> tuple[Tensor, Tensor]:
        """All photos in one tensor (count, 3, h, w), black where they end, and their sizes."""
        if side not in self._sheets:
            made = [resized(photo, SHARE[side]) for photo in self._whole]
            sizes = torch.tensor([photo.shape[:2] for photo in made])
            sheets = torch.zeros(len(made), 3, *sizes.amax(0).tolist(), dtype=torch.uint8)
            for sheet, photo in zip(sheets, made, strict=True):
                sheet[:, : photo.shape[0], : photo.shape[1]] = torch.from_numpy(photo).permute(2, 0, 1)
            self._sheets[side] = sheets.to(self.device), sizes.to(self.device)
        return self._sheets[side]


def _read(path: Path, folder: Path) -> np.ndarray:
    """uint8 (h, w, 3), red first."""
    if not path.exists():
        fetch = f"`lcrbnn data frost --data-folder {folder.parent}` fetches all five"
        other = "`lcrbnn data frost` fetches all five into the folder frost of the data folder"
        raise InputError(f"the frost photo {path} is not there; {fetch if folder.name == 'frost' else other}")
    try:
        return np.array(load_picture(path, drop_alpha=True))
    except Broken as error:
        raise InputError(f"the frost photo {path} cannot be read: {error}") from None


def resized(photo: np.ndarray, share: float) -> np.ndarray:
    """(h, w, 3) uint8 scaled by straight interpolation in whole numbers, as OpenCV does it."""
    if share == 1:
        return photo
    h, w = photo.shape[:2]
    low, high, left, right = _weights(w, share)
    lines = photo[:, low].astype(np.int64) * left[:, None] + photo[:, high].astype(np.int64) * right[:, None]
    low, high, above, below = _weights(h, share)
    above, below = above[:, None, None], below[:, None, None]
    return ((((lines[low] >> 4) * above >> 16) + ((lines[high] >> 4) * below >> 16) + 2) >> 2).astype(np.uint8)


@lru_cache(maxsize=32)
def _weights(side: int, share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """For each pixel of the result the two of the source, and their weights in 1/2048."""
    place = ((np.arange(round(side * share)) + 0.5) * (1 / share) - 0.5).astype(np.float32)
    low = np.floor(place).astype(np.int64)
    part = np.where((low < 0) | (low >= side - 1), np.float32(0), place - low.astype(np.float32))
    low = low.clip(0, side - 1)
    right = np.rint(part * np.float32(2048)).astype(np.int64)
    left = np.rint((np.float32(1) - part) * np.float32(2048)).astype(np.int64)
    return low, np.minimum(low + 1, side - 1), left, right
