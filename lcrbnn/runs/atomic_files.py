"""Write files atomically. A file has its old or its new content, even after a kill or a power failure."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from lcrbnn.errors import PART_SUFFIX


def read_regular_file(path: Path) -> bytes:
    """Return the content of a file.

    For a pipe or a device, raise OSError, because reading it could block or never end.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return path.read_bytes()


def write_atomic(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write a temporary file in the same folder, sync it to disk, and rename it. If that fails, raise OSError."""
    if path.exists() and not path.is_file():
        raise OSError(0, "it exists and is not a regular file", str(path))
    partial_path = path.with_name(path.name + PART_SUFFIX)
    try:
        with partial_path.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        partial_path.replace(path)
    except BaseException:
        partial_path.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync the file names in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_partial_files(folder: Path) -> None:
    """Remove temporary files that a killed process has left."""
    for partial_path in folder.glob(f"*{PART_SUFFIX}"):
        if partial_path.is_file():
            partial_path.unlink(missing_ok=True)
