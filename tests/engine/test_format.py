"""The file: the same bytes again, each rule of docs/format.md broken once, and thousands of broken files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import struct
import tracemalloc
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lcrbnn.engine import reference
from lcrbnn.engine.check import COUNT, OPS, shapes
from lcrbnn.engine.format import Bits, Model, Node, from_bytes, read_model, to_bytes, write_model
from lcrbnn.errors import InputError
from tests.engine import every_op, made, normal, random_bits, random_keys, resnet20, window

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


def same(one: Model, other: Model) -> None:
    for field in ("name", "shape", "top", "mean", "std", "classes", "writer"):
        assert getattr(one, field) == getattr(other, field), field
    assert len(one.nodes) == len(other.nodes)
    for mine, theirs in zip(one.nodes, other.nodes, strict=True):
        assert (mine.op, mine.name, mine.inputs) == (theirs.op, theirs.name, theirs.inputs)
        assert mine.keys.keys() == theirs.keys.keys()
        for key, value in mine.keys.items():
            their = theirs.keys[key]
            assert type(value) is type(their), key
            if isinstance(value, Bits):
                assert value.n == their.n
                value, their = value.packed, their.packed
            if isinstance(value, np.ndarray):
                assert (value.dtype, value.shape, value.tobytes()) == (their.dtype, their.shape, their.tobytes()), key
                assert not their.flags.writeable
            else:
                assert value == their, key


# --- there and back -------------------------------------------------------------------------------------------------


def test_every_op_is_in_the_model_of_all_ops() -> None:
    assert {node.op for node in every_op(RNG(0)).nodes} == set(OPS) == set(reference._OPS)


@pytest.mark.parametrize("model", [SMALL, every_op(RNG(0)), resnet20(RNG(0))], ids=["small", "every op", "resnet20"])
def test_a_model_comes_back_as_it_was_and_gives_the_same_bytes(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "model.bnn"
    write_model(path, model)
    back = read_model(path)
    same(model, back)
    assert to_bytes(back) == to_bytes(model) == path.read_bytes()
    assert [each.name for each in tmp_path.iterdir()] == ["model.bnn"]
    x = normal(RNG(9), 2, *model.shape)
    assert np.array_equal(reference.run(model, x), reference.run(back, x))


def test_order_of_keys_lists_for_tuples_and_whole_numbers_for_floats_change_no_byte() -> None:
    nodes = []
    for node in SMALL.nodes:
        keys = {k: list(v) if type(v) is tuple else v for k, v in reversed(node.keys.items())}
        nodes.append(Node(node.op, node.name, node.inputs, keys))
    assert to_bytes(Model(**{**vars(SMALL), "nodes": tuple(nodes), "top": 255})) == DATA


def test_an_array_may_lie_in_memory_as_it_likes() -> None:
    rng = RNG(0)
    weight = normal(rng, 2, 3, 3, 4)
    keys = random_keys(rng, "conv", 4, 2, window((3, 3)))
    one = made((3, 3, 4), Node("conv", "c", (0,), keys | {"weight": weight}))
    other = made((3, 3, 4), Node("conv", "c", (0,), keys | {"weight": np.asfortranarray(weight)}))
    assert to_bytes(one) == to_bytes(other)


def test_the_bytes_are_those_of_the_document() -> None:
    """Read by hand: header, graph, tensors at multiples of 64, checksum."""
    magic, version, flags, size, at, count, start, tensors, zero = struct.unpack_from("<8sIIQQQQQQ", DATA)
    assert magic == bytes.fromhex("89 42 4E 4E 0D 0A 1A 0A")
    assert (version, flags, size, at, zero) == (1, 0, len(DATA), 64, 0)
    assert start == math.ceil((64 + count) / 64) * 64
    assert tensors % 64 == 0
    assert start + tensors + 32 == size
    assert DATA[-32:] == hashlib.sha256(DATA[:-32]).digest()
    graph = graph_of(DATA)
    assert list(graph) == ["writer", "name", "input", "classes", "tensors", "nodes"]
    assert graph["input"] == {"shape": [3, 3, 2], "top": 255, "mean": [0.5, 0.5], "std": [0.25, 0.25]}
    first, second = graph["nodes"][:2]
    assert (first["op"], first["name"], first["in"], first["pad"], first["groups"]) == ("bconv", "b", [0], [1] * 4, 1)
    assert second["name"] == "é\n"
    weight = graph["tensors"][first["weight"]]
    assert weight == {"type": "bits", "shape": [3, 18], "offset": weight["offset"], "bytes": 9}
    assert weight["offset"] % 64 == 0
    assert DATA[weight["offset"] :][:9] == SMALL.nodes[0].keys["weight"].packed.tobytes()
    a = graph["tensors"][second["a"]]
    assert struct.unpack_from("<3f", DATA, a["offset"]) == tuple(SMALL.nodes[1].keys["a"].tolist())


def test_a_model_without_tensors_has_a_file_too() -> None:
    model = made((1, 1, 2), Node("relu", "r", (0,), {}))
    assert struct.unpack_from("<Q", to_bytes(model), 48) == (0,)
    same(model, from_bytes(to_bytes(model), "f"))


def test_writing_over_a_file_leaves_the_old_one_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.bnn"
    path.write_bytes(b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_model(path, SMALL)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("model.bnn", b"old")]


# --- broken bytes ---------------------------------------------------------------------------------------------------


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
        (b'{"a": ' + b"9" * 5000 + b"}", "the graph is no JSON"),
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


def change(*path: Any) -> Callable[[Graph, Any], None]:
    """Set the value at a path of the graph; a value of `del` takes it away."""

    def apply(graph: Any, value: Any) -> None:
        for step in path[:-1]:
            graph = graph[step]
        if value == "del":
            del graph[path[-1]]
        else:
            graph[path[-1]] = value

    return apply


HUGE, TEXT = 10**400, "x" * 100_000
DEEP = json.loads("[" * 200 + "]" * 200)


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("more",), 1, "the graph must be an object with the keys"),
        (("writer",), "del", "the graph must be an object with the keys"),
        (("writer",), 1, "the writer's name must be a text of UTF-8 without NUL; got 1"),
        (("name",), None, "the model's name must be a text"),
        (("name",), DEEP, "the model's name must be a text"),
        (("input",), [], "the input must be an object"),
        (("input", "more"), 1, "the input must be an object"),
        (("input", "shape"), [3, 3], "the input's shape must be a list of 3 whole numbers"),
        (("input", "shape"), [3, 3, 2.0], "the input's shape must be a list of 3 whole numbers"),
        (("input", "shape"), [3, 3, True], "the input's shape must be a list of 3 whole numbers"),
        (("input", "shape"), [0, 3, 2], "the input's shape must be a list of 3 whole numbers"),
        (("input", "shape"), [2**21, 3, 2], "the input's shape must be a list of 3 whole numbers"),
        (("input", "shape"), [2**20, 2**20, 2], "the input would have the shape"),
        (("input", "shape"), [HUGE, 3, 2], "the input's shape must be a list of 3 whole numbers"),
        (("input", "top"), 0, "the input's top must be a positive number"),
        (("input", "top"), -1, "the input's top must be a positive number"),
        (("input", "top"), HUGE, "the input's top must be a positive number"),
        (("input", "top"), True, "the input's top must be a positive number"),
        (("input", "mean"), [0.5], "the input's mean is a list of 2, one a channel"),
        (("input", "mean"), 0.5, "the input's mean is a list of 2"),
        (("input", "mean"), [0, "0"], "the input's mean must be a number"),
        (("input", "mean"), [0, 1e39], "the input's mean must be a number"),
        (("input", "std"), [1, 0], "the input's std must be a positive number"),
        (("input", "std"), [1, 1e-60], "the input's std must be a positive number"),
        (("classes",), "abc", "classes are a list of names"),
        (("classes",), ["a", "b"], r"the last value must be 1 x 1 x classes, here 2; its shape is \(1, 1, 3\)"),
        (("classes",), ["a", "b", 3], "a class must be a text"),
        (("tensors",), {}, "tensors must be a list"),
        (("tensors",), [0] * (COUNT + 1), f"tensors must be a list of at most {COUNT}"),
        (("tensors", 0), [], "tensor 0 must be an object with the keys type, shape, offset, bytes"),
        (("tensors", 0, "more"), 0, "tensor 0 must be an object"),
        (("tensors", 0, "type"), "f64", "tensor 0: type must be one of f32, f16, bits; got 'f64'"),
        (("tensors", 0, "type"), [], "tensor 0: type must be one of"),
        (("tensors", 0, "shape"), 3, "tensor 0: shape must be a list"),
        (("tensors", 0, "shape"), [], "tensor 0: shape must be 1 to 4 numbers"),
        (("tensors", 0, "shape"), [3, 6, 3], "tensor 0: shape must be 1 to 4 numbers, and 2 for bits"),
        (("tensors", 1, "shape"), [1, 1, 1, 1, 2], "tensor 1: shape must be 1 to 4 numbers"),
        (("tensors", 0, "shape"), [3, 0], "tensor 0: a dimension must be a whole number from 1 to"),
        (("tensors", 0, "shape"), [3, 18.0], "tensor 0: a dimension must be a whole number"),
        (("tensors", 0, "shape"), [2**20 + 1, 18], "tensor 0: a dimension must be a whole number"),
        (("tensors", 0, "shape"), [2**20, 2**20], r"tensor 0: bits \[1048576, 1048576\] has 137438953472 bytes; got 9"),
        (("tensors", 1, "shape"), [2**20] * 4, "tensor 1: f32 .* has"),
        (("tensors", 0, "shape"), [3, 17], r"weight must have the shape \[out = 3, kh\*kw\*in/groups = 18\]"),
        (("tensors", 0, "bytes"), 8, r"tensor 0: bits \[3, 18\] has 9 bytes; got 8"),
        (("tensors", 0, "bytes"), -9, "tensor 0: bytes must be a whole number"),
        (("tensors", 0, "bytes"), 9.0, "tensor 0: bytes must be a whole number"),
        (("tensors", 0, "offset"), 0, "tensor 0: offset must be a whole number from"),
        (("tensors", 0, "offset"), -64, "tensor 0: offset must be a whole number from"),
        (("tensors", 0, "offset"), 2**63, "tensor 0: offset must be a whole number from"),
        (("tensors", 0, "offset"), "0", "tensor 0: offset must be a whole number from"),
        (("nodes",), None, "nodes must be a list"),
        (("nodes",), [], "nodes are a list of 1 to"),
        (("nodes",), [{}] * (COUNT + 1), "nodes must be a list of at most"),
        (("nodes", 0), 7, "node 0 must be an object with the keys op, name, in"),
        (("nodes", 0, "in"), "del", "node 0 must be an object with the keys op, name, in"),
        (("nodes", 0, "op"), "bkonv", r"node 0 \('bkonv', 'b'\): no op is called 'bkonv'; .*did you mean 'bconv'"),
        (("nodes", 0, "op"), [], "node 0 .*: no op is called"),
        (("nodes", 0, "op"), TEXT, "node 0 .*: no op is called"),
        (("nodes", 0, "name"), 1, "node 0 .*: the name must be a text"),
        (("nodes", 0, "more"), 1, "node 0 .*: no key of this op is called 'more'"),
        (("nodes", 2, TEXT), 1, "node 2 .*: no key of this op is called 'xxx"),
        (("nodes", 2, "stride"), [1, 1], "node 2 .*: no key of this op is called 'stride'; there are none"),
        (("nodes", 0, "in"), [], "node 0 .*: its inputs are a list of 1"),
        (("nodes", 0, "in"), [0, 0], "node 0 .*: its inputs are a list of 1"),
        (("nodes", 0, "in"), 0, "node 0 .*: its inputs are a list of 1"),
        (("nodes", 0, "in"), [1], "node 0 .*: its inputs are earlier values, 0 to 0; got 1"),
        (("nodes", 1, "in"), [-1], "node 1 .*: its inputs are earlier values, 0 to 1; got -1"),
        (("nodes", 1, "in"), [True], "node 1 .*: its inputs are earlier values"),
        (("nodes", 2, "in"), [1], "every value but the last must be used; nothing uses value 2"),
        (("nodes", 0, "a"), "del", "node 0 .*: the key 'a' is missing"),
        (("nodes", 0, "a"), 99, "node 0: a must be a whole number from 0 to 5; got 99"),
        (("nodes", 0, "a"), -1, "node 0: a must be a whole number from 0 to 5"),
        (("nodes", 0, "a"), "mean", "node 0: a must be a whole number"),
        (("nodes", 0, "a"), None, "node 0: a must be a whole number"),
        (("nodes", 0, "a"), True, "node 0: a must be a whole number"),
        (("nodes", 0, "a"), 0, r"node 0 .*: a must be f32 \[out\]; got bits \[3, 18\]"),
        (("nodes", 0, "a"), 1, r"node 0 .*: a must have the shape \[out = 3\]; got \[2\]"),
        (("nodes", 0, "weight"), 1, r"weight must be bits \[out, kh\*kw\*in/groups\]; got f32 \[2\]"),
        (("nodes", 0, "threshold"), "median", "node 0: threshold must be a whole number"),
        (("nodes", 0, "spatial"), 2, r"spatial must be f32 \[h', w', 1 or out\]; got f32 \[3\]"),
        (("nodes", 0, "pad_sign"), 2, "pad_sign must be a whole number from -1 to 1; got 2"),
        (("nodes", 0, "pad_sign"), 1.0, "pad_sign must be a whole number from -1 to 1"),
        (("nodes", 0, "kernel"), [3], "kernel must be a list of 2 whole numbers"),
        (("nodes", 0, "kernel"), [3, 0], "kernel must be a list of 2 whole numbers from 1"),
        (("nodes", 0, "kernel"), [3, [3]], "kernel must be a list of 2 whole numbers"),
        (("nodes", 0, "kernel"), [1, 1], r"kh\*kw\*in/groups = 2\]; got \[3, 18\]"),
        (("nodes", 0, "kernel"), [2**20, 2**20], "the window spans 1048576 rows; with its pad the map has 5"),
        (("nodes", 0, "stride"), [0, 1], "stride must be a list of 2 whole numbers from 1"),
        (("nodes", 0, "pad"), [1, 1, 1, -1], "pad must be a list of 4 whole numbers from 0"),
        (("nodes", 0, "pad"), [2**20] * 4, "its value would have the shape"),
        (("nodes", 0, "pad"), [2**16] * 4, "its value would have the shape"),
        (("nodes", 0, "dilation"), [1, 3], "the window spans 7 columns; with its pad the map has 5"),
        (("nodes", 0, "dilation"), [0, 1], "dilation must be a list of 2 whole numbers from 1"),
        (("nodes", 0, "groups"), 2, "groups must divide the channels; got 2 for 2 in and 3 out"),
        (("nodes", 0, "groups"), 3, "groups must divide the channels; got 3 for 2 in and 3 out"),
        (("nodes", 0, "groups"), 0, "groups must be a whole number from 1"),
        (("nodes", 0, "groups"), HUGE, "groups must be a whole number from 1"),
    ],
    ids=count(),
)
def test_each_rule_of_the_graph_is_checked(path: tuple[Any, ...], value: Any, fault: str) -> None:
    graph = graph_of(ROOMY)
    change(*path)(graph, value)
    refused(with_graph(graph, ROOMY), fault)


@pytest.mark.parametrize("path", [("name",), ("writer",), ("classes", 1), ("nodes", 0, "name")])
def test_texts_that_utf8_cannot_hold_are_refused(path: tuple[Any, ...]) -> None:
    graph = graph_of(ROOMY)
    change(*path)(graph, "\ud800")
    refused(with_graph(graph, ROOMY), "must be a text of UTF-8")


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
    refused(summed(bytes(body)), "node 0 .*: the bits of weight behind the end of a row must be 0")


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


# --- broken models --------------------------------------------------------------------------------------------------

POOL = {"kernel": (2, 2), "stride": (2, 2), "pad": (0, 0, 0, 0)}


@pytest.mark.parametrize(
    ("op", "keys", "fault"),
    [
        ("maxpool", {"pad": (2, 0, 0, 0)}, "a window lies outside the map; pad is"),
        ("maxpool", {"pad": (0, 0, 0, 4)}, "a window lies outside the map"),
        ("maxpool", {"dilation": (1, 1)}, "no key of this op is called 'dilation'"),
        ("maxpool", {"groups": 1}, "no key of this op is called 'groups'"),
        ("avgpool", {"pad": (1, 0, 0, 0)}, "top and left of pad must be 0"),
        ("avgpool", {"pad": (0, 1, 0, 0)}, "top and left of pad must be 0"),
        ("avgpool", {"pad": (0, 0, 3, 0)}, "a window lies outside the map"),
        ("avgpool", {"kernel": (6, 2)}, "the window spans 6 rows; with its pad the map has 5"),
    ],
)
def test_windows_of_pools_see_the_map(op: str, keys: dict[str, Any], fault: str) -> None:
    model = made((5, 5, 1), Node("relu", "r", (0,), {}))
    for node in (Node(op, "p", (0,), POOL | keys),):
        with pytest.raises(InputError, match=f"^node 0 .*: {fault}"):
            to_bytes(Model(**{**vars(model), "nodes": (node, *model.nodes[1:])}))


def test_the_last_row_of_a_pool_may_see_one_pixel() -> None:
    shapes(made((5, 5, 1), Node("maxpool", "p", (0,), POOL | {"pad": (1, 0, 0, 1)})))
    shapes(made((5, 5, 1), Node("avgpool", "p", (0,), POOL | {"pad": (0, 0, 1, 1)})))


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"weight": random_bits(RNG(0), 3, 18)}, r"weight must be f32 or f16 \[out, kh, kw, in/groups\]; got bits"),
        ({"weight": np.zeros((3, 3, 3, 2))}, "weight must be f32 or f16"),
        ({"weight": np.zeros((3, 3, 3, 2), ">f4")}, "weight must be f32 or f16"),
        ({"weight": np.zeros((3, 3, 3, 1), np.float32)}, r"in/groups = 2\]; got \[3, 3, 3, 1\]"),
        ({"weight": np.zeros((3, 2, 3, 2), np.float32)}, r"kh = 3, .* got \[3, 2, 3, 2\]"),
        ({"weight": np.zeros((0, 3, 3, 2), np.float32)}, "its value would have the shape"),
        ({"weight": "mean"}, "weight must be f32 or f16"),
        ({"weight": [1.0]}, "weight must be f32 or f16"),
        ({"bias": np.zeros(3, np.float16)}, r"bias must be f32 \[out\]; got f16"),
        ({"bias": None}, r"bias must be f32 \[out\]; got None"),
        ({"groups": np.int64(1)}, "groups must be a whole number"),
    ],
)
def test_a_wrong_model_is_not_written(keys: dict[str, Any], fault: str, tmp_path: Path) -> None:
    right = random_keys(RNG(0), "conv", 2, 3, window((3, 3)))
    model = made((3, 3, 2), Node("conv", "c", (0,), right))
    wrong = Model(**{**vars(model), "nodes": (Node("conv", "c", (0,), right | keys), *model.nodes[1:])})
    with pytest.raises(InputError, match=f"^node 0 .*: .*{fault}"):
        write_model(tmp_path / "model.bnn", wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("packed", [np.zeros((3, 2), np.uint8), np.zeros((3, 3), np.int8), np.zeros(9, np.uint8), None])
def test_bits_that_are_no_rows_are_refused(packed: Any) -> None:
    node = SMALL.nodes[0]
    wrong = Node("bconv", "b", (0,), node.keys | {"weight": Bits(packed, 18)})
    with pytest.raises(InputError, match="weight must be bits"):
        to_bytes(Model(**{**vars(SMALL), "nodes": (wrong, *SMALL.nodes[1:])}))


def test_inputs_of_add_have_one_shape() -> None:
    nodes = (Node("mean", "m", (0,), {}), Node("add", "a", (0, 1), {}), Node("mean", "m", (2,), {}))
    model = Model("m", (2, 2, 1), 1, (0,), (1,), ("a",), nodes)
    with pytest.raises(InputError, match=r"node 1 .*both inputs must have one shape; got \(2, 2, 1\) and \(1, 1, 1\)"):
        shapes(model)


def test_a_flatten_too_long_and_too_many_channels_are_refused() -> None:
    for node in (Node("flatten", "", (0,), {}), Node("channels", "", (0,), {"before": 2**20, "after": 0})):
        model = Model("m", (2**11, 2**10, 1), 1, (0,), (1,), ("a",), (node, Node("mean", "", (1,), {})))
        with pytest.raises(InputError, match=r"node 0 .*its value would have the shape"):
            shapes(model)


def test_limits_hold_for_what_is_written_too() -> None:
    long = Model(**{**vars(SMALL), "name": "x" * 2**24})
    with pytest.raises(InputError, match="a graph has at most 16777216 bytes and a file 2147483648; this model would"):
        to_bytes(long)
    one = np.ones(1, np.float32)
    many = made((1, 1, 1), *(Node("affine", "", (i,), {"a": one, "b": one}) for i in range(COUNT // 2 + 1)))
    with pytest.raises(InputError, match="a file has at most 65536 tensors; this model has 65538"):
        to_bytes(many)
    channels = 2**19 + 8
    wide = random_keys(RNG(0), "wconv", channels, 1, window((1, 2)))
    with pytest.raises(InputError, match="no dimension of weight may be over 1048576"):
        shapes(made((1, 2, channels), Node("wconv", "", (0,), wide)))


# --- files ----------------------------------------------------------------------------------------------------------


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    for path in (missing, tmp_path):
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}: there is no such file$"):
            read_model(path)


def test_a_file_over_the_limit_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "big"
    with path.open("wb") as file:
        file.truncate(2**31 + 1)  # a hole, no bytes on the disk
    with pytest.raises(InputError, match="a file has at most 2147483648 bytes; this one has 2147483649"):
        read_model(path)


def test_an_empty_and_a_broken_file_name_themselves(tmp_path: Path) -> None:
    path = tmp_path / "f.bnn"
    for data in (b"", DATA[:-1]):
        path.write_bytes(data)
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}: "):
            read_model(path)


# --- thousands of broken files --------------------------------------------------------------------------------------

WORDS: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2,
    3,
    63,
    64,
    2**20,
    2**31,
    2**64,
    0.5,
    1e300,
    "",
    "mean",
    "conv",
    [],
    {},
    [0],
]


def mutate(rng: np.random.Generator, value: Any) -> Any:
    """Change one place of a JSON value: replaced, taken away, doubled, renamed, or another one's."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        places = list(value) if isinstance(value, dict) else list(range(len(value)))
        place = places[rng.integers(len(places))]
        how = rng.random()
        if how < 0.8:
            value[place] = mutate(rng, value[place])
        elif how < 0.86:
            del value[place]
        elif how < 0.93:
            value[place] = value[places[rng.integers(len(places))]]
        elif isinstance(value, list):
            value.insert(place, value[place])
        else:
            value[["op", "in", "weight", "stride", "more"][rng.integers(5)]] = value.pop(place)
        return value
    if isinstance(value, int) and rng.random() < 0.5:
        return value + int(rng.integers(-2, 3)) * int(rng.choice([1, 1, 64]))
    return WORDS[rng.integers(len(WORDS))]


