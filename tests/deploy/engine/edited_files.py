"""Edit one part of a model file and keep everything else valid."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import numpy as np
import pytest

from lcrbnn.deploy.engine import runtime as lib
from lcrbnn.deploy.engine.bnn_file import from_bytes, to_bytes
from lcrbnn.deploy.engine.graph import Node
from lcrbnn.errors import InputError, RunFailed
from tests.deploy.engine.small_models import draw_attributes, draw_normal, make_model, make_window

RNG = np.random.default_rng
SMALL_MODEL = make_model(
    (3, 3, 2),
    Node("bconv", "b", (0,), draw_attributes(RNG(0), "bconv", 2, 3, make_window((3, 3), pad=(1, 1, 1, 1)))),
    Node("affine", "é\n", (1,), {"a": draw_normal(RNG(1), 3), "b": draw_normal(RNG(2), 3)}),
    Node("mean", "m", (2,), {}),
)
SMALL_DATA = to_bytes(SMALL_MODEL)
Graph = dict[str, Any]


def parse_graph(data: bytes) -> Graph:
    return json.loads(data[64 : 64 + struct.unpack_from("<Q", data, 32)[0]])


def read_version(data: bytes) -> int:
    return struct.unpack_from("<I", data, 8)[0]


def replace_version(data: bytes, version: int) -> bytes:
    """Return the file with another version number and a valid checksum."""
    return add_checksum(data[:8] + struct.pack("<I", version) + data[12:-32])


def add_checksum(body: bytes) -> bytes:
    """Return the body followed by its checksum."""
    return body + hashlib.sha256(body).digest()


def replace_graph_text(text: bytes, data: bytes = SMALL_DATA) -> bytes:
    """Return a file with another graph text and a valid header; offsets in the text are not changed."""
    start, count = struct.unpack_from("<QQ", data, 40)
    tensors_start = -(-(64 + len(text)) // 64) * 64
    header = struct.pack(
        "<8sIIQQQQQQ",
        data[:8],
        read_version(data),
        0,
        tensors_start + count + 32,
        64,
        len(text),
        tensors_start,
        count,
        0,
    )
    return add_checksum(header + text + bytes(tensors_start - 64 - len(text)) + data[start : start + count])


def add_graph_padding(data: bytes, num_bytes: int) -> bytes:
    """Return a file with spaces after its graph, so that a longer graph fits without moving the tensors."""
    graph, start = parse_graph(data), struct.unpack_from("<Q", data, 40)[0]
    for entry in graph["tensors"]:
        entry["offset"] += num_bytes
    return replace_graph_text(json.dumps(graph).encode().ljust(start - 64 + num_bytes), data)


def replace_padded_graph(graph: Any, data: bytes) -> bytes:
    """Return a padded file with another graph."""
    length = struct.unpack_from("<Q", data, 32)[0]
    text = json.dumps(graph, separators=(",", ":")).encode()
    assert len(text) <= length
    return replace_graph_text(text.ljust(length), data)


PADDED_DATA = add_graph_padding(SMALL_DATA, 2**18)


def assert_rejected(data: bytes, pattern: str) -> None:
    """Assert that the Python reader rejects the bytes with a short message of one line that matches the pattern."""
    with pytest.raises(InputError, match=f"^f: .*{pattern}") as error:
        from_bytes(data, "f")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 700


def replace_graph(graph: Graph, data: bytes, number_text: str = "") -> bytes:
    """Return a file with another graph and adjusted tensor offsets; `number_text` replaces the string "WORD"."""
    old_tensors_start = struct.unpack_from("<Q", data, 40)[0]
    relative_offsets = [
        entry["offset"] - old_tensors_start if isinstance(entry.get("offset"), int) else None
        for entry in graph["tensors"]
    ]
    text, tensors_start = b"", 0
    while tensors_start != -(-(64 + len(text)) // 64) * 64:
        tensors_start = -(-(64 + len(text)) // 64) * 64
        for entry, offset in zip(graph["tensors"], relative_offsets, strict=True):
            if offset is not None:
                entry["offset"] = offset + tensors_start
        text = json.dumps(graph).replace('"WORD"', number_text).encode()
    return replace_graph_text(text, data)


def try_both_readers(data: bytes) -> tuple[bool, bool | None]:
    """Return whether the Python reader and the engine accept a file; None if the engine has too little memory."""
    engine_accepts: bool | None = True
    try:
        from_bytes(data, "f")
        python_accepts = True
    except InputError:
        python_accepts = False
    try:
        lib.Engine(data).close()
    except InputError:
        engine_accepts = False
    except RunFailed:
        engine_accepts = None
    return python_accepts, engine_accepts
