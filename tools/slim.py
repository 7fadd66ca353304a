"""A finished run without what only training on needs: half of its size or less, to be taken to another machine.

    python -m tools.slim RUN FOLDER [--signs]

FOLDER is a run that others start from or learn from, that can be read and exported; every weight as it was trained. It
counts as the run that it was made of: what began with the one as its teacher goes on with the other.

With --signs a binary layer keeps the signs of its weights, all of a filter as large as their mean, and an archive of
FOLDER is a twentieth as large as one of the run. It is refused where the answers to random images are not those of the
run: some methods' depend on more than that. Such a copy is to be read, not to be started from.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from lcrbnn.errors import InputError
from lcrbnn.layers import binary_layers, evaluating
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint
from lcrbnn.runs.files import write_whole
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train.build import load_network
from lcrbnn.train.dataset import run_row
from lcrbnn.train.finished import WHOLE, digest_checkpoint
from lcrbnn.train.state import module_arrays

KEPT = "model/"  # how the names of a network's arrays begin
IMAGES, NEAR = 8, 1e-4  # random images, and how far answers may move, beside the largest of them


def slim(run: Path, target: Path, *, signs: bool = False) -> Path:
    """Write the run's weights (or signs), settings and record into a folder; return its checkpoint."""
    source, made = RunFolder(run), RunFolder(target)
    newest = source.newest()
    if newest is None or not source.record.exists():
        raise InputError(f"there is no finished run in {run}")
    load_network(source)  # raises unless the checkpoint is the one of the record
    whole = read_checkpoint(newest)
    arrays = {name: array for name, array in whole.arrays.items() if name.startswith(KEPT)}
    if signs:
        arrays = _with_signs(source, arrays)
    made.create(source.read_spec())
    step = int(newest.stem.removeprefix("step-"))
    digest = digest_checkpoint(newest, whole)
    path = made.save(step, Checkpoint(arrays, {**whole.facts, WHOLE: digest}))
    for one, other in ((source.log, made.log), (source.classes, made.classes), (source.record, made.record)):
        if one.exists():
            write_whole(other, [one.read_bytes()])
    return path


@torch.no_grad()
def _with_signs(run: RunFolder, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays with every binary layer's weight as two values a filter, if the answers stay what they are."""
    spec, net, _ = load_network(run)
    row = run_row(run, spec)
    shown = torch.rand(IMAGES, row.channels, row.image, row.image, generator=torch.Generator().manual_seed(0))
    with evaluating(net):
        before = net(shown)
        for _, layer in binary_layers(net):
            sizes = layer.weight.double().abs().flatten(1).mean(1).float()
            layer.weight.copy_((layer.binary_weight().signs.flatten(1) * sizes[:, None]).view_as(layer.weight))
        after = net(shown)
    gap = float((after - before).abs().max() / before.abs().max())
    if not gap < NEAR:
        raise InputError(f"the signs of {run.path} are not all that its answers depend on: they change by {gap:.2g}")
    return module_arrays(net, KEPT.rstrip("/"))


def main() -> int:
    """Copy what is needed, and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--signs", action="store_true", help="of binary layers only the signs and a size a filter")
    args = parser.parse_args()
    try:
        path = slim(args.run, args.folder, signs=args.signs)
    except InputError as error:
        print(f"slim: {error}", file=sys.stderr)
        return 2
    print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
