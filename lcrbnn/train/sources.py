"""What a run reads: the splits of its data set, held on the device or read from files while it goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lcrbnn.data import DataSet, Images, Split, data_folder
from lcrbnn.data.listing import Listing
from lcrbnn.data.tree import Tree, held_back
from lcrbnn.errors import InputError, choose, number
from lcrbnn.train.augment import READ_SO
from lcrbnn.train.batches import Batches, Source, part
from lcrbnn.train.channel import Channel, refusal
from lcrbnn.train.dataset import check_class_names, data_row
from lcrbnn.train.pool import PATIENCE, Pool, Request
from lcrbnn.train.ranks import whole_number
from lcrbnn.train.spec import Spec
from lcrbnn.train.stream import Stream

CACHES = {
    "auto": "if all images fit into a quarter of the free memory, and into 4 GB",
    "yes": "decoded once, then held on the device",
    "no": "read in every epoch",
}
MOST = 4 << 30  # bytes that are held without being asked
BATCH = 256  # images read at a time where no batch is trained

Faults = dict[str, str]  # name of a broken image in its tree: what is wrong with it


@dataclass(frozen=True)
class Access:
    """How images are read from files: nothing here decides the outcome of a run."""

    folder: Path = field(default_factory=data_folder)
    workers: int = -1  # processes; -1: one a core but one, 0: none of their own
    cache: str = "auto"  # CACHES
    patience: float = PATIENCE  # seconds that a process may say nothing

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        number(self.workers, "workers", low=-1, high=4096, whole=True)
        number(self.patience, "patience", low=0.1)
        choose(CACHES, self.cache, "kind of cache")

    def crew(self, shared_by: int = 1) -> int:
        """How many processes each of so many runs gets."""
        if self.workers >= 0:
            return self.workers
        here = max(1, whole_number("LOCAL_WORLD_SIZE", "1"))  # ranks on this machine
        return max(1, (len(os.sched_getaffinity(0)) // here - 1) // shared_by)


class Splits(NamedTuple):
    """What a run learns from and is watched on, the broken images that were left out, and how images are read.

    `classes` are the names of a tree's, `digest` is that of its training images, if they are files.
    """

    train: Source
    valid: Source | None
    broken: Faults
    about: dict[str, Any]
    classes: tuple[str, ...] = ()
    digest: str = ""


def open_splits(
    specs: Sequence[Spec],
    access: Access,
    device: torch.device,
    held: ExitStack,
    known: Faults | None = None,
    share: tuple[int, int] = (0, 1),
    names: tuple[str, ...] = (),
) -> list[Splits]:
    """The splits of runs side by side on one data set, never the test images.

    `known`: what `find_broken` found before; `share`: which of how many processes learns from a part of each batch;
    `names`: of the classes, if the images must have these.
    """
    spec, runs = specs[0], len(specs)
    row = data_row(spec, names)
    hows = {row.augment if one.augment == "usual" else one.augment for one in specs}
    whole = hows & set(READ_SO)
    if row.tree is None:
        if whole:
            raise InputError(f"augment {min(whole)!r} needs images that are read from files; {row.name} is held whole")
        learned, watched = splits_of(spec, row, row.load(access.folder))
        return [_held(learned, watched, row, device, share)] * runs
    tree = _training_tree(spec, row, access.folder)
    with _channel(row, access, device, BATCH, 1) as checking:
        broken = {} if not spec.skip_broken else find_broken(spec, access, device) if known is None else known
        tree = Tree(without(tree.train, broken), tree.test, tree.classes)
        _check_all_there(tree)
        digest = tree.train.digest()
        parts = (tree.train, None) if spec.images == "all" else tree.divided(row.held_out)
        if _cached(len(tree.train), row, whole, access, device):
            train, valid = (None if one is None else decoded(one, checking) for one in parts)
            assert train is not None
            kept = _held(train, valid, row, device, share)
            return [Splits(kept.train, kept.valid, broken, {"images": "cached"}, tree.classes, digest)] * runs
    found = []
    for one in specs:
        learned_part, watched_part = parts
        rank, world = share
        own = -(-one.batch // world)  # the most that a process has of a batch
        channel = held.enter_context(_channel(row, access, device, own, runs))
        learning = Stream(learned_part, row, device, channel, rank=rank, world=world)
        watching = None if watched_part is None else Stream(watched_part, row, device, channel)
        about = {"images": "streamed", "workers": channel.pool.workers}
        found.append(Splits(learning, watching, broken, about, tree.classes, digest))
    return found


def find_broken(spec: Spec, access: Access, device: torch.device, share: tuple[int, int] = (0, 1)) -> Faults:
    """Read every training image once, or of several processes this one's part: which are broken, and why."""
    row = data_row(spec)
    listing = _training_tree(spec, row, access.folder).train
    own = part(0, len(listing), *share)
    with _channel(row, access, device, BATCH, 1) as channel:
        return check(listing.take(np.arange(own.start, own.stop)), channel)