@pytest.mark.parametrize(("model", "rounds"), [(SMALL, 2000), (every_op(RNG(0)), 500)], ids=["small", "every op"])
def test_a_changed_graph_is_refused_or_is_a_model(model: Model, rounds: int) -> None:
    """With the checksum made anew, so that the deep checks are reached. A model that passes can be written again."""
    rng, passed, told = RNG(5), 0, set()
    base = roomy(to_bytes(model), 2048)
    for _ in range(rounds):
        graph = mutate(rng, graph_of(base))
        if rng.random() < 0.3:
            graph = mutate(rng, graph)
        try:
            model = from_bytes(with_graph(graph, base), "f")
        except InputError as error:
            told.add(re.sub(r"[\d']+", "", str(error))[:60])
        else:
            passed += 1
            again = to_bytes(model)
            assert to_bytes(from_bytes(again, "f")) == again
            if math.prod(shapes(model)[0]) < 1000 and max(map(math.prod, shapes(model))) < 10_000:
                reference.run(model, np.zeros((1, *model.shape), np.float32))
    assert passed > 20
    assert len(told) > 50  # the deep checks were reached


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


def test_sums_of_signs_have_a_longest_and_texts_no_nul() -> None:
    def wide(channels: int) -> Model:
        keys = {
            "weight": Bits(np.zeros((1, -(-channels // 8)), np.uint8), channels),
            "threshold": np.zeros(channels, np.float32),
            "pad_sign": 0,
            "a": np.ones(1, np.float32),
            "b": np.zeros(1, np.float32),
            "kernel": (1, 1),
            "stride": (1, 1),
            "pad": (0, 0, 0, 0),
            "dilation": (1, 1),
            "groups": 1,
        }
        zeros, ones = (0.0,) * channels, (1.0,) * channels
        return Model("m", (1, 1, channels), 1.0, zeros, ones, ("a",), (Node("bconv", "", (0,), keys),))

    assert shapes(wide(65_535))[-1] == (1, 1, 1)
    with pytest.raises(InputError, match="a sum has at most 65535 terms; got 65536"):
        shapes(wide(65_536))
    with pytest.raises(InputError, match="without NUL"):
        shapes(dataclasses.replace(wide(8), name="a\0b"))
