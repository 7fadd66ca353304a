"""The columns of a line of a run's log, and the check of their values."""

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
    "weight",
    "loss",
    "lip",
    "train",
    "valid",
    "valid_loss",
    "ratios",
    "share",
    "seconds",
)


def validate_log_line(line: Any, epoch: int, where: str) -> None:
    """Raise unless `line` is a line of the log for this epoch, counted from 1: all columns, each with a valid value."""
    if not isinstance(line, dict) or not set(COLUMNS) <= set(line) or line["epoch"] != epoch:
        raise InputError(where)
    column = find_invalid_column(line)
    if column is not None:
        raise InputError(f"{where}: {column} must be {_CHECKS[column].allowed}; got {_shorten(repr(line[column]))}")


def find_invalid_column(line: Mapping[str, Any]) -> str | None:
    """The first column of the log in `line` whose value is not valid; other names are ignored."""
    return next((name for name, check in _CHECKS.items() if name in line and not check.accepts(line[name])), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    try:
        return _is_number(value) and math.isfinite(value)
    except OverflowError:  # an integer that is larger than every float
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
    """The values that a column may have, as a predicate and in words."""

    def __init__(self, accepts: Callable[[Any], bool], allowed: str, *, optional: bool = False) -> None:
        self.allowed = f"{allowed}, or null" if optional else allowed
        self.accepts = (lambda value: value is None or accepts(value)) if optional else accepts


# The ratios, the shares and the validation loss may be infinite or NaN: no training step depends on them.
_CHECKS = {
    "epoch": _Check(_is_positive_integer, "an integer from 1 on"),
    "steps": _Check(_is_positive_integer, "an integer from 1 on"),
    "lr": _Check(_is_at_least_0, "a finite number from 0 on"),
    "weight": _Check(_is_at_least_0, "a finite number from 0 on"),
    "loss": _Check(_is_finite, "a finite number"),
    "lip": _Check(_is_finite, "a finite number", optional=True),
    "train": _Check(_is_percentage, "a number from 0 to 100"),
    "valid": _Check(_is_percentage, "a number from 0 to 100", optional=True),
    "valid_loss": _Check(_is_number, "a number", optional=True),
    "valid_top5": _Check(_is_percentage, "a number from 0 to 100", optional=True),
    "ratios": _Check(_is_list_of_numbers, "a list of numbers", optional=True),
    "share": _Check(_is_number, "a number", optional=True),
    "seconds": _Check(_is_at_least_0, "a finite number from 0 on"),
    "wait": _Check(_is_number, "a number"),
}


def _shorten(text: str, longest: int = 60) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."
