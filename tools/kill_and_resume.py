"""Check that a run that is killed and resumed many times ends with the same bits as an uninterrupted run.

    python -m tools.kill_and_resume [--kills 20] [--inside 5] [--seed 0] [--record FILE]

One run is not interrupted. Another run with the same spec is started, killed with SIGKILL after a random time, and
resumed. This is repeated until there were --kills kills. At least --inside of them must happen while a checkpoint is
being written (its temporary file is left). Then the run may finish. Weights, optimizer state, log (without times) and
spec must be equal, byte for byte. The position of each kill is printed. The exit code is 1 if anything differs.

The network is large for its images and is saved after every step, so that saving takes a large part of the time.
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

from lcrbnn.errors import PART_SUFFIX
from lcrbnn.runs.checkpoint import read_checkpoint
from lcrbnn.runs.progress import ProgressBar, format_duration
from lcrbnn.runs.record import write_record
from lcrbnn.runs.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
TRAIN_ARGUMENTS = [
    "digits",
    "--model",
    "resnet18",
    "--method",
    "rbnn",
    "--epochs",
    "8",
    "--batch-size",
    "32",
    "--lcr-weight",
    "1",
]
# a small spec that takes a few seconds, for the tests
SMALL_TRAIN_ARGUMENTS = ["digits", "--epochs", "60", "--batch-size", "100"]


def start_training(path: Path, settings: list[str]) -> subprocess.Popen[bytes]:
    """Start or resume the run in a new process with one thread."""
    command = [sys.executable, "-m", "lcrbnn", "train", *settings, "--run-folder", str(path), "--resume"]
    command += ["--checkpoint-interval", "0", "--device", "cpu"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def describe_newest_checkpoint(path: Path) -> str:
    """Return the epoch and step of the newest checkpoint as text."""
    newest = RunFolder(path).find_newest_checkpoint()
    if newest is None:
        return "none yet"
    facts = read_checkpoint(newest).facts
    return f"epoch {facts['epoch'] + 1}, step {facts['step']}"


def describe_kill(path: Path, before: str) -> dict[str, Any]:
    """Return where the process was killed, according to the files that it left."""
    temporary_files = sorted(p.name for p in path.rglob(f"*{PART_SUFFIX}"))
    newest = describe_newest_checkpoint(path)
    if temporary_files:
        place = f"inside a save ({temporary_files[0]})"
    elif newest == before:
        place = "while starting"
    else:
        place = "between saves"
    return {"place": place, "newest_checkpoint": newest, "inside": bool(temporary_files)}


def is_unfinished(path: Path) -> bool:
    """Return whether the run is not finished, which means that it has no record."""
    return not RunFolder(path).record_file.exists()


def list_differences(expected: Path, actual: Path) -> list[str]:
    """Return the differences between two finished runs. Times and dates are ignored."""
    expected_run, actual_run = RunFolder(expected), RunFolder(actual)
    differences = []
    if expected_run.spec_file.read_bytes() != actual_run.spec_file.read_bytes():
        differences.append("spec.json")
    logs = [
        [{k: v for k, v in line.items() if k != "seconds"} for line in f.read_log()] for f in (expected_run, actual_run)
    ]
    if logs[0] != logs[1]:
        differences.append("log.jsonl")
    newest = [f.find_newest_checkpoint() for f in (expected_run, actual_run)]
    assert newest[0] is not None
    assert newest[1] is not None
    expected_arrays, actual_arrays = (read_checkpoint(p).arrays for p in newest if p is not None)
    differences += [
        name
        for name in {**expected_arrays, **actual_arrays}
        if name not in expected_arrays or name not in actual_arrays
    ]
    differences += [
        n for n in expected_arrays if n in actual_arrays and expected_arrays[n].tobytes() != actual_arrays[n].tobytes()
    ]
    temporary_files = [p.name for p in actual.rglob(f"*{PART_SUFFIX}")]
    return differences + temporary_files


def main() -> int:
    """Train both runs, compare them and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20, help="minimum number of times that the run is killed")
    parser.add_argument("--inside", type=int, default=5, help="minimum number of kills while a checkpoint is saved")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the kill times")
    parser.add_argument("--record", type=Path, help="write the moment of each kill and the result to this JSON file")
    parser.add_argument(
        "--small",
        action="store_true",
        help="use a small network, whose checkpoints are saved too fast to be interrupted",
    )
    args = parser.parse_args()
    settings = SMALL_TRAIN_ARGUMENTS if args.small else TRAIN_ARGUMENTS
    rng = random.Random(args.seed)
    kills: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        uninterrupted, interrupted = Path(scratch) / "straight", Path(scratch) / "broken"
        start_s = time.monotonic()
        if start_training(uninterrupted, settings).wait() != 0:
            print("the uninterrupted run failed", file=sys.stderr)
            return 1
        duration_s = time.monotonic() - start_s
        print(f"uninterrupted: {format_duration(duration_s)}", flush=True)
        progress = ProgressBar(args.kills, print_tenths=False)
        while len(kills) < args.kills or sum(k["inside"] for k in kills) < args.inside:
            if not is_unfinished(interrupted) and (interrupted / "spec.json").exists():
                print("the run finished before all kills; it needs more epochs", file=sys.stderr)
                return 1
            checkpoint_before = describe_newest_checkpoint(interrupted)
            delay_s = rng.uniform(1.0, 1.0 + max(0.06 * duration_s, 2.0))
            process = start_training(interrupted, settings)
            time.sleep(delay_s)
            process.kill()
            process.wait()
            kills.append({"after_s": round(delay_s, 3), **describe_kill(interrupted, checkpoint_before)})
            place, newest = kills[-1]["place"], kills[-1]["newest_checkpoint"]
            print(f"kill {len(kills):>2} after {delay_s:5.2f} s: {place}; newest checkpoint: {newest}", flush=True)
            progress.advance(lambda: "kills")
        exit_code = start_training(interrupted, settings).wait()
        differences = (
            list_differences(uninterrupted, interrupted)
            if exit_code == 0
            else [f"the last resume exited with {exit_code}"]
        )
        epochs = len(RunFolder(interrupted).read_log())
    num_inside = sum(k["inside"] for k in kills)
    print(
        f"{len(kills)} kills, {num_inside} of them inside a save; "
        + (
            "DIFFERENT: " + ", ".join(differences[:5])
            if differences
            else "weights, optimiser, log and spec are equal, bit for bit"
        )
    )
    if args.record:
        figures = {"kills": kills, "inside": num_inside, "epochs": epochs, "different": differences}
        write_record(args.record, "kill", {"train": settings, "seed": args.seed}, json.loads(json.dumps(figures)))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
