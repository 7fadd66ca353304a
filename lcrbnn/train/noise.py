"""Accuracy under noise: validation images with Gaussian noise on their pixels, the same noise for every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from lcrbnn.train.augment import normalize
from lcrbnn.train.batches import Batch, Source, evaluation_batch
from lcrbnn.train.captured import Answers
from lcrbnn.train.evaluate import score
from lcrbnn.train.ranks import ALONE, Ranks
from lcrbnn.train.seeds import generator

DEVIATIONS = (0.04, 0.08, 0.12)  # of the noise, where black is 0 and white 1
NOISE_SEED = 0  # not that of a run


def noisy_accuracy(
    answers: Answers, batches: Source, between: Callable[[], None] = lambda: None, ranks: Ranks = ALONE
) -> dict[str, float]:
    """Percent of the images whose label is the first answer, for each of DEVIATIONS; `between` as for `accuracy`."""
    top = batches.row.top
    return {
        f"{deviation:g}": round(score(answers, noisy(batches, deviation, top, ranks), between, ranks).top1, 4)
        for deviation in DEVIATIONS
    }


def noisy(batches: Source, deviation: float, top: int, ranks: Ranks = ALONE) -> Iterator[Batch]:
    """All images once, in their own order, with noise, clipped to what a pixel can be, then normalised.

    Noise is drawn on the CPU, and depends on the place of an image in its split, its size and the deviation alone.
    """
    count = evaluation_batch(batches.row.image)
    for number, batch in enumerate(batches.raw(count, ranks.rank, ranks.size)):
        start = (number * ranks.size + ranks.rank) * count
        pixels = batch.images.float() / top
        source = generator(NOISE_SEED, "noise", f"{deviation:g}", start)
        drawn = torch.randn((count, *pixels.shape[1:]), generator=source)[: len(pixels)].to(pixels.device)
        images = (pixels + deviation * drawn).clamp(0, 1) * top
        yield batch._replace(images=normalize(images, batches.scale, batches.shift))
