"""Model files taken apart and put together again with one thing changed and all else right."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import numpy as np
import pytest

from lcrbnn.engine import Node, lib
from lcrbnn.engine.format import from_bytes, to_bytes
from lcrbnn.errors import Failed, InputError
from tests.engine import made, normal, random_keys, window

RNG = np.random.default_rng
SMALL = made(
    (3, 3, 2),
    Node("bconv", "b", (0,), random_keys(RNG(0), "bconv", 2, 3, window((3, 3), pad=(1, 1, 1, 1)))),
    Node("affine", "é\n", (1,), {"a": normal(RNG(1), 3), "b": normal(RNG(2), 3)}),
    Node("mean", "m", (2,), {}),
)
DATA = to_bytes(SMALL)
Graph = dict[str, Any]


def graph_of(data: bytes) -> Graph:
    return json.loads(data[64 : 64 + struct.unpack_from("<Q", data, 32)[0]])


def summed(body: bytes) -> bytes:
    """The body with its right checksum."""
    return body + hashlib.sha256(body).digest()


def with_text(text: bytes, data: bytes = DATA) -> bytes:
    """A file with another text of the graph, right in all else; offsets in the text are left as they are."""
    start, count = struct.unpack_from("<QQ", data, 40)
    new = -(-(64 + len(text)) // 64) * 64
    header = struct.pack("<8sIIQQQQQQ", data[:8], 1, 0, new + count + 32, 64, len(text), new, count, 0)
    return summed(header + text + bytes(new - 64 - len(text)) + data[start : start + count])


def roomy(data: bytes, spare: int) -> bytes:
    """A file with so many spaces behind its graph that another graph fits without moving the tensors."""
    graph, start = graph_of(data), struct.unpack_from("<Q", data, 40)[0]
    for entry in graph["tensors"]:
        entry["offset"] += spare
    return with_text(json.dumps(graph).encode().ljust(start - 64 + spare), data)


def with_graph(graph: Any, data: bytes) -> bytes:
    """A roomy file with a changed graph."""
    length = struct.unpack_from("<Q", data, 32)[0]
    text = json.dumps(graph, separators=(",", ":")).encode()
    assert len(text) <= length
    return with_text(text.ljust(length), data)


ROOMY = roomy(DATA, 2**18)


def refused(data: bytes, fault: str) -> None:
    """Bytes give one sentence that names the file and the fault."""
    with pytest.raises(InputError, match=f"^f: .*{fault}") as caught:
        from_bytes(data, "f")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def moved(graph: Graph, data: bytes, word: str = "") -> bytes:
    """A file with a changed graph, all offsets of tensors moved along with its length; WORD in it stands for `word`."""
    start = struct.unpack_from("<Q", data, 40)[0]
    first = [entry["offset"] - start if isinstance(entry.get("offset"), int) else None for entry in graph["tensors"]]
    text, place = b"", 0
    while place != -(-(64 + len(text)) // 64) * 64:
        place = -(-(64 + len(text)) // 64) * 64
        for entry, offset in zip(graph["tensors"], first, strict=True):
            if offset is not None:
                entry["offset"] = offset + place
        text = json.dumps(graph).replace('"WORD"', word).encode()
    return with_text(text, data)


def opens(data: bytes) -> tuple[bool, bool | None]:
    """Whether the Python reader and the engine take a file; None where the engine lacks memory for it."""
    engine: bool | None = True
    try:
        from_bytes(data, "f")
        python = True
    except InputError:
        python = False
    try:
        lib.Engine(data).close()
    except InputError:
        engine = False
    except Failed:
        engine = None
    return python, engine
