"""The inputs of a compiled step are a split with tables on the device, or buffers that are filled before each step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from lcrbnn.data.loading.augment import draw_augmentation, normalize
from lcrbnn.data.loading.batches import BatchSource, InMemoryBatches
from lcrbnn.data.loading.stream import RawBatch, StreamedBatches
from lcrbnn.train.setup.spec import TrainSpec


class BatchInputs(Protocol):
    """The images of each step.

    A CUDA graph needs everything that `select_part` reads at the same addresses in every step.
    """

    def begin_epoch(self, epoch: int, first_step: int, num_steps: int) -> None:
        """Prepare the full batches of an epoch, from step `first_step` to `num_steps`."""

    def load_batch(self) -> None:
        """Prepare the next batch. Training calls this before each step."""

    def select_part(self, step: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return images of a step, augmented and normalised, and their labels.

        They are this process's images from `start` on, as many as a forward pass uses. Without gradient accumulation,
        these are all of them.
        """

    def load_sample(self) -> None:
        """Make step 0 use a representative sample of the split (`BatchSource.read_sample`).

        Its images are not augmented.
        """


class InMemoryInputs:
    """Inputs from a split on the device. Tables contain the order and the augmentation draws of an epoch's images."""

    def __init__(self, spec: TrainSpec, train: InMemoryBatches) -> None:
        """Allocate the tables for the largest epoch."""
        self.spec, self.train = spec, train
        count, device = len(train), train.labels.device
        self.augment = train.find_augmentation(spec.augmentation)
        self._order = torch.zeros(count, dtype=torch.int64, device=device)
        # this value is never used, because `begin_epoch` fills the table
        self._draws = draw_augmentation(0, 0, count, self.augment.num_random_numbers).to(device)
        self._part_offsets = torch.arange(_count_part_images(spec, train), device=device)
        # position of this process's images within a batch
        self._rank_offset = train.rank * spec.gradient_accumulation_steps * len(self._part_offsets)

    def begin_epoch(self, epoch: int, first_step: int, num_steps: int) -> None:
        """Fill the tables with the image order and the draws of this epoch."""
        self._order.copy_(self.train.shuffle_rows(self.spec.seed, epoch))
        draws = draw_augmentation(self.spec.seed, epoch, len(self.train), self.augment.num_random_numbers)
        for table, values in zip(self._draws, draws, strict=True):
            table.copy_(values)

    def load_batch(self) -> None:
        """Do nothing, because all images are on the device."""

    def select_part(self, step: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images and labels that the tables select for this step."""
        positions = step * self.spec.batch_size + self._rank_offset + start + self._part_offsets
        rows = self._order[positions]
        images = self.augment.apply(self.train.images[rows], self._draws.take(positions))
        return normalize(images, self.train.scale, self.train.shift), self.train.labels[rows]

    def load_sample(self) -> None:
        """Fill the tables so that step 0 selects the sample."""
        self._order[self._rank_offset + self._part_offsets] = self.train.choose_sample_rows(len(self._part_offsets))
        self._draws.set_identity()


class StreamedInputs:
    """Inputs from a split that is read from files. Each batch is copied into the same buffers."""

    def __init__(self, spec: TrainSpec, train: StreamedBatches) -> None:
        """Allocate the buffers."""
        self.spec, self.train = spec, train
        device, image_size = train.labels.device, train.dataset.image_size
        self._part_offsets = torch.arange(_count_part_images(spec, train), device=device)
        count = len(self._part_offsets) * spec.gradient_accumulation_steps
        self.augment = train.find_augmentation(spec.augmentation)
        shape = (count, train.dataset.channels, image_size, image_size)
        self._images = torch.zeros(shape, dtype=torch.uint8, device=device)
        self._labels = torch.zeros(count, dtype=torch.int64, device=device)
        # this value is never used, because `load_batch` fills the buffer
        self._draws = draw_augmentation(0, 0, count, self.augment.num_random_numbers).to(device)
        self._raw_batches: Iterator[RawBatch] = iter(())

    def begin_epoch(self, epoch: int, first_step: int, num_steps: int) -> None:
        """Start reading the files of this epoch."""
        spec = self.spec
        self._raw_batches = self.train.raw_train_batches(
            spec.seed, epoch, spec.batch_size, spec.augmentation, first_step, num_steps
        )

    def load_batch(self) -> None:
        """Copy the next batch into the buffers."""
        batch = next(self._raw_batches)
        self._images.copy_(batch.images)
        self._labels.copy_(batch.labels)
        for buffer, values in zip(self._draws, batch.draws, strict=True):
            buffer.copy_(values)

    def select_part(self, step: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return images and labels from the buffers, augmented and normalised."""
        images, labels, draws = self._images, self._labels, self._draws
        if self.spec.gradient_accumulation_steps > 1:
            rows = start + self._part_offsets
            images, labels, draws = images[rows], labels[rows], draws.take(rows)
        return normalize(self.augment.apply(images, draws), self.train.scale, self.train.shift), labels

    def load_sample(self) -> None:
        """Read the sample into the buffers."""
        sample = self.train.read_sample(len(self._part_offsets))
        self._images[self._part_offsets] = sample.images
        self._labels[self._part_offsets] = sample.labels
        self._draws.set_identity()


def make_batch_inputs(spec: TrainSpec, train: BatchSource) -> BatchInputs:
    """Return the inputs for a split in memory or a split that is read from files."""
    if isinstance(train, StreamedBatches):
        return StreamedInputs(spec, train)
    assert isinstance(train, InMemoryBatches)
    return InMemoryInputs(spec, train)


def _count_part_images(spec: TrainSpec, train: BatchSource) -> int:
    """Return the images per forward pass, which are the batch size / (processes x accumulation steps)."""
    return min(spec.batch_size // (train.world_size * spec.gradient_accumulation_steps), len(train))
