"""Kinds of attributes of a node (tensors, integers, numbers), and checks of single values."""

from __future__ import annotations

import contextlib
import math
import reprlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lcrbnn.deploy.engine.graph import PackedSigns
from lcrbnn.errors import InputError

MAX_DIMENSION = 2**20  # largest dimension of a value or tensor, and largest integer attribute unless stated otherwise

_DTYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "i32": np.dtype(np.int32)}


@dataclass(frozen=True)
class TensorAttribute:
    """An attribute that holds a tensor, with allowed types, names of dimensions, and a keyword allowed instead.

    `operators` lists the sizes that each name of a dimension stands for; a name without sizes allows every size.
    """

    types: tuple[str, ...]
    dimensions: tuple[str, ...]
    keyword: str | None = None
    rejects_nan: bool = False  # True if the tensor must not contain NaN, because values are compared with it
    # Input axis whose indices (or −1) the tensor contains; None if the tensor contains no indices
    index_axis: int | None = None

    def check(self, value: object, key: str) -> None:
        """Raise InputError unless the value is the keyword, or a tensor of an allowed type and number of dimensions."""
        if self.keyword is not None and isinstance(value, str) and value == self.keyword:
            return
        type_and_shape = tensor_type(value)
        if (
            type_and_shape is None
            or type_and_shape[0] not in self.types
            or len(type_and_shape[1]) != len(self.dimensions)
        ):
            or_keyword = f" or {self.keyword!r}" if self.keyword else ""
            got = format_value(value) if type_and_shape is None else f"{type_and_shape[0]} {list(type_and_shape[1])}"
            raise InputError(
                f"{key} must be {' or '.join(self.types)} [{', '.join(self.dimensions)}]{or_keyword}; got {got}"
            )

    def check_sizes(self, value: Any, key: str, sizes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise InputError unless each dimension of the tensor has one of the allowed sizes."""
        _, shape = tensor_type(value) or ("", ())
        for size, name in zip(shape, self.dimensions, strict=True):
            if name in sizes and size not in sizes[name]:
                expected = ", ".join(f"{name} = {' or '.join(map(str, sizes[name]))}" for name in self.dimensions)
                raise InputError(f"{key} must have the shape [{expected}]; got {list(shape)}")
        if any(size > MAX_DIMENSION for size in shape):
            raise InputError(f"no dimension of {key} may be larger than {MAX_DIMENSION}; got {list(shape)}")

    def check_values(self, value: Any, key: str, input_shape: Sequence[int]) -> None:
        """Raise InputError if thresholds contain NaN, padding bits are set or an index is outside the input."""
        if self.index_axis is not None:
            size = input_shape[self.index_axis]
            outside = value[(value < -1) | (value >= size)]
            if len(outside):
                raise InputError(f"{key} must contain indices from 0 to {size - 1}, or -1; got {outside[0]}")
        if self.rejects_nan and np.isnan(value).any():
            raise InputError(f"{key} must not be NaN")
        if isinstance(value, PackedSigns) and has_padding_bits(value):
            raise InputError(f"the padding bits of each row of {key} must be 0")


@dataclass(frozen=True)
class IntegerAttribute:
    """An attribute that holds an integer, or a list of `count` integers. A range of counts allows several lengths."""

    low: int
    high: int = MAX_DIMENSION
    count: int | range | None = None

    def check(self, value: object, key: str) -> None:
        """Raise InputError unless the value is an integer, or a list of integers, within the bounds."""
        if self.count is None:
            description, is_valid = "a whole number", is_integer(value, self.low, self.high)
        else:
            counts = self.count if isinstance(self.count, range) else range(self.count, self.count + 1)
            text = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
            description = f"a list of {text} whole numbers"
            is_valid = (
                isinstance(value, tuple | list)
                and len(value) in counts
                and all(is_integer(i, self.low, self.high) for i in value)
            )
        if not is_valid:
            raise InputError(f"{key} must be {description} from {self.low} to {self.high}; got {format_value(value)}")


@dataclass(frozen=True)
class NumberAttribute:
    """An attribute that holds one number. Readers round it to the nearest float32."""

    allows_negative: bool = True

    def check(self, value: object, key: str) -> None:
        """Raise InputError unless the value is a number that float32 can represent."""
        check_float32(value, key, positive=False)
        if not self.allows_negative and value < 0:  # type: ignore[operator]  # check_float32 accepts numbers only
            raise InputError(f"{key} must be at least 0; got {format_value(value)}")


Attribute = TensorAttribute | IntegerAttribute | NumberAttribute


def tensor_type(value: object) -> tuple[str, tuple[int, ...]] | None:
    """Return type (f32, f16, i32 or bits) and shape of a tensor in the file, and None for any other value."""
    if isinstance(value, PackedSigns):
        packed, n = value
        is_valid = isinstance(packed, np.ndarray) and packed.dtype == np.uint8 and is_integer(n, 1, 2**63)
        return (
            ("bits", (packed.shape[0], n)) if is_valid and packed.ndim == 2 and packed.shape[1] == -(-n // 8) else None
        )
    if isinstance(value, np.ndarray):
        return next(((name, value.shape) for name, dtype in _DTYPES.items() if value.dtype == dtype), None)
    return None


def has_padding_bits(bits: PackedSigns) -> bool:
    """Return whether a bit after the end of any row is set."""
    return bool(bits.n % 8 and (bits.packed[:, -1] >> (bits.n % 8)).any())


def is_integer(value: object, low: int, high: int = MAX_DIMENSION) -> bool:
    """Return whether a value is an integer within bounds. True and 1.0 are not integers."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def check_float32(value: object, description: str, *, positive: bool) -> None:
    """Raise InputError unless the value is a number that float32 can represent."""
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        # OverflowError means that the value is too large for float32 or double
        with contextlib.suppress(OverflowError, struct.error):
            (number,) = struct.unpack("f", struct.pack("f", value))
    if not math.isfinite(number) or (positive and number <= 0):
        kind = "positive number" if positive else "number"
        raise InputError(f"{description} must be a {kind} that float32 can represent; got {format_value(value)}")


def check_text(value: object, description: str) -> None:
    """Raise InputError unless the value is a text that UTF-8 can encode. NUL, which ends a C string, is not allowed."""
    try:
        is_valid = isinstance(value, str) and value.encode() is not None and "\0" not in value
    except UnicodeEncodeError:
        is_valid = False
    if not is_valid:
        raise InputError(f"{description} must be a text of UTF-8 without NUL; got {format_value(value)}")


def shorten_name(value: object) -> str:
    """Return a name from a file, cut to a length that can be compared and printed."""
    return value[:64] if isinstance(value, str) else format_value(value)


def format_value(value: object) -> str:
    """Return a short text of one line for a value from a file."""
    return reprlib.repr(value).replace("\n", " ")
