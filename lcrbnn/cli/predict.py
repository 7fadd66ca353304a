"""`lcrbnn predict` prints the most probable classes of images."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lcrbnn.cli.model_arguments import BNN_MODEL_HELP, load_bnn_model
from lcrbnn.errors import InputError, RunFailed, check_number

if TYPE_CHECKING:
    from lcrbnn.deploy.pictures import UnreadablePicture

EXAMPLES = ("lcrbnn predict zoo:digits-resnet8-irnet image.png", "lcrbnn predict model.bnn images --top 3")
BATCH_SIZE = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, the images and the handling of unreadable images."""
    parser.description = (
        f"{parser.description}. Images that cannot be read are listed on stderr after the results, and the exit code "
        "is 1. All other images are classified."
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help=BNN_MODEL_HELP)
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="image file, or folder of image files")
    parser.add_argument("--top", type=int, default=1, metavar="N", help="print the N most probable classes per image")
    broken = parser.add_mutually_exclusive_group()
    broken.add_argument("--strict", action="store_true", help="stop at the first unreadable image, with exit code 2")
    broken.add_argument(
        "--allow-broken",
        action="store_true",
        help="exit with code 0 if at least one image can be read, even if other images cannot",
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="number of threads of the engine, 1 to 256")


def execute(args: argparse.Namespace) -> int:
    """Print one line per image with its path, and the most probable classes with their probabilities."""
    import numpy as np

    from lcrbnn.deploy.engine.reference import preprocess_pixels
    from lcrbnn.deploy.engine.runtime import Engine
    from lcrbnn.deploy.pictures import check_model_channels, find_pictures, iter_picture_batches

    check_number(args.top, "--top", low=1, integer=True)
    check_number(args.threads, "--threads", low=1, high=256, integer=True)
    model, source = load_bnn_model(args.model)
    engine = Engine(source)
    if not model.classes:
        raise InputError(f"{args.model} has no class names, so it cannot classify images; predict needs a classifier")
    engine.check_vector_output()
    check_model_channels(model)
    pictures = find_pictures(args.images)
    unreadable: list[UnreadablePicture] = []
    on_unreadable = _raise_unreadable if args.strict else unreadable.append
    for paths, pixels in iter_picture_batches(pictures, model, BATCH_SIZE, on_unreadable):
        images = np.ascontiguousarray(preprocess_pixels(model, pixels))
        logits = engine.run(images, threads=args.threads).astype(np.float64)
        probabilities = np.exp(logits - logits.max(1, keepdims=True))
        probabilities /= probabilities.sum(1, keepdims=True)
        for path, row in zip(paths, probabilities, strict=True):
            top_classes = np.argsort(-row, kind="stable")[: args.top]
            print(f"{path}  " + "  ".join(f"{model.classes[i]} {100 * row[i]:.1f} %" for i in top_classes))
    sys.stdout.flush()  # flush the results first, so that the errors come last if stdout and stderr go to one file
    for error in unreadable:
        print(f"lcrbnn: skipped: {error}", file=sys.stderr)
    if len(unreadable) == len(pictures):
        raise RunFailed(f"none of the {len(pictures):,} pictures can be read")
    if unreadable and not args.allow_broken:
        raise RunFailed(f"{len(unreadable):,} of the {len(pictures):,} pictures cannot be read")
    return 0


def _raise_unreadable(error: UnreadablePicture) -> None:
    raise InputError(f"{error}; without --strict all other pictures are classified") from None
