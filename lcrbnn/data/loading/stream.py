"""Load batches of a split from image files during training. These batches equal those of InMemoryBatches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lcrbnn.data.datasets import DataSet
from lcrbnn.data.image_files.image_index import ImageIndex
from lcrbnn.data.loading.augment import CROPPED_ON_READ, AugmentationDraws, draw_augmentation, normalize
from lcrbnn.data.loading.batches import Batch, BatchSource, slice_part
from lcrbnn.data.loading.device_prefetcher import DevicePrefetcher
from lcrbnn.data.loading.worker_pool import BatchRequest
from lcrbnn.device import derive_seed


class RawBatch(NamedTuple):
    """A batch before augmentation on the device: images (uint8), labels, row numbers and random draws."""

    images: Tensor
    labels: Tensor
    rows: Tensor
    draws: AugmentationDraws


class StreamedBatches(BatchSource):
    """Batches of indexed image files. The workers of a DevicePrefetcher read the files."""

    is_streamed = True

    def __init__(
        self,
        image_index: ImageIndex,
        dataset: DataSet,
        device: torch.device,
        prefetcher: DevicePrefetcher,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Store the image index and the prefetcher. Reading starts with the first batch."""
        super().__init__(image_index.labels, dataset, device, rank, world_size)
        self.image_index, self.prefetcher = image_index, prefetcher

    @property
    def loading_time_s(self) -> float:
        """Return the total time in seconds for which training waited for images."""
        return self.prefetcher.waiting_time_s

    def raw_train_batches(
        self, seed: int, epoch: int, batch_size: int, augmentation: str, first_step: int, num_steps: int
    ) -> Iterator[RawBatch]:
        """Return the batches of an epoch from `first_step` on, without the augmentation on the device.

        Reading starts when this function is called, not when the first batch is used.
        """
        augmentation_name = self.default_augmentation if augmentation == "standard" else augmentation
        order = self.shuffle_rows(seed, epoch)
        crop_key = derive_seed(seed, "crop", epoch) if augmentation_name in CROPPED_ON_READ else None
        batch_bounds = [
            (step * batch_size, min((step + 1) * batch_size, len(self))) for step in range(first_step, num_steps)
        ]
        rank_positions = [slice_part(*bounds, self.rank, self.world_size) for bounds in batch_bounds]
        requests = (self._make_request(order[positions].numpy(), crop_key, positions) for positions in rank_positions)
        draws = draw_augmentation(seed, epoch, len(self), self.find_augmentation(augmentation).num_random_numbers)
        images = self.prefetcher.load_batches(requests)
        return self._add_labels_and_draws(images, rank_positions, order, draws)

    def train_batches(
        self, seed: int, epoch: int, batch_size: int, augmentation: str, first_step: int, num_steps: int
    ) -> Iterator[Batch]:
        """Return the augmented, normalised batches of an epoch from `first_step` on. Reading starts at the call."""
        augment = self.find_augmentation(augmentation).apply
        raw_batches = self.raw_train_batches(seed, epoch, batch_size, augmentation, first_step, num_steps)
        return (
            Batch(normalize(augment(raw.images, raw.draws), self.scale, self.shift), raw.labels, raw.rows)
            for raw in raw_batches
        )

    def raw_batches(self, batch_size: int, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Yield the centre crops of all images in the order of the split as uint8.

        With several processes, yield a part of the batches.
        """
        # A batch can be larger than a slot of the worker pool. Then it is read in several chunks.
        chunk_size = min(batch_size, self.prefetcher.pool.max_batch_size)
        chunk_bounds = [
            (start, min(start + chunk_size, end))
            for begin in range(rank * batch_size, len(self), batch_size * world_size)
            for end in [min(begin + batch_size, len(self))]
            for start in range(begin, end, chunk_size)
        ]
        requests = (self._make_request(np.arange(*bounds), None, slice(*bounds)) for bounds in chunk_bounds)
        chunks: list[Tensor] = []
        for images, (start, end) in zip(self.prefetcher.load_batches(requests), chunk_bounds, strict=True):
            chunks.append(images)
            if end % batch_size == 0 or end == len(self):
                rows = torch.arange(start // batch_size * batch_size, end, device=self.labels.device)
                yield Batch(torch.cat(chunks) if len(chunks) > 1 else images, self.labels[rows], rows)
                chunks = []

    def read_images(self, rows: Tensor) -> Tensor:
        """Return the centre crops of these rows as uint8."""
        chunk_size, row_numbers = self.prefetcher.pool.max_batch_size, rows.cpu().numpy()
        chunks = [row_numbers[start : start + chunk_size] for start in range(0, len(row_numbers), chunk_size)]
        requests = (BatchRequest(self.image_index.take(chunk)) for chunk in chunks)
        return torch.cat(list(self.prefetcher.load_batches(requests)))

    def _add_labels_and_draws(
        self, image_batches: Iterator[Tensor], rank_positions: list[slice], order: Tensor, draws: AugmentationDraws
    ) -> Iterator[RawBatch]:
        device = self.labels.device
        for positions, images in zip(rank_positions, image_batches, strict=True):
            rows = order[positions].to(device, non_blocking=True)
            batch_draws = AugmentationDraws(*(d[positions].to(device, non_blocking=True) for d in draws))
            yield RawBatch(images, self.labels[rows], rows, batch_draws)

    def _make_request(self, rows: np.ndarray, crop_key: int | None, positions: slice) -> BatchRequest:
        return BatchRequest(self.image_index.take(rows), crop_key, range(positions.start, positions.stop))
