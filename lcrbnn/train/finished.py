"""Checks that the newest checkpoint of a finished run is the one that its record is of."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lcrbnn.errors import InputError
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.record import read_record

WHOLE = "whole"  # a fact of a checkpoint that is a part of another one: the digest of that


def digest_checkpoint(path: Path, checkpoint: Checkpoint) -> str:
    """The SHA-256 of a checkpoint's file; of a slim copy, that of the checkpoint it was made from."""
    return checkpoint.facts.get(WHOLE) or hashlib.sha256(path.read_bytes()).hexdigest()


def check_recorded(folder: RunFolder, digest: str) -> None:
    """Raise if the run is finished and its record is of another checkpoint than this one, the newest."""
    if folder.record.exists() and read_record(folder.record)["figures"].get("checkpoint_sha256") != digest:
        raise InputError(
            f"the newest checkpoint in {folder.path} is not the one that its record is of: put that checkpoint back"
        )


def find_mismatch(path: Path) -> str:
    """Why the newest checkpoint of a run is not the one of its record: a sentence; empty if it is.

    `path` is the folder of the run, or its record. Without any checkpoint, or without a record, there is no mismatch.
    """
    folder = RunFolder(path if path.is_dir() else path.parent)
    newest = folder.newest()
    if newest is None or not folder.record.exists() or (path.is_file() and not path.samefile(folder.record)):
        return ""
    try:
        check_recorded(folder, digest_checkpoint(newest, read_checkpoint(newest)))
    except InputError as error:
        return str(error)
    return ""
