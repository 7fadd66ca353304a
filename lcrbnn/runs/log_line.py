"""The columns of log.jsonl, and the checks of their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from lcrbnn.errors import InputError

# The columns that every line has.
COLUMNS = (
    "epoch",
    "steps",
    "lr",
    "lcr_weight",
    "train_loss",
    "lcr_loss",
    "train_top1",
    "valid_top1",
    "valid_loss",
    "sigma_ratios",
    "lcr_gradient_ratio",
    "seconds",
)


def validate_log_line(line: Any, epoch: int, location: str) -> None:
    """Raise InputError if `line` is not a valid log line of this epoch (counted from 1), with all columns."""
    if not isinstance(line, dict) or not set(COLUMNS) <= set(line) or line["epoch"] != epoch:
        raise InputError(location)
    column = find_invalid_column(line)
    if column is not None:
        raise InputError(f"{location}: {column} must be {_CHECKS[column].allowed}; got {_shorten(repr(line[column]))}")


def find_invalid_column(line: Mapping[str, Any]) -> str | None:
    """Return the first column of `line` with an invalid value, or None if there is none.

    Unknown columns are ignored.
    """
    return next((name for name, check in _CHECKS.items() if name in line and not check.accepts(line[name])), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    try:
        return _is_number(value) and math.isfinite(value)
    except OverflowError:  # this integer is too large for a float
        return False


def _is_positive_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63


def _is_at_least_0(value: Any) -> bool:
    return _is_finite(value) and value >= 0


def _is_percentage(value: Any) -> bool:
    return _is_finite(value) and 0 <= value <= 100


def _is_list_of_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


class _Check:
    """The allowed values of a column, as a function that checks a value and a description in words."""

    def __init__(self, accepts: Callable[[Any], bool], allowed: str, *, optional: bool = False) -> None:
        self.allowed = f"{allowed}, or null" if optional else allowed
        self.accepts = (lambda value: value is None or accepts(value)) if optional else accepts


# The sigma ratios, the gradient ratio and the validation loss may be infinite or NaN, because training does not use
# them.
_CHECKS = {
    "epoch": _Check(_is_positive_integer, "an integer of at least 1"),
    "steps": _Check(_is_positive_integer, "an integer of at least 1"),
    "lr": _Check(_is_at_least_0, "a finite number of at least 0"),
    "lcr_weight": _Check(_is_at_least_0, "a finite number of at least 0"),
    "train_loss": _Check(_is_finite, "a finite number"),
    "lcr_loss": _Check(_is_finite, "a finite number", optional=True),
    "train_top1": _Check(_is_percentage, "a number from 0 to 100"),
    "valid_top1": _Check(_is_percentage, "a number from 0 to 100", optional=True),
    "valid_loss": _Check(_is_number, "a number", optional=True),
    "valid_top5": _Check(_is_percentage, "a number from 0 to 100", optional=True),
    "sigma_ratios": _Check(_is_list_of_numbers, "a list of numbers", optional=True),
    "lcr_gradient_ratio": _Check(_is_number, "a number", optional=True),
    "seconds": _Check(_is_at_least_0, "a finite number of at least 0"),
    "data_time_fraction": _Check(_is_number, "a number"),
}


def _shorten(text: str, max_length: int = 60) -> str:
    return text if len(text) <= max_length else f"{text[:max_length]}..."
