"""Choose the order and the augmentation of the batches of a split. `InMemoryBatches` holds all images on the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lcrbnn.data.datasets import DataSet
from lcrbnn.data.loading.augment import AUGMENTATIONS, Augmentation, draw_augmentation, normalize
from lcrbnn.data.split import Split
from lcrbnn.device import make_generator
from lcrbnn.errors import InputError

MAX_EVALUATION_BATCH_SIZE = 1000  # number of images in an evaluation batch
# maximum number of pixels per evaluation batch, so that batches of large images have fewer images
MAX_EVALUATION_BATCH_PIXELS = 16_000_000


class Batch(NamedTuple):
    """The images of one training step, their labels, and their row numbers in the split.

    Several views are in order of view.
    """

    images: Tensor
    labels: Tensor
    rows: Tensor


def slice_part(start: int, stop: int, part: int, num_parts: int) -> slice:
    """Return part number `part` when start...stop is cut into `num_parts` contiguous parts of nearly equal size."""
    n = stop - start
    return slice(start + n * part // num_parts, start + n * (part + 1) // num_parts)


class BatchSource(ABC):
    """Base class of batches of one split on a device. The order of the images depends only on seed and epoch.

    The augmentation of an image depends only on its position in that order. So an epoch can be resumed at any step.
    With several processes, each process (`rank` of `world_size`) gets a contiguous part of each batch. The parts in
    order of rank form the batch.
    """

    is_streamed = False  # whether images are read from files during the run

    def __init__(
        self, labels: np.ndarray, dataset: DataSet, device: torch.device, rank: int = 0, world_size: int = 1
    ) -> None:
        """Store the labels, and the scale and shift that normalise the pixels."""
        self.dataset, self.rank, self.world_size = dataset, rank, world_size
        self.labels = torch.from_numpy(labels).to(device)
        mean, std = torch.tensor(dataset.mean), torch.tensor(dataset.std)
        # (pixel / max_pixel_value - mean) / std = pixel * scale + shift
        self.scale = (1 / (dataset.max_pixel_value * std)).reshape(-1, 1, 1).to(device)
        self.shift = (-mean / std).reshape(-1, 1, 1).to(device)
        self.default_augmentation, self.pixel_levels = dataset.default_augmentation, dataset.max_pixel_value + 1

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    @property
    def loading_time_s(self) -> float:
        """Return the total time in seconds for which training waited for images."""
        return 0.0

    def count_steps(self, batch_size: int, drop_last: bool, gradient_accumulation_steps: int = 1) -> int:
        """Return the number of steps per epoch.

        Raise InputError if a forward pass would have fewer than two images, because batch normalization needs at least
        two.
        """
        num_full_batches, last_batch_size = divmod(len(self), batch_size)
        num_parts = self.world_size * gradient_accumulation_steps
        if batch_size < 2 * num_parts or (0 < last_batch_size < 2 * num_parts and not drop_last and num_parts > 1):
            small_batch = f"the last batch of an epoch ({last_batch_size} images)"
            if batch_size < 2 * num_parts:
                small_batch = f"a batch of {batch_size} images"
            raise InputError(
                f"{small_batch} is too small for {self.world_size} processes with {gradient_accumulation_steps} "
                "gradient accumulation steps of at least two images: choose another batch_size, or drop_last"
            )
        if last_batch_size == 1 and not drop_last:
            raise InputError(
                f"batches of {batch_size} leave one of {len(self):,} images for the last step, and batch normalization "
                "needs two: choose another batch_size, or drop_last"
            )
        num_steps = num_full_batches + (last_batch_size > 0 and not drop_last)
        if num_steps == 0:
            raise InputError(
                f"a batch of {batch_size} is larger than the {len(self):,} training images, and drop_last drops it"
            )
        return num_steps

    def find_augmentation(self, name: str) -> Augmentation:
        """Return the augmentation with this name. The name "standard" means the augmentation of the data set.

        Raise InputError if the augmentation needs images with another number of levels per pixel value.
        """
        augmentation = AUGMENTATIONS[self.default_augmentation if name == "standard" else name]
        if augmentation.required_levels not in (None, self.pixel_levels):
            raise InputError(
                f"augmentation {name} needs pixels with {augmentation.required_levels} levels; "
                f"{self.dataset.name} has {self.pixel_levels}"
            )
        return augmentation

    def shuffle_rows(self, seed: int, epoch: int) -> Tensor:
        """Return the row numbers of the split in the random order of an epoch, on the CPU."""
        return torch.randperm(len(self), generator=make_generator(seed, "order", epoch))

    @abstractmethod
    def train_batches(
        self, seed: int, epoch: int, batch_size: int, augmentation: str, first_step: int, num_steps: int
    ) -> Iterator[Batch]:
        """Yield the augmented, normalised batches of an epoch.

        The epoch has `num_steps` steps and starts at `first_step`.
        """

    @abstractmethod
    def raw_batches(self, batch_size: int, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Yield all images in the order of the split as uint8.

        With several processes, yield every world_size-th batch from `rank` on.
        """

    @abstractmethod
    def read_images(self, rows: Tensor) -> Tensor:
        """Return the images of these rows as uint8."""

    def choose_sample_rows(self, count: int) -> Tensor:
        """Return the rows of a representative sample of the split."""
        return self.dataset.choose_sample_rows(torch.arange(count, device=self.labels.device), len(self))

    def read_sample(self, count: int) -> Batch:
        """Return a representative sample of the split as uint8."""
        rows = self.choose_sample_rows(count)
        return Batch(self.read_images(rows), self.labels[rows], rows)

    def evaluation_batches(self, batch_size: int | None = None, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Yield the batches of `raw_batches` with normalised pixels.

        The default batch size depends on the image size.
        """
        if batch_size is None:
            batch_size = choose_evaluation_batch_size(self.dataset.image_size)
        for batch in self.raw_batches(batch_size, rank, world_size):
            yield batch._replace(images=normalize(batch.images, self.scale, self.shift))


def choose_evaluation_batch_size(image_size: int) -> int:
    """Return the batch size for evaluating images of this size."""
    return max(1, min(MAX_EVALUATION_BATCH_SIZE, MAX_EVALUATION_BATCH_PIXELS // image_size**2))


class InMemoryBatches(BatchSource):
    """Batches of a split whose images are all in the memory of the device."""

    def __init__(
        self, split: Split, dataset: DataSet, device: torch.device, rank: int = 0, world_size: int = 1
    ) -> None:
        """Copy the images to the device."""
        super().__init__(split.labels, dataset, device, rank, world_size)
        self.images = torch.from_numpy(split.images).to(device)

    def train_batches(
        self, seed: int, epoch: int, batch_size: int, augmentation: str, first_step: int, num_steps: int
    ) -> Iterator[Batch]:
        """Yield the augmented, normalised batches of an epoch.

        The epoch has `num_steps` steps and starts at `first_step`.
        """
        order = self.shuffle_rows(seed, epoch).to(self.images.device)
        operation = self.find_augmentation(augmentation)
        draws = draw_augmentation(seed, epoch, len(self), operation.num_random_numbers).to(self.images.device)
        for step in range(first_step, num_steps):
            stop = min((step + 1) * batch_size, len(self))
            positions = slice_part(step * batch_size, stop, self.rank, self.world_size)
            rows = order[positions]
            images = operation.apply(self.images[rows], draws.take(positions))
            yield Batch(normalize(images, self.scale, self.shift), self.labels[rows], rows)

    def raw_batches(self, batch_size: int, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Yield all images in the order of the split as uint8.

        With several processes, yield every world_size-th batch from `rank` on.
        """
        for start in range(rank * batch_size, len(self), batch_size * world_size):
            rows = torch.arange(start, min(start + batch_size, len(self)), device=self.images.device)
            yield Batch(self.images[rows], self.labels[rows], rows)

    def read_images(self, rows: Tensor) -> Tensor:
        """Return the images of these rows as uint8."""
        return self.images[rows]