def open_test(
    spec: Spec, access: Access, device: torch.device, held: ExitStack, names: tuple[str, ...] = ()
) -> tuple[Source, Faults]:
    """The test images, and those of them that were left out; with names, classes of others are refused."""
    row = data_row(spec, names)
    if row.tree is None:
        return Batches(row.load(access.folder).test, row, device), {}
    listing = found_tree(spec, row, access.folder).test
    channel = held.enter_context(_channel(row, access, device, BATCH, 1))
    broken = check(listing, channel) if spec.skip_broken else {}
    return Stream(without(listing, broken), row, device, channel), broken


def splits_of(spec: Spec, row: DataSet, images: Images) -> tuple[Split, Split | None]:
    """What a run learns from and what it is watched on: never the test images."""
    if spec.images == "all":
        return images.train, None
    count = row.held_out if row.tree is None else held_back(len(images.train.labels), row.held_out)
    return images.divided(count)


def found_tree(spec: Spec, row: DataSet, folder: Path) -> Tree:
    """The tree of a data set, with as many classes as the network has."""
    assert row.tree is not None
    tree = row.tree(folder)
    if len(tree.classes) != row.classes:
        raise InputError(f"{folder} has {len(tree.classes):,} classes in train, and {row.name} has {row.classes:,}")
    return tree


def _training_tree(spec: Spec, row: DataSet, folder: Path) -> Tree:
    """The tree of a data set to train on: the run keeps the names of its classes."""
    tree = found_tree(spec, row, folder)
    check_class_names(tree.classes, folder)
    return tree


def check(listing: Listing, channel: Channel) -> Faults:
    """Read every image once; which are broken, and why."""
    broken: Faults = {}
    for job in channel.pool.run(_requests(listing, channel)):
        broken |= {job.request.members.inside(i): why for i, why in job.broken.items()}
        channel.pool.release(job)
    return broken


def without(listing: Listing, broken: Faults) -> Listing:
    """The images that are not broken."""
    if not broken:
        return listing
    good = np.array([i for i in range(len(listing)) if listing.inside(i) not in broken], np.int64)
    if len(good) == 0:
        raise InputError(f"all {len(listing):,} images are broken, the first one {next(iter(broken.items()))}")
    return listing.take(good)


def _check_all_there(tree: Tree) -> None:
    """Refuse a class of which broken images have left nothing."""
    gone = set(range(len(tree.classes))) - set(tree.train.labels.tolist())
    if gone:
        name = tree.classes[min(gone)]
        raise InputError(f"all training images of the class {name!r} are broken: it cannot be learned")


def decoded(listing: Listing, channel: Channel) -> Split:
    """All images as they are evaluated, (n, 3, side, side)."""
    side, done = channel.pool.side, 0
    images = np.empty((len(listing), 3, side, side), np.uint8)
    for job in channel.pool.run(_requests(listing, channel)):
        if job.broken:
            raise InputError(refusal(job))
        images[done : done + len(job.squares)] = job.squares.transpose(0, 3, 1, 2)
        done += len(job.squares)
        channel.pool.release(job)
    return Split(images, listing.labels)


def _requests(listing: Listing, channel: Channel) -> Iterator[Request]:
    size = channel.pool.capacity
    for start in range(0, len(listing), size):
        yield Request(listing.take(np.arange(start, min(start + size, len(listing)))))


def _held(train: Split, valid: Split | None, row: DataSet, device: torch.device, share: tuple[int, int]) -> Splits:
    watched = None if valid is None else Batches(valid, row, device)
    return Splits(Batches(train, row, device, *share), watched, {}, {})


def _channel(row: DataSet, access: Access, device: torch.device, batch: int, shared_by: int) -> Channel:
    workers = access.crew(shared_by)
    return Channel(Pool(row.image, row.margin, batch, workers, patience=access.patience), device)


def _cached(count: int, row: DataSet, whole: set[str], access: Access, device: torch.device) -> bool:
    """Whether all images are held on the device."""
    if whole:
        if access.cache == "yes":
            raise InputError(f"augment {min(whole)!r} reads the files in every epoch: images cannot be cached")
        return False
    size, free = count * row.channels * row.image**2, _free(device)
    if access.cache == "yes" and size > free:
        raise InputError(
            f"{count:,} images of {row.image} pixels take {size / 1e9:.1f} GB on the device, and {free / 1e9:.1f} GB "
            "are free: they cannot be cached"
        )
    return access.cache == "yes" or (access.cache == "auto" and size <= min(MOST, free // 4))


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info()[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
