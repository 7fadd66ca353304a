"""Data-loading worker process, which decodes and crops images and writes them into shared memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
import time
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from lcrbnn.data.image_files.crop_boxes import (
    center_crop_box,
    center_offset,
    compute_resized_size,
    draw_crop_numbers,
    is_too_long,
    random_crop_box,
)
from lcrbnn.data.image_files.decode import decode_rgb, open_image, set_draft_size
from lcrbnn.data.image_files.image_index import BrokenImage, ImageIndex, ImageReader
from lcrbnn.data.image_files.read_arrays import resize_box
from lcrbnn.errors import RunFailed


def center_crop_image(content: bytes, image_size: int, resize_ratio: float) -> np.ndarray:
    """Return the centre crop (image_size, image_size, 3) of a decoded and resized image."""
    image = open_image(content)
    width, height = image.size
    resized_width, resized_height = compute_resized_size(width, height, image_size, resize_ratio)
    reduction = set_draft_size(image, min(width // resized_width, height // resized_height))
    if reduction > 1 or is_too_long(width, height):
        return _resize_box_of_reduced(
            image, center_crop_box(width, height, image_size, resize_ratio), reduction, image_size
        )
    left, top = center_offset(resized_width, resized_height, image_size)
    resized = _resize(np.asarray(decode_rgb(image)), resized_width, resized_height)
    return resized[top : top + image_size, left : left + image_size]


def random_crop_image(content: bytes, image_size: int, crop_key: int, position: int) -> np.ndarray:
    """Return a random crop of an image, resized to (image_size, image_size, 3).

    It depends on the image's position in the epoch.
    """
    image = open_image(content)
    box, is_mirrored = random_crop_box(image.width, image.height, draw_crop_numbers(crop_key, position))
    reduction = set_draft_size(image, min(box.width, box.height) // image_size)
    if reduction > 1:
        crop = _resize_box_of_reduced(image, box, reduction, image_size)
    else:
        pixels = np.asarray(decode_rgb(image))
        crop = _resize(pixels[box.top : box.top + box.height, box.left : box.left + box.width], image_size, image_size)
    return _flip_left_right(crop) if is_mirrored else crop


def _flip_left_right(pixels: np.ndarray) -> np.ndarray:
    """Mirror an image with torch, because NumPy takes twenty times as long for pixels of three bytes."""
    import torch

    return torch.from_numpy(pixels if pixels.flags.writeable else pixels.copy()).flip(1).numpy()


def _resize_box_of_reduced(
    image: Any, region: tuple[float, float, float, float], reduction: int, image_size: int
) -> np.ndarray:
    """Resize a region of an image that was decoded at 1 / `reduction` of its size.

    The region is (left, top, width, height). Pillow does this, because the region begins and ends at fractions of a
    pixel of the reduced image. Pillow resizes more slowly, but decoding takes most of the time here.
    """
    left, top, width, height = (number / reduction for number in region)
    return resize_box(decode_rgb(image), (left, top, width, height), image_size)


def _resize(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """Resize an image with antialiased bilinear interpolation, as Pillow and torchvision do."""
    if pixels.shape[:2] == (height, width):
        return pixels
    import torch
    import torch.nn.functional as F

    # this copy is needed because arrays from Pillow are read-only
    source = torch.from_numpy(np.array(pixels))[None].permute(0, 3, 1, 2)
    resized = F.interpolate(source, (height, width), mode="bilinear", antialias=True, align_corners=False)
    return resized[0].permute(1, 2, 0).numpy()


PARENT_POLL_INTERVAL_S = 1.0
PR_SET_PDEATHSIG = 1  # option of Linux's prctl: choose the signal that a process gets when its parent ends


class WorkChunk(NamedTuple):
    """Images that a worker reads and writes into the shared memory from row `first_row` on.

    If `crop_key` is set, the images are random crops that depend on `positions` in the epoch. Otherwise they are centre
    crops.
    """

    chunk_id: int
    first_row: int
    image_index: ImageIndex
    crop_key: int | None
    positions: Sequence[int]


class WorkReply(NamedTuple):
    """The result of a chunk, which has the reason for each broken image by its position, or the worker's failure."""

    chunk_id: int
    broken_images: dict[int, str]
    failure: str | None = None


def read_chunk(chunk: WorkChunk, shared_images: np.ndarray, resize_ratio: float, reader: ImageReader) -> dict[int, str]:
    """Read the images of a chunk into the shared array (n, image_size, image_size, 3).

    Return the reason for each broken image. The pixels of a broken image become black. Raise RunFailed for errors that
    the image did not cause, such as too little memory.
    """
    image_size, broken_images = shared_images.shape[1], {}
    for i in range(len(chunk.image_index)):
        pixels = shared_images[chunk.first_row + i]
        try:
            content = reader.read(chunk.image_index[i])
            if chunk.crop_key is None:
                pixels[...] = center_crop_image(content, image_size, resize_ratio)
            else:
                pixels[...] = random_crop_image(content, image_size, chunk.crop_key, chunk.positions[i])
        except BrokenImage as error:
            pixels[...] = 0
            broken_images[i] = str(error)
        except Exception as error:
            reason = f"{type(error).__name__} {error}".strip()
            raise RunFailed(f"{chunk.image_index[i].name} could not be read: {reason[:400]}") from None
    return broken_images


def run_worker(pipe_fd: int, memory_fd: int, image_size: int, resize_ratio: float) -> None:
    """Read chunks until the parent closes the pipe or ends. This function is the main program of a worker process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent_pid = os.getppid()
    _die_with_parent()
    threading.Thread(target=_exit_without_parent, args=(parent_pid,), daemon=True).start()
    # Pillow's warnings about large images are ignored, because decode.py already rejects images that are too large.
    warnings.simplefilter("ignore")
    shared_memory = mmap.mmap(memory_fd, 0)
    shared_images = np.frombuffer(shared_memory, np.uint8).reshape(-1, image_size, image_size, 3)
    reader = ImageReader()
    with Connection(pipe_fd) as connection:
        while True:
            try:
                chunk = connection.recv()
            except (EOFError, OSError):
                os._exit(0)  # skip the clean-up of Python, because the operating system frees memory and files
            try:
                reply = WorkReply(chunk.chunk_id, read_chunk(chunk, shared_images, resize_ratio, reader))
            except Exception as error:
                reply = WorkReply(chunk.chunk_id, {}, str(error) if isinstance(error, RunFailed) else repr(error)[:500])
            try:
                connection.send(reply)
            except OSError:
                os._exit(0)


def _die_with_parent() -> None:
    """Make Linux kill this process when the thread that started it ends.

    This also works if this process is suspended.
    """
    if hasattr(libc := ctypes.CDLL(None), "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _exit_without_parent(parent_pid: int) -> None:
    """Exit when the parent is gone. Systems without prctl need this, or a parent that ended before prctl was called.

    A suspended process cannot run this function, so `_die_with_parent` is needed too.
    """
    while os.getppid() == parent_pid:
        time.sleep(PARENT_POLL_INTERVAL_S)
    os._exit(1)
