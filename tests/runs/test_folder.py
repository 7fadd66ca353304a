"""The folder of a run: its beginning, its spec, its lock, and what is left behind."""

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

import pytest

from lcrbnn.errors import InputError
from lcrbnn.runs.folder import RunFolder
from tests.runs.helpers import ROOT, exactly, line, names, numbered

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


@pytest.mark.parametrize("made", ["log", "checkpoint"])
def test_a_log_or_a_checkpoint_alone_is_not_taken_for_an_empty_folder(folder: RunFolder, made: str) -> None:
    """Also where the spec is gone, by which a run is known."""
    if made == "log":
        folder.append(line(1))
    else:
        folder.save(5, numbered(5))
    folder.spec.unlink()
    with pytest.raises(InputError, match="is not empty and holds no run"):
        folder.create({})
    assert len(folder.read_log()) + len(folder.listed()) == 1


@pytest.mark.parametrize("made", ["log", "checkpoint", "record", "fault"])
def test_a_run_that_made_anything_is_not_untouched(folder: RunFolder, made: str) -> None:
    """A log line, a checkpoint, a record or the details of a fault: each alone is enough."""
    assert folder.untouched()
    if made == "log":
        folder.append(line(1))
    elif made == "checkpoint":
        folder.save(5, numbered(5))
    else:
        getattr(folder, made).write_text("{}")
    assert not folder.untouched()


def test_where_no_run_was_started_none_is_untouched(tmp_path: Path) -> None:
    assert not RunFolder(tmp_path).untouched()


def test_a_start_is_taken_back_with_its_names_and_the_spec_last(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed on the way it is still a run that made nothing, and afterwards the folder takes another."""
    gone: list[str] = []
    unlink = Path.unlink

    def noted(path: Path, missing_ok: bool = False) -> None:
        gone.append(path.name)
        unlink(path, missing_ok)

    folder.write_broken({"a": "it is empty"})
    folder.write_classes(("cat", "dog"))
    monkeypatch.setattr(Path, "unlink", noted)
    folder.forget()
    assert sorted(gone) == ["broken.json", "classes.json", "spec.json"]
    assert gone[-1] == "spec.json"
    folder.create({"lr": 0.2})
    assert folder.read_classes() == ()
    assert folder.read_broken() is None


def test_the_name_of_a_run_is_brought_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    RunFolder(tmp_path / "run").create({})
    assert synced[-1] == tmp_path.stat().st_ino


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
from lcrbnn.errors import InputError
from lcrbnn.runs.folder import RunFolder

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


# -- what is left behind ---------------------------------------------------------------------------------------------


def test_what_a_killed_process_left_half_written_is_removed(folder: RunFolder) -> None:
    """So are the details of what ended it before: they are not of the run that goes on."""
    path = folder.save(5, numbered(5))
    for half in (folder.path / "record.json.part", folder.checkpoints / "step-000000007.safetensors.part"):
        half.write_bytes(b"half")
    folder.write_fault({"step": 3})
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


def test_names_beside_the_spec_that_are_none_are_refused(folder: RunFolder) -> None:
    folder.classes.write_text('{"cat": 0}')
    with pytest.raises(InputError, match=exactly(f"{folder.classes} cannot be read: it holds no names of classes")):
        folder.read_classes()
    folder.broken.write_text('["a.jpg"]')
    with pytest.raises(InputError, match=exactly(f"{folder.broken} cannot be read: it holds no names of images")):
        folder.read_broken()
