"""Checkpoints are read back unchanged, also after a kill or a full disk interrupted the next write."""

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

from lcrbnn.errors import PART_SUFFIX, InputError
from lcrbnn.runs.atomic_files import write_atomic
from lcrbnn.runs.checkpoint import CHECKSUM, Checkpoint, read_checkpoint, write_checkpoint
from tests.runs.helpers import ROOT, SMALL_CHECKPOINT, assert_same_checkpoint

DTYPES = [np.float64, np.float32, np.float16, np.int64, np.int32, np.uint8, np.bool_]


# -- reading back --------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.text(),
        st.sampled_from(DTYPES).flatmap(lambda dtype: arrays(dtype, array_shapes(min_dims=0, max_side=3, min_side=0))),
        max_size=4,
    ),
    st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()),
)
def test_arrays_and_facts_are_read_back_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory, stored_arrays: dict[str, np.ndarray], facts: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    write_checkpoint(path, Checkpoint(stored_arrays, facts))
    assert_same_checkpoint(read_checkpoint(path), Checkpoint(stored_arrays, facts))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4, 1)])
def test_every_dtype_is_read_back_in_every_shape(tmp_path: Path, dtype: type, shape: tuple[int, ...]) -> None:
    numbers = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, Checkpoint({"first": np.ones(1, np.uint8), "a": numbers}, {}))
    assert_same_checkpoint(read_checkpoint(path), Checkpoint({"first": np.ones(1, np.uint8), "a": numbers}, {}))


def test_non_contiguous_arrays_are_read_back(tmp_path: Path) -> None:
    grid = np.arange(24.0).reshape(4, 6)
    scattered = {"turned": grid.T, "strided": grid[::2, ::-3], "spread": np.broadcast_to(np.float32(3), (2, 2))}
    write_checkpoint(tmp_path / "a.safetensors", Checkpoint(scattered, {}))
    assert_same_checkpoint(read_checkpoint(tmp_path / "a.safetensors"), Checkpoint(scattered, {}))


def test_big_endian_arrays_are_read_back(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a.safetensors", Checkpoint({"a": np.arange(3, dtype=">f4")}, {}))
    read = read_checkpoint(tmp_path / "a.safetensors").arrays["a"]
    np.testing.assert_array_equal(read, [0, 1, 2])


@pytest.mark.parametrize("name", [CHECKSUM, "__metadata__"])
def test_reserved_array_names_are_stored_or_rejected(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.safetensors"
    try:
        write_checkpoint(path, Checkpoint({name: np.ones(3)}, {}))
    except (InputError, ValueError):
        return
    assert_same_checkpoint(read_checkpoint(path), Checkpoint({name: np.ones(3)}, {}))


def test_the_safetensors_library_reads_the_same_arrays(tmp_path: Path) -> None:
    stored_arrays = {f'{dtype.__name__}/ü ☃ \\ "{i}': np.arange(i).astype(dtype) for dtype in DTYPES for i in (0, 1, 7)}
    stored_arrays["zero-dim"] = np.array(2.5)
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, Checkpoint(stored_arrays, {"epoch": 3}))
    loaded_arrays = safetensors.numpy.load_file(path)
    assert loaded_arrays.pop(CHECKSUM).shape == (32,)
    assert_same_checkpoint(
        Checkpoint({name: loaded_arrays[name] for name in stored_arrays}, {}), Checkpoint(stored_arrays, {})
    )
    assert len(loaded_arrays) == len(stored_arrays)
    with safetensors.safe_open(path, "numpy") as file:
        assert json.loads(file.metadata()["checkpoint"])["facts"] == {"epoch": 3}


# -- writing -------------------------------------------------------------------------------------------------------


def test_full_disk_leaves_only_the_old_file(small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_full(handle: int) -> None:
        assert small_checkpoint.with_name(small_checkpoint.name + PART_SUFFIX).exists()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", raise_disk_full)
    with pytest.raises(OSError, match="No space left on device"):
        write_checkpoint(small_checkpoint, Checkpoint({"a": np.zeros(5)}, {}))
    assert_same_checkpoint(read_checkpoint(small_checkpoint), SMALL_CHECKPOINT)
    assert list(small_checkpoint.parent.iterdir()) == [small_checkpoint]


def test_interrupt_leaves_only_the_old_file(small_checkpoint: Path) -> None:
    def interrupted_chunks() -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomic(small_checkpoint, interrupted_chunks())
    assert_same_checkpoint(read_checkpoint(small_checkpoint), SMALL_CHECKPOINT)
    assert list(small_checkpoint.parent.iterdir()) == [small_checkpoint]


def test_folder_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    with pytest.raises(OSError, match="it exists and is not a regular file"):
        write_atomic(folder, [b"x"])
    assert folder.is_dir()
    assert list(tmp_path.iterdir()) == [folder]


def test_file_is_synced_before_it_is_renamed_and_its_folder_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(handle: int) -> None:
        status = os.fstat(handle)
        kind = "folder" if stat.S_ISDIR(status.st_mode) else "file"
        calls.append((kind, status.st_ino, status.st_size if kind == "file" else None))
        fsync(handle)

    def record_replace(source: Any, target: Any) -> None:
        calls.append((Path(source).name, Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    path = tmp_path / "a.bin"
    write_atomic(path, [b"abc", memoryview(b"defg")])
    assert calls == [
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
os.fsync = lambda handle: None  # a kill keeps all written data, and without fsync more of the time is spent in writes
turn = 0
while True:
    arrays = {f"a{i}": np.full(16384, turn, np.int64) for i in range(16)}
    write_checkpoint(Path(sys.argv[1]), Checkpoint(arrays, {"turn": turn}))
    if turn == 0:
        print("ready", flush=True)
    turn += 1
"""


def test_process_killed_at_any_moment_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    rng, turns = random.Random(0), []
    for _ in range(10):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as writer:
            try:
                assert writer.stdout is not None
                assert writer.stdout.readline() == "ready\n"
                time.sleep(rng.uniform(0, 0.05))
            finally:
                writer.kill()
        checkpoint = read_checkpoint(path)
        assert len(checkpoint.arrays) == 16
        assert all((array == checkpoint.facts["turn"]).all() for array in checkpoint.arrays.values())
        turns.append(checkpoint.facts["turn"])
    assert max(turns) > 0
    assert {p.name for p in tmp_path.iterdir()} <= {path.name, path.name + PART_SUFFIX}
