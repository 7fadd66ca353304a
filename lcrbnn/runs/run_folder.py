"""A run folder has spec.json, log.jsonl, checkpoints/ and record.json. Only one process at a time can write to it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lcrbnn.errors import PART_SUFFIX, InputError
from lcrbnn.runs.atomic_files import read_regular_file, remove_partial_files, sync_folder, write_atomic
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from lcrbnn.runs.log_line import validate_log_line
from lcrbnn.runs.old_names import upgrade_log_line, upgrade_settings
from lcrbnn.runs.record import read_record

NUM_KEPT_CHECKPOINTS = 2  # number of checkpoints that are kept: the newest, and one more in case the newest is damaged
DAMAGED_SUFFIX = ".damaged"


class RunFolder:
    """The files of one run, written in an order that loses no data if the process is killed."""

    def __init__(self, path: Path) -> None:
        """Store the paths of the files. The disk is not accessed."""
        self.path = path
        self.spec_file = path / "spec.json"
        self.log_file = path / "log.jsonl"
        self.record_file = path / "record.json"
        self.fault_file = path / "fault.json"
        self.broken_images_file = path / "broken.json"
        self.classes_file = path / "classes.json"
        self.split_file = path / "split.json"
        self.network_file = path / "network.py"
        self.checkpoints_folder = path / "checkpoints"

    def exists(self) -> bool:
        """Return whether a run was started in this folder."""
        try:
            return self.spec_file.exists()
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}") from None

    def has_no_output(self) -> bool:
        """Return whether a run was started here but has written no log line, checkpoint, record or fault yet."""
        has_files = self.record_file.exists() or self.fault_file.exists() or bool(self.list_checkpoints())
        return self.exists() and not has_files and not (self.log_file.exists() and self.log_file.stat().st_size)

    def delete_start(self) -> None:
        """Remove the files of a run that wrote no log line and no checkpoint. spec.json is removed last."""
        for file in (
            self.broken_images_file,
            self.classes_file,
            self.split_file,
            self.network_file,
            self.spec_file,
        ):
            file.unlink(missing_ok=True)

    def check_can_create(self) -> None:
        """Raise InputError if no run can be created in the folder.

        The folder must be missing or empty, or have only the files of an interrupted start.
        """
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise InputError(f"a run needs a folder, but {self.path} is a file")
        own_names = {
            "lock",
            self.checkpoints_folder.name,
            self.log_file.name,
            *(p.name + PART_SUFFIX for p in (self.log_file, self.spec_file)),
        }
        has_only_own_names = {p.name for p in self.path.iterdir()} <= own_names
        has_no_results = not (self.log_file.exists() and self.log_file.stat().st_size) and not self.list_checkpoints()
        if not has_only_own_names or not has_no_results:
            raise InputError(f"{self.path} is not empty and contains no run; choose another folder")

    def create(self, spec: dict[str, Any]) -> None:
        """Create the files of a new run. spec.json is written last, because this file marks a run as started."""
        try:
            self.check_can_create()
            self.checkpoints_folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self.log_file, [])
            write_atomic(self.spec_file, [(json.dumps(spec, indent=1) + "\n").encode()])
            sync_folder(self.path.parent)
        except OSError as error:
            raise InputError(f"a run cannot be written to {self.path}: {error.strerror}") from None

    def read_spec(self) -> dict[str, Any]:
        """Return the settings of the run."""
        try:
            spec = json.loads(read_regular_file(self.spec_file))
        except FileNotFoundError:
            raise InputError(f"there is no run in {self.path}: it has no spec.json") from None
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{self.spec_file} cannot be read: {error}") from None
        if not isinstance(spec, dict):
            raise InputError(f"{self.spec_file} cannot be read: it contains no settings")
        try:
            return upgrade_settings(spec)
        except InputError as error:
            raise InputError(f"{self.spec_file}: {error}") from None

    def check_record_and_log(self) -> None:
        """Raise InputError if the record of a finished run does not match its spec or its log."""
        spec = self.read_spec()
        try:
            record = read_record(self.record_file)
            epochs, settings = record["figures"].get("epochs"), record["settings"]
            changed_settings = [name for name, value in spec.items() if settings.get(name, value) != value]
            if not isinstance(epochs, int) or changed_settings:
                raise InputError(f"{self.record_file} is no record of this run: its settings or epochs differ")
        except InputError as error:
            raise InputError(f"{error}; if it is deleted, --resume repeats the end of the run") from None
        num_lines = len(self.read_log())
        if num_lines != epochs:
            raise InputError(
                f"{self.log_file} ends after epoch {num_lines}, but {self.record_file} is from a run of {epochs} "
                "epochs: restore the log"
            )
        digest = record["figures"].get("log_sha256")  # older records do not have the digest of the log
        if digest is not None and digest != self.hash_log():
            raise InputError(
                f"{self.log_file} is not the log of {self.record_file}: the SHA-256 in the record differs; "
                "restore the log"
            )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the run during the context, so that no other process can write to the folder.

        The system releases the lock when the process ends.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"a run cannot be written to {self.path}: {error.strerror}") from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"another process is writing the run in {self.path}; wait for it or stop it") from None
            yield
        finally:
            os.close(handle)

    def remove_leftovers(self) -> None:
        """Remove the temporary files of a killed process, and fault.json of an earlier process."""
        self.checkpoints_folder.mkdir(exist_ok=True)
        for folder in (self.path, self.checkpoints_folder):
            remove_partial_files(folder)
        self.fault_file.unlink(missing_ok=True)

    def write_fault(self, details: dict[str, Any]) -> None:
        """Write the details of the error that ended the run. Do nothing if the disk cannot be written."""
        with suppress(OSError):
            write_atomic(self.fault_file, [(json.dumps(details, indent=1) + "\n").encode()])

    def write_broken_images(self, images: dict[str, str]) -> None:
        """Write the names of the skipped images and the reasons. A resumed run skips the same images."""
        write_atomic(self.broken_images_file, [(json.dumps(images, indent=1) + "\n").encode()])

    def read_broken_images(self) -> dict[str, str] | None:
        """Return the skipped images. Return None if the images have not been checked yet."""
        return _read_json(self.broken_images_file, dict, "names of images")

    def write_classes(self, names: tuple[str, ...]) -> None:
        """Write the names of the classes in the order of the network's outputs."""
        write_atomic(self.classes_file, [(json.dumps(names, indent=1) + "\n").encode()])

    def read_classes(self) -> tuple[str, ...]:
        """Return the names of the classes. If the run has no file with class names, return an empty tuple."""
        return tuple(map(str, _read_json(self.classes_file, list, "names of classes") or ()))

    def write_split(self, split: dict[str, Any]) -> None:
        """Write the seed of a computed split, and the names of the training, validation and test images."""
        write_atomic(self.split_file, [(json.dumps(split, indent=1) + "\n").encode()])

    def read_split(self) -> dict[str, Any] | None:
        """Return the computed split of the images, or None if the run has none."""
        split: dict[str, Any] | None = _read_json(self.split_file, dict, "split of images")
        return split

    # -- the log: one JSON line per epoch ------------------------------------------------------------------------------

    def append_log_line(self, line: dict[str, Any]) -> None:
        """Append a line to the log and sync the log to disk. The checkpoint of the same epoch is written afterwards."""
        with self.log_file.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def read_log(self) -> list[dict[str, Any]]:
        """Return the lines of the log. If a kill has left an incomplete last line, that line is omitted."""
        try:
            text = read_regular_file(self.log_file)
        except OSError as error:
            raise InputError(f"{self.log_file} cannot be read: {error.strerror}") from None
        lines = []
        for number, raw in enumerate(text.split(b"\n")[:-1], 1):
            try:
                line = upgrade_log_line(json.loads(raw))
            except (ValueError, RecursionError):  # InputError is a subclass of ValueError
                line = None
            validate_log_line(line, number, f"{self.log_file} is damaged in line {number}")
            lines.append(line)
        return lines

    def hash_log(self) -> str:
        """Return the SHA-256 of log.jsonl."""
        try:
            return hashlib.sha256(read_regular_file(self.log_file)).hexdigest()
        except OSError as error:
            raise InputError(f"{self.log_file} cannot be read: {error.strerror}") from None

    def read_last_log_line(self) -> dict[str, Any]:
        """Return the last line of the log. Raise InputError if there is none."""
        lines = self.read_log()
        if not lines:
            raise InputError(f"{self.log_file} is empty")
        return lines[-1]

    def truncate_log(self, epochs: int) -> list[dict[str, Any]]:
        """Keep and return only the lines of the first `epochs` epochs. A resumed run writes the other lines again."""
        lines = self.read_log()
        if len(lines) < epochs:
            raise InputError(
                f"{self.log_file} ends after epoch {len(lines)}, but the checkpoint is from epoch {epochs}: "
                "restore the log"
            )
        raw = read_regular_file(self.log_file).split(b"\n")[:epochs]
        write_atomic(self.log_file, [b"".join(line + b"\n" for line in raw)])
        return lines[:epochs]

    # -- checkpoints: one file each, named by its step -----------------------------------------------------------------

    def save_checkpoint(self, step: int, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then remove old ones. If it cannot be written, raise OSError."""
        path = self.checkpoints_folder / f"step-{step:09d}.safetensors"
        write_checkpoint(path, checkpoint)
        old_paths = self.list_checkpoints()[:-NUM_KEPT_CHECKPOINTS]
        for old_path in old_paths:
            old_path.unlink(missing_ok=True)
        if old_paths:
            sync_folder(self.checkpoints_folder)
        return path

    def list_checkpoints(self) -> list[Path]:
        """Return the paths of the checkpoints, oldest first."""
        matches = (
            (re.fullmatch(r"step-(\d{9,})\.safetensors", p.name), p) for p in self.checkpoints_folder.glob("step-*")
        )
        return [p for _, p in sorted((int(match[1]), p) for match, p in matches if match)]

    def find_newest_checkpoint(self) -> Path | None:
        """Return the path of the newest checkpoint, or None if there is none. The checkpoint may be damaged."""
        return next(reversed(self.list_checkpoints()), None)

    def use_newest_valid_checkpoint(self, use: Callable[[Checkpoint, Path], None]) -> tuple[Path | None, list[str]]:
        """Pass the checkpoints to `use`, newest first, until one is valid.

        Return its path and the faults of the others. If there is no checkpoint, the path is None. If all checkpoints
        are invalid, raise InputError.
        """
        problems: list[str] = []
        for path in reversed(self.list_checkpoints()):
            try:
                use(read_checkpoint(path), path)
            except InputError as error:
                problems.append(str(error))
            else:
                return path, problems
        if problems:
            raise InputError(f"{problems[0]}; there is no valid checkpoint in {self.checkpoints_folder} to resume from")
        return None, problems

    def mark_newer_as_damaged(self, valid_path: Path) -> None:
        """Rename the checkpoints that are newer than the valid one: DAMAGED_SUFFIX is added to their names."""
        paths = self.list_checkpoints()
        for path in paths[paths.index(valid_path) + 1 :]:
            path.replace(path.with_name(path.name + DAMAGED_SUFFIX))


def _read_json(path: Path, expected_type: type, description: str) -> Any:
    """Return the content of a JSON file of the run. Return None if the file does not exist."""
    try:
        content = json.loads(read_regular_file(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, expected_type):
        raise InputError(f"{path} cannot be read: it contains no {description}")
    return content


def find_runs(path: Path) -> list[Path]:
    """Return the run folders in a path, which is a run folder itself or contains folders seed-N (sorted by N)."""
    if RunFolder(path).exists():
        return [path]
    seeds = [p for p in path.glob("seed-*") if re.fullmatch(r"seed-\d+", p.name) and RunFolder(p).exists()]
    if not seeds:
        raise InputError(f"there is no run in {path}: it has neither spec.json nor seed-N folders with a spec.json")
    return sorted(seeds, key=lambda p: int(p.name.removeprefix("seed-")))
