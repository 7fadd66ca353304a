"""Two readers, one file: what docs/format.md leaves to nobody's taste, at its edges."""

from __future__ import annotations

from typing import Any

import pytest

from lcrbnn.engine import lib
from lcrbnn.engine.format import from_bytes
from lcrbnn.errors import InputError
from tests.engine.files import DATA, graph_of, moved, opens, summed
from tests.engine.graphs import need_engine

need_engine()

BOTH, NEITHER = (True, True), (False, False)
LARGEST = "340282346638528859811704183484516925440"  # of float32


def with_number(word: str, *path: Any) -> bytes:
    """A file with a number written in this way at a place of its graph."""
    graph = graph_of(DATA)
    at: Any = graph
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = "WORD"
    return moved(graph, DATA, word)


@pytest.mark.parametrize(
    ("word", "taken"),
    [
        ("3.4e38", BOTH),
        ("3.4028234e38", BOTH),
        ("3.4028234663852886e38", BOTH),  # the largest of float32
        (LARGEST, BOTH),
        ("3.4028235677973362e38", BOTH),  # the last double that rounds to it
        ("3.4028235677973366e38", NEITHER),  # half way to the next, which there is none of
        ("3.5e38", NEITHER),
        ("1e39", NEITHER),
        ("1e308", NEITHER),
        ("1e309", NEITHER),
        ("1" + "0" * 40, NEITHER),
        ("1e-45", BOTH),  # the smallest above 0
        ("8e-46", BOTH),  # rounds to it
        ("7e-46", NEITHER),  # rounds to 0, which no pixel is divided by
        ("1e-400", NEITHER),
        ("0.5" + "0" * 60, BOTH),  # 63 characters
        ("0.5" + "0" * 61, NEITHER),
        ("1" * 64, NEITHER),
        ("-1", NEITHER),
        ("01", NEITHER),
        ("+1", NEITHER),
        ("1.", NEITHER),
        ("NaN", NEITHER),
    ],
)
def test_numbers_at_the_edge_of_float32(word: str, taken: tuple[bool, bool]) -> None:
    for path in (("input", "top"), ("input", "std", 1)):
        assert opens(with_number(word, *path)) == taken, path


@pytest.mark.parametrize("word", ["-3.4028235677973362e38", "0", "-0", "-0.0", "1e-400", "12"])
def test_means_may_have_any_sign(word: str) -> None:
    assert opens(with_number(word, "input", "mean", 0)) == BOTH


@pytest.mark.parametrize("word", ["1.0", "1e0", "10e-1", "true", "1" + "0" * 62, "1" + "0" * 63])
def test_whole_numbers_are_written_as_such(word: str) -> None:
    assert opens(with_number(word, "nodes", 0, "groups")) == NEITHER
    assert opens(with_number("1", "nodes", 0, "groups")) == BOTH


def with_unused(content: bytes) -> bytes:
    """A file with one more tensor, of bits [1, 12], that no key names."""
    start, size = (int.from_bytes(DATA[at : at + 8], "little") for at in (40, 48))
    more = DATA[:48] + (size + 64).to_bytes(8, "little") + DATA[56:-32] + content.ljust(64, b"\0")
    data = summed(more[:16] + (len(more) + 32).to_bytes(8, "little") + more[24:])
    graph = graph_of(DATA)
    graph["tensors"].append({"type": "bits", "shape": [1, 12], "offset": start + size, "bytes": 2})
    return moved(graph, data)


def test_bits_behind_a_row_are_refused_of_tensors_that_nobody_uses_too() -> None:
    assert opens(with_unused(b"\xff\x0f")) == BOTH
    assert opens(with_unused(b"\xff\x1f")) == NEITHER
    with pytest.raises(InputError, match="bits behind the end of a row must be 0"):
        from_bytes(with_unused(b"\xff\x1f"), "f")
    with pytest.raises(InputError, match="bits after the end of a row must be 0"):
        lib.Engine(with_unused(b"\xff\x1f"))


@pytest.mark.parametrize("count", [20, 511, 512, 513, 5000])
def test_an_object_of_many_members_has_unknown_ones(count: int) -> None:
    for place in ("input", "nodes"):
        graph = graph_of(DATA)
        at = graph[place] if place == "input" else graph[place][0]
        at |= {f"key {i}": i for i in range(count)}
        assert opens(moved(graph, DATA)) == NEITHER


def test_many_names_of_classes_are_no_object() -> None:
    graph = graph_of(DATA)
    graph["classes"] = ["x"] * 600
    graph["nodes"].insert(2, {"op": "channels", "name": "", "in": [2], "before": 0, "after": 597})
    for node in graph["nodes"][3:]:
        node["in"] = [value + 1 for value in node["in"]]
    assert opens(moved(graph, DATA)) == BOTH
