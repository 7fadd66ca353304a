"""Copy a finished run without its optimizer state. The copy has at most half of the size and is easier to move.

    python -m tools.slim_run RUN FOLDER [--signs]

Other runs can start from FOLDER or use it as their teacher. It can also be evaluated and exported. No weight is
changed. The copy counts as the original run. So if a run was started with one of them as teacher, it can be resumed
with the other.

With --signs, a binary layer only keeps the signs of its weights and one magnitude per filter. A compressed archive of
FOLDER is then a twentieth of the size. Some methods depend on more than the signs. So the outputs for random images are
compared, and InputError is raised if they change. Such a copy is for evaluation, not for starting other runs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from lcrbnn.errors import InputError
from lcrbnn.nn.model_hooks import eval_mode, iter_binary_layers
from lcrbnn.runs.atomic_files import write_atomic
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.dataset import find_run_dataset
from lcrbnn.train.setup.load import load_network
from lcrbnn.train.setup.validate_checkpoint import SOURCE_DIGEST, digest_checkpoint
from lcrbnn.train.state import module_to_arrays

MODEL_PREFIX = "model/"  # prefix of the names of a network's arrays in a checkpoint
NUM_IMAGES = 8  # number of random images for the comparison of outputs
MAX_RELATIVE_CHANGE = 1e-4  # maximum change of an output, relative to the largest output


def slim_run(run: Path, target: Path, *, signs_only: bool = False) -> Path:
    """Write the weights (or their signs), settings and record of a run into a folder. Return the new checkpoint."""
    source, slimmed = RunFolder(run), RunFolder(target)
    newest = source.find_newest_checkpoint()
    if newest is None or not source.record_file.exists():
        raise InputError(f"there is no finished run in {run}")
    load_network(source)  # load_network raises InputError if the checkpoint does not belong to the record
    checkpoint = read_checkpoint(newest)
    arrays = {name: array for name, array in checkpoint.arrays.items() if name.startswith(MODEL_PREFIX)}
    if signs_only:
        arrays = _replace_weights_by_signs(source, arrays)
    slimmed.create(source.read_spec())
    step = int(newest.stem.removeprefix("step-"))
    digest = digest_checkpoint(newest, checkpoint)
    path = slimmed.save_checkpoint(step, Checkpoint(arrays, {**checkpoint.facts, SOURCE_DIGEST: digest}))
    for original, copy in (
        (source.log_file, slimmed.log_file),
        (source.classes_file, slimmed.classes_file),
        (source.split_file, slimmed.split_file),
        (source.network_file, slimmed.network_file),
        (source.record_file, slimmed.record_file),
    ):
        if original.exists():
            write_atomic(copy, [original.read_bytes()])
    return path


@torch.no_grad()
def _replace_weights_by_signs(run: RunFolder, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays, with only two different values per filter in each binary layer.

    If this changes the outputs, raise InputError.
    """
    spec, net, _ = load_network(run)
    dataset = find_run_dataset(run, spec)
    images = torch.rand(
        NUM_IMAGES, dataset.channels, dataset.image_size, dataset.image_size, generator=torch.Generator().manual_seed(0)
    )
    with eval_mode(net):
        logits_before = net(images)
        for _, layer in iter_binary_layers(net):
            magnitudes = layer.weight.double().abs().flatten(1).mean(1).float()
            layer.weight.copy_((layer.binarize_weight().signs.flatten(1) * magnitudes[:, None]).view_as(layer.weight))
        logits_after = net(images)
    difference = float((logits_after - logits_before).abs().max() / logits_before.abs().max())
    if not difference < MAX_RELATIVE_CHANGE:
        raise InputError(
            f"the outputs of {run.path} depend on more than the signs of its weights: they change by {difference:.2g}"
        )
    return module_to_arrays(net, MODEL_PREFIX.rstrip("/"))


def main() -> int:
    """Copy the run and print the size of the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--signs",
        action="store_true",
        help="keep only the signs and one magnitude per filter of the weights of binary layers",
    )
    args = parser.parse_args()
    try:
        path = slim_run(args.run, args.folder, signs_only=args.signs)
    except InputError as error:
        print(f"slim: {error}", file=sys.stderr)
        return 2
    print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
