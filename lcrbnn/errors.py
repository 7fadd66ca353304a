"""Error classes, and checks that raise an InputError with one sentence before any work starts."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

MAX_NUMBER = 3.4e38  # largest magnitude of a number in settings; float32 can represent it
MAX_FILE_NAME_BYTES = 255  # maximum number of bytes in the name of a file or folder on Linux and macOS
# The suffix of a file while it is written. Leftovers of a killed process are removed at the next start.
PART_SUFFIX = ".part"

MAX_LISTED_NAMES = 3  # a message lists so many known names at most
_MAX_VALUE_CHARACTERS = 60  # a message shows so many characters of a wrong value at most


# ----------------------------------------------------------------------------------------------------------------------
# Errors.
class InputError(ValueError):
    """A setting, file or argument of the user is invalid, as the message explains. The command line exits with 2."""


class RunFailed(Exception):
    """Work stops although the input is valid (non-finite values, a full disk). The command line exits with 1."""


class ErrorOnOtherRank(RunFailed):
    """Another process of the same run reports the error. This process only ends with the same exit code."""

    def __init__(self, exit_code: int) -> None:
        """Store the exit code."""
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code


class StopSignal(Exception):
    """A signal stopped the run. The command line exits with 128 + the signal number, like a shell."""

    def __init__(self, message: str, signal_number: int) -> None:
        """Store the signal number."""
        super().__init__(message)
        self.signal_number = signal_number


# ----------------------------------------------------------------------------------------------------------------------
# Names and numbers.
def lookup(table: Mapping[str, T], name: object, kind: str, listing: str = "") -> T:
    """Return `table[name]`. Raise InputError with the closest known names if the table has no such name.

    `listing` is a command or a page that lists all names.
    """
    if isinstance(name, str) and name in table:
        return table[name]
    raise InputError(f"no {kind} is called {name!r}{_describe_known_names(name, table, listing)}")


def check_known_names(names: Iterable[str], known_names: Iterable[str], kind: str, listing: str = "") -> None:
    """Raise InputError for the first of `names` that is not one of `known_names`, as `lookup` does."""
    known_names = list(known_names)
    for name in names:
        if name not in known_names:
            raise InputError(f"no {kind} is called {name!r}{_describe_known_names(name, known_names, listing)}")


def _describe_known_names(name: object, known_names: Iterable[str], listing: str) -> str:
    """Return the end of a message: all names if they are few, else the closest ones and where all are listed."""
    names = list(known_names)
    if len(names) <= MAX_LISTED_NAMES:
        return f"; there are {', '.join(names)}" if names else "; there are none"
    closest = get_close_matches(name, names, MAX_LISTED_NAMES) if isinstance(name, str) else []
    hint = f" ({listing} lists all {len(names)})" if listing else ""
    if closest:
        return f"; the closest {'are' if len(closest) > 1 else 'is'} {', '.join(closest)}{hint}"
    return hint or f"; there are {len(names)}, such as {', '.join(names[:MAX_LISTED_NAMES])}"


def check_name_list(value: Any, argument: str) -> list[str]:
    """Return the names as a list. Raise InputError for anything else, such as a single string."""
    names: list[Any] = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [None]
    if not all(isinstance(name, str) for name in names):
        raise InputError(f"{argument} must be a list of names; got {value!r}")
    return names


def check_number(value: Any, name: str, *, low: float, high: float = math.inf, integer: bool = False) -> None:
    """Raise InputError unless `value` is a finite number (with `integer`, a whole number) from `low` to `high`."""
    number_type = Integral if integer else Real
    is_too_large = not integer and isinstance(value, Real) and MAX_NUMBER < _to_float(value) <= high
    has_type = not isinstance(value, bool) and isinstance(value, number_type)
    # Whole numbers are compared without a conversion: near 2^63 a conversion to float rounds up.
    if is_too_large or not has_type or not low <= (value if integer else _to_float(value)) <= high:
        description = "a whole number" if integer else "a number"
        bounds = f"of at least {low}" if high == math.inf else f"from {low} to {high}"
        if is_too_large and not math.isinf(_to_float(value)):
            bounds = f"of at most {MAX_NUMBER:.1e}"
        value_text = repr(value)
        if len(value_text) > _MAX_VALUE_CHARACTERS:
            value_text = value_text[:_MAX_VALUE_CHARACTERS] + "..."
        raise InputError(f"{name} must be {description} {bounds}; got {value_text}")


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # the value is a whole number with hundreds of digits
        return math.inf


# ----------------------------------------------------------------------------------------------------------------------
# Output files and folders.
def check_output_file(path: Path, description: str) -> None:
    """Raise InputError unless this file can be written. Missing parent folders are allowed."""
    _check_name_lengths(path, description, [*path.parts[:-1], path.name + PART_SUFFIX])
    try:
        if path.is_dir():
            _raise_not_writable(path, description, "it is a folder")
        if path.exists() and not path.is_file():
            _raise_not_writable(path, description, "it is not a regular file")
        _check_folder_writable(path.absolute().parent, path, description)
    except OSError as error:
        _raise_not_writable(path, description, str(error.strerror))


def check_output_folder(path: Path, description: str) -> None:
    """Raise InputError unless files can be written into this folder. A missing folder is allowed."""
    _check_name_lengths(path, description, path.parts)
    try:
        if os.path.lexists(path) and not path.is_dir():
            _raise_not_writable(path, description, "it is not a folder")
        _check_folder_writable(path.absolute(), path, description)
    except OSError as error:
        _raise_not_writable(path, description, str(error.strerror))


def _check_name_lengths(path: Path, description: str, names: Iterable[str]) -> None:
    if any(len(os.fsencode(name)) > MAX_FILE_NAME_BYTES for name in names):
        _raise_not_writable(path, description, "a name in it is too long")


def _check_folder_writable(folder: Path, path: Path, description: str) -> None:
    """Raise InputError unless files can be created in `folder`, or in its nearest parent that exists."""
    nearest = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    if not nearest.is_dir():
        _raise_not_writable(path, description, f"{nearest} is not a folder")
    if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        _raise_not_writable(path, description, f"{nearest} is not writable")


def _raise_not_writable(path: Path, description: str, reason: str) -> NoReturn:
    raise InputError(f"{description} cannot be written to {path}: {reason}") from None


# ----------------------------------------------------------------------------------------------------------------------
# Memory.
# Start of PyTorch's error message if the number of bytes exceeds 64 bits
_SIZE_OVERFLOW_TEXT = "Storage size calculation overflowed"
_OUT_OF_MEMORY_TEXTS = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "out of memory",
)
_REQUESTED_SIZE = re.compile(r"(?:tried to allocate|Unable to allocate) ([\d.]+ \w+)", re.IGNORECASE)


def describe_memory_error(error: BaseException) -> str | None:
    """Return a sentence about a failed memory allocation of Python, NumPy or PyTorch, or None for every other error."""
    text = str(error)
    is_out_of_memory = any(phrase in text for phrase in _OUT_OF_MEMORY_TEXTS)
    if isinstance(error, RuntimeError) and text.startswith(_SIZE_OVERFLOW_TEXT):
        amount = "more bytes than a computer can address"
    elif isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_out_of_memory):
        match = _REQUESTED_SIZE.search(text)
        amount = match[1] if match else "so many bytes"
    else:
        return None
    return f"there is not enough memory: {amount} cannot be allocated"
