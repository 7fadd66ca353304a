"""Parse the JSON graph of a .bnn file, and check its objects, lists and integers."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from typing import Any, NoReturn

from lcrbnn.deploy.engine.operators import MAX_ENTRIES
from lcrbnn.errors import InputError

NUMBER_LENGTH_LIMIT = 64  # a number in the JSON graph must have fewer characters than this limit
_REQUIRED_KEYS = {
    "graph": ("writer", "name", "input", "classes", "tensors", "nodes"),
    "input": ("shape", "top", "mean", "std"),
    "tensor": ("type", "shape", "offset", "bytes"),
    "output": ("name", "value"),
}
_OPTIONAL_KEYS = {"input": ("margin",), "graph": ("outputs",)}


def parse_graph(graph_json: bytes) -> Any:
    """Return the parsed JSON. Raise InputError for duplicate keys, NaN and anything that is not UTF-8.

    Deep nesting fails here with RecursionError, or later in the checks of the keys.
    """
    try:
        return json.loads(
            graph_json.decode(),
            object_pairs_hook=_reject_duplicate_keys,
            parse_constant=_reject_constant,
            parse_int=lambda word: int(_check_number_length(word)),
            parse_float=lambda word: float(_check_number_length(word)),
        )
    except InputError:
        raise
    except RecursionError:
        raise InputError("the graph is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"the graph is not valid JSON ({reprlib.repr(str(error))})") from None


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict. Raise InputError if a key occurs twice."""
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise InputError("the graph has an object with the same key twice")
    return unique


def _check_number_length(word: str) -> str:
    """Return the text of a number. Raise InputError if the text is too long."""
    if len(word) >= NUMBER_LENGTH_LIMIT:
        raise InputError(
            f"a number of the graph must have fewer than {NUMBER_LENGTH_LIMIT} characters; got {reprlib.repr(word)}"
        )
    return word


def _reject_constant(name: str) -> NoReturn:
    raise InputError(f"the graph has {name}, which is not a JSON number")


def check_object(value: Any, kind: str, description: str) -> Mapping[str, Any]:
    """Return a JSON object with exactly the keys of its kind (optional keys may be absent)."""
    if not isinstance(value, dict) or value.keys() - set(_OPTIONAL_KEYS.get(kind, ())) != set(_REQUIRED_KEYS[kind]):
        got = list(value) if isinstance(value, dict) else value
        raise InputError(
            f"{description} must be an object with the keys {', '.join(_REQUIRED_KEYS[kind])}; got {reprlib.repr(got)}"
        )
    return value


def check_list(value: Any, description: str) -> list[Any]:
    """Return the value if it is a list of at most MAX_ENTRIES entries. Otherwise raise InputError."""
    if not isinstance(value, list) or len(value) > MAX_ENTRIES:
        raise InputError(f"{description} must be a list of at most {MAX_ENTRIES}; got {reprlib.repr(value)}")
    return value


def check_integer(value: Any, description: str, low: int, high: int) -> int:
    """Return an integer within bounds. Raise InputError for any other value, including 1.0 and true."""
    if type(value) is not int or not low <= value <= high:
        bounds = f"from {low} to {high}" if low <= high else "that names a tensor (the file has none)"
        raise InputError(f"{description} must be a whole number {bounds}; got {reprlib.repr(value)}")
    return value


def list_to_tuple(value: Any) -> Any:
    """Return a list as a tuple, and any other value unchanged."""
    return tuple(value) if isinstance(value, list) else value


def integer_to_float(value: Any) -> Any:
    """Return an integer as a float. An integer too large for float32 stays unchanged, and a later check rejects it."""
    return float(value) if type(value) is int and abs(value) < 2**128 else value


def integers_to_floats(value: Any) -> Any:
    """Return a list of numbers as a tuple of floats, and any other value unchanged."""
    return tuple(map(integer_to_float, value)) if isinstance(value, list) else value
