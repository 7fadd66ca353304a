"""Files that mean harm, given to the compiled engine."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest

from lcrbnn.bits import pack
from lcrbnn.engine import Bits, lib
from lcrbnn.engine.format import from_bytes, to_bytes
from lcrbnn.errors import Failed, InputError
from tests.engine.files import graph_of, moved, summed, with_text
from tests.engine.graphs import Build, grown, need_engine

need_engine()


def refused(data: bytes, match: str = ".") -> None:
    with pytest.raises(InputError, match=match):
        lib.Engine(data)


def test_damage_is_seen(small: Build) -> None:
    data = to_bytes(small.model())
    for cut in (0, 7, 8, 63, 95, 96, len(data) - 1):
        refused(data[:cut])
    refused(data + b"\0", "says")
    for at in (70, len(data) - 40, len(data) - 1):
        refused(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "checksum")


HEADERS = {
    "version": (8, "<I", 2),
    "flags": (12, "<I", 1),
    "says": (16, "<Q", 2**63),
    "byte 64": (24, "<Q", 128),
    "16 MiB": (32, "<Q", 2**60),
    "multiple of 64": (40, "<Q", 64),
    "add up": (48, "<Q", 2**64 - 64),
    "must be zero": (56, "<Q", 1),
}


@pytest.mark.parametrize("match", HEADERS)
def test_headers(small: Build, match: str) -> None:
    at, kind, value = HEADERS[match]
    data = bytearray(to_bytes(small.model()))
    struct.pack_into(kind, data, at, value)
    refused(summed(bytes(data)[:-32]), match)


TEXTS = {
    "nested deeper": b"[" * 17 + b"]" * 17,
    "too large": b"[1e999]",
    "twice": b'{"a":1,"a":2}',
    "bad UTF-8": b'["\xff"]',
    "surrogate": b'["\\ud800"]',
    "zero in a text": b'["\\u0000"]',
    "unknown word": b"[nul]",
    "bad number": b"[-]",
    "no comma": b"[01]",
    "control": b'["\n"]',
    "more after": b"{} {}",
    "early end": b"[1",
    "object": b"[]",
    "escape": b'["\\x"]',
    "without end": b'["a',
    "no colon": b'{"a" 1}',
    "no text": b"{1:2}",
}


@pytest.mark.parametrize("match", TEXTS)
def test_texts(small: Build, match: str) -> None:
    refused(with_text(TEXTS[match], to_bytes(small.model())), match)


def test_graphs_with_one_fault(small: Build) -> None:
    """Each value of the graph replaced by values it must not have: refused, or at least no crash."""
    data = to_bytes(small.model())
    evil = (None, -1, 0, 2**20 + 1, 2**53, 1.5, "x", [], {}, [2**20] * 4, [0, 0], [1, 1], True)
    tried = accepted = 0

    def walk(at: object) -> None:
        nonlocal tried, accepted
        items = list(at.items()) if isinstance(at, dict) else list(enumerate(at)) if isinstance(at, list) else []
        for key, old in items:
            for value in evil:
                at[key] = value  # type: ignore[index]  # a dict or a list, whichever is walked
                tried += 1
                try:
                    engine = lib.Engine(moved(graph, data))
                    engine.run(np.zeros((1, *engine.shape), np.float32))
                    accepted += 1
                except (InputError, TypeError, AttributeError):
                    pass
            at[key] = old  # type: ignore[index]  # a dict or a list, whichever is walked
            walk(old)

    graph = graph_of(data)
    walk(graph)
    assert tried > 500
    assert accepted < tried / 5  # other names, means and the like


def test_both_readers_refuse_the_same(small: Build) -> None:
    """Whole numbers of a graph moved a little or far: what NumPy's reader takes the engine takes, and nothing else."""
    rng = np.random.default_rng(1)
    far = (0, 1, 2, 3, 7, 64, 65535, 2**20, 2**20 + 1, 2**31, 2**53, -1, 0.5)
    taken = 0
    for seed in range(60):
        data = to_bytes(grown(seed).model())
        for _ in range(10):
            graph = graph_of(data)
            node = graph["nodes"][rng.integers(len(graph["nodes"]))]
            key = str(rng.choice([key for key in node if key not in ("op", "name")]))
            at, index = (node[key], int(rng.integers(len(node[key])))) if isinstance(node[key], list) else (node, key)
            near = at[index] + int(rng.choice([-1, 1])) if isinstance(at[index], int) else 1
            at[index] = near if rng.random() < 0.6 else far[rng.integers(len(far))]
            changed = moved(graph, data)
            try:
                from_bytes(changed, "")
            except InputError:
                refused(changed)
                continue
            taken += 1
            with contextlib.suppress(Failed):  # too much memory
                lib.Engine(changed)
    assert taken > 20


def test_files_that_ask_for_too_much() -> None:
    """Small files, all sizes right, that would need terabytes."""
    build = Build(0, (1, 1, 1))
    far = 2**20
    pad = {"kernel": (1, 1), "stride": (far, far), "pad": (far,) * 4, "dilation": (1, 1), "groups": 1}
    one = {"a": build.floats(1), "b": build.floats(1), "weight": Bits(pack(np.ones((1, 1))), 1)}
    build.add("bconv", (0,), (3, 3, 1), threshold=build.floats(1), pad_sign=0, **one, **pad)
    with pytest.raises(Failed, match="too much memory"):
        lib.Engine(to_bytes(build.model()))
    build = Build(0, (1, 1, 1))
    wide = {"kernel": (1, 1), "stride": (1, 1), "pad": (8191, 8191, 8192, 8192), "dilation": (1, 1), "groups": 1}
    values = [build.add("wconv", (0,), (16384, 16384, 1), **one, **wide) for _ in range(12)]
    for value in values:
        build.random("shift", value)
    with pytest.raises(Failed, match="too much memory"):
        lib.Engine(to_bytes(build.model()))


def test_unknown_and_missing_keys(small: Build) -> None:
    data = to_bytes(small.model())
    for place in ((), ("input",), ("tensors", 0), ("nodes", 0)):
        graph = graph_of(data)
        at = graph
        for key in place:
            at = at[key]
        at["colour"] = 1
        refused(moved(graph, data), "unknown key")
        del at["colour"]
        for key in list(at):
            old = at.pop(key)
            if "tensors" in graph:
                with pytest.raises(InputError):
                    lib.Engine(moved(graph, data))
            at[key] = old


def test_flipped_bytes_behind_a_right_checksum() -> None:
    """Random damage that the checksum does not see: no crash, whatever the answer."""
    rng = np.random.default_rng(0)
    data = to_bytes(grown(2).model())
    end = struct.unpack_from("<Q", data, 40)[0]
    for _ in range(2000):
        bad = bytearray(data)
        for at in rng.integers(8, end, rng.integers(1, 4)):
            bad[at] = rng.integers(0, 256)
        try:
            engine = lib.Engine(summed(bytes(bad)[:-32]))
        except InputError:
            continue
        if np.prod(engine.shape) < 1e5 and sum(engine.bytes.values()) < 1e8:
            engine.run(np.zeros((1, *engine.shape), np.float32))
