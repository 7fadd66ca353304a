"""Where a captured step finds its images: tables and a split on the device, or a buffer that is filled before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from lcrbnn.train.augment import Draws, draw, normalize
from lcrbnn.train.batches import Batches, Source
from lcrbnn.train.spec import Spec
from lcrbnn.train.stream import Fed, Stream


class Feed(Protocol):
    """Whatever `pick` reads lies at the same addresses in every step."""

    def begin(self, epoch: int, first: int, steps: int) -> None:
        """Be ready for the full batches of an epoch, from step `first` to `steps`."""

    def load(self) -> None:
        """Before each of them."""

    def pick(self, count: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Images of step `count`, augmented and normalised, and their labels.

        They are a part of what this process has of the step, from `start` on: all of it unless gradients accumulate.
        """

    def show_sample(self) -> None:
        """Let step 0 be images that stand for the split (`Source.sample`), as they are."""


class HeldFeed:
    """A split on the device: order and draws of an epoch are tables, and a step picks by itself."""

    def __init__(self, spec: Spec, train: Batches) -> None:
        """Lay out the tables."""
        self.spec, self.train = spec, train
        count, device = len(train), train.labels.device
        self.augment = train.augmentation(spec.augment)
        self._order = torch.zeros(count, dtype=torch.int64, device=device)
        self._draws = draw(0, 0, count, self.augment.numbers).to(device)  # filled anew each time
        self._lanes = torch.arange(_part(spec, train), device=device)
        self._base = train.rank * spec.accumulate * len(self._lanes)  # the place of this process in a batch

    def begin(self, epoch: int, first: int, steps: int) -> None:
        """Fill the tables."""
        self._order.copy_(self.train.order(self.spec.seed, epoch))
        for table, drawn in zip(self._draws, self._drawn(epoch), strict=True):
            table.copy_(drawn)

    def _drawn(self, epoch: int) -> Draws:
        return draw(self.spec.seed, epoch, len(self.train), self.augment.numbers)

    def load(self) -> None:
        """Nothing: all is there."""

    def pick(self, count: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """By the tables."""
        places = count * self.spec.batch + self._base + start + self._lanes
        rows = self._order[places]
        images = self.augment.apply(self.train.images[rows], self._draws.at(places))
        return normalize(images, self.train.scale, self.train.shift), self.train.labels[rows]

    def show_sample(self) -> None:
        """By the tables."""
        self._order[self._base + self._lanes] = self.train.sample_rows(len(self._lanes))
        self._draws.still()


class StreamFeed:
    """A split that is read from files: each batch is copied to where the step looks for it."""

    def __init__(self, spec: Spec, train: Stream) -> None:
        """Lay out the buffers."""
        self.spec, self.train = spec, train
        device, side = train.labels.device, train.row.image
        self._lanes = torch.arange(_part(spec, train), device=device)
        count = len(self._lanes) * spec.accumulate
        self.augment = train.augmentation(spec.augment)
        self._images = torch.zeros((count, train.row.channels, side, side), dtype=torch.uint8, device=device)
        self._labels = torch.zeros(count, dtype=torch.int64, device=device)
        self._draws = draw(0, 0, count, self.augment.numbers).to(device)  # filled anew each time
        self._fed: Iterator[Fed] = iter(())

    def begin(self, epoch: int, first: int, steps: int) -> None:
        """Let reading begin."""
        spec = self.spec
        self._fed = self.train.feed(spec.seed, epoch, spec.batch, spec.augment, first, steps)

    def load(self) -> None:
        """Take the next batch."""
        fed = next(self._fed)
        self._images.copy_(fed.images)
        self._labels.copy_(fed.labels)
        for buffer, drawn in zip(self._draws, fed.draws, strict=True):
            buffer.copy_(drawn)

    def pick(self, count: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """What was loaded."""
        images, labels, draws = self._images, self._labels, self._draws
        if self.spec.accumulate > 1:
            places = start + self._lanes
            images, labels, draws = images[places], labels[places], draws.at(places)
        return normalize(self.augment.apply(images, draws), self.train.scale, self.train.shift), labels

    def show_sample(self) -> None:
        """Read them."""
        shown = self.train.sample(len(self._lanes))
        self._images[self._lanes] = shown.images
        self._labels[self._lanes] = shown.labels
        self._draws.still()


def feed_of(spec: Spec, train: Source) -> Feed:
    """The one that fits."""
    if isinstance(train, Stream):
        return StreamFeed(spec, train)
    assert isinstance(train, Batches)
    return HeldFeed(spec, train)


def _part(spec: Spec, train: Source) -> int:
    """Images of one forward pass: those of a batch over processes and parts."""
    return min(spec.batch // (train.world * spec.accumulate), len(train))
