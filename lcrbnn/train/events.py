"""TensorBoard's event files, written by hand: a record is a length, a checksum, a protocol-buffer message, a checksum.

Two messages are needed, "file version" and "one number with a tag", so this replaces a dependency of a dozen packages.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError

CURVES = (
    "loss",
    "lip",
    "train",
    "valid",
    "valid_loss",
    "lr",
    "weight",
    "share",
    "valid_top5",
    "wait",
)  # of a log line; ratios get a curve each

_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected


def _table() -> list[int]:
    rows = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        rows.append(value)
    return rows


_TABLE = _table()


def masked_crc(data: bytes) -> int:
    """The rotated CRC-32C that the format asks for."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _bytes_field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _event(when: float, step: int, rest: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", when) + b"\x10" + _varint(step) + rest


def _scalar(tag: str, value: float) -> bytes:
    return _bytes_field(1, _bytes_field(1, tag.encode()) + b"\x15" + struct.pack("<f", value))


def _record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return b"".join([length, struct.pack("<I", masked_crc(length)), message, struct.pack("<I", masked_crc(message))])


class EventFile:
    """The curves of a run, an event an epoch. Made anew from the log at each start, so a resumed run has no doubles."""

    def __init__(self, folder: Path, lines: list[dict[str, Any]]) -> None:
        """Begin the file with the epochs that are done."""
        try:
            folder.mkdir(exist_ok=True)
            for old in folder.glob("events.out.tfevents.*"):
                old.unlink()
            self.path = folder / f"events.out.tfevents.{int(time.time())}.{os.uname().nodename}.lcrbnn"
            self.path.write_bytes(_record(_event(time.time(), 0, _bytes_field(3, b"brain.Event:2"))))
            for line in lines:
                self.add(line)
        except OSError as error:
            raise InputError(f"TensorBoard's file cannot be written to {folder}: {error.strerror}") from None

    def add(self, line: dict[str, Any]) -> None:
        """One epoch: an event with all its numbers."""
        values = {name: line[name] for name in CURVES if line.get(name) is not None}
        values |= {f"ratio/{i:02d}": ratio for i, ratio in enumerate(line["ratios"] or [])}
        summary = b"".join(_scalar(tag, value) for tag, value in values.items())
        with self.path.open("ab") as file:
            file.write(_record(_event(time.time(), line["epoch"], _bytes_field(5, summary))))
