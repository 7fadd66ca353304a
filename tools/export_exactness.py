"""Check that exported networks equal the trained networks, for all methods and models at full width.

    python -m tools.export_exactness --records FOLDER [--models NAME ...] [--images 1000]
    python -m tools.export_exactness --records FOLDER --runs runs/a ...     trained networks, written to runs.json

There is one record per network, and the committed records are in bench/records/engine/exactness. Layer by layer, on
PyTorch's inputs, the sums and signs of the engine must equal those of PyTorch. End to end, the predictions for real
images are compared. These are 1,000 images of the CIFAR-10 test split (or digits, for networks made for them or if
CIFAR-10 is not available), and 16 enlarged images for networks of 224 pixels. If a prediction differs, the first
flipped signs and their distance from the threshold are reported. The networks of MODELS have random weights, so small
differences change a prediction. Therefore the record also states how often PyTorch disagrees with itself when it
computes without oneDNN.
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

from lcrbnn.data.datasets import DATASETS, DataSet, default_data_folder
from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.deploy.engine.runtime import Engine
from lcrbnn.deploy.export.compare_outputs import (
    PredictionMismatch,
    compare_layers,
    predict_with_torch,
    run_node_with_engine,
    trace_mismatches,
)
from lcrbnn.deploy.export.export_model import ModelInput, export_model
from lcrbnn.deploy.export.graph.torch_activations import to_channels_last
from lcrbnn.errors import InputError
from lcrbnn.nn.model_hooks import fit_output_shapes
from lcrbnn.nn.models.model_registry import MODELS, create_model
from lcrbnn.runs.record import write_record
from lcrbnn.runs.run_folder import RunFolder, find_runs
from lcrbnn.train.setup.load import load_network
from tests.deploy.export.random_networks import EXPORTABLE_METHODS, randomize_parameters

# Maximum distance between a value and a threshold at which the sign of the value may differ
MAX_THRESHOLD_DISTANCE = 1e-5
NUM_LAYER_IMAGES = 2  # number of images for the comparison layer by layer
NUM_CALIBRATION_IMAGES = 32  # number of images for the batch-norm statistics of a random network
NUM_SELF_COMPARISON_IMAGES = 50  # number of images for the comparison of PyTorch with itself
NUM_LARGE_IMAGES = 16  # number of test images for networks with images of 224 pixels


def load_images(dataset: DataSet, num_images: int, folder: Path) -> tuple[Tensor, Tensor]:
    """Return test images of a data set as inputs of a network, and calibration images from the training split."""
    loaded = dataset.load(folder)
    test, train = loaded.test.images, loaded.train.images
    if len(test) < num_images:  # the digits have only 500 test images
        test, train = np.concatenate([test, train]), train[num_images - len(test) :]
    return _normalize(dataset, test[:num_images]), _normalize(dataset, train[:NUM_CALIBRATION_IMAGES])


def _normalize(dataset: DataSet, pixels: np.ndarray) -> Tensor:
    mean, std = (torch.tensor(v).reshape(-1, 1, 1) for v in (dataset.mean, dataset.std))
    return (torch.from_numpy(pixels.astype(np.float32)) / dataset.max_pixel_value - mean) / std


def load_images_for_model(name: str, num_images: int, folder: Path) -> tuple[str, Tensor, Tensor]:
    """Return the name of the data set, test images and calibration images for a network of MODELS."""
    image_size, dataset_name = MODELS[name].image_size, "digits"
    if image_size > 8:
        try:
            dataset_name, (test, train) = (
                "cifar10",
                load_images(DATASETS["cifar10"], num_images if image_size == 32 else NUM_LARGE_IMAGES, folder),
            )
        except InputError as error:
            print(f"{error}; using digits instead", file=sys.stderr)
    if dataset_name == "digits":
        test, train = load_images(DATASETS["digits"], NUM_LARGE_IMAGES if image_size > 32 else num_images, folder)
    if test.shape[2] != image_size:
        test, train = (
            F.interpolate(x, size=image_size, mode="bilinear") for x in (test, train[: NUM_CALIBRATION_IMAGES // 2])
        )
    return dataset_name, test, train


def compare_export(net: nn.Module, model_input: ModelInput | DataSet, images: Tensor) -> dict[str, Any]:
    """Export a network, compare the engine with PyTorch, and return a row of the record."""
    start_s = time.monotonic()
    model = export_model(net, model_input, "exactness")
    layers = compare_layers(net, model, images[:NUM_LAYER_IMAGES], run_node_with_engine)
    torch_logits = predict_with_torch(net, images)
    with Engine(to_bytes(model)) as engine:
        engine_logits = engine.run(to_channels_last(images), threads=2)
    mismatches = trace_mismatches(net, model, images, torch_logits, engine_logits)
    repeated_images = images[: min(NUM_SELF_COMPARISON_IMAGES, len(images))]
    with warnings.catch_warnings(action="ignore"), torch.backends.mkldnn.flags(enabled=False):
        repeated_logits = predict_with_torch(net, repeated_images)  # the context ignores a warning about Intel GPUs
    return {
        "nodes": layers.num_nodes,
        "sums": layers.num_sums,
        "signs": layers.num_signs,
        "faults": layers.faults,
        "turned": [list(sign_mismatch) for sign_mismatch in layers.sign_mismatches],
        "apart": layers.max_relative_difference,
        "images": len(images),
        "agree": int((torch_logits.argmax(1) == engine_logits.argmax(1)).sum()),
        "within": int(
            (np.abs(torch_logits - engine_logits).max(1) <= 1e-4 * max(1.0, np.abs(torch_logits).max())).sum()
        ),
        "misses": [_describe_mismatch(mismatch) for mismatch in mismatches],
        "itself": [
            int((repeated_logits.argmax(1) == torch_logits[: len(repeated_images)].argmax(1)).sum()),
            len(repeated_images),
        ],
        "seconds": round(time.monotonic() - start_s, 1),
    }


def _describe_mismatch(mismatch: PredictionMismatch) -> dict[str, Any]:
    """Return a description of a differing prediction, and whether a value near a threshold explains the difference."""
    sign_mismatch = mismatch.first_sign_mismatch
    if sign_mismatch is None:
        return {
            "image": mismatch.image,
            "gap": mismatch.logit_gap,
            "traced": mismatch.logit_gap <= MAX_THRESHOLD_DISTANCE,
        }
    return {
        "image": mismatch.image,
        "node": sign_mismatch.node,
        "signs": sign_mismatch.num_signs,
        "distance": sign_mismatch.max_distance,
        "largest": sign_mismatch.max_magnitude,
        "traced": sign_mismatch.max_distance <= MAX_THRESHOLD_DISTANCE,
    }


def compare_random_networks(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return one row per method, for a network of MODELS with random weights."""
    dataset_name, images, calibration_images = load_images_for_model(name, args.images, args.data)
    classes, rows = MODELS[name].num_classes, {}
    model_input = ModelInput((*images.shape[2:], images.shape[1]), tuple(map(str, range(classes))))
    for method in EXPORTABLE_METHODS:
        net = create_model(name, method, num_classes=classes, in_channels=images.shape[1], image_size=images.shape[2])
        fit_output_shapes(net, images[:1])
        row = compare_export(randomize_parameters(net, calibration_images), model_input, images)
        rows[f"{method.name} 1/{method.activation_bits}"] = row
        _print_row(name, f"{method.name} 1/{method.activation_bits}", row)
    return {"data": dataset_name, "pairs": rows}


