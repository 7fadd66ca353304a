"""Files that appear whole or not at all, also when the process is killed or the machine loses power."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from lcrbnn.outputs import PART


def read_regular_file(path: Path) -> bytes:
    """The content of a file. OSError for a pipe or a device, which could block or never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return path.read_bytes()


def write_whole(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file: into a temporary one beside it, to the disk, and only then under its name. OSError on failure."""
    if path.exists() and not path.is_file():
        raise OSError(0, "it is there and is no file", str(path))
    part = path.with_name(path.name + PART)
    try:
        with part.open("wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_parts(folder: Path) -> None:
    """Remove what a killed process left half-written."""
    for part in folder.glob(f"*{PART}"):
        if part.is_file():
            part.unlink(missing_ok=True)
