"""How work ends early: a user's mistake (one sentence: what came, what was possible, where), a failure, a stop."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, TypeVar

T = TypeVar("T")

LARGEST = 3.4e38  # a number of float32

_SHOWN = 24  # names that a message lists before it says "and so many more"


class InputError(ValueError):
    """Something from outside is wrong. The message is the whole explanation; the command line exits with 2 on it."""


class Failed(Exception):
    """Work cannot go on, and no input is to blame: bad numbers, a full disk. The command line exits with 1 on it."""


class Repeated(Failed):
    """Another process of the same run says why; this one only ends, with the same exit code."""

    def __init__(self, code: int) -> None:
        """Keep the exit code."""
        super().__init__(f"exit code {code}")
        self.code = code


class Stopped(Exception):
    """A signal asked for an end, and all is saved. The command line exits with 128 + its number, as a shell would."""

    def __init__(self, message: str, number: int) -> None:
        """Keep which signal it was."""
        super().__init__(message)
        self.number = number


def choose(table: Mapping[str, T], name: object, what: str) -> T:
    """Return `table[name]`; otherwise say which names there are (and the nearest one)."""
    if isinstance(name, str) and name in table:
        return table[name]
    raise InputError(f"no {what} is called {name!r}; {_possible(name, table)}")


def refuse_unknown(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise on the first name in `given` that `known` does not hold."""
    known = list(known)
    for name in given:
        if name not in known:
            raise InputError(f"no {what} is called {name!r}; {_possible(name, known)}")


def number(value: Any, name: str, *, low: float, high: float = math.inf, whole: bool = False) -> None:
    """Raise unless `value` is a finite number (whole if asked) in [low, high]."""
    kind = Integral if whole else Real
    large = not whole and isinstance(value, Real) and LARGEST < _float(value) <= high
    fits = not isinstance(value, bool) and isinstance(value, kind)
    # A whole number is compared as it is: near 2^63 a float rounds up.
    if large or not fits or not low <= (value if whole else _float(value)) <= high:
        word = "a whole number" if whole else "a number"
        bounds = f"of at least {low}" if high == math.inf else f"from {low} to {high}"
        if large and not math.isinf(_float(value)):
            bounds = f"of at most {LARGEST:.1e}"
        shown = repr(value)
        raise InputError(f"{name} must be {word} {bounds}; got {shown if len(shown) <= 60 else shown[:60] + '...'}")


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number with hundreds of digits
        return math.inf


_TOO_LARGE = "Storage size calculation overflowed"  # torch: the number of bytes does not fit into 64 bits
_NO_MEMORY = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "out of memory")
_AMOUNT = re.compile(r"(?:tried to allocate|Unable to allocate) ([\d.]+ \w+)", re.IGNORECASE)


def describe_memory_error(error: BaseException) -> str | None:
    """One sentence about an allocation of Python, numpy or torch that failed; None for every other error."""
    text = str(error)
    if isinstance(error, RuntimeError) and text.startswith(_TOO_LARGE):
        amount = "more bytes than a computer can address"
    elif isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(one in text for one in _NO_MEMORY)):
        found = _AMOUNT.search(text)
        amount = found[1] if found else "so many bytes"
    else:
        return None
    return f"there is not enough memory: {amount} cannot be allocated"


def names_of(given: Any, what: str) -> list[str]:
    """Return a list of names; a single text or anything else is refused, for it would be read letter by letter."""
    names: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [None]
    if not all(isinstance(name, str) for name in names):
        raise InputError(f"{what} is a list of names; got {given!r}")
    return names


def _possible(name: object, known: Iterable[str]) -> str:
    names = list(known)
    if not names:
        return "there are none"
    near = get_close_matches(name, names, 1) if isinstance(name, str) else []
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"there are {', '.join(names[:_SHOWN])}{more}{hint}"
