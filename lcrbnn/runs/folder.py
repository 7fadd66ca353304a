"""A run is a folder: spec.json, log.jsonl, checkpoints/, record.json; one process at a time may write it."""

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

from lcrbnn.errors import InputError
from lcrbnn.outputs import PART
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from lcrbnn.runs.files import read_regular_file, remove_parts, sync_folder, write_whole
from lcrbnn.runs.log_line import validate_log_line
from lcrbnn.runs.record import read_record

KEPT = 2  # checkpoints: the newest, and one to fall back on
DAMAGED = ".damaged"


class RunFolder:
    """The files of one run, and the order in which they are written so that a kill loses nothing."""

    def __init__(self, path: Path) -> None:
        """Name the files; nothing is touched."""
        self.path = path
        self.spec = path / "spec.json"
        self.log = path / "log.jsonl"
        self.record = path / "record.json"
        self.fault = path / "fault.json"
        self.broken = path / "broken.json"
        self.classes = path / "classes.json"
        self.checkpoints = path / "checkpoints"

    def exists(self) -> bool:
        """Whether a run was started here."""
        try:
            return self.spec.exists()
        except OSError as error:
            raise InputError(f"{self.path} cannot be looked into: {error.strerror}") from None

    def untouched(self) -> bool:
        """Whether the run that was started here made nothing: it ended before its first epoch and checkpoint did."""
        made = self.record.exists() or self.fault.exists() or bool(self.listed())
        return self.exists() and not made and not (self.log.exists() and self.log.stat().st_size)

    def forget(self) -> None:
        """Take back the start of a run that made nothing."""
        for file in (self.broken, self.classes, self.spec):
            file.unlink(missing_ok=True)

    def check_free(self) -> None:
        """Raise unless a run can start here: in no folder yet, an empty one, or one whose start was cut short."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise InputError(f"a run is a folder, and {self.path} is none")
        ours = {"lock", self.checkpoints.name, self.log.name, *(p.name + PART for p in (self.log, self.spec))}
        fresh = {p.name for p in self.path.iterdir()} <= ours
        empty = not (self.log.exists() and self.log.stat().st_size) and not self.listed()
        if not fresh or not empty:
            raise InputError(f"{self.path} is not empty and holds no run; choose another folder")

    def create(self, spec: dict[str, Any]) -> None:
        """Start a run; it exists from the moment that its spec is there."""
        try:
            self.check_free()
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            write_whole(self.log, [])
            write_whole(self.spec, [(json.dumps(spec, indent=1) + "\n").encode()])
            sync_folder(self.path.parent)
        except OSError as error:
            raise InputError(f"a run cannot be written to {self.path}: {error.strerror}") from None

    def read_spec(self) -> dict[str, Any]:
        """The spec of the run that is here."""
        try:
            spec = json.loads(read_regular_file(self.spec))
        except FileNotFoundError:
            raise InputError(f"there is no run in {self.path}: it has no spec.json") from None
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{self.spec} cannot be read: {error}") from None
        if not isinstance(spec, dict):
            raise InputError(f"{self.spec} cannot be read: it holds no settings")
        return spec

    def check_finished(self) -> None:
        """Raise if the record of a finished run is not of its spec, or its log is not the one of the record."""
        spec = self.read_spec()
        try:
            record = read_record(self.record)
            epochs, settings = record["figures"].get("epochs"), record["settings"]
            others = [name for name, value in spec.items() if settings.get(name, value) != value]
            if not isinstance(epochs, int) or others:
                raise InputError(f"{self.record} is no record of this run: its settings or epochs are others")
        except InputError as error:
            raise InputError(f"{error}; without it, --resume makes the end of the run again") from None
        lines = len(self.read_log())
        if lines != epochs:
            raise InputError(
                f"{self.log} ends after epoch {lines} and {self.record} is of a run of {epochs} epochs: "
                "put the log back"
            )
        digest = record["figures"].get("log_sha256")  # records of older versions have none
        if digest is not None and digest != self.digest_log():
            raise InputError(
                f"{self.log} is not the log that {self.record} was made from, as their SHA-256 differ: put the log back"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, no other process can write this run. The system lets go of the lock however the process ends."""
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

    def tidy(self) -> None:
        """Make a reopened run ready: remove what a killed process left half-written, and an old fault."""
        self.checkpoints.mkdir(exist_ok=True)
        for folder in (self.path, self.checkpoints):
            remove_parts(folder)
        self.fault.unlink(missing_ok=True)

    def write_fault(self, details: dict[str, Any]) -> None:
        """Keep the details of what ended the run, if the disk takes them."""
        with suppress(OSError):
            write_whole(self.fault, [(json.dumps(details, indent=1) + "\n").encode()])

    def write_broken(self, images: dict[str, str]) -> None:
        """Keep which images of the data set are left out, and why: a resumed run leaves out the same."""
        write_whole(self.broken, [(json.dumps(images, indent=1) + "\n").encode()])

    def read_broken(self) -> dict[str, str] | None:
        """The images that are left out; None if that was not found out yet."""
        return _read(self.broken, dict, "names of images")

    def write_classes(self, names: tuple[str, ...]) -> None:
        """Keep the names of the classes, in the order of the network's answers."""
        write_whole(self.classes, [(json.dumps(names, indent=1) + "\n").encode()])

    def read_classes(self) -> tuple[str, ...]:
        """The names of the classes; none if the data set has its own, or the run is older than this file."""
        return tuple(map(str, _read(self.classes, list, "names of classes") or ()))

    # -- the log: a JSON line an epoch -------------------------------------------------------------------------------

    def append(self, line: dict[str, Any]) -> None:
        """Add a line and bring it to the disk, before the checkpoint that counts on it."""
        with self.log.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def read_log(self) -> list[dict[str, Any]]:
        """The whole lines of the log; one that a kill tore is left out."""
        try:
            text = read_regular_file(self.log)
        except OSError as error:
            raise InputError(f"{self.log} cannot be read: {error.strerror}") from None
        lines = []
        for number, raw in enumerate(text.split(b"\n")[:-1], 1):
            try:
                line = json.loads(raw)
            except (ValueError, RecursionError):
                line = None
            validate_log_line(line, number, f"{self.log} is damaged in line {number}")
            lines.append(line)
        return lines

    def digest_log(self) -> str:
        """The SHA-256 of the log's bytes."""
        try:
            return hashlib.sha256(read_regular_file(self.log)).hexdigest()
        except OSError as error:
            raise InputError(f"{self.log} cannot be read: {error.strerror}") from None

    def last_line(self) -> dict[str, Any]:
        """The last line of the log; an error if there is none."""
        lines = self.read_log()
        if not lines:
            raise InputError(f"{self.log} is empty")
        return lines[-1]

    def cut_log(self, epochs: int) -> list[dict[str, Any]]:
        """Leave the lines of the first epochs, those that a checkpoint counts on; the others will be made again."""
        lines = self.read_log()
        if len(lines) < epochs:
            raise InputError(
                f"{self.log} ends after epoch {len(lines)} and the checkpoint is from epoch {epochs}: put the log back"
            )
        raw = read_regular_file(self.log).split(b"\n")[:epochs]
        write_whole(self.log, [b"".join(line + b"\n" for line in raw)])
        return lines[:epochs]

    # -- checkpoints: a file each, named by its step -----------------------------------------------------------------

    def save(self, step: int, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then remove those that are no longer needed. OSError if the disk does not take it."""
        path = self.checkpoints / f"step-{step:09d}.safetensors"
        write_checkpoint(path, checkpoint)
        old = self.listed()[:-KEPT]
        for one in old:
            one.unlink(missing_ok=True)
        if old:
            sync_folder(self.checkpoints)
        return path

    def listed(self) -> list[Path]:
        """The checkpoints, oldest first."""
        named = ((re.fullmatch(r"step-(\d{9,})\.safetensors", p.name), p) for p in self.checkpoints.glob("step-*"))
        return [p for _, p in sorted((int(match[1]), p) for match, p in named if match)]

    def newest(self) -> Path | None:
        """The newest checkpoint, read or not."""
        return next(reversed(self.listed()), None)

    def last_good(self, use: Callable[[Checkpoint, Path], None]) -> tuple[Path | None, list[str]]:
        """Try the checkpoints, newest first, until one can be read and used; a sentence for each that could not.

        No path if there is no checkpoint at all; an error if there are only bad ones.
        """
        complaints: list[str] = []
        for path in reversed(self.listed()):
            try:
                use(read_checkpoint(path), path)
            except InputError as error:
                complaints.append(str(error))
            else:
                return path, complaints
        if complaints:
            raise InputError(f"{complaints[0]}; there is no good one in {self.checkpoints} to go on from")
        return None, complaints

    def set_aside(self, good: Path) -> None:
        """Rename the checkpoints that are newer than the good one, so that nothing takes them for new."""
        listed = self.listed()
        for path in listed[listed.index(good) + 1 :]:
            path.replace(path.with_name(path.name + DAMAGED))


def _read(path: Path, kind: type, what: str) -> Any:
    """What a JSON file beside the spec holds; None if it is not there."""
    try:
        found = json.loads(read_regular_file(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, kind):
        raise InputError(f"{path} cannot be read: it holds no {what}")
    return found


def runs_in(path: Path) -> list[Path]:
    """The runs in a folder: itself, or its seed-N folders in the order of N."""
    if RunFolder(path).exists():
        return [path]
    seeds = [p for p in path.glob("seed-*") if re.fullmatch(r"seed-\d+", p.name) and RunFolder(p).exists()]
    if not seeds:
        raise InputError(f"there is no run in {path}: neither spec.json nor seed-N folders that have one")
    return sorted(seeds, key=lambda p: int(p.name.removeprefix("seed-")))
