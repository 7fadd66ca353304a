"""Is an exported network the one that was trained? METHODS x MODELS at full width and size, a record a network.

    python -m tools.exactness --records results/engine/exactness [--models NAME ...] [--images 1000]
    python -m tools.exactness --records results/engine/exactness --runs runs/a ...     trained networks, into runs.json

Layer by layer, on PyTorch's own inputs, the engine's sums and signs must be PyTorch's. End to end, the answers to real
images are compared: 1,000 of CIFAR-10's test split (digits for networks made for them, or where CIFAR-10 is not at
hand), 16 enlarged ones for networks of 224 pixels. Each image that is answered otherwise is traced to the first signs
that turned, and to how far their numbers lay from the threshold. Networks of MODELS are drawn at random, so little
stands between one answer and another; how often PyTorch disagrees with itself, computing without oneDNN, is noted too.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lcrbnn.data import DATASETS, DataSet
from lcrbnn.data.table import data_folder
from lcrbnn.engine.format import to_bytes
from lcrbnn.engine.lib import Engine
from lcrbnn.errors import InputError
from lcrbnn.export import Input, export_model
from lcrbnn.export.compare import Miss, answers, by_engine, compare_layers, misses
from lcrbnn.export.watch import last
from lcrbnn.layers import fit
from lcrbnn.models import MODELS, network
from lcrbnn.runs.folder import RunFolder, runs_in
from lcrbnn.runs.record import write_record
from lcrbnn.train.build import load_network
from tests.export.nets import CHOICES, stirred

EDGE = 1e-5  # how near to a threshold a number is whose sign may turn
LAYERS = 2  # images for the comparison layer by layer
STIR = 32  # images that the batch norms of a drawn network learn from
ITSELF = 50  # images for the comparison of PyTorch with itself
LARGE = 16  # images of 224 pixels


def real_images(row: DataSet, count: int, folder: Path) -> tuple[Tensor, Tensor]:
    """Test images of a data set as a network takes them, and some training images."""
    loaded = row.load(folder)
    test, train = loaded.test.images, loaded.train.images
    if len(test) < count:  # digits: 500
        test, train = np.concatenate([test, train]), train[count - len(test) :]
    return _normal(row, test[:count]), _normal(row, train[:STIR])


def _normal(row: DataSet, pixels: np.ndarray) -> Tensor:
    mean, std = (torch.tensor(v).reshape(-1, 1, 1) for v in (row.mean, row.std))
    return (torch.from_numpy(pixels.astype(np.float32)) / row.top - mean) / std


def images_for(name: str, count: int, folder: Path) -> tuple[str, Tensor, Tensor]:
    """The data set, the images to answer and those to stir by, of a network of MODELS."""
    side, data = MODELS[name].image, "digits"
    if side > 8:
        try:
            data, (test, train) = "cifar10", real_images(DATASETS["cifar10"], count if side == 32 else LARGE, folder)
        except InputError as error:
            print(f"{error}; digits instead", file=sys.stderr)
    if data == "digits":
        test, train = real_images(DATASETS["digits"], LARGE if side > 32 else count, folder)
    if test.shape[2] != side:
        test, train = (F.interpolate(x, size=side, mode="bilinear") for x in (test, train[: STIR // 2]))
    return data, test, train


def measure(net: nn.Module, given: Input | DataSet, images: Tensor) -> dict[str, Any]:
    """Export a network and compare it with the engine's: a row of a record."""
    began = time.monotonic()
    model = export_model(net, given, "exactness")
    layers = compare_layers(net, model, images[:LAYERS], by_engine)
    theirs = answers(net, images)
    with Engine(to_bytes(model)) as engine:
        ours = engine.run(last(images), threads=2)
    missed = misses(net, model, images, theirs, ours)
    some = images[: min(ITSELF, len(images))]
    with warnings.catch_warnings(action="ignore"), torch.backends.mkldnn.flags(enabled=False):
        itself = answers(net, some)  # torch warns of Intel GPUs here
    return {
        "nodes": layers.nodes,
        "sums": layers.sums,
        "signs": layers.signs,
        "faults": layers.faults,
        "turned": [list(turned) for turned in layers.turned],
        "apart": layers.apart,
        "images": len(images),
        "agree": int((theirs.argmax(1) == ours.argmax(1)).sum()),
        "within": int((np.abs(theirs - ours).max(1) <= 1e-4 * max(1.0, np.abs(theirs).max())).sum()),
        "misses": [_miss(miss) for miss in missed],
        "itself": [int((itself.argmax(1) == theirs[: len(some)].argmax(1)).sum()), len(some)],
        "seconds": round(time.monotonic() - began, 1),
    }


