"""Checkpoints are files of named arrays and JSON values, with checksums over every byte. PyTorch is not needed.

A checkpoint is a safetensors file. So other tools can read it, and it contains no executable code. It consists of 8
bytes with the header length, a JSON header with the type, shape and offsets of each array, and the arrays. Safetensors
has no checksums, so they are added here. The metadata in the header contains the SHA-256 of each array. The last array,
`checksum`, contains the SHA-256 of header length and header.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lcrbnn.errors import InputError
from lcrbnn.runs.atomic_files import read_regular_file, write_atomic

FORMAT_VERSION = 1
CHECKSUM = "checksum"
METADATA = "__metadata__"
_MAX_HEADER_BYTES = 100_000_000
_DTYPE_CODES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1"}
_DTYPE_NAMES = {np.dtype(code): name for name, code in _DTYPE_CODES.items()}


class Checkpoint(NamedTuple):
    """The content of a checkpoint file, with `arrays` by name and `facts`, which are plain JSON values."""

    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]


class DamagedCheckpoint(InputError):
    """A checkpoint file cannot be read. The message states its path and the reason."""


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically. Raise OSError if that fails."""
    header: dict[str, Any] = {}
    checksums, body, offset = {}, [], 0
    for name, original in checkpoint.arrays.items():
        if name in (CHECKSUM, METADATA):
            raise ValueError(f"the array name {name!r} is reserved in checkpoints")
        array = original.astype(original.dtype.newbyteorder("<"), copy=False)
        if array.dtype not in _DTYPE_NAMES:
            raise ValueError(f"a checkpoint cannot store arrays of type {array.dtype}; got {name!r}")
        array_bytes = _view_bytes(array)
        checksums[name] = hashlib.sha256(array_bytes).hexdigest()
        header[name] = _make_header_entry(_DTYPE_NAMES[array.dtype], array.shape, offset, array_bytes.nbytes)
        offset += array_bytes.nbytes
        body.append(array_bytes)
    header[CHECKSUM] = _make_header_entry("U8", (32,), offset, 32)
    facts = {"lcrbnn": FORMAT_VERSION, "sha256": checksums, "facts": checkpoint.facts}
    header[METADATA] = {"checkpoint": json.dumps(facts)}
    header_json = json.dumps(header).encode()
    header_json += b" " * (-len(header_json) % 8)  # add spaces, so that the arrays start at a multiple of 8 bytes
    size_and_header = len(header_json).to_bytes(8, "little") + header_json
    write_atomic(path, [size_and_header, *body, hashlib.sha256(size_and_header).digest()])


def _view_bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _make_header_entry(dtype_name: str, shape: tuple[int, ...], offset: int, num_bytes: int) -> dict[str, Any]:
    return {"dtype": dtype_name, "shape": list(shape), "data_offsets": [offset, offset + num_bytes]}


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the verified content of a checkpoint file.

    For any fault, raise DamagedCheckpoint with the path and the reason.
    """
    try:
        content = read_regular_file(path)
    except OSError as error:
        raise DamagedCheckpoint(f"the checkpoint {path} cannot be read: {error.strerror}") from None
    try:
        return _parse(content)
    except _InvalidContent as reason:
        raise DamagedCheckpoint(f"the checkpoint {path} is damaged: {reason}") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError) as error:
        # All checksums are correct. So the file was written with this content, and the fault is not on the disk.
        raise DamagedCheckpoint(f"the checkpoint {path} is damaged: its header is invalid ({error})") from None


class _InvalidContent(Exception):
    """The content of a checkpoint is invalid. The message states the reason."""


def _parse(content: bytes) -> Checkpoint:
    header, body_start = _read_header(content)
    stored = json.loads(header.pop(METADATA)["checkpoint"])
    if stored["lcrbnn"] != FORMAT_VERSION:
        raise _InvalidContent(
            f"it has format {stored['lcrbnn']}, but this version of lcrbnn reads format {FORMAT_VERSION}"
        )
    arrays, offset = {}, 0
    for name, entry in header.items():
        dtype, shape, (start, stop) = np.dtype(_DTYPE_CODES[entry["dtype"]]), entry["shape"], entry["data_offsets"]
        if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise _InvalidContent(f"{name!r} has the shape {shape!r}")
        if start != offset or stop - start != math.prod(shape) * dtype.itemsize:
            raise _InvalidContent(f"{name!r} has the offsets {start} to {stop}")
        arrays[name] = np.frombuffer(memoryview(content)[body_start + start : body_start + stop], dtype).reshape(shape)
        offset = stop
    del arrays[CHECKSUM]
    if body_start + offset != len(content):
        raise _InvalidContent(f"it has {len(content):,} bytes instead of {body_start + offset:,}")
    for name, array in arrays.items():
        if hashlib.sha256(_view_bytes(array)).hexdigest() != stored["sha256"].get(name):
            raise _InvalidContent(f"the checksum of {name!r} is wrong")
    if not isinstance(stored["facts"], dict):
        raise _InvalidContent(f"its facts must be a JSON object; got {stored['facts']!r}")
    return Checkpoint(arrays, stored["facts"])


def _read_header(content: bytes) -> tuple[dict[str, Any], int]:
    """Return the header and the position of the first array. The checksum of the header is checked before."""
    header_size = int.from_bytes(content[:8], "little")
    if len(content) < 8 + 32 or header_size > min(_MAX_HEADER_BYTES, len(content) - 8 - 32):
        raise _InvalidContent(f"it ends after {len(content):,} bytes, or it is no checkpoint")
    body_start = 8 + header_size
    if hashlib.sha256(content[:body_start]).digest() != content[-32:]:
        raise _InvalidContent("the checksum of its header is wrong, or its end is missing")
    header = json.loads(content[8:body_start])
    if "checkpoint" not in header.get(METADATA, {}):
        raise _InvalidContent("it was not written by lcrbnn")
    return header, body_start
