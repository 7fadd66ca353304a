"""Records contain settings, environment and results of one measurement. A record is a JSON file, written atomically."""

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
from lcrbnn.runs.atomic_files import read_regular_file, write_atomic
from lcrbnn.runs.old_names import SCHEMA, SCHEMAS, upgrade_record

DIGEST_KEY = "content_sha256"  # key of the SHA-256 of all other content of a record; older records do not have this key
# Since this `lcr_revision`, the GPU kernel of the power iteration returns v_{i-1}. Before, it returned v_0 by mistake.
FIRST_REVISION_WITHOUT_FAULT = 2

# Folders of the source tree into which commands write. Changes there do not count as changes of the code.
PATHS_WITHOUT_CODE = (
    ":(exclude)paper/results",
    ":(exclude)bench/records",
    ":(exclude)zoo",
    ":(exclude)lcrbnn/zoo/files",
)


def describe_environment() -> dict[str, Any]:
    """Return hardware, library versions and commit. Results depend on these in addition to the settings."""
    import numpy
    import torch

    from lcrbnn.nn.kernels.power_iteration import LCR_REVISION

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "lcrbnn": __version__,
        "lcr_revision": LCR_REVISION,
        "commit": _describe_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "cpu": _read_cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "cuda": torch.version.cuda if gpu else None,
    }


def write_record(path: Path, kind: str, settings: dict[str, Any], figures: dict[str, Any]) -> None:
    """Write a record of this kind, with its settings and figures."""
    _write_with_digest(
        path,
        {
            "schema": SCHEMA,
            "kind": kind,
            "date": _format_today(),
            "environment": describe_environment(),
            "settings": settings,
            "figures": figures,
        },
    )


def append_test_result(path: Path, test_result: dict[str, Any]) -> int:
    """Add a test result with today's date to a record. Return how many test results the record has now."""
    record = read_record(path)
    test_results = record.setdefault("test_results", [])
    test_results.append({"date": _format_today(), **test_result})
    _write_with_digest(path, record)
    return len(test_results)


def update_record(path: Path, name: str, value: Any) -> None:
    """Add a part at the top level of a record, or replace the part with this name."""
    record = read_record(path)
    if name in ("schema", "kind", "date", "environment", "settings", "figures", "test_results", DIGEST_KEY):
        raise ValueError(f"the part {name!r} of a record cannot be replaced")
    _write_with_digest(path, {**record, name: value})


def read_record(path: Path) -> dict[str, Any]:
    """Return a verified record with current names. If it is damaged or no record, raise InputError."""
    try:
        record = json.loads(read_regular_file(path).decode("utf-8"))
        digest = _hash_content(record)
    except OSError as error:
        raise InputError(f"the record {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no record: {error}") from None
    parts = {"schema": int, "settings": dict, "figures": dict}
    if not isinstance(record, dict) or not all(isinstance(record.get(name), kind) for name, kind in parts.items()):
        raise InputError(f"{path} is no record: it lacks schema, settings or figures")
    if isinstance(record["schema"], bool) or record["schema"] not in SCHEMAS:
        raise InputError(f"{path} is no record that this version of lcrbnn can read")
    if DIGEST_KEY in record and record[DIGEST_KEY] != digest:
        raise InputError(f"the record {path} is damaged: its content does not match its {DIGEST_KEY}")
    try:
        record = upgrade_record(record)
    except InputError as error:
        raise InputError(f"{path} is no record: {error}") from None
    if not isinstance(record.get("test_results", []), list):
        raise InputError(f"{path} is no record that this version of lcrbnn can read")
    return record


def has_faulty_power_kernel(record: dict[str, Any]) -> bool:
    """Return whether a run's LCR loss used v_0 instead of v_{i-1}, as GPU runs before revision 2 did."""
    settings, revision = record["settings"], record.get("environment", {}).get("lcr_revision", 1)
    uses_lcr = settings.get("lcr_weight", 0) > 0 or settings.get("lcr_gradient_ratio", 0) > 0
    return record["figures"].get("device") == "cuda" and uses_lcr and revision < FIRST_REVISION_WITHOUT_FAULT


def _write_with_digest(path: Path, record: dict[str, Any]) -> None:
    content = json.loads(json.dumps({name: value for name, value in record.items() if name != DIGEST_KEY}))
    text = _format_json({"schema": SCHEMA, DIGEST_KEY: _hash_content(content), **content}, "\n ") + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, [text.encode()])
    except OSError as error:
        raise InputError(f"a record cannot be written to {path}: {error.strerror}") from None


def _hash_content(record: Any) -> str:
    """Return the SHA-256 of a record without its digest.

    It is serialized as JSON with sorted keys and without spaces.
    """
    content = (
        {name: value for name, value in record.items() if name != DIGEST_KEY} if isinstance(record, dict) else record
    )
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _format_json(value: Any, line_start: str) -> str:
    """Return JSON text that is easy to read.

    Each entry of a dict, and of a list of lists or dicts, has its own line. Other lists are on one line.
    """
    if isinstance(value, dict) and value:
        entries = [f"{json.dumps(str(name))}: {_format_json(entry, line_start + ' ')}" for name, entry in value.items()]
        return "{" + line_start + ("," + line_start).join(entries) + line_start[:-1] + "}"
    if isinstance(value, list | tuple) and any(isinstance(entry, dict | list | tuple) for entry in value):
        return "[" + line_start + ("," + line_start).join(map(json.dumps, value)) + line_start[:-1] + "]"
    return json.dumps(value)


def _format_today() -> str:
    return datetime.now(UTC).date().isoformat()


def _describe_commit() -> str | None:
    """Return the commit of the source tree. If the code was changed, "+changes" is appended.

    Without git, the result is the value of LCRBNN_COMMIT.
    """
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # without .git, the package is installed, maybe inside another repository
        return os.environ.get("LCRBNN_COMMIT")
    try:
        commit = _run_git(root, "rev-parse", "--short=12", "HEAD")
        changes = _run_git(root, "status", "--porcelain", "--", ".", *PATHS_WITHOUT_CODE)
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("LCRBNN_COMMIT")
    return commit + ("+changes" if changes else "")


def _run_git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def _read_cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
