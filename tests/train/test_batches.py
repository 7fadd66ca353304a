from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from lcrbnn.data import DATASETS, Split
from lcrbnn.errors import InputError
from lcrbnn.train.augment import AUGMENT, PAD, Draws, crop_flip, draw, normalize
from lcrbnn.train.batches import Batch, Batches
from lcrbnn.train.spec import AUGMENTATIONS

CPU = torch.device("cpu")
ROW = DATASETS["cifar10"]


def random_split(count: int, shape: tuple[int, int, int] = (3, 6, 6)) -> Split:
    rng = np.random.default_rng(count)
    return Split(rng.integers(0, 256, (count, *shape), np.uint8), rng.integers(0, 10, count))


def batches_of(count: int) -> Batches:
    return Batches(random_split(count), ROW, CPU)


def whole_epoch(
    batches: Batches, seed: int = 0, epoch: int = 0, batch: int = 7, augment: str = "usual", drop_last: bool = False
) -> list[Batch]:
    return list(batches.epoch(seed, epoch, batch, augment, 0, batches.steps(batch, drop_last)))


def equal(one: list[Batch], other: list[Batch]) -> bool:
    """Bit by bit."""
    return len(one) == len(other) and all(
        torch.equal(a, b) for first, second in zip(one, other, strict=True) for a, b in zip(first, second, strict=True)
    )


def joined(batches: list[Batch]) -> Batch:
    return Batch(*(torch.cat(parts) for parts in zip(*batches, strict=True)))


def expected_crops(images: np.ndarray, draws: Draws) -> np.ndarray:
    """One image after another: black around it, a window, mirrored or not."""
    h, w = images.shape[2:]
    crops = []
    for image, down, right, mirrored in zip(images, *(d.tolist() for d in draws[:3]), strict=True):
        window = np.pad(image, ((0, 0), (4, 4), (4, 4)))[:, down : down + h, right : right + w]
        crops.append(window[:, :, ::-1] if mirrored else window)
    return np.stack(crops)


# ---------------------------------------------------------------------------------------------------------------
# Augmentation.
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (3, 5, 9), (2, 9, 5), (1, 1, 3)])
def test_crops_are_those_of_a_loop_over_the_images(shape: tuple[int, int, int]) -> None:
    images = random_split(200, shape).images
    draws = draw(1, 2, len(images))
    crops = crop_flip(torch.from_numpy(images), draws)
    assert crops.dtype == torch.uint8
    assert np.array_equal(crops.numpy(), expected_crops(images, draws))


def test_every_shift_with_and_without_mirror_is_that_of_the_loop() -> None:
    down, right, mirrored = (t.flatten() for t in torch.meshgrid(*map(torch.arange, (9, 9, 2)), indexing="ij"))
    draws = Draws(down, right, mirrored.bool(), torch.zeros(len(down), 0))
    images = random_split(len(down), (2, 6, 7)).images
    assert np.array_equal(crop_flip(torch.from_numpy(images), draws).numpy(), expected_crops(images, draws))


def test_the_middle_window_is_the_image_itself() -> None:
    images = torch.from_numpy(random_split(5).images)
    middle = torch.full((5,), PAD)
    none = torch.zeros(5, 0)
    assert torch.equal(crop_flip(images, Draws(middle, middle, torch.zeros(5).bool(), none)), images)
    assert torch.equal(crop_flip(images, Draws(middle, middle, torch.ones(5).bool(), none)), images.flip(3))


def test_draws_are_uniform_over_the_nine_shifts_and_two_sides() -> None:
    count = 90_000
    draws = draw(0, 0, count)
    for moves in (draws.down, draws.right):
        often = torch.bincount(moves, minlength=9)
        assert len(often) == 9
        assert (often - count / 9).abs().max() < 5 * (count * 8 / 81) ** 0.5  # five standard deviations
    assert abs(int(draws.mirrored.sum()) - count / 2) < 5 * (count / 4) ** 0.5
    together = torch.stack([draws.down, draws.right, draws.mirrored.long()]).float()
    assert (torch.corrcoef(together) - torch.eye(3)).abs().max() < 5 / count**0.5  # and independent of each other


