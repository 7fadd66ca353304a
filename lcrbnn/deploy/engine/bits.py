"""Pack signs into bits. A set bit is +1, the lowest bit of a byte is the first sign, and rows are whole bytes."""

from __future__ import annotations

import numpy as np

from lcrbnn.errors import InputError


def pack_signs(signs: np.ndarray) -> np.ndarray:
    """Pack rows of numbers or bools into bytes, uint8 [rows, ceil(n / 8)]. Numbers not below 0 count as +1."""
    if signs.ndim != 2:
        raise InputError(f"signs to pack must have two dimensions, rows and columns; got the shape {signs.shape}")
    positive = signs if signs.dtype == np.bool_ else ~(signs < 0)
    return np.packbits(positive, axis=1, bitorder="little")


def unpack_signs(packed: np.ndarray, n: int) -> np.ndarray:
    """Return the first n signs of each row as int8 ±1."""
    _check_packed_rows(packed, n)
    bits = np.unpackbits(packed, axis=1, count=n, bitorder="little")
    return (2 * bits.astype(np.int8) - 1).astype(np.int8)


def pack_words(packed: np.ndarray, n: int) -> np.ndarray:
    """Return the rows as little-endian uint64 words, [rows, ceil(n / 64)], padded with zeros."""
    _check_packed_rows(packed, n)
    rows, num_words = len(packed), -(-n // 64)
    padded = np.zeros((rows, 8 * num_words), np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view("<u8")


def _check_packed_rows(packed: np.ndarray, n: int) -> None:
    """Raise InputError unless the array has the type and shape of rows of n bits."""
    if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] != -(-n // 8):
        raise InputError(
            f"rows of {n} bits must be uint8 of the shape (rows, {-(-n // 8)}); got {packed.dtype} {packed.shape}"
        )
