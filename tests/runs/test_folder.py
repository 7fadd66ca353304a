"""The folder of a run: its creation, its spec, its lock and leftover files."""

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
from lcrbnn.runs.run_folder import RunFolder
from tests.runs.helpers import ROOT, list_names, make_checkpoint, make_log_line, match_exactly

# -- creation --------------------------------------------------------------------------------------------------------


def test_constructor_creates_no_files(tmp_path: Path) -> None:
    assert not RunFolder(tmp_path / "run").exists()
    assert list_names(tmp_path) == []


def test_new_run_has_spec_empty_log_and_no_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "deep" / "run")
    folder.create({"lr": 0.1, "list": [1, "ü"]})
    assert folder.exists()
    assert folder.read_spec() == {"lr": 0.1, "list": [1, "ü"]}
    assert folder.read_log() == []
    assert folder.list_checkpoints() == []
    assert folder.find_newest_checkpoint() is None
    assert list_names(folder.path) == ["checkpoints", "log.jsonl", "spec.json"]


def test_run_can_be_created_in_an_empty_locked_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.lock():
        folder.create({})
    assert folder.exists()


def test_folder_with_other_files_is_rejected_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    folder = RunFolder(tmp_path)
    with pytest.raises(
        InputError, match=match_exactly(f"{tmp_path} is not empty and contains no run; choose another folder")
    ):
        folder.create({})
    assert not folder.exists()
    assert list_names(tmp_path) == ["thesis.tex"]


def test_spec_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, replace = RunFolder(tmp_path / "run"), os.replace

    def raise_disk_full(source: Path, target: Path) -> None:
        if target == folder.spec_file:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", raise_disk_full)
    with pytest.raises(
        InputError, match=match_exactly(f"a run cannot be written to {folder.path}: No space left on device")
    ):
        folder.create({})
    assert not folder.exists()
    assert folder.log_file.exists()


@pytest.mark.parametrize("last_file", ["log.jsonl", "spec.json"])
def test_folder_of_an_interrupted_start_can_be_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_file: str
) -> None:
    folder, replace = RunFolder(tmp_path / "run"), os.replace

    def interrupt_at_last_file(source: Path, target: Path) -> None:
        if Path(target).name == last_file:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupt_at_last_file)
        with pytest.raises(KeyboardInterrupt):
            folder.create({"lr": 0.1})
    folder.path.joinpath(last_file + ".part").write_bytes(b"half")  # a killed process leaves this file
    assert not folder.exists()
    folder.create({"lr": 0.2})
    assert folder.read_spec() == {"lr": 0.2}


@pytest.mark.parametrize("output", ["log", "checkpoint"])
def test_folder_with_only_a_log_or_a_checkpoint_is_rejected(folder: RunFolder, output: str) -> None:
    """The spec, which marks a folder as a run, is missing here."""
    if output == "log":
        folder.append_log_line(make_log_line(1))
    else:
        folder.save_checkpoint(5, make_checkpoint(5))
    folder.spec_file.unlink()
    with pytest.raises(InputError, match="is not empty and contains no run"):
        folder.create({})
    assert len(folder.read_log()) + len(folder.list_checkpoints()) == 1


@pytest.mark.parametrize("output", ["log", "checkpoint", "record", "fault"])
def test_any_output_makes_has_no_output_false(folder: RunFolder, output: str) -> None:
    """A log line, a checkpoint, a record or a fault is enough."""
    assert folder.has_no_output()
    if output == "log":
        folder.append_log_line(make_log_line(1))
    elif output == "checkpoint":
        folder.save_checkpoint(5, make_checkpoint(5))
    else:
        getattr(folder, f"{output}_file").write_text("{}")
    assert not folder.has_no_output()


def test_has_no_output_is_false_without_a_run(tmp_path: Path) -> None:
    assert not RunFolder(tmp_path).has_no_output()


def test_delete_start_removes_the_spec_last(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill in between, the folder still contains a run without output. Later it accepts another run."""
    deleted_names: list[str] = []
    unlink = Path.unlink

    def record_unlink(path: Path, missing_ok: bool = False) -> None:
        deleted_names.append(path.name)
        unlink(path, missing_ok)

    folder.write_broken_images({"a": "it is empty"})
    folder.write_classes(("cat", "dog"))
    folder.write_split({"seed": 0})
    folder.network_file.write_text("")
    monkeypatch.setattr(Path, "unlink", record_unlink)
    folder.delete_start()
    assert sorted(deleted_names) == ["broken.json", "classes.json", "network.py", "spec.json", "split.json"]
    assert deleted_names[-1] == "spec.json"
    folder.create({"lr": 0.2})
    assert folder.read_classes() == ()
    assert folder.read_broken_images() is None
    assert folder.read_split() is None
    assert not folder.network_file.exists()


def test_create_syncs_the_parent_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced_inodes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced_inodes.append(os.fstat(handle).st_ino))
    RunFolder(tmp_path / "run").create({})
    assert synced_inodes[-1] == tmp_path.stat().st_ino


@pytest.mark.parametrize("with_spec", [True, False])
def test_folder_with_log_and_checkpoints_is_rejected(folder: RunFolder, with_spec: bool) -> None:
    folder.append_log_line(make_log_line(1))
    folder.save_checkpoint(5, make_checkpoint(5))
    if not with_spec:
        folder.spec_file.unlink()
    with pytest.raises(InputError):
        folder.create({})
    assert folder.read_log() == [make_log_line(1)]


def test_file_instead_of_a_folder_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(InputError, match=match_exactly(f"a run needs a folder, but {path} is a file")):
        RunFolder(path).create({})
    inside_file = RunFolder(path / "run")
    with pytest.raises(
        InputError, match=match_exactly(f"a run cannot be written to {inside_file.path}: Not a directory")
    ):
        inside_file.create({})
    for folder, reason in ((RunFolder(path), "File exists"), (inside_file, "Not a directory")):
        with (
            pytest.raises(InputError, match=match_exactly(f"a run cannot be written to {folder.path}: {reason}")),
            folder.lock(),
        ):
            pass
    assert path.read_text() == "mine"


@contextmanager
def without_root_rights() -> Iterator[None]:
    """Drop the rights of root, for which no folder is read-only."""
    user_id = os.geteuid()
    if user_id == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user_id)


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """Create a read-only folder outside tmp_path, which other users cannot enter."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o555)
    yield path
    shutil.rmtree(path)


def test_read_only_folder_is_rejected(read_only_folder: Path) -> None:
    sentence = match_exactly(f"a run cannot be written to {read_only_folder}: Permission denied")
    with without_root_rights():
        with pytest.raises(InputError, match=sentence):
            RunFolder(read_only_folder).create({})
        with pytest.raises(InputError, match=sentence), RunFolder(read_only_folder).lock():
            pass
        missing_subfolder = read_only_folder / "deep" / "run"
        with pytest.raises(
            InputError, match=match_exactly(f"a run cannot be written to {missing_subfolder}: Permission denied")
        ):
            RunFolder(missing_subfolder).create({})
    assert list_names(read_only_folder) == []


# -- the spec --------------------------------------------------------------------------------------------------------


def test_read_spec_rejects_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=match_exactly(f"there is no run in {tmp_path}: it has no spec.json")):
        RunFolder(tmp_path).read_spec()


