"""A split on the device, as uint8, and its batches: which images, in which order, augmented how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lcrbnn.data import DataSet, Split
from lcrbnn.errors import InputError
from lcrbnn.train.augment import AUGMENT, Augmentation, draw, normalize
from lcrbnn.train.seeds import generator

EVALUATION = 1000  # images a batch where nothing is learned


class Batch(NamedTuple):
    """One step's images (normalised; of several views all first ones first), labels, and where they come from."""

    images: Tensor
    labels: Tensor
    rows: Tensor


class Batches:
    """The images of one split, held on the device.

    An epoch's order and augmentation depend on seed and epoch alone; what happens to an image, on its place in that
    order. So an epoch can be entered at any step.
    """

    def __init__(self, split: Split, row: DataSet, device: torch.device) -> None:
        """Copy the images to the device."""
        self.images = torch.from_numpy(split.images).to(device)
        self.labels = torch.from_numpy(split.labels).to(device)
        mean, std = torch.tensor(row.mean), torch.tensor(row.std)
        self.scale = (1 / (row.top * std)).reshape(-1, 1, 1).to(device)
        self.shift = (-mean / std).reshape(-1, 1, 1).to(device)
        self.usual, self.levels = row.augment, row.top + 1

    def __len__(self) -> int:
        """The number of images."""
        return len(self.labels)

    def steps(self, batch: int, drop_last: bool) -> int:
        """The steps of an epoch."""
        whole, rest = divmod(len(self), batch)
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

    def epoch(self, seed: int, epoch: int, batch: int, augment: str, first: int, steps: int) -> Iterator[Batch]:
        """The batches of an epoch from step `first` on."""
        order = self.order(seed, epoch).to(self.images.device)
        how = self.augmentation(augment)
        draws = draw(seed, epoch, len(self), how.numbers).to(self.images.device)
        for step in range(first, steps):
            place = slice(step * batch, (step + 1) * batch)
            rows = order[place]
            images = how.apply(self.images[rows], draws.at(place))
            yield Batch(normalize(images, self.scale, self.shift), self.labels[rows], rows)

    def plain(self, batch: int = EVALUATION) -> Iterator[Batch]:
        """All images once, in their own order, as they are."""
        for start in range(0, len(self), batch):
            rows = torch.arange(start, min(start + batch, len(self)), device=self.images.device)
            yield Batch(normalize(self.images[rows], self.scale, self.shift), self.labels[rows], rows)