def _miss(miss: Miss) -> dict[str, Any]:
    """A miss with the verdict whether a number at a threshold explains it."""
    turned = miss.turned
    if turned is None:
        return {"image": miss.image, "gap": miss.gap, "traced": miss.gap <= EDGE}
    return {
        "image": miss.image,
        "node": turned.node,
        "signs": turned.signs,
        "distance": turned.distance,
        "largest": turned.largest,
        "traced": turned.distance <= EDGE,
    }


def draw(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """A row for each method of a network of MODELS."""
    data, images, stir = images_for(name, args.images, args.data)
    classes, rows = MODELS[name].classes, {}
    given = Input((*images.shape[2:], images.shape[1]), tuple(map(str, range(classes))))
    for chosen in CHOICES:
        net = network(name, chosen, classes=classes, in_channels=images.shape[1], image=images.shape[2])
        fit(net, images[:1])
        row = measure(stirred(net, stir), given, images)
        rows[f"{chosen.name} 1/{chosen.chosen_bits}"] = row
        _tell(name, f"{chosen.name} 1/{chosen.chosen_bits}", row)
    return {"data": data, "pairs": rows}


def trained(paths: list[Path], args: argparse.Namespace) -> dict[str, Any]:
    """A row for each run."""
    rows = {}
    for path in (run for given in paths for run in runs_in(given)):
        spec, net, digest = load_network(RunFolder(path))
        images, _ = real_images(DATASETS[spec.data], args.images, args.data)
        row = measure(net.eval(), DATASETS[spec.data], images)
        words = {"data": spec.data, "model": spec.model, "method": spec.method, "bits": spec.bits}
        rows[str(path)] = words | {"epochs": spec.epochs, "checkpoint": digest[:16]} | row
        _tell(spec.model, f"{spec.method} {spec.bits}", row)
    return {"runs": rows}


def _tell(name: str, method: str, row: dict[str, Any]) -> None:
    untraced = sum(not miss["traced"] for miss in row["misses"])
    print(
        f"{name:34} {method:12} {row['agree']:5} of {row['images']:5} agree, {untraced} misses not traced; "
        f"{row['sums']:,} sums, {len(row['faults'])} faults; torch with itself {row['itself'][0]} of "
        f"{row['itself'][1]}; {row['seconds']} s",
        flush=True,
    )


def main() -> int:
    """Measure, print a line a pair, write a record a network; 1 if anything was not exact."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=Path, help="folder for the records")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS), metavar="NAME")
    parser.add_argument("--runs", nargs="+", type=Path, default=[], metavar="RUN", help="these instead of MODELS")
    parser.add_argument("--images", type=int, default=1000, help="to answer, of networks for less than 224 pixels")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder of the data sets")
    args = parser.parse_args()
    jobs = {name: partial(draw, name, args) for name in args.models}
    if args.runs:
        jobs = {"runs": partial(trained, args.runs, args)}
    exact = True
    for name, job in jobs.items():
        figures = job()
        rows = (figures.get("pairs") or figures["runs"]).values()
        exact &= not any(row["faults"] or any(not miss["traced"] for miss in row["misses"]) for row in rows)
        if args.records:
            settings = {"network": name, "images": args.images, "layer_images": LAYERS, "edge": EDGE}
            write_record(args.records / f"{name}.json", "exactness", settings, figures)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
