"""Accuracy under noise: validation images with Gaussian noise on their pixels, the same noise for every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from lcrbnn.data import DATASETS
from lcrbnn.errors import choose
from lcrbnn.train.augment import normalize
from lcrbnn.train.batches import Batch, Batches
from lcrbnn.train.captured import Answers
from lcrbnn.train.evaluate import score
from lcrbnn.train.ranks import ALONE, Ranks
from lcrbnn.train.seeds import generator

DEVIATIONS = (0.04, 0.08, 0.12)  # of the noise, where black is 0 and white 1
NOISE_SEED = 0  # not that of a run
CHUNK = 1000  # images that share a generator


def noisy_accuracy(
    answers: Answers, batches: Batches, between: Callable[[], None] = lambda: None, ranks: Ranks = ALONE
) -> dict[str, float]:
    """Percent of the images whose label is the first answer, for each of DEVIATIONS; `between` as for `accuracy`."""
    top = choose(DATASETS, answers.spec.data, "data set").top
    return {
        f"{deviation:g}": round(score(answers, noisy(batches, deviation, top, ranks), between, ranks).top1, 4)
        for deviation in DEVIATIONS
    }


def noisy(batches: Batches, deviation: float, top: int, ranks: Ranks = ALONE) -> Iterator[Batch]:
    """All images once, in their own order, with noise, clipped to what a pixel can be, then normalised.

    Noise is drawn on the CPU and depends on the place of an image in its split and on the deviation alone.
    """
    for start in range(ranks.rank * CHUNK, len(batches), CHUNK * ranks.size):
        rows = torch.arange(start, min(start + CHUNK, len(batches)), device=batches.images.device)
        pixels = batches.images[rows].float() / top
        source = generator(NOISE_SEED, "noise", f"{deviation:g}", start)
        drawn = torch.randn((CHUNK, *pixels.shape[1:]), generator=source)[: len(rows)].to(pixels.device)
        images = (pixels + deviation * drawn).clamp(0, 1) * top
        yield Batch(normalize(images, batches.scale, batches.shift), batches.labels[rows], rows)
