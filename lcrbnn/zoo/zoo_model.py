"""Networks of the zoo as models that can be evaluated, with loading, test accuracy and outputs for probe images."""

from __future__ import annotations

from copy import deepcopy
from itertools import islice

import numpy as np
import torch
from torch import nn

from lcrbnn.data.datasets import DataSet
from lcrbnn.data.loading.batches import MAX_EVALUATION_BATCH_SIZE, InMemoryBatches
from lcrbnn.device import deterministic_run, find_device
from lcrbnn.evaluation.evaluate import EvaluatedModel
from lcrbnn.train.cuda_graph import GraphPredictor
from lcrbnn.train.setup.dataset import find_dataset
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.validation import Accuracy, score_batches
from lcrbnn.zoo.zoo_file import ZooNetwork, load_member
from lcrbnn.zoo.zoo_index import ZOO_PREFIX, find_member

EVALUATION_PRECISION = "float32"  # precision of all listed accuracies; the precision of the training does not matter
NUM_PROBE_IMAGES = 8


def evaluate_zoo_file(network: ZooNetwork, options: RunOptions, max_batches: int | None = None) -> Accuracy:
    """Return the accuracy in float32 on all test images, or on their first `max_batches` batches.

    The precision of the training has no influence on this.
    """
    dataset, device = find_dataset(network.spec), find_device(options.device)
    spec = network.spec.replace(precision=EVALUATION_PRECISION)
    with deterministic_run(spec.deterministic, spec.precision):
        test = InMemoryBatches(dataset.load(options.data_folder).test, dataset, device)
        return score_batches(
            GraphPredictor(network.model.to(device), spec),
            islice(test.evaluation_batches(MAX_EVALUATION_BATCH_SIZE), max_batches),
        )


@torch.no_grad()
def compute_probe_logits(model: nn.Module, dataset: DataSet) -> list[list[float]]:
    """Return the logits of images with random pixels, in float64, so that no sign depends on the machine."""
    shape = (NUM_PROBE_IMAGES, dataset.channels, dataset.image_size, dataset.image_size)
    pixels = np.random.default_rng(0).integers(0, dataset.max_pixel_value + 1, shape, np.uint8)
    float64_model = deepcopy(model).cpu().double().eval()
    mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (dataset.mean, dataset.std))
    images = (torch.from_numpy(pixels).double() / dataset.max_pixel_value - mean) / std
    return [[round(v, 9) for v in logits] for logits in float64_model(images).tolist()]


def load_zoo_model(name: str) -> EvaluatedModel:
    """Return a zoo network that can be evaluated.

    `checkpoint_sha256` is the digest of the zoo file, because its weights are rounded copies of the weights of the run.
    """
    member = find_member(name)
    network = load_member(member)
    record_settings = {
        "zoo": name,
        "spec": network.spec.to_dict(),
        "precision": EVALUATION_PRECISION,
        "checkpoint_sha256": member.sha256,
    }
    return EvaluatedModel(
        f"{ZOO_PREFIX}{name}",
        network.spec.replace(precision=EVALUATION_PRECISION),
        network.model,
        find_dataset(network.spec),
        record_settings,
    )
