"""The file there and back: the same model, the same bytes, and what is on the disk."""

from __future__ import annotations

import hashlib
import math
import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from lcrbnn.engine import reference
from lcrbnn.engine.check import OPS
from lcrbnn.engine.format import Bits, Model, Node, from_bytes, read_model, to_bytes, write_model
from lcrbnn.engine.lib import Engine
from lcrbnn.errors import InputError
from tests.engine import every_op, made, normal, random_keys, resnet20, window
from tests.engine.files import DATA, RNG, SMALL, graph_of


def same(one: Model, other: Model) -> None:
    for field in ("name", "shape", "top", "mean", "std", "margin", "classes", "writer"):
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


def test_a_model_is_whole_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "model.bnn", []
    path.write_bytes(b"old")

    def noted(handle: int) -> None:
        synced.append((os.fstat(handle).st_ino, os.fstat(handle).st_size, path.read_bytes()))

    monkeypatch.setattr(os, "fsync", noted)
    write_model(path, SMALL)
    assert synced == [(path.stat().st_ino, len(DATA), b"old")]
    assert path.read_bytes() == to_bytes(SMALL)


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


def test_a_margin_is_written_where_there_is_one() -> None:
    assert b"margin" not in DATA
    framed = to_bytes(Model(**{**vars(SMALL), "margin": 8 / 7}))
    assert from_bytes(framed, "it").margin == 8 / 7
    assert from_bytes(DATA, "it").margin == 1
    with Engine(framed) as one, Engine(DATA) as other:
        images = np.ones((1, *SMALL.shape), np.float32)
        assert np.array_equal(one.run(images), other.run(images))
