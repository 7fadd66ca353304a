"""Is a run that is killed again and again the same run? Kills a real training process at random moments and compares.

    python -m tools.kill [--kills 20] [--inside 5] [--seed 0] [--record FILE]

One run goes through undisturbed. Another, with the same spec, is started, killed with SIGKILL after a random time,
resumed, killed again, ... until so many kills fell, at least `inside` of them while a checkpoint was being written
(its temporary file is there when the process is dead); then it may finish. Weights, optimiser, log (times aside) and
spec must be equal, byte for byte. Prints where each kill fell; exits with 1 if anything differs.

The network is large for its images and is saved after every step, so that saving takes a good part of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lcrbnn.outputs import PART
from lcrbnn.runs.checkpoint import read_checkpoint
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.progress import Progress, duration
from lcrbnn.runs.record import write_record

ROOT = Path(__file__).parents[1]
SETTINGS = ["digits", "--model", "resnet18", "--method", "rbnn", "--epochs", "8", "--batch", "32", "--weight", "1"]
SMALL = ["digits", "--epochs", "60", "--batch", "100"]  # a few seconds, for the tests


def start(path: Path, settings: list[str]) -> subprocess.Popen[bytes]:
    """The run as a process of its own, on one thread."""
    words = [sys.executable, "-m", "lcrbnn", "train", *settings, "--run", str(path), "--resume"]
    words += ["--save-seconds", "0", "--device", "cpu"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def newest_checkpoint(path: Path) -> str:
    """Where the newest checkpoint of a run was made."""
    newest = RunFolder(path).newest()
    if newest is None:
        return "none yet"
    facts = read_checkpoint(newest).facts
    return f"epoch {facts['epoch'] + 1}, step {facts['step']}"


def where(path: Path, before: str) -> dict[str, Any]:
    """What the dead process left: where it was killed."""
    parts = sorted(p.name for p in path.rglob(f"*{PART}"))
    at = newest_checkpoint(path)
    if parts:
        place = f"inside a save ({parts[0]})"
    elif at == before:
        place = "while starting"
    else:
        place = "between saves"
    return {"place": place, "newest_checkpoint": at, "inside": bool(parts)}


def steps_left(path: Path) -> bool:
    """Whether the run still has something to do."""
    return not RunFolder(path).record.exists()


def same(one: Path, other: Path) -> list[str]:
    """What differs between two finished runs; times, dates and the temporary order of files aside."""
    left, right = RunFolder(one), RunFolder(other)
    wrong = []
    if left.spec.read_bytes() != right.spec.read_bytes():
        wrong.append("spec.json")
    logs = [[{k: v for k, v in line.items() if k != "seconds"} for line in f.read_log()] for f in (left, right)]
    if logs[0] != logs[1]:
        wrong.append("log.jsonl")
    newest = [f.newest() for f in (left, right)]
    assert newest[0] is not None
    assert newest[1] is not None
    mine, theirs = (read_checkpoint(p).arrays for p in newest if p is not None)
    wrong += [name for name in {**mine, **theirs} if name not in mine or name not in theirs]
    wrong += [n for n in mine if n in theirs and mine[n].tobytes() != theirs[n].tobytes()]
    leftover = [p.name for p in other.rglob(f"*{PART}")]
    return wrong + leftover


def main() -> int:
    """Run both, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20, help="kills in all, at least")
    parser.add_argument("--inside", type=int, default=5, help="of them inside a save, at least")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--record", type=Path, help="write the moments and the outcome into this JSON file")
    parser.add_argument("--small", action="store_true", help="a small network, whose saves are too short to hit")
    args = parser.parse_args()
    settings = SMALL if args.small else SETTINGS
    moments = random.Random(args.seed)
    kills: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        straight, broken = Path(scratch) / "straight", Path(scratch) / "broken"
        began = time.monotonic()
        if start(straight, settings).wait() != 0:
            print("the undisturbed run failed", file=sys.stderr)
            return 1
        whole = time.monotonic() - began
        print(f"undisturbed: {duration(whole)}", flush=True)
        progress = Progress(args.kills, tenths=False)
        while len(kills) < args.kills or sum(k["inside"] for k in kills) < args.inside:
            if not steps_left(broken) and (broken / "spec.json").exists():
                print("the run ended before all kills fell: it needs more epochs", file=sys.stderr)
                return 1
            before = newest_checkpoint(broken)
            after = moments.uniform(1.0, 1.0 + max(0.06 * whole, 2.0))
            process = start(broken, settings)
            time.sleep(after)
            process.kill()
            process.wait()
            kills.append({"after_s": round(after, 3), **where(broken, before)})
            place, newest = kills[-1]["place"], kills[-1]["newest_checkpoint"]
            print(f"kill {len(kills):>2} after {after:5.2f} s: {place}; newest checkpoint: {newest}", flush=True)
            progress.advance(lambda: "kills")
        resumed = start(broken, settings).wait()
        wrong = same(straight, broken) if resumed == 0 else [f"the last resume exited with {resumed}"]
        epochs = len(RunFolder(broken).read_log())
    inside = sum(k["inside"] for k in kills)
    print(
        f"{len(kills)} kills, {inside} of them inside a save; "
        + ("DIFFERENT: " + ", ".join(wrong[:5]) if wrong else "weights, optimiser, log and spec are equal, bit for bit")
    )
    if args.record:
        figures = {"kills": kills, "inside": inside, "epochs": epochs, "different": wrong}
        write_record(args.record, "kill", {"train": settings, "seed": args.seed}, json.loads(json.dumps(figures)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
