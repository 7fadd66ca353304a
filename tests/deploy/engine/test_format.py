"""Writing and reading model files: equal models, equal bytes, and atomic writes."""

from __future__ import annotations

import hashlib
import math
import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from lcrbnn.deploy.engine import reference
from lcrbnn.deploy.engine.bnn_file import from_bytes, read_model, to_bytes, write_model
from lcrbnn.deploy.engine.graph import BnnModel, Node, PackedSigns
from lcrbnn.deploy.engine.operators import OPERATORS
from lcrbnn.deploy.engine.runtime import Engine
from lcrbnn.errors import InputError
from tests.deploy.engine.edited_files import RNG, SMALL_DATA, SMALL_MODEL, parse_graph
from tests.deploy.engine.small_models import (
    draw_attributes,
    draw_normal,
    make_model,
    make_model_with_every_op,
    make_resnet20,
    make_window,
)
from tests.deploy.engine.version_2_models import make_version_2_model


def assert_models_equal(model: BnnModel, expected: BnnModel) -> None:
    for field in ("name", "shape", "top", "mean", "std", "margin", "classes", "writer"):
        assert getattr(model, field) == getattr(expected, field), field
    assert len(model.nodes) == len(expected.nodes)
    for node, expected_node in zip(model.nodes, expected.nodes, strict=True):
        assert (node.op, node.name, node.inputs) == (expected_node.op, expected_node.name, expected_node.inputs)
        assert node.attributes.keys() == expected_node.attributes.keys()
        for key, value in node.attributes.items():
            expected_value = expected_node.attributes[key]
            assert type(value) is type(expected_value), key
            if isinstance(value, PackedSigns):
                assert value.n == expected_value.n
                value, expected_value = value.packed, expected_value.packed
            if isinstance(value, np.ndarray):
                assert (value.dtype, value.shape, value.tobytes()) == (
                    expected_value.dtype,
                    expected_value.shape,
                    expected_value.tobytes(),
                ), key
                assert not expected_value.flags.writeable
            else:
                assert value == expected_value, key


def test_the_models_with_every_op_contain_all_operators() -> None:
    version_1_ops = {node.op for node in make_model_with_every_op(RNG(0)).nodes}
    assert version_1_ops == {name for name, operator in OPERATORS.items() if operator.version == 1}
    all_ops = version_1_ops | {node.op for node in make_version_2_model(RNG(0)).nodes}
    assert all_ops == set(OPERATORS) == set(reference.OPERATOR_FUNCTIONS) | {"constant"}


@pytest.mark.parametrize(
    "model",
    [SMALL_MODEL, make_model_with_every_op(RNG(0)), make_resnet20(RNG(0)), make_version_2_model(RNG(0))],
    ids=["small", "every op", "resnet20", "version 2"],
)
def test_write_and_read_keep_the_model_and_its_bytes(model: BnnModel, tmp_path: Path) -> None:
    path = tmp_path / "model.bnn"
    write_model(path, model)
    read_back = read_model(path)
    assert_models_equal(model, read_back)
    assert to_bytes(read_back) == to_bytes(model) == path.read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["model.bnn"]
    x = draw_normal(RNG(9), 2, *model.shape)
    outputs, outputs_of_file = (reference.compute_outputs(m, x) for m in (model, read_back))
    assert outputs.keys() == outputs_of_file.keys()
    assert all(np.array_equal(outputs[name], outputs_of_file[name]) for name in outputs)


def test_key_order_and_equivalent_python_types_do_not_change_the_bytes() -> None:
    nodes = []
    for node in SMALL_MODEL.nodes:
        keys = {k: list(v) if type(v) is tuple else v for k, v in reversed(node.attributes.items())}
        nodes.append(Node(node.op, node.name, node.inputs, keys))
    assert to_bytes(BnnModel(**{**vars(SMALL_MODEL), "nodes": tuple(nodes), "top": 255})) == SMALL_DATA


def test_memory_order_of_arrays_does_not_change_the_bytes() -> None:
    rng = RNG(0)
    weight = draw_normal(rng, 2, 3, 3, 4)
    keys = draw_attributes(rng, "conv", 4, 2, make_window((3, 3)))
    c_order = make_model((3, 3, 4), Node("conv", "c", (0,), keys | {"weight": weight}))
    fortran_order = make_model((3, 3, 4), Node("conv", "c", (0,), keys | {"weight": np.asfortranarray(weight)}))
    assert to_bytes(c_order) == to_bytes(fortran_order)


