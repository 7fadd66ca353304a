"""Generate a zip file of JPEG images that take as long to decode as photos.

They are noise with the spectrum of photos.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np

JPEG_QUALITY = 92  # JPEG quality that gives about 105 kB per 500 x 375 image, the average of ImageNet
# Exponent of the spectrum: the amplitude of a frequency is proportional to 1 / frequency**exponent
SPECTRUM_EXPONENT = 1.2


def make_photo_jpeg(width: int, height: int, seed: int, spectrum_exponent: float = SPECTRUM_EXPONENT) -> bytes:
    """Return a JPEG file with an image of this size."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    down, across = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    frequency = np.hypot(down, across)
    frequency[0, 0] = 1.0
    shared_spectrum, channels = np.zeros(frequency.shape, complex), list[np.ndarray]()
    for _ in range(3):  # make the colour channels correlated, as in photos
        spectrum = (
            rng.normal(size=frequency.shape) + 1j * rng.normal(size=frequency.shape)
        ) / frequency**spectrum_exponent
        shared_spectrum = spectrum if not channels else 0.8 * shared_spectrum + 0.6 * spectrum
        channel = np.fft.irfft2(shared_spectrum, (height, width))
        channels.append((channel - channel.mean()) / channel.std() * 50 + 120)
    pixels = np.clip(np.stack(channels, 2), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()


def write_photo_zip(path: Path, sizes: list[tuple[int, int]], classes: int = 2) -> Path:
    """Write a zip file with one training image per size and one validation image per class."""
    with zipfile.ZipFile(path, "w") as archive:
        for i, size in enumerate(sizes):
            archive.writestr(f"train/class-{i % classes:03d}/{i:06d}.JPEG", make_photo_jpeg(*size, seed=i))
        for i in range(classes):
            archive.writestr(f"val/class-{i:03d}/{i}.JPEG", make_photo_jpeg(*sizes[0], seed=10**6 + i))
    return path
