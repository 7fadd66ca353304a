"""Bytes that are no model: header, gaps, JSON, tensors; and thousands of files with bytes changed."""

from __future__ import annotations

import math
import struct
import tracemalloc

import numpy as np
import pytest

from lcrbnn.engine.check import shapes
from lcrbnn.engine.format import Node, from_bytes, to_bytes
from lcrbnn.errors import InputError
from tests.engine import made
from tests.engine.files import DATA, RNG, ROOMY, SMALL, graph_of, refused, summed, with_graph, with_text


@pytest.mark.parametrize(
    ("offset", "kind", "value", "fault"),
    [
        (0, "B", 0x88, "it is no model"),
        (6, "B", 0x0D, "it is no model"),
        (8, "I", 2, "the version must be 1; the header says 2"),
        (12, "I", 1, "the flags must be 0"),
        (16, "Q", len(DATA) + 1, "the size of the file must be"),
        (24, "Q", 128, "the offset of the graph must be 64"),
        (32, "Q", 2**24 + 1, "a graph has at most 16777216 bytes"),
        (32, "Q", 2**63, "a graph has at most"),
        (32, "Q", struct.unpack_from("<Q", DATA, 32)[0] + 64, "the offset of the tensors must be"),
        (40, "Q", 0, "the offset of the tensors must be"),
        (48, "Q", struct.unpack_from("<Q", DATA, 48)[0] + 1, "must be a multiple of 64"),
        (48, "Q", struct.unpack_from("<Q", DATA, 48)[0] + 64, "offset and bytes of the tensors, summed, must be"),
        (48, "Q", 2**64 - 64, "offset and bytes of the tensors, summed, must be"),
        (56, "Q", 1, "the last number of the header must be 0"),
    ],
)
def test_each_field_of_the_header_is_checked(offset: int, kind: str, value: int, fault: str) -> None:
    body = bytearray(DATA[:-32])
    struct.pack_into("<" + kind, body, offset, value)
    refused(summed(bytes(body)), fault)


def test_a_file_cut_anywhere_is_refused() -> None:
    for size in range(len(DATA)):
        refused(DATA[:size], "a file has 96 to" if size < 96 else "the size of the file must be")
    refused(DATA + b"\0", "the size of the file must be")


def test_each_flipped_bit_is_found() -> None:
    for place in range(len(DATA)):
        broken = bytearray(DATA)
        broken[place] ^= 1 << place % 8
        refused(bytes(broken), "" if place < 64 else "the checksum is wrong: the file is damaged")


def test_gaps_are_zeros() -> None:
    count, start = struct.unpack_from("<QQ", DATA, 32)[0], struct.unpack_from("<Q", DATA, 40)[0]
    last = max(entry["offset"] + entry["bytes"] for entry in graph_of(DATA)["tensors"])
    places = [64 + count, start - 1, graph_of(DATA)["tensors"][0]["offset"] + 9, last, len(DATA) - 33]
    for place in places:
        body = bytearray(DATA[:-32])
        assert body[place] == 0
        body[place] = 1
        refused(summed(bytes(body)), "the gap from byte")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"", "the graph is no JSON"),
        (b"{", "the graph is no JSON"),
        (b"{} {}", "the graph is no JSON"),
        (b"\xff\xfe", "the graph is no JSON"),
        (b"\xef\xbb\xbf{}", "the graph is no JSON"),
        (b'{"a": "\n"}', "the graph is no JSON"),
        (b'{"a": 01}', "the graph is no JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number of the graph has fewer than 64 characters"),
        (b'{"a": NaN}', "the graph has NaN"),
        (b'{"a": -Infinity}', "the graph has -Infinity"),
        (b'{"a": 1, "\\u0061": 2}', "the same key twice"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"a":' * 100_000, "nested too deep"),
        (b"[" * 20 + b"]" * 20, "the graph must be an object"),
        (b"null", "the graph must be an object with the keys writer, name, input, classes, tensors, nodes; got None"),
        (b"{}", r"the graph must be an object .* got \[\]"),
        (b'"' + b"x" * 100_000 + b'"', "the graph must be an object"),
        (b"[" + b"[]," * 100_000 + b"[]]", "the graph must be an object"),
    ],
    ids=range(18),
)
def test_hostile_json_is_refused(text: bytes, fault: str) -> None:
    refused(with_text(text), fault)


