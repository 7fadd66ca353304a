"""Checkpoints that are damaged, of another kind, or made on purpose to mislead: each is refused in a sentence."""

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

from lcrbnn.runs.checkpoint import CHECKSUM, VERSION, Checkpoint, Damaged, read_checkpoint
from tests.runs.helpers import SMALL, same


def refusal(path: Path) -> str:
    """The sentence about a file, which is the same kind of error for all that may be wrong."""
    with pytest.raises(Damaged) as caught:
        read_checkpoint(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"the checkpoint {path} ")
    assert "\n" not in sentence
    return sentence


# -- damage --------------------------------------------------------------------------------------------------------


def test_every_single_bit_that_flips_is_noticed(small: Path) -> None:
    with small.open("r+b", buffering=0) as file:
        for place, good in enumerate(small.read_bytes()):
            for byte in [*(good ^ 1 << bit for bit in range(8)), good]:
                file.seek(place)
                file.write(bytes([byte]))
                if byte != good:
                    refusal(small)
    same(read_checkpoint(small), SMALL)


def test_a_file_that_breaks_off_anywhere_is_noticed(small: Path) -> None:
    good = small.read_bytes()
    for length in range(len(good)):
        small.write_bytes(good[:length])
        refusal(small)


@pytest.mark.parametrize("more", [b"\0", b" ", bytes(32), b"x" * 1000])
def test_bytes_after_the_end_are_noticed(small: Path, more: bytes) -> None:
    good = small.read_bytes()
    small.write_bytes(good + more)
    refusal(small)
    small.write_bytes(good + more + good[-32:])  # with the checksum of the header where it is looked for
    assert f"it has {len(good) + len(more) + 32:,} bytes instead of {len(good):,}" in refusal(small)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("kind", ["empty", "zeros", "random", "text", "huge", "pickle", "torch", "safetensors"])
def test_a_file_of_another_kind_is_refused_and_nothing_in_it_runs(tmp_path: Path, kind: str) -> None:
    path, sprung = tmp_path / "other.safetensors", tmp_path / "sprung"
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
            "pickle": pickle.dumps([Trap(sprung), bytes(100)]),
        }
        path.write_bytes(contents[kind])
    reason = refusal(path).removeprefix(f"the checkpoint {path} is damaged: ")
    if kind in ("zeros", "safetensors"):  # a header of a length that could be
        assert reason == "the checksum of its header does not agree, or it breaks off"
    else:
        assert reason == f"it breaks off after {path.stat().st_size:,} bytes, or never was a checkpoint"
    assert not sprung.exists()


def test_a_missing_file_and_a_folder_are_refused_in_a_sentence(tmp_path: Path) -> None:
    missing = tmp_path / "missing.safetensors"
    assert refusal(missing) == f"the checkpoint {missing} cannot be read: No such file or directory"
    assert refusal(tmp_path) == f"the checkpoint {tmp_path} cannot be read: Is a directory"


# -- files that somebody made on purpose: all checksums agree ------------------------------------------------------


def sealed(header: bytes, body: bytes = b"") -> bytes:
    head = len(header).to_bytes(8, "little") + header
    return head + body + hashlib.sha256(head).digest()


def crafted(entry: Any, *, version: Any = VERSION, others: dict[str, Any] | None = None) -> bytes:
    """A file with 8 bytes of numbers; the arrays' checksums are those of the bytes that their entries point to."""
    body = bytes(range(8))
    entries = {"a": entry, **(others or {})}
    sums = dict.fromkeys(entries, "0" * 64)  # as long as those that follow

    def header() -> bytes:
        facts = json.dumps({"lcrbnn": version, "sha256": sums, "facts": {}})
        tail = {"dtype": "U8", "shape": [32], "data_offsets": [8, 40]}
        return json.dumps({**entries, CHECKSUM: tail, "__metadata__": {"checkpoint": facts}}).encode()

    head = len(header()).to_bytes(8, "little") + header()
    for name, one in entries.items():
        match one:
            case {"data_offsets": [int(start), int(stop)]}:
                sums[name] = hashlib.sha256((head + body)[len(head) + start : len(head) + stop]).hexdigest()
    return sealed(header(), body)


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_crafted_file_that_makes_sense_is_read(tmp_path: Path) -> None:
    path = tmp_path / "crafted.safetensors"
    path.write_bytes(crafted(entry()))
    same(read_checkpoint(path), Checkpoint({"a": np.frombuffer(bytes(range(8)), "<f4")}, {}))


