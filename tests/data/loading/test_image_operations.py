"""AugMix, RandAugment and cutout: compared with Pillow and with loops over pixels, and in a training step."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch._dynamo
from PIL import Image, ImageOps
from torch import Tensor

from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.loading import image_operations
from lcrbnn.data.loading.augment import AUGMENTATIONS, crop_flip, draw_augmentation
from lcrbnn.data.loading.batches import InMemoryBatches
from lcrbnn.data.loading.image_operations import (
    AFFINE_MAPS,
    COLOR_TABLES,
    NUM_AUGMIX_NUMBERS,
    NUM_CUTOUT_NUMBERS,
    OPERATIONS,
    apply_affine_maps,
    apply_operations,
    augmix,
    cutout,
    rand_augment,
)
from lcrbnn.data.split import Split
from lcrbnn.errors import InputError
from lcrbnn.train.eager_step import EagerStep
from lcrbnn.train.fast.compiled_step import CompiledStep
from lcrbnn.train.objective import compute_objective, jensen_shannon_divergence
from lcrbnn.train.setup.build import build_training_parts
from lcrbnn.train.setup.spec import TrainSpec
from tests.train.helpers import train_small_run

CPU = torch.device("cpu")


def make_images(count: int, image_size: int = 32) -> Tensor:
    """Return smooth images of low contrast, which interpolation and contrast operations change; one is constant."""
    generator = torch.Generator().manual_seed(3)
    coarse = torch.rand(count, 3, image_size // 4, image_size // 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(image_size, image_size), mode="bicubic").clamp(0, 1)
    images = (40 + 170 * smooth).to(torch.uint8)
    images[0] = 77
    return images


def apply_one_operation(images: Tensor, name: str, strength: float, is_negative: bool) -> Tensor:
    n = len(images)
    operation_numbers = torch.full((n,), OPERATIONS.index(name))
    return apply_operations(images, operation_numbers, torch.full((n,), strength), torch.full((n,), is_negative))


def apply_with_pillow(image: np.ndarray, name: str, strength: float, is_negative: bool) -> np.ndarray:
    """Apply an operation with Pillow, as in the published code of AugMix."""
    pil_image = Image.fromarray(image.transpose(1, 2, 0))
    h, w = image.shape[1:]
    sign = -1 if is_negative else 1
    shear = sign * strength * 0.3 / 10
    affine = {
        "shear-x": (1, shear, 0, 0, 1, 0),
        "shear-y": (1, 0, 0, shear, 1, 0),
        "translate-x": (1, 0, sign * int(strength * (w / 3) / 10), 0, 1, 0),
        "translate-y": (1, 0, 0, 0, 1, sign * int(strength * (h / 3) / 10)),
    }
    if name in affine:
        changed = pil_image.transform((w, h), Image.Transform.AFFINE, affine[name], Image.Resampling.BILINEAR)
    elif name == "rotate":
        changed = pil_image.rotate(-sign * int(strength * 3), Image.Resampling.BILINEAR)
    else:
        changed = {
            "identity": lambda: pil_image,
            "autocontrast": lambda: ImageOps.autocontrast(pil_image),
            "equalize": lambda: ImageOps.equalize(pil_image),
            "posterize": lambda: ImageOps.posterize(pil_image, 4 - int(strength * 4 / 10)),
            "solarize": lambda: ImageOps.solarize(pil_image, 256 - int(strength * 256 / 10)),
        }[name]()
    return np.asarray(changed).transpose(2, 0, 1)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("strength", [0.1, 2.9, 7.3])
@pytest.mark.parametrize("is_negative", [False, True])
def test_operations_match_pillow_except_for_rounding(name: str, strength: float, is_negative: bool) -> None:
    images = make_images(6)
    actual = apply_one_operation(images, name, strength, is_negative).numpy().astype(int)
    expected = np.stack([apply_with_pillow(image, name, strength, is_negative) for image in images.numpy()]).astype(int)
    difference = np.abs(actual - expected)
    if name in ("identity", "equalize", "posterize", "solarize", "translate-x", "translate-y"):
        assert difference.max() == 0
    elif name == "autocontrast":
        assert difference.max() <= 1
    else:  # at the border, rounding decides whether a pixel is black
        assert np.mean(difference > 1) < 0.002
        assert difference.mean() < 0.6


def warp_pixel_by_pixel(image: np.ndarray, coefficients: list[float]) -> np.ndarray:
    """Warp an image pixel by pixel."""
    a, b, c, d, e, f = coefficients
    channels, h, w = image.shape
    warped = np.zeros_like(image)
    for y in range(h):
        for x in range(w):
            column, row = a * (x + 0.5) + b * (y + 0.5) + c, d * (x + 0.5) + e * (y + 0.5) + f
            if not (0 <= column < w and 0 <= row < h):
                continue
            left, top = math.floor(column - 0.5), math.floor(row - 0.5)
            for k in range(channels):
                value = 0.0
                for i, weight_y in ((top, top + 1 - (row - 0.5)), (top + 1, row - 0.5 - top)):
                    for j, weight_x in ((left, left + 1 - (column - 0.5)), (left + 1, column - 0.5 - left)):
                        value += weight_y * weight_x * image[k, min(max(i, 0), h - 1), min(max(j, 0), w - 1)]
                warped[k, y, x] = math.floor(value + 0.5)
    return warped


def test_affine_maps_match_a_loop_over_pixels() -> None:
    images = make_images(12, 12)
    maps = torch.tensor([1.0, 0, 0, 0, 1, 0]) + torch.randn(12, 6) * torch.tensor([0.2, 0.2, 2, 0.2, 0.2, 2])
    actual = apply_affine_maps(images, maps).numpy().astype(int)
    expected = np.stack([warp_pixel_by_pixel(*pair) for pair in zip(images.numpy(), maps.tolist(), strict=True)])
    difference = np.abs(actual - expected)
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.01  # halves can be rounded in the other direction


def augmix_one_image(image: Tensor, random_numbers: list[float]) -> np.ndarray:
    """Apply AugMix to one image, chain by chain."""
    mixture_weight, chain_numbers = random_numbers[0], random_numbers[1:]
    chains, weights = [], []
    for i in range(3):
        weight, depth, *choices = chain_numbers[11 * i : 11 * (i + 1)]
        weights.append(-math.log(1 - weight))
        changed = image[None]
        for step in range(1 + int(3 * depth)):
            kind, strength, sign = choices[3 * step : 3 * step + 3]
            name = [*AFFINE_MAPS, *COLOR_TABLES][int(kind * 9)]
            changed = apply_one_operation(changed, name, 0.1 + 2.9 * strength, sign >= 0.5)
        chains.append(changed[0].numpy().astype(np.float64))
    mixed = sum(w / sum(weights) * chain for w, chain in zip(weights, chains, strict=True))
    return (1 - mixture_weight) * image.numpy() + mixture_weight * mixed


def test_augmix_matches_a_loop_over_images() -> None:
    images = make_images(40)
    numbers = draw_augmentation(2, 5, 40, NUM_AUGMIX_NUMBERS).random_numbers
    mixed = augmix(images, numbers)
    assert mixed.dtype == torch.float32
    for image, image_numbers, mixed_image in zip(images, numbers.tolist(), mixed.numpy(), strict=True):
        assert np.abs(mixed_image - augmix_one_image(image, image_numbers)).max() < 1e-3


def test_rand_augment_applies_two_operations() -> None:
    images = make_images(10)
    numbers = draw_augmentation(0, 0, 10, 6).random_numbers
    augmented = rand_augment(images, numbers)
    for image, image_numbers, augmented_image in zip(images, numbers.tolist(), augmented, strict=True):
        expected = image[None]
        for kind, strength, sign in (image_numbers[:3], image_numbers[3:]):
            expected = apply_one_operation(expected, OPERATIONS[int(kind * 10)], 10 * strength, sign >= 0.5)
        assert torch.equal(augmented_image, expected[0])


def test_cutout_is_half_as_wide_as_the_image_and_clipped_at_its_border() -> None:
    images = torch.full((300, 3, 8, 12), 9, dtype=torch.uint8)
    numbers = draw_augmentation(0, 1, 300, NUM_CUTOUT_NUMBERS).random_numbers
    augmented = cutout(images, numbers)
    for (_, center_y, center_x), image in zip(numbers.tolist(), augmented, strict=True):
        expected = np.full((8, 12), 9)
        top, left = int(center_y * 8) - 2, int(center_x * 12) - 3
        for y in range(max(top, 0), min(top + 4, 8)):
            for x in range(max(left, 0), min(left + 6, 12)):
                expected[y, x] = 0
        assert all(np.array_equal(channel, expected) for channel in image.numpy())


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_identity_draws_do_not_change_images(name: str) -> None:
    images, augmentation = make_images(5), AUGMENTATIONS[name]
    draws = draw_augmentation(0, 0, 5, augmentation.num_random_numbers)
    draws.set_identity()
    assert torch.equal(
        augmentation.apply(images, draws).float(), images.float().repeat(augmentation.num_views, 1, 1, 1)
    )


def test_augmix_views_are_the_crop_and_two_mixtures_of_it() -> None:
    images = make_images(7)
    draws = draw_augmentation(1, 0, 7, AUGMENTATIONS["augmix-views"].num_random_numbers)
    crops = crop_flip(images, draws)
    first, second = (augmix(crops, part) for part in draws.random_numbers.chunk(2, 1))
    assert torch.equal(AUGMENTATIONS["augmix-views"].apply(images, draws), torch.cat([crops.float(), first, second]))
    assert not torch.equal(first, second)


def test_crops_do_not_depend_on_the_number_of_random_numbers() -> None:
    for name, augmentation in AUGMENTATIONS.items():
        assert all(
            torch.equal(a, b)
            for a, b in zip(
                draw_augmentation(3, 4, 9)[:3],
                draw_augmentation(3, 4, 9, augmentation.num_random_numbers)[:3],
                strict=True,
            )
        ), name


def test_jensen_shannon_matches_numpy() -> None:
    logits = torch.randn(3, 4, 5)
    probabilities = logits.double().softmax(2).numpy()
    mean = probabilities.mean(0)
    expected = np.mean([(p * np.log(p / mean)).sum(1).mean() for p in probabilities])
    assert jensen_shannon_divergence(logits).item() == pytest.approx(expected, rel=1e-5)
    assert jensen_shannon_divergence(logits[:1].expand(3, -1, -1)).item() == pytest.approx(0, abs=1e-6)


SPEC = TrainSpec(
    dataset="cifar10",
    model="resnet8-double",
    augmentation="augmix-views",
    consistency_weight=12.0,
    batch_size=16,
    lr=0.1,
    drop_last=True,
)


def make_train_batches() -> InMemoryBatches:
    return InMemoryBatches(Split(make_images(40, 16).numpy(), np.arange(40) % 10), DATASETS["cifar10"], CPU)


def test_the_loss_of_views_is_cross_entropy_plus_divergence() -> None:
    parts = build_training_parts(SPEC, CPU)
    batch = next(make_train_batches().train_batches(0, 0, 16, SPEC.augmentation, 0, 2))
    assert len(batch.images) == 3 * len(batch.labels) == 48
    parts.model.eval()  # batch statistics would couple the views
    outcome = compute_objective(SPEC, parts, batch.images, batch.labels, 0.0)
    views = parts.model(batch.images).unflatten(0, (3, 16))
    cross_entropy = torch.nn.functional.cross_entropy(views[0], batch.labels)
    assert outcome.loss.item() == pytest.approx(
        (cross_entropy + 12 * jensen_shannon_divergence(views)).item(), rel=1e-5
    )
    assert outcome.sums[2] == (views[0].argmax(1) == batch.labels).sum()
    assert outcome.sums[3] == 16


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # raised inside torch.compile
def test_the_compiled_step_matches_the_eager_step_with_augmix(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    # One operation per chain, because the compilation of three takes twice as long.
    monkeypatch.setattr(image_operations, "MAX_CHAIN_OPERATIONS", 1)
    augmentation = AUGMENTATIONS[SPEC.augmentation]._replace(num_random_numbers=2 * (1 + 3 * 5))
    monkeypatch.setitem(AUGMENTATIONS, SPEC.augmentation, augmentation)
    results = []
    for step_class in (EagerStep, CompiledStep):
        parts = build_training_parts(SPEC, CPU)
        step = step_class(SPEC, parts, make_train_batches())
        step.begin_epoch(0, 0, 0.0)
        step.run_step()
        step.check_finite()
        results.append((step.sums, torch.cat([p.grad.flatten() for p in parts.parameter_names])))
    (eager_sums, eager_gradients), (compiled_sums, compiled_gradients) = results
    assert compiled_sums.tolist() == pytest.approx(eager_sums.tolist(), rel=1e-5)
    assert (eager_gradients - compiled_gradients).norm() < 1e-4 * eager_gradients.norm()


def test_incompatible_augmentation_settings_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="consistency_weight needs several views of an image: "):
        TrainSpec(consistency_weight=1.0, augmentation="augmix")
    with pytest.raises(InputError, match="augmentation augmix needs pixels with 256 levels; digits has 17"):
        train_small_run(tmp_path / "run", TrainSpec(augmentation="augmix"))
    assert not (tmp_path / "run").exists()


def test_only_cutout_works_for_any_number_of_levels() -> None:
    assert AUGMENTATIONS["cutout"].required_levels is None
    assert AUGMENTATIONS["randaugment"].required_levels == AUGMENTATIONS["augmix"].required_levels == 256
