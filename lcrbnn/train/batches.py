"""Batches of a split: which images, in which order, augmented how; and a split that is held on the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lcrbnn.data import DataSet, Split
from lcrbnn.errors import InputError
from lcrbnn.train.augment import AUGMENT, Augmentation, draw, normalize
from lcrbnn.train.seeds import generator

EVALUATION = 1000  # images a batch where nothing is learned
PIXELS = 16_000_000  # of such a batch, at most: large images come in smaller ones


class Batch(NamedTuple):
    """One step's images (normalised; of several views all first ones first), labels, and where they come from."""

    images: Tensor
    labels: Tensor
    rows: Tensor


def part(start: int, stop: int, which: int, count: int) -> slice:
    """The which-th of `count` contiguous parts of start...stop, alike in size but for one."""
    n = stop - start
    return slice(start + n * which // count, start + n * (which + 1) // count)


class Source(ABC):
    """Images of one split as batches on a device, in orders that depend on seed and epoch alone.

    What happens to an image depends on its place in the order. So an epoch can be entered at any step. With a `rank` of
    `world` processes, it gives the part of each batch that is this process's: contiguous, so that the parts in order
    are the batch.
    """

    streamed = False  # whether images are read from files while a run goes on

    def __init__(self, labels: np.ndarray, row: DataSet, device: torch.device, rank: int = 0, world: int = 1) -> None:
        """Keep the labels, and how pixels are normalised."""
        self.row, self.rank, self.world = row, rank, world
        self.labels = torch.from_numpy(labels).to(device)
        mean, std = torch.tensor(row.mean), torch.tensor(row.std)
        self.scale = (1 / (row.top * std)).reshape(-1, 1, 1).to(device)
        self.shift = (-mean / std).reshape(-1, 1, 1).to(device)
        self.usual, self.levels = row.augment, row.top + 1

    def __len__(self) -> int:
        """The number of images."""
        return len(self.labels)

    @property
    def waited(self) -> float:
        """Seconds in which a step waited for its images."""
        return 0.0

    def steps(self, batch: int, drop_last: bool, accumulate: int = 1) -> int:
        """The steps of an epoch; each process has two images or more in each of the parts that it cuts a step into."""
        whole, rest = divmod(len(self), batch)
        pieces = self.world * accumulate
        if batch < 2 * pieces or (0 < rest < 2 * pieces and not drop_last and pieces > 1):
            short = f"a batch of {batch}" if batch < 2 * pieces else f"the last batch of an epoch, of {rest},"
            raise InputError(
                f"{short} is too small for {self.world} x {accumulate} parts (processes x accumulate) of two images or "
                "more: choose another batch, or drop_last"
            )
        if rest == 1 and not drop_last:
            raise InputError(
                f"batches of {batch} leave one image of {len(self):,} for the last step, and a batch norm needs two: "
                "choose another batch, or drop_last"
            )
        count = whole + (rest > 0 and not drop_last)
        if count == 0:
            raise InputError(f"a batch of {batch} does not fit the {len(self):,} training images, with drop_last")
        return count

    def augmentation(self, name: str) -> Augmentation:
        """What a spec's word means for these images."""
        how = AUGMENT[self.usual if name == "usual" else name]
        if how.levels not in (None, self.levels):
            raise InputError(f"augment {name} is for pixels of {how.levels} levels, and these have {self.levels}")
        return how

    def order(self, seed: int, epoch: int) -> Tensor:
        """The rows of the split in the order of an epoch, on the CPU."""
        return torch.randperm(len(self), generator=generator(seed, "order", epoch))

    @abstractmethod
    def epoch(self, seed: int, epoch: int, batch: int, augment: str, first: int, steps: int) -> Iterator[Batch]:
        """The batches of an epoch from step `first` on."""

    @abstractmethod
    def raw(self, batch: int, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """All images once, in their own order, as they are: uint8; or every world-th batch, from the rank-th on."""

    @abstractmethod
    def pixels(self, rows: Tensor) -> Tensor:
        """Some images as they are: uint8."""

    def sample_rows(self, count: int) -> Tensor:
        """Rows that stand for the split."""
        return self.row.standing_for(torch.arange(count, device=self.labels.device), len(self))

    def sample(self, count: int) -> Batch:
        """These images as they are: uint8."""
        rows = self.sample_rows(count)
        return Batch(self.pixels(rows), self.labels[rows], rows)

    def plain(self, batch: int | None = None, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """The same, normalised."""
        for one in self.raw(evaluation_batch(self.row.image) if batch is None else batch, rank, world):
            yield one._replace(images=normalize(one.images, self.scale, self.shift))


def evaluation_batch(side: int) -> int:
    """Images a batch where nothing is learned, for images of this side."""
    return max(1, min(EVALUATION, PIXELS // side**2))


class Batches(Source):
    """The images of one split, held on the device."""

    def __init__(self, split: Split, row: DataSet, device: torch.device, rank: int = 0, world: int = 1) -> None:
        """Copy the images to the device."""
        super().__init__(split.labels, row, device, rank, world)
        self.images = torch.from_numpy(split.images).to(device)

    def epoch(self, seed: int, epoch: int, batch: int, augment: str, first: int, steps: int) -> Iterator[Batch]:
        """The batches of an epoch from step `first` on."""
        order = self.order(seed, epoch).to(self.images.device)
        how = self.augmentation(augment)
        draws = draw(seed, epoch, len(self), how.numbers).to(self.images.device)
        for step in range(first, steps):
            place = part(step * batch, min((step + 1) * batch, len(self)), self.rank, self.world)
            rows = order[place]
            images = how.apply(self.images[rows], draws.at(place))
            yield Batch(normalize(images, self.scale, self.shift), self.labels[rows], rows)

    def raw(self, batch: int, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """All images once, in their own order, as they are: uint8."""
        for start in range(rank * batch, len(self), batch * world):
            rows = torch.arange(start, min(start + batch, len(self)), device=self.images.device)
            yield Batch(self.images[rows], self.labels[rows], rows)

    def pixels(self, rows: Tensor) -> Tensor:
        """Some images as they are: uint8."""
        return self.images[rows]
