from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lcrbnn.errors import InputError
from lcrbnn.runs.checkpoint import Checkpoint
from lcrbnn.runs.folder import COLUMNS, KEPT, RunFolder

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.create({"lr": 0.1})
    return made


def numbered(step: int) -> Checkpoint:
    return Checkpoint({"a": np.full(3, step)}, {"step": step})


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


def exactly(sentence: str) -> str:
    return f"^{re.escape(sentence)}$"


# -- a run begins ----------------------------------------------------------------------------------------------------


def test_naming_a_folder_touches_nothing(tmp_path: Path) -> None:
    assert not RunFolder(tmp_path / "run").exists()
    assert names(tmp_path) == []


def test_a_run_begins_with_its_spec_an_empty_log_and_no_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "deep" / "run")
    folder.create({"lr": 0.1, "list": [1, "ü"]})
    assert folder.exists()
    assert folder.read_spec() == {"lr": 0.1, "list": [1, "ü"]}
    assert folder.read_log() == []
    assert folder.listed() == []
    assert folder.newest() is None
    assert names(folder.path) == ["checkpoints", "log.jsonl", "spec.json"]


def test_a_run_begins_in_an_empty_folder_and_in_one_that_is_only_locked(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.locked():
        folder.create({})
    assert folder.exists()


def test_a_folder_with_something_else_in_it_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    folder = RunFolder(tmp_path)
    with pytest.raises(InputError, match=exactly(f"{tmp_path} is not empty and holds no run; choose another folder")):
        folder.create({})
    assert not folder.exists()
    assert names(tmp_path) == ["thesis.tex"]


def test_the_spec_comes_last_so_that_a_run_without_one_never_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, replace = RunFolder(tmp_path / "run"), os.replace

    def full(source: Path, target: Path) -> None:
        if target == folder.spec:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match=exactly(f"a run cannot be written to {folder.path}: No space left on device")):
        folder.create({})
    assert not folder.exists()
    assert folder.log.exists()


@pytest.mark.parametrize("last", ["log.jsonl", "spec.json"])
def test_a_folder_where_a_start_was_cut_short_can_be_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    folder, replace = RunFolder(tmp_path / "run"), os.replace

    def killed(source: Path, target: Path) -> None:
        if Path(target).name == last:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.create({"lr": 0.1})
    folder.path.joinpath(last + ".part").write_bytes(b"half")  # a real kill leaves it
    assert not folder.exists()
    folder.create({"lr": 0.2})
    assert folder.read_spec() == {"lr": 0.2}


@pytest.mark.parametrize("with_spec", [True, False])
def test_a_folder_with_a_log_or_checkpoints_of_a_run_is_not_taken_for_an_empty_one(
    folder: RunFolder, with_spec: bool
) -> None:
    folder.append(line(1))
    folder.save(5, numbered(5))
    if not with_spec:
        folder.spec.unlink()
    with pytest.raises(InputError):
        folder.create({})
    assert folder.read_log() == [line(1)]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(InputError, match=exactly(f"a run is a folder, and {path} is none")):
        RunFolder(path).create({})
    below = RunFolder(path / "run")
    with pytest.raises(InputError, match=exactly(f"a run cannot be written to {below.path}: Not a directory")):
        below.create({})
    for folder, why in ((RunFolder(path), "File exists"), (below, "Not a directory")):
        with (
            pytest.raises(InputError, match=exactly(f"a run cannot be written to {folder.path}: {why}")),
            folder.locked(),
        ):
            pass
    assert path.read_text() == "mine"


@contextmanager
def nobody() -> Iterator[None]:
    """Without the rights of root, for which nothing is read-only."""
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(me)


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that nobody may write to; not in tmp_path, which nobody else may enter."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o555)
    yield path
    shutil.rmtree(path)


def test_a_folder_that_is_read_only_is_refused_in_a_sentence(readable: Path) -> None:
    sentence = exactly(f"a run cannot be written to {readable}: Permission denied")
    with nobody():
        with pytest.raises(InputError, match=sentence):
            RunFolder(readable).create({})
        with pytest.raises(InputError, match=sentence), RunFolder(readable).locked():
            pass
        below = readable / "deep" / "run"
        with pytest.raises(InputError, match=exactly(f"a run cannot be written to {below}: Permission denied")):
            RunFolder(below).create({})
    assert names(readable) == []


# -- its spec --------------------------------------------------------------------------------------------------------


def test_a_folder_without_a_run_has_no_spec(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=exactly(f"there is no run in {tmp_path}: it has no spec.json")):
        RunFolder(tmp_path).read_spec()


@pytest.mark.parametrize("content", [b"", b'{"lr": ', b"\xff\xfe\xfd", b"lr = 0.1"])
def test_a_spec_that_is_garbage_is_refused(folder: RunFolder, content: bytes) -> None:
    folder.spec.write_bytes(content)
    with pytest.raises(InputError, match=f"^{re.escape(str(folder.spec))} cannot be read: .+$"):
        folder.read_spec()


