"""Measure accuracy, accuracy under noise, sigma ratios and the gradient ratio of LCR during training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.data.loading.augment import normalize
from lcrbnn.data.loading.batches import Batch, BatchSource, choose_evaluation_batch_size
from lcrbnn.device import autocast_precision, make_generator
from lcrbnn.errors import InputError
from lcrbnn.lcr.retention import Retention
from lcrbnn.lcr.second_pass import freeze_running_statistics
from lcrbnn.nn.model_hooks import eval_mode
from lcrbnn.nn.models.model_registry import FULL_PRECISION
from lcrbnn.nn.models.network import Network
from lcrbnn.train.cuda_graph import GraphPredictor
from lcrbnn.train.distributed.ranks import SINGLE_PROCESS, Ranks
from lcrbnn.train.objective import LOSS_SCALES, compute_non_lcr_loss
from lcrbnn.train.setup.build import TrainingParts
from lcrbnn.train.setup.build_network import build_lcr_variant
from lcrbnn.train.setup.spec import TrainSpec

MIN_CLASSES_FOR_TOP5 = 6  # minimum number of classes for which top-5 accuracy is measured


class Accuracy(NamedTuple):
    """Top-1 and top-5 accuracy in percent, and the mean cross-entropy of some images.

    Test results in records have these field names.
    """

    top1: float
    top5: float | None
    loss: float
    images: int  # number of evaluated images


def compute_accuracy(
    predictor: GraphPredictor,
    batches: BatchSource,
    after_batch: Callable[[], None] = lambda: None,
    ranks: Ranks = SINGLE_PROCESS,
) -> Accuracy:
    """Return the accuracy of a network on all images of a split, in evaluation mode.

    `after_batch` is called after each batch. It may raise an exception to stop. With several processes, each of them
    evaluates a part of the images, and all of them get the total.
    """
    size = min(choose_evaluation_batch_size(batches.dataset.image_size), -(-len(batches) // ranks.size))
    return score_batches(predictor, batches.evaluation_batches(size, ranks.rank, ranks.size), after_batch, ranks)


@torch.no_grad()
def score_batches(
    predictor: GraphPredictor,
    batches: Iterable[Batch],
    after_batch: Callable[[], None] = lambda: None,
    ranks: Ranks = SINGLE_PROCESS,
) -> Accuracy:
    """Return the accuracy on these batches, in the same form as `compute_accuracy`."""
    sums, n, has_top5 = torch.zeros(3, dtype=torch.float64), 0, False
    with eval_mode(predictor.model):
        for batch in batches:
            logits = predictor(batch.images)
            has_top5 = logits.shape[1] >= MIN_CLASSES_FOR_TOP5
            is_correct = logits.topk(5 if has_top5 else 1, 1).indices == batch.labels[:, None]
            loss = F.cross_entropy(logits, batch.labels, reduction="sum")
            batch_sums = torch.stack([is_correct[:, 0].sum().double(), is_correct.sum().double(), loss.double()])
            sums, n = sums.to(batch_sums.device) + batch_sums, n + len(batch.labels)
            after_batch()
    gathered = ranks.all_gather_object((sums.tolist(), n, has_top5))
    top1_sum, top5_sum, loss_sum = (sum(rank_sums[i] for rank_sums, _, _ in gathered) for i in range(3))
    # A process may have no images. Then it does not know the number of classes.
    n, has_top5 = sum(rank_n for _, rank_n, _ in gathered), any(rank_has_top5 for _, _, rank_has_top5 in gathered)
    return Accuracy(100 * top1_sum / n, 100 * top5_sum / n if has_top5 else None, loss_sum / n, n)


class LcrMeasurement(NamedTuple):
    """Sigma ratios (sigma_B / sigma_F of each retention matrix), and the gradient ratio of LCR.

    The gradient ratio is the norm of the LCR gradient at lambda = 1, divided by the norm of the task gradient.
    """

    sigma_ratios: list[float] | None
    gradient_ratio: float | None


def measure_lcr(spec: TrainSpec, parts: TrainingParts, batches: BatchSource) -> LcrMeasurement:
    """Return a measurement of LCR on a sample of a split. It runs in training mode but changes nothing.

    The sigma ratios are None if LCR cannot be measured: in a full-precision network, or if the reference is missing.
    The gradient ratio is None if the run trains without LCR.
    """
    # number of images per forward pass
    count = spec.batch_size // (batches.world_size * spec.gradient_accumulation_steps)
    batch = batches.read_sample(min(count, len(batches)))
    batch = batch._replace(images=normalize(batch.images, batches.scale, batches.shift))
    with freeze_running_statistics(parts.model):
        measure = _measure_ratios_and_gradients if spec.uses_lcr else _measure_sigma_ratios
        return measure(spec, parts, batch)


@torch.no_grad()
def _measure_sigma_ratios(spec: TrainSpec, parts: TrainingParts, batch: Batch) -> LcrMeasurement:
    if spec.method == FULL_PRECISION:
        return LcrMeasurement(None, None)
    variant = build_lcr_variant(spec).replace(weight=1.0, quantization_error_weight=0.0, learnable_scale=False)
    teacher = parts.teacher if variant.reference == "teacher" else None
    try:
        retention = Retention(
            parts.model,
            variant,
            blocks=parts.lcr_modules.blocks,
            layers=parts.lcr_modules.layers,
            teacher=teacher,
            seed=spec.seed,
            check_overflow=False,
        )
    except InputError:
        return LcrMeasurement(None, None)
    try:
        with autocast_precision(spec.precision, batch.images.device):
            parts.model(batch.images)
            try:
                retention.loss()
            except InputError:
                if isinstance(parts.model, Network):
                    raise
                return LcrMeasurement(None, None)  # the automatic choice of blocks does not suit this network
    finally:
        retention.close()
    return LcrMeasurement(_round_ratios(retention), None)


def _measure_ratios_and_gradients(spec: TrainSpec, parts: TrainingParts, batch: Batch) -> LcrMeasurement:
    assert parts.retention is not None
    with autocast_precision(spec.precision, batch.images.device):
        logits = parts.model(batch.images)
        task_loss = compute_non_lcr_loss(spec, parts, batch.images, batch.labels, logits)
        lcr_loss = parts.retention.loss(1.0)
    parameters = list(parts.model.parameters())

    def compute_norm(loss: Tensor, retain_graph: bool) -> float:
        loss = loss * LOSS_SCALES.get(spec.precision, 1.0)
        gradients = torch.autograd.grad(loss, parameters, retain_graph=retain_graph, allow_unused=True)
        return torch.nn.utils.get_total_norm([g for g in gradients if g is not None]).item()

    ratio = compute_norm(lcr_loss, True) / max(compute_norm(task_loss, False), 1e-30)
    return LcrMeasurement(_round_ratios(parts.retention), ratio)


def _round_ratios(retention: Retention) -> list[float]:
    assert retention.sigma_ratios is not None
    return [round(r, 6) for r in retention.sigma_ratios.tolist()]


# Standard deviations of the noise, in units of pixels from 0 (black) to 1 (white)
NOISE_DEVIATIONS = (0.04, 0.08, 0.12)
NOISE_SEED = 0  # seed of the noise, the same for all runs, so that all runs are evaluated on the same images


def compute_noisy_accuracy(
    predictor: GraphPredictor,
    batches: BatchSource,
    after_batch: Callable[[], None] = lambda: None,
    ranks: Ranks = SINGLE_PROCESS,
) -> dict[str, float]:
    """Return the top-1 accuracy in percent for each of NOISE_DEVIATIONS.

    Everything else is as in `compute_accuracy`.
    """
    top1 = {}
    for deviation in NOISE_DEVIATIONS:
        noisy_batches = iter_noisy_batches(batches, deviation, batches.dataset.max_pixel_value, ranks)
        top1[f"{deviation:g}"] = round(score_batches(predictor, noisy_batches, after_batch, ranks).top1, 4)
    return top1


def iter_noisy_batches(
    batches: BatchSource, deviation: float, max_pixel_value: int, ranks: Ranks = SINGLE_PROCESS
) -> Iterator[Batch]:
    """Yield all images in order, with Gaussian noise added. They are clipped to the range of a pixel and normalised.

    The noise is drawn on the CPU. It only depends on the position of an image in its split, its size and the deviation.
    """
    count = choose_evaluation_batch_size(batches.dataset.image_size)
    for i, batch in enumerate(batches.raw_batches(count, ranks.rank, ranks.size)):
        start = (i * ranks.size + ranks.rank) * count
        pixels = batch.images.float() / max_pixel_value
        generator = make_generator(NOISE_SEED, "noise", f"{deviation:g}", start)
        noise = torch.randn((count, *pixels.shape[1:]), generator=generator)[: len(pixels)].to(pixels.device)
        images = (pixels + deviation * noise).clamp(0, 1) * max_pixel_value
        yield batch._replace(images=normalize(images, batches.scale, batches.shift))
