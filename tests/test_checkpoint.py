from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import random
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from lcrbnn.errors import InputError
from lcrbnn.runs.checkpoint import CHECKSUM, VERSION, Checkpoint, Damaged, read_checkpoint, write_checkpoint
from lcrbnn.runs.files import PART, write_whole

ROOT = Path(__file__).parents[1]
DTYPES = [np.float64, np.float32, np.float16, np.int64, np.int32, np.uint8, np.bool_]
SMALL = Checkpoint({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "ä/b": np.array(7)}, {"epoch": 3})


def same(one: Checkpoint, other: Checkpoint) -> None:
    assert one.facts == other.facts
    assert list(one.arrays) == list(other.arrays)
    for name, array in one.arrays.items():
        theirs = other.arrays[name]
        assert (array.dtype, array.shape) == (theirs.dtype, theirs.shape), name
        assert array.tobytes() == theirs.tobytes(), name  # bits: a NaN is kept as well


def refusal(path: Path) -> str:
    """The sentence about a file, which is the same kind of error for all that may be wrong."""
    with pytest.raises(Damaged) as caught:
        read_checkpoint(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"the checkpoint {path} ")
    assert "\n" not in sentence
    return sentence


# -- there and back ------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.text(),
        st.sampled_from(DTYPES).flatmap(lambda dtype: arrays(dtype, array_shapes(min_dims=0, max_side=3, min_side=0))),
        max_size=4,
    ),
    st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()),
)
def test_arrays_and_facts_come_back_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory, held: dict[str, np.ndarray], facts: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    write_checkpoint(path, Checkpoint(held, facts))
    same(read_checkpoint(path), Checkpoint(held, facts))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4, 1)])
def test_every_type_comes_back_in_every_shape(tmp_path: Path, dtype: type, shape: tuple[int, ...]) -> None:
    numbers = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, Checkpoint({"first": np.ones(1, np.uint8), "a": numbers}, {}))
    same(read_checkpoint(path), Checkpoint({"first": np.ones(1, np.uint8), "a": numbers}, {}))


def test_arrays_that_lie_scattered_in_memory_come_back(tmp_path: Path) -> None:
    grid = np.arange(24.0).reshape(4, 6)
    scattered = {"turned": grid.T, "strided": grid[::2, ::-3], "spread": np.broadcast_to(np.float32(3), (2, 2))}
    write_checkpoint(tmp_path / "a.safetensors", Checkpoint(scattered, {}))
    same(read_checkpoint(tmp_path / "a.safetensors"), Checkpoint(scattered, {}))


def test_arrays_of_the_other_byte_order_come_back(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a.safetensors", Checkpoint({"a": np.arange(3, dtype=">f4")}, {}))
    read = read_checkpoint(tmp_path / "a.safetensors").arrays["a"]
    np.testing.assert_array_equal(read, [0, 1, 2])


@pytest.mark.parametrize("name", [CHECKSUM, "__metadata__"])
def test_an_array_with_a_name_of_the_format_is_kept_or_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.safetensors"
    try:
        write_checkpoint(path, Checkpoint({name: np.ones(3)}, {}))
    except (InputError, ValueError):
        return
    same(read_checkpoint(path), Checkpoint({name: np.ones(3)}, {}))


def test_the_safetensors_library_reads_the_same_arrays(tmp_path: Path) -> None:
    held = {f'{dtype.__name__}/ü ☃ \\ "{i}': np.arange(i).astype(dtype) for dtype in DTYPES for i in (0, 1, 7)}
    held["zero-dim"] = np.array(2.5)
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, Checkpoint(held, {"epoch": 3}))
    theirs = safetensors.numpy.load_file(path)
    assert theirs.pop(CHECKSUM).shape == (32,)
    same(Checkpoint({name: theirs[name] for name in held}, {}), Checkpoint(held, {}))
    assert len(theirs) == len(held)
    with safetensors.safe_open(path, "numpy") as file:
        assert json.loads(file.metadata()["checkpoint"])["facts"] == {"epoch": 3}


# -- damage --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.safetensors"
    write_checkpoint(path, SMALL)
    return path


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
    ],
    ids=["in the header", "backwards", "outside", "a hole", "overlapping", "shape -1", "shape no list", "no shape"],
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


# -- writing -------------------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_leaves_the_old_file_and_nothing_besides(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        assert small.with_name(small.name + PART).exists()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        write_checkpoint(small, Checkpoint({"a": np.zeros(5)}, {}))
    same(read_checkpoint(small), SMALL)
    assert list(small.parent.iterdir()) == [small]


def test_an_interrupt_amid_the_writing_leaves_the_old_file_and_nothing_besides(small: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(small, pieces())
    same(read_checkpoint(small), SMALL)
    assert list(small.parent.iterdir()) == [small]


def test_what_is_there_and_no_file_is_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    with pytest.raises(OSError, match="it is there and is no file"):
        write_whole(folder, [b"x"])
    assert folder.is_dir()
    assert list(tmp_path.iterdir()) == [folder]


def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    fsync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        about = os.fstat(handle)
        kind = "folder" if stat.S_ISDIR(about.st_mode) else "file"
        done.append((kind, about.st_ino, about.st_size if kind == "file" else None))
        fsync(handle)

    def replaced(source: Any, target: Any) -> None:
        done.append((Path(source).name, Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    path = tmp_path / "a.bin"
    write_whole(path, [b"abc", memoryview(b"defg")])
    assert done == [
        ("file", path.stat().st_ino, 7),
        ("a.bin.part", "a.bin"),
        ("folder", tmp_path.stat().st_ino, None),
    ]
    assert path.read_bytes() == b"abcdefg"


WRITER = """
import os, sys
from pathlib import Path
import numpy as np
from lcrbnn.runs.checkpoint import Checkpoint, write_checkpoint

assert "torch" not in sys.modules
os.fsync = lambda handle: None  # a kill loses nothing that was written, and so more of the time goes into writing
turn = 0
while True:
    arrays = {f"a{i}": np.full(16384, turn, np.int64) for i in range(16)}
    write_checkpoint(Path(sys.argv[1]), Checkpoint(arrays, {"turn": turn}))
    if turn == 0:
        print("ready", flush=True)
    turn += 1
"""


def test_a_process_that_is_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    chance, turns = random.Random(0), []
    for _ in range(10):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as writer:
            try:
                assert writer.stdout is not None
                assert writer.stdout.readline() == "ready\n"
                time.sleep(chance.uniform(0, 0.05))
            finally:
                writer.kill()
        read = read_checkpoint(path)
        assert len(read.arrays) == 16
        assert all((array == read.facts["turn"]).all() for array in read.arrays.values())
        turns.append(read.facts["turn"])
    assert max(turns) > 0
    assert {p.name for p in tmp_path.iterdir()} <= {path.name, path.name + PART}