@pytest.mark.parametrize("content", [b"", b'{"lr": ', b"\xff\xfe\xfd", b"lr = 0.1"])
def test_spec_that_is_not_json_is_rejected(folder: RunFolder, content: bytes) -> None:
    folder.spec_file.write_bytes(content)
    with pytest.raises(InputError, match=f"^{re.escape(str(folder.spec_file))} cannot be read: .+$"):
        folder.read_spec()


@pytest.mark.parametrize("content", ["[]", "3", "null", '"lr"'])
def test_spec_that_is_not_an_object_is_rejected(folder: RunFolder, content: str) -> None:
    folder.spec_file.write_text(content)
    with pytest.raises(InputError, match=match_exactly(f"{folder.spec_file} cannot be read: it contains no settings")):
        folder.read_spec()


# -- the lock --------------------------------------------------------------------------------------------------------


LOCK_SCRIPT = """
import sys
from pathlib import Path
from lcrbnn.errors import InputError
from lcrbnn.runs.run_folder import RunFolder

try:
    with RunFolder(Path(sys.argv[1])).lock():
        print("held", flush=True)
        sys.stdin.read()
except InputError as error:
    print(error)
"""


@contextmanager
def start_lock_process(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a process that locks a run. Yield it and the first line of its output, and kill it at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", LOCK_SCRIPT, str(path)],
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


def busy_message(path: Path) -> str:
    return f"another process is writing the run in {path}; wait for it or stop it"


def test_lock_of_another_process_ends_when_it_is_killed(folder: RunFolder) -> None:
    with start_lock_process(folder.path) as (process, first_line):
        assert first_line == "held\n"
        with pytest.raises(InputError, match=match_exactly(busy_message(folder.path))), folder.lock():
            pass
        process.kill()
        process.wait()
        with folder.lock():
            pass


def test_lock_stops_other_processes_until_the_block_ends(folder: RunFolder) -> None:
    with pytest.raises(ZeroDivisionError), folder.lock():  # noqa: PT012  # the error must leave the block
        with start_lock_process(folder.path) as (_, first_line):
            assert first_line == busy_message(folder.path) + "\n"
        raise ZeroDivisionError
    with start_lock_process(folder.path) as (_, first_line):
        assert first_line == "held\n"


# -- leftover files --------------------------------------------------------------------------------------------------


def test_remove_leftovers_deletes_partial_files_and_fault(folder: RunFolder) -> None:
    """The fault is deleted, too, because it belongs to the earlier start of the run."""
    path = folder.save_checkpoint(5, make_checkpoint(5))
    for partial_path in (
        folder.path / "record.json.part",
        folder.checkpoints_folder / "step-000000007.safetensors.part",
    ):
        partial_path.write_bytes(b"half")
    folder.write_fault({"step": 3})
    (folder.path / "notes.txt").write_text("mine")
    folder.remove_leftovers()
    assert list_names(folder.path) == ["checkpoints", "log.jsonl", "notes.txt", "spec.json"]
    assert list_names(folder.checkpoints_folder) == [path.name]


def test_fault_is_written(folder: RunFolder) -> None:
    folder.write_fault({"step": 3, "rows": [1, 2]})
    assert json.loads(folder.fault_file.read_text()) == {"step": 3, "rows": [1, 2]}


def test_failure_to_write_a_fault_raises_no_error(folder: RunFolder) -> None:
    folder.fault_file.mkdir()
    folder.write_fault({"step": 3})
    assert list(folder.fault_file.iterdir()) == []


def test_invalid_name_files_are_rejected(folder: RunFolder) -> None:
    folder.classes_file.write_text('{"cat": 0}')
    with pytest.raises(
        InputError, match=match_exactly(f"{folder.classes_file} cannot be read: it contains no names of classes")
    ):
        folder.read_classes()
    folder.broken_images_file.write_text('["a.jpg"]')
    with pytest.raises(
        InputError, match=match_exactly(f"{folder.broken_images_file} cannot be read: it contains no names of images")
    ):
        folder.read_broken_images()
