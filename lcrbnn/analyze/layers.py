"""A finished run, layer by layer, as JSON values: the spread of its latent weights, the likeness of its maps."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lcrbnn.analyze.correlation import Alike, alike, chance, layer_maps
from lcrbnn.analyze.latent import Spread, sample_weights, spread
from lcrbnn.models import Network
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train.augment import normalize
from lcrbnn.train.batches import Batches
from lcrbnn.train.build import load_network
from lcrbnn.train.dataset import data_row
from lcrbnn.train.numerics import find_device
from lcrbnn.train.options import Options
from lcrbnn.train.sources import Faults, open_splits
from lcrbnn.train.spec import Spec

IMAGES = 128  # of the batch whose maps are compared: the first training images, not augmented
DIGITS = 5


def first_images(
    spec: Spec, options: Options, count: int = IMAGES, known: Faults | None = None, names: tuple[str, ...] = ()
) -> Tensor:
    """The first training images of a run's data set, normalised; no test image is looked at.

    Of a tree, which lies class by class, evenly spaced ones; `known` are its broken ones, if that was found out before.
    With names of classes, images of others are refused.
    """
    row, device = data_row(spec, names), find_device(options.device)
    if row.tree is None:
        return next(Batches(row.load(options.data_folder).train, row, device).plain(count)).images
    with ExitStack() as held:
        files = replace(options.files, workers=0, cache="no")
        train = open_splits([spec.but(images="all")], files, device, held, known, names=names)[0].train
        return normalize(train.sample(min(count, len(train))).images, train.scale, train.shift)


def look_at_run(run: Path, options: Options) -> dict[str, Any]:
    """What the record of a run holds of its layers."""
    folder = RunFolder(run)
    spec, model, _ = load_network(folder)
    return describe(model, first_images(spec, options, known=folder.read_broken(), names=folder.read_classes()))


def describe(model: Network, images: Tensor) -> dict[str, Any]:
    """The weights of each layer, and the maps between them for a batch of images."""
    model = model.to(images.device)
    with torch.no_grad():
        weights = {name: _rounded(spread(w)) for name, w in sample_weights(model).items()}
        maps = {
            name: {
                "size": seen.real.shape[1],
                "chance": float(f"{chance(seen.real.shape[1]):.{DIGITS}g}"),
                "real": _rounded(alike(seen.real)),
                **({} if seen.binary is None else {"binary": _rounded(alike(seen.binary))}),
            }
            for name, seen in layer_maps(model, images).items()
        }
    return {"images": len(images), "weights": weights, "maps": maps}


def _rounded(found: Alike | Spread) -> dict[str, Any]:
    return {k: float(f"{v:.{DIGITS}g}") if isinstance(v, float) else v for k, v in found._asdict().items()}
