"""Open the data set of a training spec, with its row in DATASETS, its class names, and the splits that a run reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lcrbnn.data.datasets import DATASETS, DataSet, default_data_folder
from lcrbnn.data.image_files.image_folder import ImageFolder, count_validation_images, format_differing_names
from lcrbnn.data.image_files.image_index import ImageIndex
from lcrbnn.data.image_files.picture_split import PictureSplit
from lcrbnn.data.loading.augment import CROPPED_ON_READ
from lcrbnn.data.loading.batches import BatchSource, InMemoryBatches, slice_part
from lcrbnn.data.loading.device_prefetcher import DevicePrefetcher, describe_broken_image
from lcrbnn.data.loading.stream import StreamedBatches
from lcrbnn.data.loading.worker_pool import WORKER_TIMEOUT_S, BatchRequest, WorkerPool
from lcrbnn.data.split import ImageArrays, Split
from lcrbnn.errors import InputError, check_number, lookup
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.distributed.ranks import read_launcher_variable
from lcrbnn.train.setup.spec import TrainSpec


def find_dataset(
    spec: TrainSpec, class_names: tuple[str, ...] = (), picture_split: PictureSplit | None = None
) -> DataSet:
    """Return the data set of a spec. With class names, opening images of other classes raises InputError.

    With a `picture_split`, which a run has stored, opening other images raises InputError.
    """
    dataset = lookup(DATASETS, spec.dataset, "data set", "lcrbnn data")
    if spec.split_seed and not dataset.divides_class_folders:
        raise InputError(f"split_seed is only for the data set 'folder'; got {dataset.name}")
    if dataset.find_image_folder is None:
        for name in ("image_size", "num_classes", "skip_broken_images"):
            if getattr(spec, name):
                raise InputError(f"{name} is only for data sets that are read from image files; got {dataset.name}")
        return dataset
    if spec.num_classes and dataset.num_classes and spec.num_classes != dataset.num_classes:
        raise InputError(f"{dataset.name} has {dataset.num_classes} classes; got num_classes {spec.num_classes}")
    return dataset.with_options(
        spec.image_size or dataset.image_size,
        spec.num_classes or dataset.num_classes,
        skip_broken=spec.skip_broken_images,
        class_names=class_names,
        split_seed=spec.split_seed,
        picture_split=picture_split,
    )


def find_run_dataset(folder: RunFolder, spec: TrainSpec) -> DataSet:
    """Return the data set of a run, with the class names and the split in its folder."""
    return find_dataset(spec, folder.read_classes(), read_picture_split(folder))


def read_picture_split(folder: RunFolder) -> PictureSplit | None:
    """Return the split of the pictures that a run has stored, or None if it has none."""
    content = folder.read_split()
    return None if content is None else PictureSplit.from_json(content, folder.split_file)


def check_same_classes(folder: RunFolder, class_names: tuple[str, ...], role: str) -> None:
    """Raise InputError if a run was trained on other classes. A run without class names passes."""
    run_class_names = folder.read_classes()
    if run_class_names and (differing_names := format_differing_names(run_class_names, class_names)):
        raise InputError(
            f"{role} in {folder.path} has other classes than the images: {differing_names} in one of them only"
        )


def check_class_names(class_names: tuple[str, ...], folder: Path) -> None:
    """Raise InputError if a class name is not valid UTF-8, because no exported file could contain such a name."""
    for name in class_names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"the class {name!r} in {folder} has a name that is not valid UTF-8: rename it before training"
            ) from None


def fill_in_num_classes(spec: TrainSpec, folder: Path) -> TrainSpec:
    """Return the spec with the number of class folders, if neither the data set nor the spec sets `num_classes`."""
    dataset = lookup(DATASETS, spec.dataset, "data set", "lcrbnn data")
    if dataset.find_image_folder is None or dataset.num_classes or spec.num_classes:
        return spec
    return spec.replace(num_classes=len(dataset.find_image_folder(folder).classes))


# Dictionary: mode -> explanation of whether decoded images stay on the device.
CACHE_MODES = {
    "auto": "if all images fit into a quarter of the free memory and into 4 GiB",
    "yes": "decode them once and keep them on the device",
    "no": "read them in every epoch",
}
MAX_AUTO_CACHE_BYTES = 4 << 30
READ_BATCH_SIZE = 256  # number of images per batch when images are read for something other than training

# Dictionary from the path of a broken image in its folder to the reason why it cannot be read
BrokenImages = dict[str, str]


@dataclass(frozen=True)
class DataAccess:
    """Options for reading image files, which do not change the result of a run."""

    data_folder: Path = field(default_factory=default_data_folder)
    workers: int = -1  # number of worker processes; -1 = one per CPU core, minus one; 0 = read in this process
    cache_images: str = "auto"  # key of CACHE_MODES: whether decoded images stay on the device
    worker_timeout_s: float = WORKER_TIMEOUT_S  # seconds without a response from a worker before the run is aborted

    def __post_init__(self) -> None:
        """Raise InputError for values out of range."""
        check_number(self.workers, "workers", low=-1, high=4096, integer=True)
        check_number(self.worker_timeout_s, "worker_timeout_s", low=0.1)
        lookup(CACHE_MODES, self.cache_images, "value of cache_images", "lcrbnn train --help")

    def count_workers(self, num_runs: int = 1) -> int:
        """Return the number of worker processes per run, if this process trains `num_runs` runs in parallel."""
        if self.workers >= 0:
            return self.workers
        # Number of processes of the distributed run on this machine
        local_ranks = max(1, read_launcher_variable("LOCAL_WORLD_SIZE", "1"))
        return max(1, (len(os.sched_getaffinity(0)) // local_ranks - 1) // num_runs)


class RunSplits(NamedTuple):
    """The training and validation images of a run, and how they are read."""

    train: BatchSource
    valid: BatchSource | None
    broken_images: BrokenImages  # images that the run leaves out, because they cannot be read
    data_loading: dict[str, Any]  # facts for the record about how image files are read
    class_names: tuple[str, ...] = ()  # names of the classes, if the data set consists of image files
    train_images_digest: str = ""  # hash of the names and labels of the training images, if they are files
    picture_split: PictureSplit | None = None  # of class folders without train and val


def open_splits(
    specs: Sequence[TrainSpec],
    access: DataAccess,
    device: torch.device,
    stack: ExitStack,
    known_broken_images: BrokenImages | None = None,
    rank_and_world_size: tuple[int, int] = (0, 1),
    class_names: tuple[str, ...] = (),
    picture_split: PictureSplit | None = None,
) -> list[RunSplits]:
    """Return the training and validation images of parallel runs on one data set. `stack` closes the image readers.

    `known_broken_images` is the result of `find_broken_training_images`, if it was called before. With several
    processes, each reads its part of every training batch. `class_names` must be the classes of the images, and
    `picture_split` their split, if given.
    """
    spec, num_runs = specs[0], len(specs)
    dataset = find_dataset(spec, class_names, picture_split)
    augmentations = {dataset.default_augmentation if s.augmentation == "standard" else s.augmentation for s in specs}
    crop_augmentations = augmentations & set(CROPPED_ON_READ)  # augmentations that need the image files in every epoch
    if dataset.find_image_folder is None:
        if crop_augmentations:
            raise InputError(
                f"augmentation {min(crop_augmentations)!r} needs a data set that is read from image files; got "
                f"{dataset.name}"
            )
        train, valid = divide_splits(spec, dataset, dataset.load(access.data_folder))
        return [_make_in_memory_splits(train, valid, dataset, device, rank_and_world_size)] * num_runs
    folder = _open_training_folder(spec, dataset, access.data_folder)
    with _make_prefetcher(dataset, access, device, READ_BATCH_SIZE, 1) as prefetcher:
        if not spec.skip_broken_images:
            broken_images = {}
        elif known_broken_images is not None:
            broken_images = known_broken_images
        else:
            broken_images = find_broken_training_images(spec, access, device)
        folder = replace(folder, train=drop_broken_images(folder.train, broken_images))
        _check_every_class_has_images(folder)
        digest = folder.digest()
        train_index, valid_index = folder.train, None
        if spec.train_split != "train+valid":
            train_index, valid_index = folder.split_validation(dataset.num_validation_images)
            if not len(valid_index) or not len(train_index):
                raise InputError("all training images or all validation images are broken")
        if _should_cache(len(folder.train), dataset, crop_augmentations, access, device):
            train = decode_all_images(train_index, prefetcher)
            valid = None if valid_index is None else decode_all_images(valid_index, prefetcher)
            splits = _make_in_memory_splits(train, valid, dataset, device, rank_and_world_size)._replace(
                broken_images=broken_images,
                data_loading={"images": "cached"},
                class_names=folder.classes,
                train_images_digest=digest,
                picture_split=folder.picture_split,
            )
            return [splits] * num_runs
    rank, world_size = rank_and_world_size
    all_splits = []
    for run_spec in specs:
        # Maximum number of images of a batch that one process reads
        max_batch_size = -(-run_spec.batch_size // world_size)
        prefetcher = stack.enter_context(_make_prefetcher(dataset, access, device, max_batch_size, num_runs))
        train_batches = StreamedBatches(train_index, dataset, device, prefetcher, rank=rank, world_size=world_size)
        valid_batches = None if valid_index is None else StreamedBatches(valid_index, dataset, device, prefetcher)
        data_loading = {"images": "streamed", "workers": prefetcher.pool.num_workers}
        all_splits.append(
            RunSplits(
                train_batches,
                valid_batches,
                broken_images,
                data_loading,
                folder.classes,
                digest,
                folder.picture_split,
            )
        )
    return all_splits


def find_broken_training_images(
    spec: TrainSpec, access: DataAccess, device: torch.device, rank_and_world_size: tuple[int, int] = (0, 1)
) -> BrokenImages:
    """Read every training image once and return the broken images. Each process reads a part of the images."""
    dataset = find_dataset(spec)
    images = _open_training_folder(spec, dataset, access.data_folder).train
    part = slice_part(0, len(images), *rank_and_world_size)
    with _make_prefetcher(dataset, access, device, READ_BATCH_SIZE, 1) as prefetcher:
        return find_broken_images(images.take(np.arange(part.start, part.stop)), prefetcher)


def open_test_split(
    spec: TrainSpec,
    access: DataAccess,
    device: torch.device,
    stack: ExitStack,
    class_names: tuple[str, ...] = (),
    picture_split: PictureSplit | None = None,
) -> tuple[BatchSource, BrokenImages]:
    """Return the test images and the broken ones that are left out.

    `class_names` must be the classes of the images, and `picture_split` their split, if given.
    """
    dataset = find_dataset(spec, class_names, picture_split)
    if dataset.find_image_folder is None:
        return InMemoryBatches(dataset.load(access.data_folder).test, dataset, device), {}
    images = open_image_folder(spec, dataset, access.data_folder).test
    prefetcher = stack.enter_context(_make_prefetcher(dataset, access, device, READ_BATCH_SIZE, 1))
    broken_images = find_broken_images(images, prefetcher) if spec.skip_broken_images else {}
    return StreamedBatches(drop_broken_images(images, broken_images), dataset, device, prefetcher), broken_images


def divide_splits(spec: TrainSpec, dataset: DataSet, images: ImageArrays) -> tuple[Split, Split | None]:
    """Return the training images and the validation images of a run."""
    if spec.train_split == "train+valid":
        return images.train, None
    count = dataset.num_validation_images
    if dataset.find_image_folder is not None and not images.has_fixed_validation:
        count = count_validation_images(len(images.train.labels), count)
    return images.split_validation(count)


def open_image_folder(spec: TrainSpec, dataset: DataSet, path: Path) -> ImageFolder:
    """Return the image folder of a data set. Raise InputError if its number of classes is not that of the network."""
    assert dataset.find_image_folder is not None
    folder = dataset.find_image_folder(path)
    if len(folder.classes) != dataset.num_classes:
        raise InputError(
            f"{path} has {len(folder.classes):,} classes in train, and {dataset.name} has {dataset.num_classes:,}"
        )
    return folder


def _open_training_folder(spec: TrainSpec, dataset: DataSet, path: Path) -> ImageFolder:
    """Return the image folder of a data set for training. Raise InputError if its class names cannot be stored."""
    folder = open_image_folder(spec, dataset, path)
    check_class_names(folder.classes, path)
    return folder


def find_broken_images(images: ImageIndex, prefetcher: DevicePrefetcher) -> BrokenImages:
    """Read every image once and return the broken images with reasons."""
    broken_images: BrokenImages = {}
    for job in prefetcher.pool.read_batches(_iter_requests(images, prefetcher)):
        index = job.request.image_index
        broken_images |= {index.relative_name(i): reason for i, reason in job.broken_images.items()}
        prefetcher.pool.release(job)
    return broken_images


def drop_broken_images(images: ImageIndex, broken_images: BrokenImages) -> ImageIndex:
    """Return the images that are not broken."""
    if not broken_images:
        return images
    rows = np.array([i for i in range(len(images)) if images.relative_name(i) not in broken_images], np.int64)
    if len(rows) == 0:
        raise InputError(f"all {len(images):,} images are broken, the first one {next(iter(broken_images.items()))}")
    return images.take(rows)


def _check_every_class_has_images(folder: ImageFolder) -> None:
    empty_classes = set(range(len(folder.classes))) - set(folder.train.labels.tolist())
    if empty_classes:
        name = folder.classes[min(empty_classes)]
        raise InputError(f"all training images of the class {name!r} are broken: it cannot be learned")


def decode_all_images(index: ImageIndex, prefetcher: DevicePrefetcher) -> Split:
    """Return all images (n, 3, image_size, image_size), decoded as in evaluation."""
    image_size, num_decoded = prefetcher.pool.image_size, 0
    images = np.empty((len(index), 3, image_size, image_size), np.uint8)
    for job in prefetcher.pool.read_batches(_iter_requests(index, prefetcher)):
        if job.broken_images:
            raise InputError(describe_broken_image(job))
        images[num_decoded : num_decoded + len(job.images)] = job.images.transpose(0, 3, 1, 2)
        num_decoded += len(job.images)
        prefetcher.pool.release(job)
    return Split(images, index.labels)


def _iter_requests(images: ImageIndex, prefetcher: DevicePrefetcher) -> Iterator[BatchRequest]:
    size = prefetcher.pool.max_batch_size
    for start in range(0, len(images), size):
        yield BatchRequest(images.take(np.arange(start, min(start + size, len(images)))))


def _make_in_memory_splits(
    train: Split, valid: Split | None, dataset: DataSet, device: torch.device, rank_and_world_size: tuple[int, int]
) -> RunSplits:
    train_batches = InMemoryBatches(train, dataset, device, *rank_and_world_size)
    valid_batches = None if valid is None else InMemoryBatches(valid, dataset, device)
    return RunSplits(train_batches, valid_batches, {}, {})


def _make_prefetcher(
    dataset: DataSet, access: DataAccess, device: torch.device, max_batch_size: int, num_runs: int
) -> DevicePrefetcher:
    workers = access.count_workers(num_runs)
    pool = WorkerPool(
        dataset.image_size, dataset.resize_ratio, max_batch_size, workers, worker_timeout_s=access.worker_timeout_s
    )
    return DevicePrefetcher(pool, device)


def _should_cache(
    num_images: int, dataset: DataSet, crop_augmentations: set[str], access: DataAccess, device: torch.device
) -> bool:
    """Return whether all decoded images stay on the device."""
    if crop_augmentations:
        if access.cache_images == "yes":
            raise InputError(
                f"augmentation {min(crop_augmentations)!r} reads the files in every epoch: images cannot be cached"
            )
        return False
    size, free_bytes = num_images * dataset.channels * dataset.image_size**2, _count_free_bytes(device)
    if access.cache_images == "yes" and size > free_bytes:
        raise InputError(
            f"{num_images:,} images of {dataset.image_size} pixels take {size / 1e9:.1f} GB on the device, and "
            f"{free_bytes / 1e9:.1f} GB are free: they cannot be cached"
        )
    if access.cache_images == "auto":
        return size <= min(MAX_AUTO_CACHE_BYTES, free_bytes // 4)
    return access.cache_images == "yes"


def _count_free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info()[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