def test_pixels_are_normalised_a_channel_each() -> None:
    images = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).expand(2, 3, 16, 16)
    batches = Batches(Split(images.numpy().copy(), np.zeros(2, np.int64)), ROW, CPU)
    seen = normalize(images, batches.scale, batches.shift)
    assert seen.dtype == torch.float32
    mean, std = (np.array(v).reshape(1, 3, 1, 1) for v in (ROW.mean, ROW.std))
    expected = (images.numpy().astype(np.float64) / 255 - mean) / std
    assert np.abs(seen.numpy() - expected).max() < 1e-6


def test_digits_are_normalised_to_their_share_of_the_brightest() -> None:
    split = Split(np.arange(17, dtype=np.uint8).reshape(17, 1, 1, 1), np.zeros(17, np.int64))
    (batch,) = Batches(split, DATASETS["digits"], CPU).plain()
    assert torch.equal(batch.images.flatten(), torch.arange(17) / 16)


def test_every_augmentation_of_a_spec_is_there() -> None:
    assert {"usual", *AUGMENT} == set(AUGMENTATIONS)


@pytest.mark.parametrize(("augment", "usual"), [("usual", "none"), ("none", "crop-flip")])
def test_without_augmentation_images_stay_as_they_are(augment: str, usual: str) -> None:
    batches = Batches(random_split(20), replace(ROW, augment=usual), CPU)
    seen = joined(whole_epoch(batches, augment=augment))
    assert torch.equal(seen.images, joined(list(batches.plain())).images[seen.rows])


@pytest.mark.parametrize(("augment", "usual"), [("usual", "crop-flip"), ("crop-flip", "none")])
def test_black_is_put_around_images_before_they_are_normalised(augment: str, usual: str) -> None:
    split = random_split(20)
    batches = Batches(split, replace(ROW, augment=usual), CPU)
    seen = joined(whole_epoch(batches, seed=3, epoch=4, augment=augment))
    crops = expected_crops(split.images[seen.rows], draw(3, 4, 20))
    assert torch.equal(seen.images, normalize(torch.from_numpy(crops), batches.scale, batches.shift))


# ---------------------------------------------------------------------------------------------------------------
# Epochs.
@pytest.mark.parametrize(("count", "batch", "sizes"), [(21, 7, [7, 7, 7]), (23, 7, [7, 7, 7, 2]), (5, 7, [5])])
def test_an_epoch_sees_every_image_once(count: int, batch: int, sizes: list[int]) -> None:
    batches = batches_of(count)
    seen = whole_epoch(batches, batch=batch)
    assert [len(b.rows) for b in seen] == sizes
    assert [len(b.images) for b in seen] == sizes
    rows = joined(seen).rows
    assert sorted(rows.tolist()) == list(range(count))
    assert torch.equal(joined(seen).labels, batches.labels[rows])


def test_drop_last_leaves_out_the_rest_and_nothing_else() -> None:
    batches = batches_of(23)
    some, whole = whole_epoch(batches, drop_last=True), whole_epoch(batches)
    assert [len(b.rows) for b in some] == [7, 7, 7]
    assert equal(some, whole[:3])


def test_drop_last_changes_nothing_where_there_is_no_rest() -> None:
    assert batches_of(21).steps(7, drop_last=True) == batches_of(21).steps(7, drop_last=False) == 3


def test_the_same_seed_and_epoch_give_the_same_batches() -> None:
    first = whole_epoch(batches_of(23), 5, 6)
    torch.manual_seed(99)
    assert equal(first, whole_epoch(batches_of(23), 5, 6))


@pytest.mark.parametrize(("seed", "epoch"), [(5, 7), (4, 6), (6, 5)])
def test_another_seed_or_epoch_gives_another_order_and_other_crops(seed: int, epoch: int) -> None:
    batches = batches_of(50)
    assert not torch.equal(batches.order(5, 6), batches.order(seed, epoch))
    one, other = draw(5, 6, 50), draw(seed, epoch, 50)
    assert not any(torch.equal(a, b) for a, b in zip(one[:3], other[:3], strict=True))


