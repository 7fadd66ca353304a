"""A split that is read from files while it is learned from: the same batches as if it were held on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lcrbnn.data import DataSet
from lcrbnn.data.listing import Listing
from lcrbnn.train.augment import READ_SO, Draws, draw, normalize
from lcrbnn.train.batches import Batch, Source, part
from lcrbnn.train.channel import Channel
from lcrbnn.train.pool import Request
from lcrbnn.train.seeds import derive


class Fed(NamedTuple):
    """A batch before what the device does to it: uint8 images, labels, rows, and the draws of its augmentation."""

    images: Tensor
    labels: Tensor
    rows: Tensor
    draws: Draws


class Stream(Source):
    """Images of a listing, read by the processes of a channel.

    Of each batch of B images, of `world` ranks each takes the next B / world; alone it takes them all.
    """

    streamed = True

    def __init__(
        self, listing: Listing, row: DataSet, device: torch.device, channel: Channel, *, rank: int = 0, world: int = 1
    ) -> None:
        """Keep the listing; nothing is read."""
        super().__init__(listing.labels, row, device, rank, world)
        self.listing, self.channel = listing, channel

    @property
    def waited(self) -> float:
        """Seconds in which a step waited for its images."""
        return self.channel.waited

    def feed(self, seed: int, epoch: int, batch: int, augment: str, first: int, steps: int) -> Iterator[Fed]:
        """The batches of an epoch from step `first` on, as they were read; reading begins at once."""
        how = self.usual if augment == "usual" else augment
        order = self.order(seed, epoch)
        key = derive(seed, "crop", epoch) if how in READ_SO else None
        ends = [(step * batch, min((step + 1) * batch, len(self))) for step in range(first, steps)]
        parts = [part(*these, self.rank, self.world) for these in ends]
        requests = (self._request(order[own].numpy(), key, own) for own in parts)
        draws = draw(seed, epoch, len(self), self.augmentation(augment).numbers)
        images = self.channel.batches(requests)
        return self._fed(images, parts, order, draws)

    def epoch(self, seed: int, epoch: int, batch: int, augment: str, first: int, steps: int) -> Iterator[Batch]:
        """The batches of an epoch from step `first` on; reading begins at once."""
        change = self.augmentation(augment).apply
        fed = self.feed(seed, epoch, batch, augment, first, steps)
        return (
            Batch(normalize(change(one.images, one.draws), self.scale, self.shift), one.labels, one.rows) for one in fed
        )

    def raw(self, batch: int, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """All images once, in their own order, as they are evaluated: uint8."""
        size = min(batch, self.channel.pool.capacity)
        starts = [
            (start, min(start + size, end))
            for begin in range(rank * batch, len(self), batch * world)
            for end in [min(begin + batch, len(self))]
            for start in range(begin, end, size)
        ]
        requests = (self._request(np.arange(*ends), None, slice(*ends)) for ends in starts)
        held: list[Tensor] = []
        for images, (start, end) in zip(self.channel.batches(requests), starts, strict=True):
            held.append(images)
            if end % batch == 0 or end == len(self):
                rows = torch.arange(start // batch * batch, end, device=self.labels.device)
                yield Batch(torch.cat(held) if len(held) > 1 else images, self.labels[rows], rows)
                held = []

    def pixels(self, rows: Tensor) -> Tensor:
        """Some images as they are evaluated: uint8."""
        size, wanted = self.channel.pool.capacity, rows.cpu().numpy()
        parts = [wanted[start : start + size] for start in range(0, len(wanted), size)]
        return torch.cat(list(self.channel.batches(Request(self.listing.take(part)) for part in parts)))

    def _fed(self, images: Iterator[Tensor], parts: list[slice], order: Tensor, draws: Draws) -> Iterator[Fed]:
        device = self.labels.device
        for own, pixels in zip(parts, images, strict=True):
            rows = order[own].to(device, non_blocking=True)
            yield Fed(pixels, self.labels[rows], rows, Draws(*(d[own].to(device, non_blocking=True) for d in draws)))

    def _request(self, rows: np.ndarray, key: int | None, own: slice) -> Request:
        return Request(self.listing.take(rows), key, range(own.start, own.stop))
