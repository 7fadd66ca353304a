"""Measure each layer of a network, and return latent-weight statistics and activation correlations as JSON values."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lcrbnn.data.image_files.picture_split import PictureSplit
from lcrbnn.data.loading.augment import normalize
from lcrbnn.data.loading.batches import InMemoryBatches
from lcrbnn.device import find_device
from lcrbnn.evaluation.analysis.latent_weights import WeightSpread, compute_spread, sample_weights
from lcrbnn.evaluation.analysis.map_similarity import (
    Similarity,
    capture_layer_maps,
    expected_correlation,
    mean_similarity,
)
from lcrbnn.train.setup.dataset import BrokenImages, find_dataset, open_splits
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec

# default number of images whose activations are compared; they are the first training images, not augmented
NUM_IMAGES = 128
SIGNIFICANT_DIGITS = 5


def load_first_images(
    spec: TrainSpec,
    options: RunOptions,
    num_images: int = NUM_IMAGES,
    broken_images: BrokenImages | None = None,
    class_names: tuple[str, ...] = (),
    picture_split: PictureSplit | None = None,
) -> Tensor:
    """Return the first training images of a run's data set, normalized. No test images are used.

    For image folders, which are ordered by class, evenly spaced images are used. `broken_images` are the unreadable
    images if they are known. With `class_names`, images of other classes raise InputError. With a `picture_split`,
    other images raise InputError.
    """
    dataset, device = find_dataset(spec, class_names, picture_split), find_device(options.device)
    if dataset.find_image_folder is None:
        return next(
            InMemoryBatches(dataset.load(options.data_folder).train, dataset, device).evaluation_batches(num_images)
        ).images
    with ExitStack() as stack:
        access = replace(options.data_access, workers=0, cache_images="no")
        train = open_splits(
            [spec.replace(train_split="train+valid")],
            access,
            device,
            stack,
            broken_images,
            class_names=class_names,
            picture_split=picture_split,
        )[0].train
        return normalize(train.read_sample(min(num_images, len(train))).images, train.scale, train.shift)


def measure_layers(model: nn.Module, images: Tensor) -> dict[str, Any]:
    """Return figures of the latent weights and of the activations of each layer for a batch of images."""
    model = model.to(images.device)
    with torch.no_grad():
        weights = {name: _round_fields(compute_spread(w)) for name, w in sample_weights(model).items()}
        maps = {
            name: {
                "size": layer_maps.real.shape[1],
                "chance": float(f"{expected_correlation(layer_maps.real.shape[1]):.{SIGNIFICANT_DIGITS}g}"),
                "real": _round_fields(mean_similarity(layer_maps.real)),
                **({} if layer_maps.binary is None else {"binary": _round_fields(mean_similarity(layer_maps.binary))}),
            }
            for name, layer_maps in capture_layer_maps(model, images).items()
        }
    return {"images": len(images), "weights": weights, "activations": maps}


def _round_fields(statistics: Similarity | WeightSpread) -> dict[str, Any]:
    return {
        k: float(f"{v:.{SIGNIFICANT_DIGITS}g}") if isinstance(v, float) else v for k, v in statistics._asdict().items()
    }