@pytest.mark.parametrize("content", ["[]", "3", "null", '"lr"'])
def test_a_spec_that_holds_no_settings_is_refused(folder: RunFolder, content: str) -> None:
    folder.spec.write_text(content)
    with pytest.raises(InputError, match=exactly(f"{folder.spec} cannot be read: it holds no settings")):
        folder.read_spec()


# -- one process at a time -------------------------------------------------------------------------------------------

HOLDER = """
import sys
from pathlib import Path
from typing import Any
from lcrbnn.errors import InputError
from lcrbnn.runs.folder import COLUMNS, KEPT, RunFolder

try:
    with RunFolder(Path(sys.argv[1])).locked():
        print("held", flush=True)
        sys.stdin.read()
except InputError as error:
    print(error)
"""


@contextmanager
def other_process(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that locks a run, and the first line that it says; it is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()


def busy(path: Path) -> str:
    return f"another process is writing the run in {path}; wait for it or stop it"


def test_while_a_process_writes_a_run_another_is_refused_until_the_first_is_killed(folder: RunFolder) -> None:
    with other_process(folder.path) as (process, said):
        assert said == "held\n"
        with pytest.raises(InputError, match=exactly(busy(folder.path))), folder.locked():
            pass
        process.kill()
        process.wait()
        with folder.locked():
            pass


def test_a_lock_holds_against_other_processes_and_ends_with_its_block(folder: RunFolder) -> None:
    with pytest.raises(ZeroDivisionError), folder.locked():  # noqa: PT012  # the error must leave the block
        with other_process(folder.path) as (_, said):
            assert said == busy(folder.path) + "\n"
        raise ZeroDivisionError
    with other_process(folder.path) as (_, said):
        assert said == "held\n"


def line(epoch: int, **more: Any) -> dict[str, Any]:
    return {**dict.fromkeys(COLUMNS), "epoch": epoch, **more}


# -- the log ---------------------------------------------------------------------------------------------------------


def test_lines_of_the_log_come_back_in_order_and_each_is_brought_to_the_disk(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    folder.append(line(1, loss=0.1))
    first = folder.log.stat().st_size
    folder.append(line(2, note="ü\nx"))
    assert folder.read_log() == [line(1, loss=0.1), line(2, note="ü\nx")]
    assert synced == [first, folder.log.stat().st_size]


def test_a_line_that_a_kill_tore_is_left_out_wherever_it_was_torn(folder: RunFolder) -> None:
    folder.append(line(1))
    whole = folder.log.read_bytes()
    for length in range(len(whole)):
        folder.log.write_bytes(whole + whole[:length])
        assert folder.read_log() == [line(1)]


@pytest.mark.parametrize("bad", [b"", b'{"epoch": ', b"\xff\xfe", b"\0\0\0"])
def test_a_damaged_line_amid_the_log_is_refused_with_its_number(folder: RunFolder, bad: bytes) -> None:
    folder.append(line(1))
    folder.log.write_bytes(folder.log.read_bytes() + bad + b"\n" + json.dumps(line(3)).encode() + b"\n")
    before = folder.log.read_bytes()
    for read in (folder.read_log, lambda: folder.cut_log(1)):
        with pytest.raises(InputError, match=exactly(f"{folder.log} is damaged in line 2")):
            read()
    assert folder.log.read_bytes() == before


@pytest.mark.parametrize("bad", [b"3", b"null", b"[]", b"{}", json.dumps({"epoch": 2}).encode()])
def test_a_line_of_the_log_that_is_none_is_refused(folder: RunFolder, bad: bytes) -> None:
    folder.append(line(1))
    folder.log.write_bytes(folder.log.read_bytes() + bad + b"\n")
    with pytest.raises(InputError, match=exactly(f"{folder.log} is damaged in line 2")):
        folder.read_log()


def test_a_log_that_is_not_there_is_refused(folder: RunFolder) -> None:
    folder.log.unlink()
    with pytest.raises(InputError, match=exactly(f"{folder.log} cannot be read: No such file or directory")):
        folder.read_log()


@pytest.mark.parametrize("epochs", [0, 2, 4])
def test_a_log_is_cut_to_the_epochs_that_a_checkpoint_counts_on(folder: RunFolder, epochs: int) -> None:
    for epoch in range(1, 5):
        folder.append(line(epoch, loss=epoch / 3))
    whole = folder.log.read_bytes()
    folder.log.write_bytes(whole + b'{"epoch": 5, "lo')
    kept = [line(epoch, loss=epoch / 3) for epoch in range(1, epochs + 1)]
    assert folder.cut_log(epochs) == kept
    assert folder.read_log() == kept
    assert folder.log.read_bytes() == b"".join(whole.splitlines(keepends=True)[:epochs])
    folder.append(line(epochs + 1))
    assert folder.read_log() == [*kept, line(epochs + 1)]


def test_a_log_that_is_too_short_for_its_checkpoint_is_refused(folder: RunFolder) -> None:
    folder.append(line(1))
    with pytest.raises(
        InputError,
        match=exactly(f"{folder.log} ends after epoch 1 and the checkpoint is from epoch 2: put the log back"),
    ):
        folder.cut_log(2)
    assert folder.read_log() == [line(1)]


# -- checkpoints -----------------------------------------------------------------------------------------------------


def test_the_newest_checkpoints_are_kept_and_listed_oldest_first(folder: RunFolder) -> None:
    steps = [0, 9, 10, 99, 123_456_789]
    paths = [folder.save(step, numbered(step)) for step in steps]
    assert paths[1].name == "step-000000009.safetensors"
    assert folder.listed() == paths[-KEPT:]
    assert folder.newest() == paths[-1]
    assert names(folder.checkpoints) == [path.name for path in paths[-KEPT:]]


def test_files_of_others_among_the_checkpoints_are_neither_listed_nor_removed(folder: RunFolder) -> None:
    foreign = ["best.safetensors", "step-000000001.safetensors.damaged", "step-000000001.txt", "step-2.safetensors"]
    for name in foreign:
        (folder.checkpoints / name).write_text("x")
    paths = [folder.save(step, numbered(step)) for step in range(KEPT + 2)]
    assert folder.listed() == paths[-KEPT:]
    assert set(foreign) < set(names(folder.checkpoints))


def test_a_checkpoint_that_the_disk_does_not_take_costs_none_of_the_old_ones(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [folder.save(step, numbered(step)) for step in range(KEPT)]

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        folder.save(KEPT, numbered(KEPT))
    assert folder.listed() == paths
    assert names(folder.checkpoints) == [path.name for path in paths]


def test_the_newest_checkpoint_is_found(folder: RunFolder) -> None:
    used: list[Checkpoint] = []
    assert folder.last_good(lambda checkpoint, path: used.append(checkpoint)) == (None, [])
    for step in (5, 7):
        newest = folder.save(step, numbered(step))
    assert folder.last_good(lambda checkpoint, path: used.append(checkpoint)) == (newest, [])
    assert [checkpoint.facts for checkpoint in used] == [{"step": 7}]
    folder.set_aside(newest)
    assert len(folder.listed()) == 2


def test_a_damaged_checkpoint_is_complained_about_and_the_one_before_it_found(folder: RunFolder) -> None:
    older, newer = folder.save(5, numbered(5)), folder.save(7, numbered(7))
    spoil(newer)
    used: list[Checkpoint] = []
    path, (complaint,) = folder.last_good(lambda checkpoint, path: used.append(checkpoint))
    assert path == older
    np.testing.assert_array_equal(used[0].arrays["a"], [5, 5, 5])
    assert complaint.startswith(f"the checkpoint {newer} is damaged: ")
    folder.set_aside(older)
    assert names(folder.checkpoints) == [older.name, newer.name + ".damaged"]
    assert folder.newest() == older
    assert folder.save(6, numbered(6)) in folder.listed()  # a lower number than the damaged one's


def test_a_checkpoint_that_does_not_fit_is_complained_about_too(folder: RunFolder) -> None:
    older, newer = folder.save(5, numbered(5)), folder.save(7, numbered(7))

    def use(checkpoint: Checkpoint, path: Path) -> None:
        if path == newer:
            raise InputError("another network")

    assert folder.last_good(use) == (older, ["another network"])


def test_only_damaged_checkpoints_are_an_error_and_none_is_lost(folder: RunFolder) -> None:
    for step in (5, 7):
        path = folder.save(step, numbered(step))
        spoil(path)
    before = names(folder.checkpoints)
    with pytest.raises(
        InputError,
        match=f"^the checkpoint {re.escape(str(path))} is damaged: .+; there is no good one in "
        f"{re.escape(str(folder.checkpoints))} to go on from$",
    ):
        folder.last_good(lambda checkpoint, path: None)
    assert names(folder.checkpoints) == before


# -- what is left behind ---------------------------------------------------------------------------------------------


def test_what_a_killed_process_left_half_written_is_removed(folder: RunFolder) -> None:
    path = folder.save(5, numbered(5))
    for half in (folder.path / "record.json.part", folder.checkpoints / "step-000000007.safetensors.part"):
        half.write_bytes(b"half")
    (folder.path / "notes.txt").write_text("mine")
    folder.tidy()
    assert names(folder.path) == ["checkpoints", "log.jsonl", "notes.txt", "spec.json"]
    assert names(folder.checkpoints) == [path.name]


def test_the_details_of_a_fault_are_kept(folder: RunFolder) -> None:
    folder.write_fault({"step": 3, "rows": [1, 2]})
    assert json.loads(folder.fault.read_text()) == {"step": 3, "rows": [1, 2]}


def test_a_disk_that_does_not_take_the_details_of_a_fault_is_no_second_fault(folder: RunFolder) -> None:
    folder.fault.mkdir()
    folder.write_fault({"step": 3})
    assert list(folder.fault.iterdir()) == []
