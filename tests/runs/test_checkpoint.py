"""Checkpoints there and back, and writing that a kill or a full disk cuts short."""

from __future__ import annotations

import errno
import json
import os
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
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from lcrbnn.errors import InputError
from lcrbnn.outputs import PART
from lcrbnn.runs.checkpoint import CHECKSUM, Checkpoint, read_checkpoint, write_checkpoint
from lcrbnn.runs.files import write_whole
from tests.runs.helpers import ROOT, SMALL, same

DTYPES = [np.float64, np.float32, np.float16, np.int64, np.int32, np.uint8, np.bool_]


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