def test_tensors_lie_apart_aligned_and_inside() -> None:
    entries = graph_of(ROOMY)["tensors"]
    end = len(ROOMY) - 32
    for value, fault in (
        (entries[2]["offset"], "two tensors overlap at byte"),
        (entries[1]["offset"] + 4, "tensor 1: it must start at a multiple of 64, end by"),
        (end, "tensor 1: it must start at a multiple of 64, end by"),
        (end + 64, "tensor 1: offset must be a whole number from"),
    ):
        graph = graph_of(ROOMY)
        graph["tensors"][1]["offset"] = value
        refused(with_graph(graph, ROOMY), fault)
    graph = graph_of(ROOMY)
    graph["tensors"][1]["shape"], graph["tensors"][1]["bytes"] = [17], 68  # into the next one
    refused(with_graph(graph, ROOMY), "two tensors overlap at byte")


def test_a_threshold_of_nan_and_bits_behind_a_row_are_refused() -> None:
    body = bytearray(ROOMY[:-32])
    entries = graph_of(ROOMY)["tensors"]
    threshold = entries[graph_of(ROOMY)["nodes"][0]["threshold"]]
    struct.pack_into("<f", body, threshold["offset"], math.nan)
    refused(summed(bytes(body)), "node 0 .*: threshold must not be NaN")
    body = bytearray(ROOMY[:-32])
    body[entries[0]["offset"] + 2] |= 1 << 2  # the 19th bit of 18
    refused(summed(bytes(body)), "tensor 0: bits behind the end of a row must be 0")


def test_tensors_may_be_shared_and_infinite() -> None:
    graph = graph_of(ROOMY)
    graph["nodes"][1]["b"] = graph["nodes"][1]["a"]
    model = from_bytes(with_graph(graph, ROOMY), "f")
    assert model.nodes[1].keys["a"] is model.nodes[1].keys["b"]
    keys = SMALL.nodes[0].keys | {"threshold": np.array([np.inf, -np.inf], np.float32)}
    same_again = to_bytes(made((3, 3, 2), Node("bconv", "b", (0,), keys)))
    assert to_bytes(from_bytes(same_again, "f")) == same_again


def test_a_huge_claim_allocates_nothing() -> None:
    graph = graph_of(ROOMY)
    graph["tensors"][1] |= {"shape": [2**20, 2**10], "bytes": 2**32}
    huge = graph_of(ROOMY)
    huge["input"]["shape"] = [2**13, 2**13, 2]
    tracemalloc.start()
    refused(with_graph(graph, ROOMY), "tensor 1: bytes must be a whole number from 0 to 2147483648")
    large = from_bytes(with_graph(huge, ROOMY), "f")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert shapes(large)[0] == (2**13, 2**13, 2)
    assert peak < 2**24


def test_changed_bytes_are_refused_or_are_a_model() -> None:
    """Bytes replaced, cut out and put in anywhere, with the checksum made anew."""
    rng, passed = RNG(6), 0
    for _ in range(3000):
        body = bytearray(DATA[:-32])
        for _ in range(int(rng.integers(1, 4))):
            place, how = int(rng.integers(len(body))), rng.random()
            if how < 0.8:
                body[place] = int(rng.integers(256))
            elif how < 0.9:
                del body[place : place + int(rng.integers(1, 65))]
            else:
                body[place:place] = bytes(int(rng.integers(1, 65)))
        if rng.random() < 0.5:
            struct.pack_into("<Q", body, 16, len(body) + 32)
        try:
            to_bytes(from_bytes(summed(bytes(body)), "f"))
            passed += 1
        except InputError:
            pass
    assert passed > 20