def compare_trained_networks(paths: list[Path], args: argparse.Namespace) -> dict[str, Any]:
    """Return one row per trained run."""
    rows = {}
    for run in (run for path in paths for run in find_runs(path)):
        spec, net, digest = load_network(RunFolder(run))
        images, _ = load_images(DATASETS[spec.dataset], args.images, args.data)
        row = compare_export(net.eval(), DATASETS[spec.dataset], images)
        description = {"data": spec.dataset, "model": spec.model, "method": spec.method, "bits": spec.bits}
        rows[str(run)] = description | {"epochs": spec.epochs, "checkpoint": digest[:16]} | row
        _print_row(spec.model, f"{spec.method} {spec.bits}", row)
    return {"runs": rows}


def _print_row(name: str, method: str, row: dict[str, Any]) -> None:
    num_untraced = sum(not miss["traced"] for miss in row["misses"])
    print(
        f"{name:34} {method:12} {row['agree']:5} of {row['images']:5} agree, {num_untraced} misses not traced; "
        f"{row['sums']:,} sums, {len(row['faults'])} faults; torch with itself {row['itself'][0]} of "
        f"{row['itself'][1]}; {row['seconds']} s",
        flush=True,
    )


def main() -> int:
    """Compare all networks, print a line for each, and write the records. Return 1 if one of them is not exact."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=Path, help="folder for the records")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS), metavar="NAME")
    parser.add_argument(
        "--runs",
        nargs="+",
        type=Path,
        default=[],
        metavar="RUN",
        help="folders of runs that are compared instead of the networks in MODELS",
    )
    parser.add_argument("--images", type=int, default=1000, help="number of test images for networks below 224 pixels")
    parser.add_argument("--data", type=Path, default=default_data_folder(), help="folder of the data sets")
    args = parser.parse_args()
    jobs = {name: partial(compare_random_networks, name, args) for name in args.models}
    if args.runs:
        jobs = {"runs": partial(compare_trained_networks, args.runs, args)}
    is_exact = True
    for name, job in jobs.items():
        figures = job()
        rows = (figures.get("pairs") or figures["runs"]).values()
        is_exact &= not any(row["faults"] or any(not miss["traced"] for miss in row["misses"]) for row in rows)
        if args.records:
            settings = {
                "network": name,
                "images": args.images,
                "layer_images": NUM_LAYER_IMAGES,
                "edge": MAX_THRESHOLD_DISTANCE,
            }
            write_record(args.records / f"{name}.json", "exactness", settings, figures)
    return 0 if is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
