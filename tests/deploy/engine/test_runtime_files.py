"""Invalid and malicious files in the compiled engine."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest

from lcrbnn.deploy.engine import runtime as lib
from lcrbnn.deploy.engine.bits import pack_signs
from lcrbnn.deploy.engine.bnn_file import from_bytes, to_bytes
from lcrbnn.deploy.engine.graph import PackedSigns
from lcrbnn.errors import InputError, RunFailed
from tests.deploy.engine.edited_files import add_checksum, parse_graph, replace_graph, replace_graph_text
from tests.deploy.engine.random_graphs import RandomGraph, grow_random_graph, skip_without_engine

skip_without_engine()


def assert_engine_rejects(data: bytes, match: str = ".") -> None:
    with pytest.raises(InputError, match=match):
        lib.Engine(data)


def test_damaged_files_are_rejected(small: RandomGraph) -> None:
    data = to_bytes(small.build_model())
    for cut in (0, 7, 8, 63, 95, 96, len(data) - 1):
        assert_engine_rejects(data[:cut])
    assert_engine_rejects(data + b"\0", "the header gives")
    for at in (70, len(data) - 40, len(data) - 1):
        assert_engine_rejects(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "checksum")


INVALID_HEADERS = {
    "version": (8, "<I", 3),
    "flags": (12, "<I", 1),
    "the header gives": (16, "<Q", 2**63),
    "byte 64": (24, "<Q", 128),
    "16 MiB": (32, "<Q", 2**60),
    "multiple of 64": (40, "<Q", 64),
    "add up": (48, "<Q", 2**64 - 64),
    "must be zero": (56, "<Q", 1),
}


@pytest.mark.parametrize("match", INVALID_HEADERS)
def test_invalid_headers_are_rejected(small: RandomGraph, match: str) -> None:
    at, kind, value = INVALID_HEADERS[match]
    data = bytearray(to_bytes(small.build_model()))
    struct.pack_into(kind, data, at, value)
    assert_engine_rejects(add_checksum(bytes(data)[:-32]), match)


INVALID_JSON = {
    "nesting deeper": b"[" * 17 + b"]" * 17,
    "too large": b"[1e999]",
    "duplicate key": b'{"a":1,"a":2}',
    "invalid UTF-8": b'["\xff"]',
    "surrogate": b'["\\ud800"]',
    "zero character in a text": b'["\\u0000"]',
    "unknown word": b"[nul]",
    "invalid number": b"[-]",
    "missing comma": b"[01]",
    "control": b'["\n"]',
    "extra data after": b"{} {}",
    "unexpected end": b"[1",
    "object": b"[]",
    "escape": b'["\\x"]',
    "without closing quote": b'["a',
    "missing colon": b'{"a" 1}',
    "missing key": b"{1:2}",
}


@pytest.mark.parametrize("match", INVALID_JSON)
def test_invalid_json_is_rejected(small: RandomGraph, match: str) -> None:
    assert_engine_rejects(replace_graph_text(INVALID_JSON[match], to_bytes(small.build_model())), match)


def test_graphs_with_one_invalid_value_do_not_crash(small: RandomGraph) -> None:
    """Replace each value of the graph by invalid values: the engine rejects the file or at least does not crash."""
    data = to_bytes(small.build_model())
    invalid_values = (None, -1, 0, 2**20 + 1, 2**53, 1.5, "x", [], {}, [2**20] * 4, [0, 0], [1, 1], True)
    tried = accepted = 0

    def walk(entry: object) -> None:
        nonlocal tried, accepted
        items = (
            list(entry.items())
            if isinstance(entry, dict)
            else list(enumerate(entry))
            if isinstance(entry, list)
            else []
        )
        for key, old in items:
            for value in invalid_values:
                entry[key] = value  # type: ignore[index]  # a dict or a list
                tried += 1
                try:
                    engine = lib.Engine(replace_graph(graph, data))
                    engine.run(np.zeros((1, *engine.shape), np.float32))
                    accepted += 1
                except (InputError, TypeError, AttributeError):
                    pass
            entry[key] = old  # type: ignore[index]  # a dict or a list
            walk(old)

    graph = parse_graph(data)
    walk(graph)
    assert tried > 500
    assert accepted < tried / 5  # some values, such as names and means, stay valid


@pytest.mark.parametrize("version", [1, 2])
def test_both_readers_accept_the_same_graphs(version: int) -> None:
    """Change integers of a graph: the engine accepts exactly the files that the Python reader accepts."""
    rng = np.random.default_rng(1)
    unusual_values = (0, 1, 2, 3, 7, 64, 65535, 2**20, 2**20 + 1, 2**31, 2**53, -1, 0.5)
    num_accepted = 0
    for seed in range(60):
        data = to_bytes(grow_random_graph(seed, version).build_model(num_outputs=(version - 1) * 2))
        for _ in range(10):
            graph = parse_graph(data)
            node = graph["nodes"][rng.integers(len(graph["nodes"]))]
            keys = [key for key in node if key not in ("op", "name") and node[key] != []]
            if not keys:
                continue
            key = str(rng.choice(keys))
            container, index = (
                (node[key], int(rng.integers(len(node[key])))) if isinstance(node[key], list) else (node, key)
            )
            neighbour = container[index] + int(rng.choice([-1, 1])) if isinstance(container[index], int) else 1
            container[index] = neighbour if rng.random() < 0.6 else unusual_values[rng.integers(len(unusual_values))]
            changed = replace_graph(graph, data)
            try:
                from_bytes(changed, "")
            except InputError:
                assert_engine_rejects(changed)
                continue
            num_accepted += 1
            with contextlib.suppress(RunFailed):  # too much memory
                lib.Engine(changed)
    assert num_accepted > 20


def test_small_files_that_need_too_much_memory_are_rejected() -> None:
    """The files are small and valid, but the models would need terabytes."""
    build = RandomGraph(0, (1, 1, 1))
    max_stride = 2**20
    window = {
        "kernel": (1, 1),
        "stride": (max_stride, max_stride),
        "pad": (max_stride,) * 4,
        "dilation": (1, 1),
        "groups": 1,
    }
    attributes = {
        "a": build.draw_floats(1),
        "b": build.draw_floats(1),
        "weight": PackedSigns(pack_signs(np.ones((1, 1))), 1),
    }
    build.add_node("bconv", (0,), (3, 3, 1), threshold=build.draw_floats(1), pad_sign=0, **attributes, **window)
    with pytest.raises(RunFailed, match="too much memory"):
        lib.Engine(to_bytes(build.build_model()))
    build = RandomGraph(0, (1, 1, 1))
    wide_window = {"kernel": (1, 1), "stride": (1, 1), "pad": (8191, 8191, 8192, 8192), "dilation": (1, 1), "groups": 1}
    values = [build.add_node("wconv", (0,), (16384, 16384, 1), **attributes, **wide_window) for _ in range(12)]
    for value in values:
        build.add_random_node("shift", value)
    with pytest.raises(RunFailed, match="too much memory"):
        lib.Engine(to_bytes(build.build_model()))


def test_unknown_and_missing_keys_are_rejected(small: RandomGraph) -> None:
    data = to_bytes(small.build_model())
    for place in ((), ("input",), ("tensors", 0), ("nodes", 0)):
        graph = parse_graph(data)
        at = graph
        for key in place:
            at = at[key]
        at["colour"] = 1
        assert_engine_rejects(replace_graph(graph, data), "unknown key")
        del at["colour"]
        for key in list(at):
            old = at.pop(key)
            if "tensors" in graph:
                with pytest.raises(InputError):
                    lib.Engine(replace_graph(graph, data))
            at[key] = old


def test_damage_with_a_valid_checksum_does_not_crash() -> None:
    """Random changes with a recomputed checksum do not crash the engine."""
    rng = np.random.default_rng(0)
    data = to_bytes(grow_random_graph(2).build_model())
    end = struct.unpack_from("<Q", data, 40)[0]
    for _ in range(2000):
        bad = bytearray(data)
        for at in rng.integers(8, end, rng.integers(1, 4)):
            bad[at] = rng.integers(0, 256)
        try:
            engine = lib.Engine(add_checksum(bytes(bad)[:-32]))
        except InputError:
            continue
        if np.prod(engine.shape) < 1e5 and sum(engine.bytes.values()) < 1e8:
            engine.run(np.zeros((1, *engine.shape), np.float32))
