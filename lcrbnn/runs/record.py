"""Records: what was measured, where and with what, as one JSON file that appears whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lcrbnn import __version__
from lcrbnn.errors import InputError
from lcrbnn.runs.files import read_regular_file, write_whole

SCHEMA = 1
DIGEST = "content_sha256"  # of a record: the SHA-256 of everything else in it; records of older versions have none
FIRST_EXACT_REVISION = 2  # the first `lcr_revision` whose power iteration on a GPU returns v_{i-1}

# What a command writes into the source tree; a change there does not change what the code does.
NOT_CODE = (":(exclude)results", ":(exclude)zoo", ":(exclude)lcrbnn/zoo/files")


def environment() -> dict[str, Any]:
    """Hardware, library versions and commit: what a figure depends on besides its settings."""
    import numpy
    import torch

    from lcrbnn.kernels.power import LCR_REVISION

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "lcrbnn": __version__,
        "lcr_revision": LCR_REVISION,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "cuda": torch.version.cuda if gpu else None,
    }


def write_record(path: Path, kind: str, settings: dict[str, Any], figures: dict[str, Any]) -> None:
    """Write a record of this kind with its settings and figures."""
    _write(
        path,
        {
            "schema": SCHEMA,
            "kind": kind,
            "date": _today(),
            "environment": environment(),
            "settings": settings,
            "figures": figures,
        },
    )


def note_reading(path: Path, reading: dict[str, Any]) -> int:
    """Add a reading of a test split to a record, dated; return how many there are now."""
    record = read_record(path)
    readings = record.setdefault("readings", [])
    readings.append({"date": _today(), **reading})
    _write(path, record)
    return len(readings)


def add_to_record(path: Path, name: str, value: Any) -> None:
    """Add a part to a record, or replace the one of this name."""
    record = read_record(path)
    if name in ("schema", "kind", "date", "environment", "settings", "figures", "readings", DIGEST):
        raise ValueError(f"a record keeps the name {name!r} for itself")
    _write(path, {**record, name: value})


def read_record(path: Path) -> dict[str, Any]:
    """A record, with its parts where they belong; refused if its content does not agree with its digest."""
    try:
        record = json.loads(read_regular_file(path).decode("utf-8"))
        digest = _digest(record)
    except OSError as error:
        raise InputError(f"the record {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no record: {error}") from None
    parts = {"schema": int, "settings": dict, "figures": dict}
    if not isinstance(record, dict) or not all(isinstance(record.get(name), kind) for name, kind in parts.items()):
        raise InputError(f"{path} is no record: it lacks schema, settings or figures")
    if record["schema"] != SCHEMA or not isinstance(record.get("readings", []), list):
        raise InputError(f"{path} is no record that this version of lcrbnn knows")
    if DIGEST in record and record[DIGEST] != digest:
        raise InputError(f"the record {path} is damaged: its content does not agree with its {DIGEST}")
    return record


def has_faulty_power_kernel(record: dict[str, Any]) -> bool:
    """Whether the LCR loss of this training run used v_0 in place of v_{i-1}: on a GPU, before revision 2."""
    settings, revision = record["settings"], record.get("environment", {}).get("lcr_revision", 1)
    uses_lcr = settings.get("weight", 0) > 0 or settings.get("share", 0) > 0
    return record["figures"].get("device") == "cuda" and uses_lcr and revision < FIRST_EXACT_REVISION


def _write(path: Path, record: dict[str, Any]) -> None:
    content = json.loads(json.dumps({name: value for name, value in record.items() if name != DIGEST}))
    text = _text({"schema": SCHEMA, DIGEST: _digest(content), **content}, "\n ") + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [text.encode()])
    except OSError as error:
        raise InputError(f"a record cannot be written to {path}: {error.strerror}") from None


def _digest(record: Any) -> str:
    """The SHA-256 of everything in a record but its digest, as JSON in a form that does not depend on the layout."""
    content = {name: value for name, value in record.items() if name != DIGEST} if isinstance(record, dict) else record
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _text(value: Any, line: str) -> str:
    """JSON to be read: a line an entry of a dict, a line an entry of a list of lists or dicts, else one line."""
    if isinstance(value, dict) and value:
        entries = [f"{json.dumps(str(name))}: {_text(one, line + ' ')}" for name, one in value.items()]
        return "{" + line + ("," + line).join(entries) + line[:-1] + "}"
    if isinstance(value, list | tuple) and any(isinstance(one, dict | list | tuple) for one in value):
        return "[" + line + ("," + line).join(map(json.dumps, value)) + line[:-1] + "]"
    return json.dumps(value)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _commit() -> str | None:
    """The commit of the source tree, marked if the code changed since; LCRBNN_COMMIT without git."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # installed, perhaps inside somebody else's repository
        return os.environ.get("LCRBNN_COMMIT")
    try:
        name = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", ".", *NOT_CODE)
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("LCRBNN_COMMIT")
    return name + ("+changes" if changed else "")


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
