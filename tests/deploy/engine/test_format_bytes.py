"""Invalid bytes: header, gaps, JSON and tensors, and thousands of files with random changes."""

from __future__ import annotations

import math
import struct
import tracemalloc

import numpy as np
import pytest

from lcrbnn.deploy.engine.bnn_file import from_bytes, to_bytes
from lcrbnn.deploy.engine.graph import Node
from lcrbnn.deploy.engine.operators import infer_shapes
from lcrbnn.errors import InputError
from tests.deploy.engine.edited_files import (
    PADDED_DATA,
    RNG,
    SMALL_DATA,
    SMALL_MODEL,
    add_checksum,
    assert_rejected,
    parse_graph,
    replace_graph_text,
    replace_padded_graph,
)
from tests.deploy.engine.small_models import make_model


@pytest.mark.parametrize(
    ("offset", "kind", "value", "fault"),
    [
        (0, "B", 0x88, "the file is not a .bnn model"),
        (6, "B", 0x0D, "the file is not a .bnn model"),
        (8, "I", 3, "the version must be 1 or 2; the header has 3"),
        (12, "I", 1, "the flags must be 0"),
        (16, "Q", len(SMALL_DATA) + 1, "the size of the file must be"),
        (24, "Q", 128, "the offset of the graph must be 64"),
        (32, "Q", 2**24 + 1, "a graph must have at most 16777216 bytes"),
        (32, "Q", 2**63, "a graph must have at most"),
        (32, "Q", struct.unpack_from("<Q", SMALL_DATA, 32)[0] + 64, "the offset of the tensors must be"),
        (40, "Q", 0, "the offset of the tensors must be"),
        (48, "Q", struct.unpack_from("<Q", SMALL_DATA, 48)[0] + 1, "must be a multiple of 64"),
        (48, "Q", struct.unpack_from("<Q", SMALL_DATA, 48)[0] + 64, "sum of offset and bytes of the tensors must be"),
        (48, "Q", 2**64 - 64, "sum of offset and bytes of the tensors must be"),
        (56, "Q", 1, "the last number of the header must be 0"),
    ],
)
def test_each_field_of_the_header_is_checked(offset: int, kind: str, value: int, fault: str) -> None:
    body = bytearray(SMALL_DATA[:-32])
    struct.pack_into("<" + kind, body, offset, value)
    assert_rejected(add_checksum(bytes(body)), fault)


def test_a_truncated_file_is_rejected() -> None:
    for size in range(len(SMALL_DATA)):
        assert_rejected(SMALL_DATA[:size], "a file must have 96 to" if size < 96 else "the size of the file must be")
    assert_rejected(SMALL_DATA + b"\0", "the size of the file must be")


def test_each_flipped_bit_is_detected() -> None:
    for position in range(len(SMALL_DATA)):
        changed = bytearray(SMALL_DATA)
        changed[position] ^= 1 << position % 8
        assert_rejected(bytes(changed), "" if position < 64 else "the checksum is wrong: the file is damaged")


def test_nonzero_gaps_are_rejected() -> None:
    count, start = struct.unpack_from("<QQ", SMALL_DATA, 32)[0], struct.unpack_from("<Q", SMALL_DATA, 40)[0]
    last = max(entry["offset"] + entry["bytes"] for entry in parse_graph(SMALL_DATA)["tensors"])
    positions = [64 + count, start - 1, parse_graph(SMALL_DATA)["tensors"][0]["offset"] + 9, last, len(SMALL_DATA) - 33]
    for position in positions:
        body = bytearray(SMALL_DATA[:-32])
        assert body[position] == 0
        body[position] = 1
        assert_rejected(add_checksum(bytes(body)), "the gap from byte")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"", "the graph is not valid JSON"),
        (b"{", "the graph is not valid JSON"),
        (b"{} {}", "the graph is not valid JSON"),
        (b"\xff\xfe", "the graph is not valid JSON"),
        (b"\xef\xbb\xbf{}", "the graph is not valid JSON"),
        (b'{"a": "\n"}', "the graph is not valid JSON"),
        (b'{"a": 01}', "the graph is not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number of the graph must have fewer than 64 characters"),
        (b'{"a": NaN}', "the graph has NaN"),
        (b'{"a": -Infinity}', "the graph has -Infinity"),
        (b'{"a": 1, "\\u0061": 2}', "the same key twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[" * 20 + b"]" * 20, "the graph must be an object"),
        (b"null", "the graph must be an object with the keys writer, name, input, classes, tensors, nodes; got None"),
        (b"{}", r"the graph must be an object .* got \[\]"),
        (b'"' + b"x" * 100_000 + b'"', "the graph must be an object"),
        (b"[" + b"[]," * 100_000 + b"[]]", "the graph must be an object"),
    ],
    ids=range(18),
)
def test_malicious_json_is_rejected(text: bytes, fault: str) -> None:
    assert_rejected(replace_graph_text(text), fault)


