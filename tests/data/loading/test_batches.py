"""Order, augmentation and size of the batches of a split in memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.loading.augment import (
    AUGMENTATIONS,
    CROP_PADDING,
    AugmentationDraws,
    crop_flip,
    draw_augmentation,
    normalize,
)
from lcrbnn.data.loading.batches import Batch, InMemoryBatches
from lcrbnn.data.split import Split
from lcrbnn.errors import InputError
from lcrbnn.train.setup.spec import AUGMENTATION_CHOICES

CPU = torch.device("cpu")
CIFAR10 = DATASETS["cifar10"]


def make_random_split(count: int, shape: tuple[int, int, int] = (3, 6, 6)) -> Split:
    rng = np.random.default_rng(count)
    return Split(rng.integers(0, 256, (count, *shape), np.uint8), rng.integers(0, 10, count))


def make_batches(count: int) -> InMemoryBatches:
    return InMemoryBatches(make_random_split(count), CIFAR10, CPU)


def list_epoch(
    batches: InMemoryBatches,
    seed: int = 0,
    epoch: int = 0,
    batch_size: int = 7,
    augmentation: str = "standard",
    drop_last: bool = False,
) -> list[Batch]:
    return list(
        batches.train_batches(seed, epoch, batch_size, augmentation, 0, batches.count_steps(batch_size, drop_last))
    )


def are_equal(batches: list[Batch], other_batches: list[Batch]) -> bool:
    """Return whether all tensors are bitwise equal."""
    return len(batches) == len(other_batches) and all(
        torch.equal(a, b)
        for first, second in zip(batches, other_batches, strict=True)
        for a, b in zip(first, second, strict=True)
    )


def concatenate(batches: list[Batch]) -> Batch:
    return Batch(*(torch.cat(parts) for parts in zip(*batches, strict=True)))


def crop_images_one_by_one(images: np.ndarray, draws: AugmentationDraws) -> np.ndarray:
    """Pad, crop and mirror one image after another."""
    h, w = images.shape[2:]
    crops = []
    for image, row_offset, column_offset, is_mirrored in zip(images, *(d.tolist() for d in draws[:3]), strict=True):
        window = np.pad(image, ((0, 0), (4, 4), (4, 4)))[
            :, row_offset : row_offset + h, column_offset : column_offset + w
        ]
        crops.append(window[:, :, ::-1] if is_mirrored else window)
    return np.stack(crops)


# Augmentation
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (3, 5, 9), (2, 9, 5), (1, 1, 3)])
def test_crop_flip_matches_a_loop_over_images(shape: tuple[int, int, int]) -> None:
    images = make_random_split(200, shape).images
    draws = draw_augmentation(1, 2, len(images))
    crops = crop_flip(torch.from_numpy(images), draws)
    assert crops.dtype == torch.uint8
    assert np.array_equal(crops.numpy(), crop_images_one_by_one(images, draws))


def test_crop_flip_matches_the_loop_for_all_offsets() -> None:
    row_offsets, column_offsets, is_mirrored = (
        t.flatten() for t in torch.meshgrid(*map(torch.arange, (9, 9, 2)), indexing="ij")
    )
    draws = AugmentationDraws(row_offsets, column_offsets, is_mirrored.bool(), torch.zeros(len(row_offsets), 0))
    images = make_random_split(len(row_offsets), (2, 6, 7)).images
    assert np.array_equal(crop_flip(torch.from_numpy(images), draws).numpy(), crop_images_one_by_one(images, draws))


def test_the_centre_crop_is_the_image() -> None:
    images = torch.from_numpy(make_random_split(5).images)
    center_offsets = torch.full((5,), CROP_PADDING)
    no_numbers = torch.zeros(5, 0)
    assert torch.equal(
        crop_flip(images, AugmentationDraws(center_offsets, center_offsets, torch.zeros(5).bool(), no_numbers)), images
    )
    assert torch.equal(
        crop_flip(images, AugmentationDraws(center_offsets, center_offsets, torch.ones(5).bool(), no_numbers)),
        images.flip(3),
    )


def test_offsets_and_mirroring_are_uniform_and_independent() -> None:
    count = 90_000
    draws = draw_augmentation(0, 0, count)
    for offsets in (draws.row_offsets, draws.column_offsets):
        frequencies = torch.bincount(offsets, minlength=9)
        assert len(frequencies) == 9
        assert (frequencies - count / 9).abs().max() < 5 * (count * 8 / 81) ** 0.5  # five standard deviations
    assert abs(int(draws.is_mirrored.sum()) - count / 2) < 5 * (count / 4) ** 0.5
    stacked = torch.stack([draws.row_offsets, draws.column_offsets, draws.is_mirrored.long()]).float()
    assert (torch.corrcoef(stacked) - torch.eye(3)).abs().max() < 5 / count**0.5  # independent


def test_pixels_are_normalised_per_channel() -> None:
    images = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).expand(2, 3, 16, 16)
    batches = InMemoryBatches(Split(images.numpy().copy(), np.zeros(2, np.int64)), CIFAR10, CPU)
    normalized = normalize(images, batches.scale, batches.shift)
    assert normalized.dtype == torch.float32
    mean, std = (np.array(v).reshape(1, 3, 1, 1) for v in (CIFAR10.mean, CIFAR10.std))
    expected = (images.numpy().astype(np.float64) / 255 - mean) / std
    assert np.abs(normalized.numpy() - expected).max() < 1e-6


def test_digits_are_divided_by_16() -> None:
    split = Split(np.arange(17, dtype=np.uint8).reshape(17, 1, 1, 1), np.zeros(17, np.int64))
    (batch,) = InMemoryBatches(split, DATASETS["digits"], CPU).evaluation_batches()
    assert torch.equal(batch.images.flatten(), torch.arange(17) / 16)


def test_every_augmentation_of_the_training_spec_exists() -> None:
    assert {"standard", *AUGMENTATIONS} == set(AUGMENTATION_CHOICES)


@pytest.mark.parametrize(("augmentation", "default"), [("standard", "none"), ("none", "crop-flip")])
def test_without_augmentation_images_are_only_normalised(augmentation: str, default: str) -> None:
    batches = InMemoryBatches(make_random_split(20), replace(CIFAR10, default_augmentation=default), CPU)
    epoch = concatenate(list_epoch(batches, augmentation=augmentation))
    assert torch.equal(epoch.images, concatenate(list(batches.evaluation_batches())).images[epoch.rows])


@pytest.mark.parametrize(("augmentation", "default"), [("standard", "crop-flip"), ("crop-flip", "none")])
def test_images_are_padded_before_they_are_normalised(augmentation: str, default: str) -> None:
    split = make_random_split(20)
    batches = InMemoryBatches(split, replace(CIFAR10, default_augmentation=default), CPU)
    epoch = concatenate(list_epoch(batches, seed=3, epoch=4, augmentation=augmentation))
    crops = crop_images_one_by_one(split.images[epoch.rows], draw_augmentation(3, 4, 20))
    assert torch.equal(epoch.images, normalize(torch.from_numpy(crops), batches.scale, batches.shift))


# Epochs
@pytest.mark.parametrize(("count", "batch_size", "sizes"), [(21, 7, [7, 7, 7]), (23, 7, [7, 7, 7, 2]), (5, 7, [5])])
def test_an_epoch_contains_every_image_once(count: int, batch_size: int, sizes: list[int]) -> None:
    batches = make_batches(count)
    epoch = list_epoch(batches, batch_size=batch_size)
    assert [len(b.rows) for b in epoch] == sizes
    assert [len(b.images) for b in epoch] == sizes
    rows = concatenate(epoch).rows
    assert sorted(rows.tolist()) == list(range(count))
    assert torch.equal(concatenate(epoch).labels, batches.labels[rows])


def test_drop_last_drops_only_the_incomplete_batch() -> None:
    batches = make_batches(23)
    full_batches, all_batches = list_epoch(batches, drop_last=True), list_epoch(batches)
    assert [len(b.rows) for b in full_batches] == [7, 7, 7]
    assert are_equal(full_batches, all_batches[:3])


def test_drop_last_keeps_a_complete_last_batch() -> None:
    assert make_batches(21).count_steps(7, drop_last=True) == make_batches(21).count_steps(7, drop_last=False) == 3


def test_the_same_seed_and_epoch_give_the_same_batches() -> None:
    first = list_epoch(make_batches(23), 5, 6)
    torch.manual_seed(99)
    assert are_equal(first, list_epoch(make_batches(23), 5, 6))


@pytest.mark.parametrize(("seed", "epoch"), [(5, 7), (4, 6), (6, 5)])
def test_another_seed_or_epoch_gives_another_order_and_other_crops(seed: int, epoch: int) -> None:
    batches = make_batches(50)
    assert not torch.equal(batches.shuffle_rows(5, 6), batches.shuffle_rows(seed, epoch))
    draws, other_draws = draw_augmentation(5, 6, 50), draw_augmentation(seed, epoch, 50)
    assert not any(torch.equal(a, b) for a, b in zip(draws[:3], other_draws[:3], strict=True))


@pytest.mark.parametrize("first_step", [0, 1, 3, 4])
def test_an_epoch_can_start_at_any_step(first_step: int) -> None:
    batches = make_batches(23)
    batches_from_first_step = list(
        batches.train_batches(1, 2, 7, "standard", first_step, batches.count_steps(7, False))
    )
    assert len(batches_from_first_step) == 4 - first_step
    assert are_equal(batches_from_first_step, list_epoch(batches, 1, 2)[first_step:])


@pytest.mark.parametrize("batch_size", [3, 5, 8, 23, 100])
@pytest.mark.parametrize("augmentation", [name for name, row in AUGMENTATIONS.items() if row.num_views == 1])
def test_augmentation_does_not_depend_on_the_batch_size(augmentation: str, batch_size: int) -> None:
    batches = make_batches(23)
    assert are_equal(*([concatenate(list_epoch(batches, 1, 2, n, augmentation))] for n in (batch_size, 7)))


def test_the_global_torch_generator_is_not_used() -> None:
    batches = make_batches(23)
    state = torch.get_rng_state()
    list_epoch(batches)
    list(batches.evaluation_batches())
    assert torch.equal(torch.get_rng_state(), state)


def test_the_order_is_drawn_on_the_cpu_for_every_device() -> None:
    order = InMemoryBatches(make_random_split(23), CIFAR10, torch.device("meta")).shuffle_rows(1, 2)
    assert torch.equal(order, make_batches(23).shuffle_rows(1, 2))


def test_images_are_stored_as_bytes() -> None:
    split = make_random_split(23)
    batches = InMemoryBatches(split, CIFAR10, CPU)
    assert len(batches) == 23
    assert batches.images.dtype == torch.uint8
    assert np.array_equal(batches.images.numpy(), split.images)
    list_epoch(batches)
    assert np.array_equal(batches.images.numpy(), split.images)  # an epoch does not change them


# Rejected batch sizes
@pytest.mark.parametrize(("count", "batch_size"), [(22, 7), (1, 64), (1001, 100)])
def test_a_last_batch_of_one_image_is_rejected(count: int, batch_size: int) -> None:
    with pytest.raises(InputError) as error_info:
        make_batches(count).count_steps(batch_size, drop_last=False)
    assert str(error_info.value) == (
        f"batches of {batch_size} leave one of {count:,} images for the last step, and batch normalization "
        "needs two: choose another batch_size, or drop_last"
    )


def test_drop_last_allows_a_last_batch_of_one_image() -> None:
    assert make_batches(22).count_steps(7, drop_last=True) == 3


@pytest.mark.parametrize("count", [1, 5, 6])
def test_a_batch_larger_than_the_split_is_rejected_with_drop_last(count: int) -> None:
    with pytest.raises(InputError) as error_info:
        make_batches(count).count_steps(7, drop_last=True)
    assert str(error_info.value) == f"a batch of 7 is larger than the {count} training images, and drop_last drops it"


# Evaluation batches
@pytest.mark.parametrize(("batch_size", "sizes"), [(7, [7, 7, 7, 1]), (22, [22]), (1000, [22])])
def test_evaluation_batches_contain_all_images_in_order(batch_size: int, sizes: list[int]) -> None:
    split = make_random_split(22)
    batches = InMemoryBatches(split, CIFAR10, CPU)
    read_batches = list(batches.evaluation_batches(batch_size))
    assert [len(b.rows) for b in read_batches] == sizes
    images, labels, rows = concatenate(read_batches)
    assert rows.tolist() == list(range(22))
    assert labels.tolist() == split.labels.tolist()
    assert torch.equal(images, normalize(torch.from_numpy(split.images), batches.scale, batches.shift))


def test_evaluation_batches_have_a_thousand_images() -> None:
    split = Split(np.zeros((2500, 3, 1, 1), np.uint8), np.zeros(2500, np.int64))
    sizes: list[Tensor] = [b.rows for b in InMemoryBatches(split, CIFAR10, CPU).evaluation_batches()]
    assert [len(rows) for rows in sizes] == [1000, 1000, 500]