@pytest.mark.parametrize("first", [0, 1, 3, 4])
def test_an_epoch_can_be_entered_at_any_step(first: int) -> None:
    batches = batches_of(23)
    later = list(batches.epoch(1, 2, 7, "usual", first, batches.steps(7, False)))
    assert len(later) == 4 - first
    assert equal(later, whole_epoch(batches, 1, 2)[first:])


@pytest.mark.parametrize("batch", [3, 5, 8, 23, 100])
@pytest.mark.parametrize("augment", [name for name, how in AUGMENT.items() if how.views == 1])
def test_what_happens_to_an_image_does_not_depend_on_the_batch(augment: str, batch: int) -> None:
    batches = batches_of(23)
    assert equal(*([joined(whole_epoch(batches, 1, 2, n, augment))] for n in (batch, 7)))


def test_the_generator_of_torch_is_left_alone() -> None:
    batches = batches_of(23)
    before = torch.get_rng_state()
    whole_epoch(batches)
    list(batches.plain())
    assert torch.equal(torch.get_rng_state(), before)


def test_batches_are_drawn_on_the_cpu_for_every_device() -> None:
    order = Batches(random_split(23), ROW, torch.device("meta")).order(1, 2)
    assert torch.equal(order, batches_of(23).order(1, 2))


def test_images_are_held_as_bytes() -> None:
    split = random_split(23)
    batches = Batches(split, ROW, CPU)
    assert len(batches) == 23
    assert batches.images.dtype == torch.uint8
    assert np.array_equal(batches.images.numpy(), split.images)
    whole_epoch(batches)
    assert np.array_equal(batches.images.numpy(), split.images)  # and no epoch changes them


# ---------------------------------------------------------------------------------------------------------------
# Batches that cannot be.
@pytest.mark.parametrize(("count", "batch"), [(22, 7), (1, 64), (1001, 100)])
def test_a_batch_that_leaves_one_image_is_refused(count: int, batch: int) -> None:
    with pytest.raises(InputError) as caught:
        batches_of(count).steps(batch, drop_last=False)
    assert str(caught.value) == (
        f"batches of {batch} leave one image of {count:,} for the last step, and a batch norm needs two: "
        "choose another batch, or drop_last"
    )


def test_with_drop_last_one_image_may_be_left() -> None:
    assert batches_of(22).steps(7, drop_last=True) == 3


@pytest.mark.parametrize("count", [1, 5, 6])
def test_a_batch_larger_than_the_data_is_refused_with_drop_last(count: int) -> None:
    with pytest.raises(InputError) as caught:
        batches_of(count).steps(7, drop_last=True)
    assert str(caught.value) == f"a batch of 7 does not fit the {count} training images, with drop_last"


# ---------------------------------------------------------------------------------------------------------------
# Images as they are.
@pytest.mark.parametrize(("batch", "sizes"), [(7, [7, 7, 7, 1]), (22, [22]), (1000, [22])])
def test_plain_gives_all_images_in_order(batch: int, sizes: list[int]) -> None:
    split = random_split(22)
    batches = Batches(split, ROW, CPU)
    seen = list(batches.plain(batch))
    assert [len(b.rows) for b in seen] == sizes
    images, labels, rows = joined(seen)
    assert rows.tolist() == list(range(22))
    assert labels.tolist() == split.labels.tolist()
    assert torch.equal(images, normalize(torch.from_numpy(split.images), batches.scale, batches.shift))


def test_plain_takes_a_thousand_images_at_a_time() -> None:
    split = Split(np.zeros((2500, 3, 1, 1), np.uint8), np.zeros(2500, np.int64))
    sizes: list[Tensor] = [b.rows for b in Batches(split, ROW, CPU).plain()]
    assert [len(rows) for rows in sizes] == [1000, 1000, 500]
