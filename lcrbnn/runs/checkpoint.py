"""Checkpoints: named arrays and a few facts in one file, every bit of it checked when it is read. NumPy only.

The file is a safetensors file (any such reader opens it; nothing in it can run): 8 bytes of length, a JSON header that
names each array's type, shape and place, then the arrays. To that, which checks nothing, we add checksums: the header's
metadata holds the SHA-256 of each array, and a last array, `checksum`, that of length and header.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lcrbnn.errors import InputError
from lcrbnn.runs.files import read_regular_file, write_whole

VERSION = 1
CHECKSUM = "checksum"
METADATA = "__metadata__"
_LONGEST_HEADER = 100_000_000
_KINDS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1"}
_NAMES = {np.dtype(code): name for name, code in _KINDS.items()}


class Checkpoint(NamedTuple):
    """What a file holds: arrays by name, and facts as plain JSON values."""

    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]


class Damaged(InputError):
    """A checkpoint cannot be used; the message says which and why."""


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the file whole or not at all. OSError if the disk does not take it."""
    header: dict[str, Any] = {}
    sums, data, place = {}, [], 0
    for name, given in checkpoint.arrays.items():
        if name in (CHECKSUM, METADATA):
            raise ValueError(f"a checkpoint keeps the name {name!r} for itself")
        array = given.astype(given.dtype.newbyteorder("<"), copy=False)
        if array.dtype not in _NAMES:
            raise ValueError(f"a checkpoint holds no arrays of type {array.dtype}; {name!r} is one")
        raw = _bytes(array)
        sums[name] = hashlib.sha256(raw).hexdigest()
        header[name] = _entry(_NAMES[array.dtype], array.shape, place, raw.nbytes)
        place += raw.nbytes
        data.append(raw)
    header[CHECKSUM] = _entry("U8", (32,), place, 32)
    facts = {"lcrbnn": VERSION, "sha256": sums, "facts": checkpoint.facts}
    header[METADATA] = {"checkpoint": json.dumps(facts)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # arrays begin at a multiple of 8
    head = len(text).to_bytes(8, "little") + text
    write_whole(path, [head, *data, hashlib.sha256(head).digest()])


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _entry(kind: str, shape: tuple[int, ...], place: int, size: int) -> dict[str, Any]:
    return {"dtype": kind, "shape": list(shape), "data_offsets": [place, place + size]}


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a file back; whatever is wrong with it is one kind of error, which names the file and the reason."""
    try:
        content = read_regular_file(path)
    except OSError as error:
        raise Damaged(f"the checkpoint {path} cannot be read: {error.strerror}") from None
    try:
        return _parse(content)
    except _Wrong as reason:
        raise Damaged(f"the checkpoint {path} is damaged: {reason}") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError) as error:
        # its checksums agree, so somebody wrote it that way
        raise Damaged(f"the checkpoint {path} is damaged: its header makes no sense ({error})") from None


class _Wrong(Exception):
    pass


def _parse(content: bytes) -> Checkpoint:
    header, head = _header(content)
    stored = json.loads(header.pop(METADATA)["checkpoint"])
    if stored["lcrbnn"] != VERSION:
        raise _Wrong(f"it is of format {stored['lcrbnn']}, and this version of lcrbnn reads format {VERSION}")
    arrays, place = {}, 0
    for name, entry in header.items():
        dtype, shape, (start, stop) = np.dtype(_KINDS[entry["dtype"]]), entry["shape"], entry["data_offsets"]
        if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise _Wrong(f"the shape of {name!r} is {shape!r}")
        if start != place or stop - start != math.prod(shape) * dtype.itemsize:
            raise _Wrong(f"the place of {name!r} is {start} to {stop}")
        arrays[name] = np.frombuffer(memoryview(content)[head + start : head + stop], dtype).reshape(shape)
        place = stop
    del arrays[CHECKSUM]
    if head + place != len(content):
        raise _Wrong(f"it has {len(content):,} bytes instead of {head + place:,}")
    for name, array in arrays.items():
        if hashlib.sha256(_bytes(array)).hexdigest() != stored["sha256"].get(name):
            raise _Wrong(f"the checksum of {name!r} does not agree with its numbers")
    if not isinstance(stored["facts"], dict):
        raise _Wrong(f"its facts must be an object of JSON; got {stored['facts']!r}")
    return Checkpoint(arrays, stored["facts"])


def _header(content: bytes) -> tuple[dict[str, Any], int]:
    """The header, once its own checksum agrees: what it says is then what was written."""
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 + 32 or size > min(_LONGEST_HEADER, len(content) - 8 - 32):
        raise _Wrong(f"it breaks off after {len(content):,} bytes, or never was a checkpoint")
    head = 8 + size
    if hashlib.sha256(content[:head]).digest() != content[-32:]:
        raise _Wrong("the checksum of its header does not agree, or it breaks off")
    header = json.loads(content[8:head])
    if "checkpoint" not in header.get(METADATA, {}):
        raise _Wrong("it was not written by lcrbnn")
    return header, head
