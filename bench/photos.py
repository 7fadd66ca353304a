"""Pictures that cost a decoder what photos cost: noise with a photo's spectrum, as JPEG files in a zip."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np

QUALITY = 92  # about 105 kB for 500 x 375 pixels, as ImageNet's have
FALL = 1.2  # amplitudes fall with frequency to this power


def photo(width: int, height: int, seed: int, fall: float = FALL) -> bytes:
    """A JPEG file of this size."""
    from PIL import Image

    draw = np.random.default_rng(seed)
    down, across = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    frequency = np.hypot(down, across)
    frequency[0, 0] = 1.0
    grey, channels = np.zeros(frequency.shape, complex), list[np.ndarray]()
    for _ in range(3):  # channels are alike, as those of photos are
        own = (draw.normal(size=frequency.shape) + 1j * draw.normal(size=frequency.shape)) / frequency**fall
        grey = own if not channels else 0.8 * grey + 0.6 * own
        shown = np.fft.irfft2(grey, (height, width))
        channels.append((shown - shown.mean()) / shown.std() * 50 + 120)
    pixels = np.clip(np.stack(channels, 2), 0, 255).astype(np.uint8)
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "JPEG", quality=QUALITY)
    return held.getvalue()


def photo_zip(path: Path, sizes: list[tuple[int, int]], classes: int = 2) -> Path:
    """A tree of such pictures in a zip file: those of the sizes for training, one a class in val."""
    with zipfile.ZipFile(path, "w") as archive:
        for i, size in enumerate(sizes):
            archive.writestr(f"train/class-{i % classes:03d}/{i:06d}.JPEG", photo(*size, seed=i))
        for i in range(classes):
            archive.writestr(f"val/class-{i:03d}/{i}.JPEG", photo(*sizes[0], seed=10**6 + i))
    return path