def test_tensors_must_be_disjoint_aligned_and_inside_their_section() -> None:
    entries = parse_graph(PADDED_DATA)["tensors"]
    end = len(PADDED_DATA) - 32
    for value, fault in (
        (entries[2]["offset"], "two tensors overlap at byte"),
        (entries[1]["offset"] + 4, "tensor 1: it must start at a multiple of 64 and end by"),
        (end, "tensor 1: it must start at a multiple of 64 and end by"),
        (end + 64, "tensor 1: offset must be a whole number from"),
    ):
        graph = parse_graph(PADDED_DATA)
        graph["tensors"][1]["offset"] = value
        assert_rejected(replace_padded_graph(graph, PADDED_DATA), fault)
    graph = parse_graph(PADDED_DATA)
    graph["tensors"][1]["shape"], graph["tensors"][1]["bytes"] = [17], 68  # overlaps the next tensor
    assert_rejected(replace_padded_graph(graph, PADDED_DATA), "two tensors overlap at byte")


def test_nan_thresholds_and_nonzero_padding_bits_are_rejected() -> None:
    body = bytearray(PADDED_DATA[:-32])
    entries = parse_graph(PADDED_DATA)["tensors"]
    threshold = entries[parse_graph(PADDED_DATA)["nodes"][0]["threshold"]]
    struct.pack_into("<f", body, threshold["offset"], math.nan)
    assert_rejected(add_checksum(bytes(body)), "node 0 .*: threshold must not be NaN")
    body = bytearray(PADDED_DATA[:-32])
    body[entries[0]["offset"] + 2] |= 1 << 2  # the 19th bit of 18
    assert_rejected(add_checksum(bytes(body)), "tensor 0: the padding bits of each row must be 0")


def test_tensors_may_be_shared_and_infinite() -> None:
    graph = parse_graph(PADDED_DATA)
    graph["nodes"][1]["b"] = graph["nodes"][1]["a"]
    model = from_bytes(replace_padded_graph(graph, PADDED_DATA), "f")
    assert model.nodes[1].attributes["a"] is model.nodes[1].attributes["b"]
    keys = SMALL_MODEL.nodes[0].attributes | {"threshold": np.array([np.inf, -np.inf], np.float32)}
    same_again = to_bytes(make_model((3, 3, 2), Node("bconv", "b", (0,), keys)))
    assert to_bytes(from_bytes(same_again, "f")) == same_again


def test_a_declared_huge_tensor_allocates_no_memory() -> None:
    graph = parse_graph(PADDED_DATA)
    graph["tensors"][1] |= {"shape": [2**20, 2**10], "bytes": 2**32}
    huge = parse_graph(PADDED_DATA)
    huge["input"]["shape"] = [2**13, 2**13, 2]
    tracemalloc.start()
    assert_rejected(
        replace_padded_graph(graph, PADDED_DATA), "tensor 1: bytes must be a whole number from 0 to 2147483648"
    )
    large = from_bytes(replace_padded_graph(huge, PADDED_DATA), "f")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert infer_shapes(large)[0] == (2**13, 2**13, 2)
    assert peak < 2**24


def test_files_with_random_changes_are_rejected_or_valid() -> None:
    """Replace, delete and insert bytes anywhere, and recompute the checksum."""
    rng, passed = RNG(6), 0
    for _ in range(3000):
        body = bytearray(SMALL_DATA[:-32])
        for _ in range(int(rng.integers(1, 4))):
            position, draw = int(rng.integers(len(body))), rng.random()
            if draw < 0.8:
                body[position] = int(rng.integers(256))
            elif draw < 0.9:
                del body[position : position + int(rng.integers(1, 65))]
            else:
                body[position:position] = bytes(int(rng.integers(1, 65)))
        if rng.random() < 0.5:
            struct.pack_into("<Q", body, 16, len(body) + 32)
        try:
            to_bytes(from_bytes(add_checksum(bytes(body)), "f"))
            passed += 1
        except InputError:
            pass
    assert passed > 20
