"""A finished run without what only training on needs: half of its size or less, to be taken to another machine.

    python -m tools.slim RUN FOLDER

FOLDER is a run that others start from or learn from, and that can be exported; every weight as it was trained. As a
teacher it counts as the run that it was made of: what began with the one goes on with the other. Its test images are
not read from there: the checkpoint is not the one of its record.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from lcrbnn.errors import InputError
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint
from lcrbnn.runs.files import write_whole
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train.build import WHOLE

KEPT = "model/"  # how the names of a network's arrays begin


def slim(run: Path, target: Path) -> Path:
    """Write the run's weights, settings and record into a folder; return its checkpoint."""
    source, made = RunFolder(run), RunFolder(target)
    newest = source.newest()
    if newest is None or not source.record.exists():
        raise InputError(f"there is no finished run in {run}")
    made.create(source.read_spec())
    whole = read_checkpoint(newest)
    arrays = {name: array for name, array in whole.arrays.items() if name.startswith(KEPT)}
    step = int(newest.stem.removeprefix("step-"))
    digest = hashlib.sha256(newest.read_bytes()).hexdigest()
    path = made.save(step, Checkpoint(arrays, {WHOLE: digest, **whole.facts}))
    for one, other in ((source.log, made.log), (source.classes, made.classes), (source.record, made.record)):
        if one.exists():
            write_whole(other, [one.read_bytes()])
    return path


def main() -> int:
    """Copy what is needed, and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    try:
        path = slim(args.run, args.folder)
    except InputError as error:
        print(f"slim: {error}", file=sys.stderr)
        return 2
    print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