@pytest.mark.parametrize(
    "nonsense",
    [
        entry(offsets=[0, 40], shape=[10]),
        entry(offsets=[0, 2**70]),
        entry(offsets=[100, 108]),
        entry(offsets=[-(2**70), 8]),
        entry(offsets=[0, 4, 8]),
        entry(offsets=[0, 8.0]),
        entry(offsets=["0", "8"]),
        entry(offsets=None),
        entry(dtype="BF16"),
        entry(dtype="<f4"),
        entry(dtype=["F32"]),
        entry(dtype=None),
        entry(shape=[3]),
        entry(shape=[2, 0]),
        entry(shape=[2, 2**70]),
        entry(shape=[2**62, 2**62]),
        entry(shape=[2, *[1] * 100]),
        entry(shape=["2"]),
        entry(shape=[2.0]),
        entry(shape="2"),
        {},
        [],
        None,
        5,
    ],
    ids=repr,
)
def test_a_header_that_makes_no_sense_is_refused_though_its_checksums_agree(tmp_path: Path, nonsense: Any) -> None:
    path = tmp_path / "crafted.safetensors"
    path.write_bytes(crafted(nonsense))
    assert " is damaged: " in refusal(path)


@pytest.mark.parametrize(
    ("nonsense", "others"),
    [
        (entry(offsets=[-8, 0]), {}),
        (entry(offsets=[8, 0], shape=[0]), {}),
        (entry(offsets=[1000, 1000], shape=[0]), {}),
        (entry(offsets=[4, 8], shape=[1]), {}),
        (entry(), {"b": entry()}),
        (entry(shape=[-1]), {}),
        (entry(shape=2), {}),
        (entry(shape=None), {}),
        (entry(shape=[0, 2**70], offsets=[0, 0]), {"b": entry()}),
    ],
    ids=["in the header", "backwards", "outside", "hole", "overlapping", "shape -1", "no list", "no shape", "2^70"],
)
def test_offsets_and_shapes_that_no_writer_makes_are_refused(
    tmp_path: Path, nonsense: dict[str, Any], others: dict[str, Any]
) -> None:
    path = tmp_path / "crafted.safetensors"
    path.write_bytes(crafted(nonsense, others=others))
    refusal(path)


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
def test_a_header_of_another_kind_is_refused_though_its_checksum_agrees(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "crafted.safetensors"
    path.write_bytes(sealed(header))
    assert " is damaged: " in refusal(path)


@pytest.mark.parametrize(
    "facts",
    [
        [],
        {},
        {"lcrbnn": VERSION},
        {"lcrbnn": VERSION, "sha256": [], "facts": {}},
        {"lcrbnn": VERSION, "sha256": {}},
        {"sha256": {}, "facts": {}},
        {"lcrbnn": VERSION, "sha256": {"a": hashlib.sha256(b"").hexdigest()}, "facts": []},
        {"lcrbnn": VERSION, "sha256": {"a": hashlib.sha256(b"").hexdigest()}, "facts": None},
    ],
)
def test_facts_that_make_no_sense_are_refused(tmp_path: Path, facts: Any) -> None:
    tail = {"dtype": "U8", "shape": [32], "data_offsets": [0, 32]}
    some = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    header = {"a": some, CHECKSUM: tail, "__metadata__": {"checkpoint": json.dumps(facts)}}
    path = tmp_path / "crafted.safetensors"
    path.write_bytes(sealed(json.dumps(header).encode()))
    assert " is damaged: " in refusal(path)


def test_a_newer_format_is_refused_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "newer.safetensors"
    path.write_bytes(crafted(entry(), version=VERSION + 1))
    assert f"it is of format {VERSION + 1}, and this version of lcrbnn reads format {VERSION}" in refusal(path)


def test_a_newer_format_with_new_types_says_so_too(tmp_path: Path) -> None:
    path = tmp_path / "newer.safetensors"
    path.write_bytes(crafted(entry(dtype="F8", shape=[8]), version=VERSION + 1))
    assert f"it is of format {VERSION + 1}" in refusal(path)
