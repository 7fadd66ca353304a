"""What the record of a run says of it: how it ended, how it got there, what noise does to it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from lcrbnn.train.loop import Loop

MOST = 21  # epochs that a record shows of a run
SHOWN = ("epoch", "loss", "train", "valid", "share", "ratios")  # columns of the log, for each of them
DIGITS = 5  # of a number there


def figures(loop: Loop) -> dict[str, Any]:
    """The figures of a finished run."""
    lines = loop.folder.read_log()
    last = loop.folder.last_line()
    newest = loop.folder.newest()
    assert newest is not None
    return {
        "epochs": len(lines),
        "steps": loop.done,
        "seconds": round(sum(line["seconds"] for line in lines), 1),
        "images": {"train": len(loop.train), "valid": 0 if loop.valid is None else len(loop.valid)},
        "last": {k: v for k, v in last.items() if k not in ("epoch", "steps", "seconds", "wait")},
        **({} if not loop.about else {"files": _files(loop, lines)}),
        **({} if loop.noise is None else {"noise": loop.noise}),
        "over_training": over_training(lines),
        "device": loop.train.labels.device.type,
        "step": loop.made,
        "teacher": loop.parts.teacher_digest,
        "log_sha256": loop.folder.digest_log(),
        "checkpoint_sha256": hashlib.sha256(newest.read_bytes()).hexdigest(),
    }


def _files(loop: Loop, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How images were read, what share of the steps waited for them, epoch by epoch, and which were left out."""
    waits = [line["wait"] for line in lines if "wait" in line]
    found = {**loop.about, **({"wait": waits} if waits else {})}
    return found if not loop.spec.skip_broken else {**found, "broken": len(loop.broken), "which": loop.broken}


def over_training(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the lines of a log that were looked at, those nearest to MOST evenly spaced epochs, and their SHOWN."""
    seen = [line for line in lines if line["ratios"] is not None] or list(lines)
    chosen = {line["epoch"]: line for line in seen}
    if len(seen) > MOST:
        first, last = seen[0]["epoch"], seen[-1]["epoch"]
        wanted = [first + (last - first) * i / (MOST - 1) for i in range(MOST)]
        nearest = (min(seen, key=lambda line: abs(line["epoch"] - epoch)) for epoch in wanted)
        chosen = {line["epoch"]: line for line in nearest}
    return [{name: _short(line[name]) for name in SHOWN} for line in chosen.values()]


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
