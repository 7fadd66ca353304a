"""Checkpoints that are damaged, have another format or are crafted: each raises DamagedCheckpoint with one sentence."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from lcrbnn.runs.checkpoint import CHECKSUM, FORMAT_VERSION, Checkpoint, DamagedCheckpoint, read_checkpoint
from tests.runs.helpers import SMALL_CHECKPOINT, assert_same_checkpoint


def read_error(path: Path) -> str:
    """Return the message of the DamagedCheckpoint that reading this file raises."""
    with pytest.raises(DamagedCheckpoint) as caught:
        read_checkpoint(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"the checkpoint {path} ")
    assert "\n" not in sentence
    return sentence


# -- damage --------------------------------------------------------------------------------------------------------


def test_every_single_bit_flip_is_detected(small_checkpoint: Path) -> None:
    with small_checkpoint.open("r+b", buffering=0) as file:
        for offset, original_byte in enumerate(small_checkpoint.read_bytes()):
            for byte in [*(original_byte ^ 1 << bit for bit in range(8)), original_byte]:
                file.seek(offset)
                file.write(bytes([byte]))
                if byte != original_byte:
                    read_error(small_checkpoint)
    assert_same_checkpoint(read_checkpoint(small_checkpoint), SMALL_CHECKPOINT)


def test_truncated_file_is_detected(small_checkpoint: Path) -> None:
    content = small_checkpoint.read_bytes()
    for length in range(len(content)):
        small_checkpoint.write_bytes(content[:length])
        read_error(small_checkpoint)


@pytest.mark.parametrize("suffix", [b"\0", b" ", bytes(32), b"x" * 1000])
def test_bytes_after_the_end_are_detected(small_checkpoint: Path, suffix: bytes) -> None:
    content = small_checkpoint.read_bytes()
    small_checkpoint.write_bytes(content + suffix)
    read_error(small_checkpoint)
    small_checkpoint.write_bytes(
        content + suffix + content[-32:]
    )  # with the checksum of the header at the expected place
    assert f"it has {len(content) + len(suffix) + 32:,} bytes instead of {len(content):,}" in read_error(
        small_checkpoint
    )


class FolderMakerOnUnpickle:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("kind", ["empty", "zeros", "random", "text", "huge", "pickle", "torch", "safetensors"])
def test_other_file_formats_are_rejected_and_not_executed(tmp_path: Path, kind: str) -> None:
    path, created_by_unpickling = tmp_path / "other.safetensors", tmp_path / "sprung"
    if kind == "torch":
        torch.save({"a": torch.ones(20)}, path)
    elif kind == "safetensors":
        safetensors.numpy.save_file({"a": np.ones(20)}, path)
    else:
        contents = {
            "empty": b"",
            "zeros": bytes(500),
            "random": random.Random(0).randbytes(500),
            "text": b"# A text about checkpoints\n" * 20,
            "huge": b"\xff" * 8 + b"{}" + bytes(200),  # a header of 2 ** 64 - 1 bytes
            "pickle": pickle.dumps([FolderMakerOnUnpickle(created_by_unpickling), bytes(100)]),
        }
        path.write_bytes(contents[kind])
    reason = read_error(path).removeprefix(f"the checkpoint {path} is damaged: ")
    if kind in ("zeros", "safetensors"):  # a possible header length
        assert reason == "the checksum of its header is wrong, or its end is missing"
    else:
        assert reason == f"it ends after {path.stat().st_size:,} bytes, or it is no checkpoint"
    assert not created_by_unpickling.exists()


def test_missing_file_and_folder_are_rejected(tmp_path: Path) -> None:
    missing = tmp_path / "missing.safetensors"
    assert read_error(missing) == f"the checkpoint {missing} cannot be read: No such file or directory"
    assert read_error(tmp_path) == f"the checkpoint {tmp_path} cannot be read: Is a directory"


# -- crafted files with correct checksums --------------------------------------------------------------------------


def add_checksum(header: bytes, body: bytes = b"") -> bytes:
    head = len(header).to_bytes(8, "little") + header
    return head + body + hashlib.sha256(head).digest()


def craft_file(entry: Any, *, version: Any = FORMAT_VERSION, other_entries: dict[str, Any] | None = None) -> bytes:
    """Return a file with 8 data bytes. The checksum of each array is that of the bytes at its offsets."""
    body = bytes(range(8))
    entries = {"a": entry, **(other_entries or {})}
    checksums = dict.fromkeys(entries, "0" * 64)  # placeholders of the final length

    def make_header() -> bytes:
        facts = json.dumps({"lcrbnn": version, "sha256": checksums, "facts": {}})
        tail = {"dtype": "U8", "shape": [32], "data_offsets": [8, 40]}
        return json.dumps({**entries, CHECKSUM: tail, "__metadata__": {"checkpoint": facts}}).encode()

    head = len(make_header()).to_bytes(8, "little") + make_header()
    for name, array_entry in entries.items():
        match array_entry:
            case {"data_offsets": [int(start), int(stop)]}:
                checksums[name] = hashlib.sha256((head + body)[len(head) + start : len(head) + stop]).hexdigest()
    return add_checksum(make_header(), body)


def make_entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_valid_crafted_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "crafted.safetensors"
    path.write_bytes(craft_file(make_entry()))
    assert_same_checkpoint(read_checkpoint(path), Checkpoint({"a": np.frombuffer(bytes(range(8)), "<f4")}, {}))


@pytest.mark.parametrize(
    "invalid_entry",
    [
        make_entry(offsets=[0, 40], shape=[10]),
        make_entry(offsets=[0, 2**70]),
        make_entry(offsets=[100, 108]),
        make_entry(offsets=[-(2**70), 8]),
        make_entry(offsets=[0, 4, 8]),
        make_entry(offsets=[0, 8.0]),
        make_entry(offsets=["0", "8"]),
        make_entry(offsets=None),
        make_entry(dtype="BF16"),
        make_entry(dtype="<f4"),
        make_entry(dtype=["F32"]),
        make_entry(dtype=None),
        make_entry(shape=[3]),
        make_entry(shape=[2, 0]),
        make_entry(shape=[2, 2**70]),
        make_entry(shape=[2**62, 2**62]),
        make_entry(shape=[2, *[1] * 100]),
        make_entry(shape=["2"]),
        make_entry(shape=[2.0]),
        make_entry(shape="2"),
        {},
        [],
        None,
        5,
    ],
    ids=repr,
)
def test_invalid_entry_with_correct_checksums_is_rejected(tmp_path: Path, invalid_entry: Any) -> None:
    path = tmp_path / "crafted.safetensors"
    path.write_bytes(craft_file(invalid_entry))
    assert " is damaged: " in read_error(path)


@pytest.mark.parametrize(
    ("invalid_entry", "other_entries"),
    [
        (make_entry(offsets=[-8, 0]), {}),
        (make_entry(offsets=[8, 0], shape=[0]), {}),
        (make_entry(offsets=[1000, 1000], shape=[0]), {}),
        (make_entry(offsets=[4, 8], shape=[1]), {}),
        (make_entry(), {"b": make_entry()}),
        (make_entry(shape=[-1]), {}),
        (make_entry(shape=2), {}),
        (make_entry(shape=None), {}),
        (make_entry(shape=[0, 2**70], offsets=[0, 0]), {"b": make_entry()}),
    ],
    ids=["in the header", "backwards", "outside", "hole", "overlapping", "shape -1", "no list", "no shape", "2^70"],
)
def test_invalid_offsets_and_shapes_are_rejected(
    tmp_path: Path, invalid_entry: dict[str, Any], other_entries: dict[str, Any]
) -> None:
    path = tmp_path / "crafted.safetensors"
    path.write_bytes(craft_file(invalid_entry, other_entries=other_entries))
    read_error(path)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b"9" * 5000,
        b"{}",
        b'{"__metadata__": 3}',
        b'{"__metadata__": {}}',
        b'{"__metadata__": {"checkpoint": 3}}',
        b'{"__metadata__": {"checkpoint": "{}"}}',
        b'{"__metadata__": {"checkpoint": "["}}',
    ],
    ids=lambda header: header[:40].decode("latin1"),
)
def test_invalid_header_with_correct_checksum_is_rejected(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "crafted.safetensors"
    path.write_bytes(add_checksum(header))
    assert " is damaged: " in read_error(path)


@pytest.mark.parametrize(
    "facts",
    [
        [],
        {},
        {"lcrbnn": FORMAT_VERSION},
        {"lcrbnn": FORMAT_VERSION, "sha256": [], "facts": {}},
        {"lcrbnn": FORMAT_VERSION, "sha256": {}},
        {"sha256": {}, "facts": {}},
        {"lcrbnn": FORMAT_VERSION, "sha256": {"a": hashlib.sha256(b"").hexdigest()}, "facts": []},
        {"lcrbnn": FORMAT_VERSION, "sha256": {"a": hashlib.sha256(b"").hexdigest()}, "facts": None},
    ],
)
def test_invalid_facts_are_rejected(tmp_path: Path, facts: Any) -> None:
    tail = {"dtype": "U8", "shape": [32], "data_offsets": [0, 32]}
    empty_array = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    header = {"a": empty_array, CHECKSUM: tail, "__metadata__": {"checkpoint": json.dumps(facts)}}
    path = tmp_path / "crafted.safetensors"
    path.write_bytes(add_checksum(json.dumps(header).encode()))
    assert " is damaged: " in read_error(path)


def test_newer_format_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "newer.safetensors"
    path.write_bytes(craft_file(make_entry(), version=FORMAT_VERSION + 1))
    assert (
        f"it has format {FORMAT_VERSION + 1}, but this version of lcrbnn reads format {FORMAT_VERSION}"
        in read_error(path)
    )


def test_newer_format_with_unknown_dtypes_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "newer.safetensors"
    path.write_bytes(craft_file(make_entry(dtype="F8", shape=[8]), version=FORMAT_VERSION + 1))
    assert f"it has format {FORMAT_VERSION + 1}" in read_error(path)
