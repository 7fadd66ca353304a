"""How work ends early: a user's mistake (one sentence: what came, what was possible, where), a failure, a stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
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
    size: Callable[[Any], Any] = int if whole else _float  # a float would round a large whole number
    if large or isinstance(value, bool) or not isinstance(value, kind) or not low <= size(value) <= high:
        word = "a whole number" if whole else "a number"
        bounds = f"of at least {low}" if high == math.inf else f"from {low} to {high}"
        if large and not math.isinf(_float(value)):
            bounds = f"of at most {LARGEST:.1e}"
        raise InputError(f"{name} must be {word} {bounds}; got {value!r}")


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number with hundreds of digits
        return math.inf


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