def test_the_bytes_follow_the_format_document() -> None:
    """Parse header, graph, tensors at multiples of 64, and checksum without the reader."""
    magic, version, flags, size, at, count, start, tensors, zero = struct.unpack_from("<8sIIQQQQQQ", SMALL_DATA)
    assert magic == bytes.fromhex("89 42 4E 4E 0D 0A 1A 0A")
    assert (version, flags, size, at, zero) == (1, 0, len(SMALL_DATA), 64, 0)
    assert start == math.ceil((64 + count) / 64) * 64
    assert tensors % 64 == 0
    assert start + tensors + 32 == size
    assert SMALL_DATA[-32:] == hashlib.sha256(SMALL_DATA[:-32]).digest()
    graph = parse_graph(SMALL_DATA)
    assert list(graph) == ["writer", "name", "input", "classes", "tensors", "nodes"]
    assert graph["input"] == {"shape": [3, 3, 2], "top": 255, "mean": [0.5, 0.5], "std": [0.25, 0.25]}
    first, second = graph["nodes"][:2]
    assert (first["op"], first["name"], first["in"], first["pad"], first["groups"]) == ("bconv", "b", [0], [1] * 4, 1)
    assert second["name"] == "é\n"
    weight = graph["tensors"][first["weight"]]
    assert weight == {"type": "bits", "shape": [3, 18], "offset": weight["offset"], "bytes": 9}
    assert weight["offset"] % 64 == 0
    assert SMALL_DATA[weight["offset"] :][:9] == SMALL_MODEL.nodes[0].attributes["weight"].packed.tobytes()
    a = graph["tensors"][second["a"]]
    assert struct.unpack_from("<3f", SMALL_DATA, a["offset"]) == tuple(SMALL_MODEL.nodes[1].attributes["a"].tolist())


def test_a_model_without_tensors_can_be_written() -> None:
    model = make_model((1, 1, 2), Node("relu", "r", (0,), {}))
    assert struct.unpack_from("<Q", to_bytes(model), 48) == (0,)
    assert_models_equal(model, from_bytes(to_bytes(model), "f"))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.bnn"
    path.write_bytes(b"old")

    def raise_disk_full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", raise_disk_full)
    with pytest.raises(OSError, match="No space left"):
        write_model(path, SMALL_MODEL)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("model.bnn", b"old")]


def test_a_model_is_synced_to_disk_before_it_replaces_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "model.bnn", []
    path.write_bytes(b"old")

    def record_sync(handle: int) -> None:
        synced.append((os.fstat(handle).st_ino, os.fstat(handle).st_size, path.read_bytes()))

    monkeypatch.setattr(os, "fsync", record_sync)
    write_model(path, SMALL_MODEL)
    assert synced == [(path.stat().st_ino, len(SMALL_DATA), b"old")]
    assert path.read_bytes() == to_bytes(SMALL_MODEL)


def test_reading_a_missing_file_or_a_folder_fails(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    for path in (missing, tmp_path):
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}: the file does not exist$"):
            read_model(path)


def test_a_file_over_the_size_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "big"
    with path.open("wb") as file:
        file.truncate(2**31 + 1)  # a sparse file
    with pytest.raises(InputError, match="a file must have at most 2147483648 bytes; got 2147483649"):
        read_model(path)


def test_errors_of_invalid_files_start_with_the_path(tmp_path: Path) -> None:
    path = tmp_path / "f.bnn"
    for data in (b"", SMALL_DATA[:-1]):
        path.write_bytes(data)
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}: "):
            read_model(path)


def test_a_margin_other_than_1_is_written() -> None:
    assert b"margin" not in SMALL_DATA
    framed = to_bytes(BnnModel(**{**vars(SMALL_MODEL), "margin": 8 / 7}))
    assert from_bytes(framed, "it").margin == 8 / 7
    assert from_bytes(SMALL_DATA, "it").margin == 1
    with Engine(framed) as with_margin, Engine(SMALL_DATA) as without_margin:
        images = np.ones((1, *SMALL_MODEL.shape), np.float32)
        assert np.array_equal(with_margin.run(images), without_margin.run(images))
