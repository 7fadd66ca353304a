"""Streamed batches equal the batches of a split in memory, from any step on and with any number of workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.image_files.image_folder import ImageFolder, find_image_folder
from lcrbnn.data.loading.augment import normalize
from lcrbnn.data.loading.batches import Batch, InMemoryBatches, choose_evaluation_batch_size
from lcrbnn.data.loading.device_prefetcher import DevicePrefetcher
from lcrbnn.data.loading.stream import StreamedBatches
from lcrbnn.data.loading.worker_pool import WorkerPool
from lcrbnn.device import derive_seed
from lcrbnn.errors import InputError
from lcrbnn.train.fast.batch_inputs import StreamedInputs
from lcrbnn.train.setup.dataset import (
    DataAccess,
    decode_all_images,
    drop_broken_images,
    find_broken_images,
    open_splits,
    open_test_split,
)
from lcrbnn.train.setup.spec import TrainSpec
from tests.data.image_folders import (
    encode_image,
    make_image_files,
    make_smooth_image,
    write_folder,
    write_tar,
    write_zip,
)
from tests.data.loading.test_crops import random_crop_with_pillow

CPU = torch.device("cpu")
IMAGE_SIZE, BATCH_SIZE = 16, 16
DATASET = replace(DATASETS["folder"].with_options(IMAGE_SIZE, 3), default_augmentation="crop-flip")
FILES = make_image_files(train=14, val=4)  # 42 training images: two batches of 16 and one of 10


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return find_image_folder(write_folder(FILES, tmp_path_factory.mktemp("tree")))


def make_prefetcher(num_workers: int = 0, max_batch_size: int = BATCH_SIZE) -> DevicePrefetcher:
    return DevicePrefetcher(WorkerPool(IMAGE_SIZE, DATASET.resize_ratio, max_batch_size, num_workers), CPU)


def make_stream(image_folder: ImageFolder, num_workers: int = 0, rank: int = 0, world_size: int = 1) -> StreamedBatches:
    return StreamedBatches(
        image_folder.train, DATASET, CPU, make_prefetcher(num_workers), rank=rank, world_size=world_size
    )


def assert_equal_batches(batches: Iterator[Batch] | list[Batch], other_batches: Iterator[Batch] | list[Batch]) -> None:
    for batch, other_batch in zip(batches, other_batches, strict=True):
        for a, b in zip(batch, other_batch, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("augmentation", ["standard", "none"])
def test_streamed_batches_equal_in_memory_batches(image_folder: ImageFolder, augmentation: str) -> None:
    streamed = make_stream(image_folder)
    in_memory = InMemoryBatches(decode_all_images(image_folder.train, make_prefetcher()), DATASET, CPU)
    for epoch in range(2):
        assert_equal_batches(
            streamed.train_batches(3, epoch, BATCH_SIZE, augmentation, 0, 3),
            in_memory.train_batches(3, epoch, BATCH_SIZE, augmentation, 0, 3),
        )
    assert_equal_batches(streamed.evaluation_batches(25), in_memory.evaluation_batches(25))
    assert_equal_batches(streamed.raw_batches(7), in_memory.raw_batches(7))
    assert len(streamed) == len(in_memory) == 42


def test_a_random_crop_is_determined_by_its_position_in_the_epoch(image_folder: ImageFolder) -> None:
    batches = list(make_stream(image_folder).train_batches(3, 1, BATCH_SIZE, "random-resized-crop", 0, 3))
    order = make_stream(image_folder).shuffle_rows(3, 1)
    for position in (0, 15, 16, 41):
        batch, row_in_batch = batches[position // BATCH_SIZE], position % BATCH_SIZE
        row = int(order[position])
        assert int(batch.rows[row_in_batch]) == row
        assert int(batch.labels[row_in_batch]) == image_folder.train.labels[row]
        content = Path(image_folder.train[row].path).read_bytes()
        expected = torch.from_numpy(
            random_crop_with_pillow(content, IMAGE_SIZE, derive_seed(3, "crop", 1), position).copy()
        ).permute(2, 0, 1)
        streamed = make_stream(image_folder)
        difference = (
            batch.images[row_in_batch] - normalize(expected, streamed.scale, streamed.shift)
        ).abs() / streamed.scale
        assert difference.max() < 1.01  # one level


def test_an_epoch_can_start_at_any_step_with_any_number_of_workers(image_folder: ImageFolder) -> None:
    augmentation = "random-resized-crop"
    all_batches = list(make_stream(image_folder).train_batches(0, 2, BATCH_SIZE, augmentation, 0, 3))
    assert [len(b.labels) for b in all_batches] == [16, 16, 10]
    for first_step in range(3):
        assert_equal_batches(
            make_stream(image_folder).train_batches(0, 2, BATCH_SIZE, augmentation, first_step, 3),
            all_batches[first_step:],
        )
    streamed = make_stream(image_folder, num_workers=2)
    with streamed.prefetcher:
        assert_equal_batches(streamed.train_batches(0, 2, BATCH_SIZE, augmentation, 0, 3), all_batches)
        assert_equal_batches(streamed.train_batches(0, 2, BATCH_SIZE, augmentation, 1, 3), all_batches[1:])


def test_two_ranks_split_each_batch(image_folder: ImageFolder) -> None:
    all_batches = list(make_stream(image_folder).train_batches(0, 2, BATCH_SIZE, "random-resized-crop", 0, 3))
    rank_batches = [
        make_stream(image_folder, rank=r, world_size=2).train_batches(0, 2, BATCH_SIZE, "random-resized-crop", 0, 3)
        for r in range(2)
    ]
    joined = [Batch(*(torch.cat(two) for two in zip(*pair, strict=True))) for pair in zip(*rank_batches, strict=True)]
    assert_equal_batches(joined, all_batches)


def test_folder_zip_and_tar_give_the_same_batches(image_folder: ImageFolder, tmp_path: Path) -> None:
    expected = list(make_stream(image_folder).train_batches(0, 0, BATCH_SIZE, "random-resized-crop", 0, 3))
    for path in (write_zip(FILES, tmp_path / "a.zip"), write_tar(FILES, tmp_path / "a.tar")):
        assert_equal_batches(
            make_stream(find_image_folder(path)).train_batches(0, 0, BATCH_SIZE, "random-resized-crop", 0, 3), expected
        )


def test_streamed_inputs_hold_the_batch_of_the_step(image_folder: ImageFolder) -> None:
    spec = TrainSpec(
        dataset="folder", image_size=IMAGE_SIZE, num_classes=3, batch_size=BATCH_SIZE, augmentation="crop-flip", seed=3
    )
    inputs = StreamedInputs(spec, make_stream(image_folder))
    inputs.begin_epoch(1, 1, 2)
    inputs.load_batch()
    images, labels = inputs.select_part(*torch.zeros(2, 1, dtype=torch.int64))
    (expected,) = make_stream(image_folder).train_batches(3, 1, BATCH_SIZE, "crop-flip", 1, 2)
    assert torch.equal(images, expected.images)
    assert torch.equal(labels, expected.labels)
    inputs.load_sample()
    images, labels = inputs.select_part(*torch.zeros(2, 1, dtype=torch.int64))
    sample = make_stream(image_folder).read_sample(BATCH_SIZE)
    assert torch.equal(images, normalize(sample.images, inputs.train.scale, inputs.train.shift))
    assert torch.equal(labels, sample.labels)
    assert labels.unique().tolist() == [0, 1, 2]


def test_loading_time_is_counted(image_folder: ImageFolder) -> None:
    streamed = make_stream(image_folder)
    assert streamed.loading_time_s == 0
    list(streamed.train_batches(0, 0, BATCH_SIZE, "none", 0, 3))
    assert 0 < streamed.loading_time_s < 60
    assert InMemoryBatches(decode_all_images(image_folder.train, make_prefetcher()), DATASET, CPU).loading_time_s == 0


def test_a_broken_image_raises_its_name_or_is_left_out(tmp_path: Path) -> None:
    broken_files = {"train/ant/003.JPEG": b"", "train/cat/001.JPEG": FILES["train/cat/001.JPEG"][:300]}
    broken_folder = find_image_folder(write_folder({**FILES, **broken_files}, tmp_path))
    with pytest.raises(
        InputError, match=r"JPEG is broken: .*; --skip-broken-images leaves such images out and lists them"
    ):
        list(make_stream(broken_folder).train_batches(0, 0, BATCH_SIZE, "none", 0, 3))
    with pytest.raises(InputError, match=r"003.JPEG is broken: it is empty"):
        decode_all_images(broken_folder.train, make_prefetcher())
    broken_images = find_broken_images(broken_folder.train, make_prefetcher())
    assert [Path(name).name for name in broken_images] == ["003.JPEG", "001.JPEG"]
    readable_images = drop_broken_images(broken_folder.train, broken_images)
    assert len(readable_images) == 40
    assert find_broken_images(readable_images, make_prefetcher()) == {}
    with pytest.raises(InputError, match="all 42 images are broken"):
        drop_broken_images(broken_folder.train, {broken_folder.train.relative_name(i): "bad" for i in range(42)})


# Splits of a run

SPEC = TrainSpec(
    dataset="folder", image_size=IMAGE_SIZE, num_classes=3, batch_size=BATCH_SIZE, augmentation="crop-flip"
)


@pytest.fixture
def image_root(tmp_path: Path) -> Path:
    return write_folder({**FILES, "val/bee/bad.png": b"bad"}, tmp_path)


def test_cached_and_streamed_splits_are_equal(image_root: Path) -> None:
    with ExitStack() as stack:
        splits = {
            cache: open_splits([SPEC], DataAccess(image_root, 0, cache), CPU, stack)[0]
            for cache in ("auto", "yes", "no")
        }
    assert [type(s.train) for s in splits.values()] == [InMemoryBatches, InMemoryBatches, StreamedBatches]
    assert [s.data_loading["images"] for s in splits.values()] == ["cached", "cached", "streamed"]
    assert (len(splits["no"].train), len(splits["no"].valid or ())) == (38, 4)
    streamed, in_memory = (
        splits[cache].train.train_batches(0, 0, BATCH_SIZE, "crop-flip", 0, 3) for cache in ("no", "auto")
    )
    assert_equal_batches(streamed, in_memory)
    assert_equal_batches(splits["no"].valid.evaluation_batches(), splits["auto"].valid.evaluation_batches())  # type: ignore[union-attr]  # both exist


@pytest.mark.parametrize(
    ("settings", "access", "message"),
    [
        ({"augmentation": "random-resized-crop"}, {"cache_images": "yes"}, "images cannot be cached"),
        (
            {"image_size": 4096, "augmentation": "none"},
            {"cache_images": "yes"},
            "pixels take [0-9.]+ GB on the device, and .* GB are free: they cannot be cached",
        ),
        ({"num_classes": 4}, {}, "has 3 classes in train, and folder has 4"),
        ({"dataset": "tiny-imagenet", "num_classes": 0}, {}, "has 3 classes in train, and tiny-imagenet has 200"),
        ({"dataset": "tiny-imagenet"}, {}, "tiny-imagenet has 200 classes; got num_classes 3"),
        (
            {"dataset": "digits", "num_classes": 0},
            {},
            "image_size is only for data sets that are read from image files; got digits",
        ),
        (
            {"dataset": "digits", "num_classes": 0, "image_size": 0, "augmentation": "random-resized-crop"},
            {},
            "needs a data set that is read from image files; got digits",
        ),
        ({}, {"workers": -2}, "workers must be a whole number from -1"),
        ({}, {"cache_images": "maybe"}, "no value of cache_images is called 'maybe'"),
    ],
)
def test_incompatible_settings_are_rejected(
    settings: dict[str, object],
    access: dict[str, object],
    message: str,
    image_root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lcrbnn.train.setup.dataset._count_free_bytes", lambda device: 10**9)
    with ExitStack() as stack, pytest.raises(InputError, match=message):
        open_splits([SPEC.replace(**settings)], DataAccess(image_root, **{"workers": 0, **access}), CPU, stack)  # type: ignore[arg-type]  # wrong on purpose


def test_broken_test_images_are_left_out_and_reported(image_root: Path) -> None:
    with ExitStack() as stack:
        source, broken_images = open_test_split(
            SPEC.replace(skip_broken_images=True), DataAccess(image_root, 0), CPU, stack
        )
        assert len(source) == sum(len(b.labels) for b in source.evaluation_batches()) == 12
        assert [Path(name).name for name in broken_images] == ["bad.png"]
        source, broken_images = open_test_split(SPEC, DataAccess(image_root, 0), CPU, stack)
        assert (len(source), broken_images) == (13, {})
        with pytest.raises(InputError, match=r"bad.png is broken"):
            list(source.evaluation_batches())


def test_large_images_are_evaluated_in_smaller_batches() -> None:
    assert [choose_evaluation_batch_size(side) for side in (8, 32, 64, 126, 224, 5000)] == [
        1000,
        1000,
        1000,
        1000,
        318,
        1,
    ]


def test_parallel_runs_have_separate_workers(image_root: Path) -> None:
    with ExitStack() as stack:
        splits = open_splits([SPEC, SPEC.replace(seed=1, batch_size=8)], DataAccess(image_root, 0, "no"), CPU, stack)
        first_epoch, second_epoch = (s.train.train_batches(s_, 0, 8, "standard", 0, 4) for s_, s in enumerate(splits))
        row_pairs = [(next(first_epoch).rows, next(second_epoch).rows) for _ in range(4)]
        assert torch.equal(torch.cat([a for a, _ in row_pairs]), splits[0].train.shuffle_rows(0, 0)[:32])
        assert torch.equal(torch.cat([b for _, b in row_pairs]), splits[0].train.shuffle_rows(1, 0)[:32])


def test_the_default_number_of_workers_is_the_number_of_cores_minus_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert DataAccess().count_workers() == 15
    assert DataAccess().count_workers(4) == 3
    assert DataAccess(workers=3).count_workers(4) == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert DataAccess().count_workers() == 3
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    assert DataAccess().count_workers() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    with pytest.raises(InputError, match="the environment variable LOCAL_WORLD_SIZE must be a number; got 'many'"):
        DataAccess().count_workers()


def test_a_grey_image_is_converted_to_rgb(tmp_path: Path) -> None:
    grey = encode_image(make_smooth_image(IMAGE_SIZE, IMAGE_SIZE, 3)[:, :, 0], "PNG")
    image_folder = find_image_folder(write_folder({**FILES, "train/ant/000.png": grey}, tmp_path))
    streamed = StreamedBatches(
        image_folder.train,
        replace(DATASET, resize_ratio=1.0),
        CPU,
        DevicePrefetcher(WorkerPool(IMAGE_SIZE, 1.0, BATCH_SIZE, 0), CPU),
    )
    row = next(i for i in range(len(image_folder.train)) if image_folder.train[i].name.endswith("png"))
    image = torch.cat([b.images for b in streamed.raw_batches(BATCH_SIZE)])[row]
    assert np.array_equal(image.numpy(), np.stack([make_smooth_image(IMAGE_SIZE, IMAGE_SIZE, 3)[:, :, 0]] * 3))


def test_a_sample_contains_all_classes(image_folder: ImageFolder) -> None:
    """The images of a folder are sorted by class, so its first images would all have the same class."""
    in_memory, streamed = (
        InMemoryBatches(decode_all_images(image_folder.train, make_prefetcher()), DATASET, CPU),
        make_stream(image_folder),
    )
    for source in (in_memory, streamed):
        sample = source.read_sample(6)
        assert sample.rows.tolist() == [len(source) * i // 6 for i in range(6)]
        assert sample.labels.tolist() == [0, 0, 1, 1, 2, 2]
        assert torch.equal(sample.images, in_memory.images[sample.rows])
    digits = DATASETS["digits"]
    assert InMemoryBatches(digits.load(Path()).train, digits, CPU).read_sample(3).rows.tolist() == [0, 1, 2]
