"""What a file of the zoo gets right, and its answers to drawn images, by which any machine knows it again."""

from __future__ import annotations

from copy import deepcopy
from itertools import islice

import numpy as np
import torch

from lcrbnn.data import DataSet
from lcrbnn.models import Network
from lcrbnn.train.batches import EVALUATION, Batches
from lcrbnn.train.captured import Answers
from lcrbnn.train.dataset import data_row
from lcrbnn.train.evaluate import Accuracy, score
from lcrbnn.train.numerics import find_device, numerics
from lcrbnn.train.options import Options
from lcrbnn.zoo.file import Small

DRAWN = 8  # images


def read_test(small: Small, options: Options, most: int | None = None) -> Accuracy:
    """Read the test images (or the first `most` thousands) in float32, whatever the network was trained in."""
    row, device = data_row(small.spec), find_device(options.device)
    spec = small.spec.but(precision="float32")
    with numerics(spec):
        test = Batches(row.load(options.data_folder).test, row, device)
        return score(Answers(small.model.to(device), spec), islice(test.plain(EVALUATION), most))


@torch.no_grad()
def drawn_logits(model: Network, row: DataSet) -> list[list[float]]:
    """The answers to images of drawn pixels, in float64: so exact that no sign depends on the machine."""
    shape = (DRAWN, row.channels, row.image, row.image)
    pixels = np.random.default_rng(0).integers(0, row.top + 1, shape, np.uint8)
    twin = deepcopy(model).cpu().double().eval()
    mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (row.mean, row.std))
    images = (torch.from_numpy(pixels).double() / row.top - mean) / std
    return [[round(v, 9) for v in logits] for logits in twin(images).tolist()]
