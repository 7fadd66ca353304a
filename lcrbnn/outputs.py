"""Checks, before any work, that an output of a command can be written where the user wants it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from lcrbnn.errors import InputError

PART = ".part"  # the ending of a file that is being written; what a killed process left is removed at the next start
MAX_NAME_BYTES = 255  # of a file or folder; Linux and macOS allow no more


def check_output_file(path: Path, what: str) -> None:
    """Raise unless `what` can be written as this file. Missing folders may be made later; nothing is made here."""
    _check_names(path, what, [*path.parts[:-1], path.name + PART])
    try:
        if path.is_dir():
            _refuse(path, what, "it is a folder")
        if path.exists() and not path.is_file():
            _refuse(path, what, "it is not a regular file")
        _check_folder(path.absolute().parent, path, what)
    except OSError as error:
        _refuse(path, what, str(error.strerror))


def check_output_folder(path: Path, what: str) -> None:
    """Raise unless `what` can be written into this folder. It may be missing and be made later, not here."""
    _check_names(path, what, path.parts)
    try:
        if os.path.lexists(path) and not path.is_dir():
            _refuse(path, what, "it is not a folder")
        _check_folder(path.absolute(), path, what)
    except OSError as error:
        _refuse(path, what, str(error.strerror))


def _check_names(path: Path, what: str, names: Iterable[str]) -> None:
    if any(len(os.fsencode(name)) > MAX_NAME_BYTES for name in names):
        _refuse(path, what, "a name in it is too long")


def _check_folder(folder: Path, path: Path, what: str) -> None:
    """Raise unless files can be made in `folder`, or in the nearest folder above it that is there."""
    nearest = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not nearest.is_dir():
        _refuse(path, what, f"{nearest} is not a folder")
    if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        _refuse(path, what, f"{nearest} is not writable")


def _refuse(path: Path, what: str, reason: str) -> NoReturn:
    raise InputError(f"{what} cannot be written to {path}: {reason}") from None
