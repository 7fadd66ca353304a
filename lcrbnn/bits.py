"""Signs as bits: a set bit is +1, the lowest bit of a byte comes first, and a row ends with a whole byte."""

from __future__ import annotations

import numpy as np

from lcrbnn.errors import InputError


def pack(signs: np.ndarray) -> np.ndarray:
    """Pack rows of ±1 (a number that is not below 0 counts as +1) or of bools into bytes, uint8 [rows, ceil(n / 8)]."""
    if signs.ndim != 2:
        raise InputError(f"signs to pack have two dimensions, rows and columns; got the shape {signs.shape}")
    positive = signs if signs.dtype == np.bool_ else ~(signs < 0)
    return np.packbits(positive, axis=1, bitorder="little")


def unpack(packed: np.ndarray, n: int) -> np.ndarray:
    """Return the first n signs of each row, int8 ±1."""
    _check(packed, n)
    ones = np.unpackbits(packed, axis=1, count=n, bitorder="little")
    return (2 * ones.astype(np.int8) - 1).astype(np.int8)


def words(packed: np.ndarray, n: int) -> np.ndarray:
    """Return the rows as little-endian uint64, [rows, ceil(n / 64)]; the last word of a row ends with zeros."""
    _check(packed, n)
    rows, count = len(packed), -(-n // 64)
    padded = np.zeros((rows, 8 * count), np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view("<u8")


def _check(packed: np.ndarray, n: int) -> None:
    """Raise unless the array can be rows of n bits."""
    if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] != -(-n // 8):
        raise InputError(
            f"rows of {n} bits are uint8 of the shape (rows, {-(-n // 8)}); got {packed.dtype} {packed.shape}"
        )
