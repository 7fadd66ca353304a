"""The errors of networks under corruption: a batch is corrupted once and read by every network; records as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lcrbnn.corrupt.official import BATCH, Corrupted, Regenerated, Shown, open_folder
from lcrbnn.corrupt.photos import Photos
from lcrbnn.corrupt.reader import AS_TRAINED, REFIT, Reader
from lcrbnn.corrupt.table import CORRUPTIONS, SEED, SEVERITIES, check_size, corrupt
from lcrbnn.data import DataSet, Images, Split
from lcrbnn.data.frost import FOLDER
from lcrbnn.data.tree import other_names
from lcrbnn.errors import InputError, choose, number
from lcrbnn.outputs import check_output_file
from lcrbnn.runs.progress import Progress
from lcrbnn.train.numerics import find_device
from lcrbnn.train.options import Options
from lcrbnn.train.signals import StopRequest
from lcrbnn.train.sources import splits_of
from lcrbnn.train.subject import Subject

PAIRS = [(name, severity) for name in CORRUPTIONS for severity in SEVERITIES]


@dataclass(frozen=True)
class Wanted:
    """What is read: how many test images, which corruptions, from where, with which heads."""

    images: int | None = None  # the first so many; all if None
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    folder: Path | None = None  # of official images; they are made here if None
    frost: Path | None = None  # folder of photos; the one in the data folder if None
    refit: bool = False

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads that are read."""
        return (AS_TRAINED, *REFIT) if self.refit else (AS_TRAINED,)

    @property
    def uses_photos(self) -> bool:
        """Whether images are made here that need the photos of frost."""
        return self.refit or (self.folder is None and "frost" in self.corruptions)


def measure(
    subjects: Sequence[tuple[Subject, Path | None]],
    options: Options | None = None,
    wanted: Wanted | None = None,
    progress: Callable[[int], Progress] = Progress,
) -> list[Reader]:
    """Read networks, each with the record to write or none, under each corruption, and return their readers in order.

    What a record already has is not read again. It is there from the first corruption on and complete at the end.
    Heads are fitted on training images alone.
    """
    options, wanted = options or Options(), wanted or Wanted()
    for _, record in subjects:
        if record is not None:
            check_output_file(record, "a record")
    for name in wanted.corruptions:
        choose(CORRUPTIONS, name, "corruption")
    device = find_device(options.device)
    readers = [Reader(subject, record, device, wanted.heads) for subject, record in subjects]
    row = readers[0].row
    for reader in readers:
        if reader.row.name != row.name:
            raise InputError(f"runs that are read together have one data set; got {row.name} and {reader.row.name}")
        if row.names and reader.row.names and (odd := other_names(row.names, reader.row.names)):
            raise InputError(f"runs that are read together learned the same classes; only some learned {odd}")
    check_size(row.channels, row.image, row.name)
    images = row.load(options.data_folder)
    shown, photos = _sources(row, images, wanted, options, device)
    for reader in readers:
        reader.go_on(_settings(shown, wanted, device))
    todo = [reader for reader in readers if not all(map(reader.done, wanted.corruptions))]
    if todo:
        with StopRequest() as stop:
            _Work(todo, images, shown, photos, wanted, stop, progress).run()
    return readers


def _sources(
    row: DataSet, images: Images, wanted: Wanted, options: Options, device: torch.device
) -> tuple[Corrupted, Photos | None]:
    """Where corrupted test images come from; and the photos of frost, if any frost is made here."""
    if wanted.images is not None:
        number(wanted.images, "--images", low=1, high=len(images.test.labels), whole=True)
    photos = None
    if wanted.uses_photos:
        photos = Photos(options.data_folder / FOLDER if wanted.frost is None else wanted.frost, device)
    if wanted.folder is not None:
        return open_folder(wanted.folder, wanted.corruptions, row, images.test, wanted.images, device), photos
    return Regenerated(_some(row, images.test, wanted.images), device, photos), photos


def _some(row: DataSet, split: Split, count: int | None) -> Split:
    return split if count is None else row.some(split, count)


def _settings(shown: Corrupted, wanted: Wanted, device: torch.device) -> dict[str, Any]:
    """What figures depend on besides the network: records of the same settings can be continued."""
    return {
        "images": shown.images,
        "corrupted_images": shown.name,
        "seed": SEED,
        "corruptions": list(wanted.corruptions),
        "heads": list(wanted.heads),
        "device": device.type,
    }


class _Work:
    """Reading what is missing, with a bar that counts batches."""

    def __init__(
        self,
        readers: list[Reader],
        images: Images,
        shown: Corrupted,
        photos: Photos | None,
        wanted: Wanted,
        stop: StopRequest,
        progress: Callable[[int], Progress],
    ) -> None:
        self.readers, self.images, self.shown, self.photos = readers, images, shown, photos
        self.wanted, self.stop = wanted, stop
        self.device = readers[0].device
        self.names = [name for name in wanted.corruptions if not all(reader.done(name) for reader in readers)]
        self.clean = Regenerated(_some(readers[0].row, images.test, wanted.images), self.device, None)
        one = -(-shown.images // BATCH)
        total = -(-self.clean.images // BATCH) + one * len(SEVERITIES) * len(self.names)
        if wanted.refit:
            for learned in self._learned().values():
                total += -(-len(learned.labels) // BATCH) + min(len(PAIRS), len(learned.labels))
        self.bar = progress(total)

    def run(self) -> None:
        try:
            if self.wanted.refit:
                self._fit()
            for reader, found in zip(self.readers, self._percent(self.readers, self._plain(), "clean"), strict=True):
                reader.clean = found
            for name in self.names:
                self._corruption(name)
        finally:
            self.bar.close()

    def _corruption(self, name: str) -> None:
        late = [reader for reader in self.readers if not reader.done(name)]
        found = [self._percent(late, self.shown.batches(name, s), f"{name} {s}") for s in SEVERITIES]
        for i, reader in enumerate(late):
            for head in reader.errors:
                reader.errors[head][name] = [percents[i][head] for percents in found]
            reader.write(all(map(reader.done, self.wanted.corruptions)))

    def _percent(self, readers: list[Reader], batches: Iterable[Shown], note: str) -> list[dict[str, float]]:
        """For each reader, the percentage of wrong answers of each head."""
        wrong = [dict.fromkeys(reader.errors, 0) for reader in readers]
        seen = 0
        for shown in batches:
            for reader, counts in zip(readers, wrong, strict=True):
                for head, count in reader.wrong(shown.images, shown.labels).items():
                    counts[head] += count
                self.stop.check()
            seen += len(shown.labels)
            self.bar.advance(lambda: note)
        return [{head: round(100 * count / seen, 4) for head, count in counts.items()} for counts in wrong]

    def _plain(self) -> Iterator[Shown]:
        return _in_order(self.clean.clean, self.clean.labels)

    # -- heads ---------------------------------------------------------------------------------------------------

    def _learned(self) -> dict[str, Split]:
        """The training images of the runs, by the setting that says which those are."""
        return {r.spec.images: splits_of(r.spec, r.row, self.images)[0] for r in self.readers}

    def _fit(self) -> None:
        for which, learned in self._learned().items():
            readers = [reader for reader in self.readers if reader.spec.images == which]
            images = torch.from_numpy(learned.images).to(self.device)
            labels = torch.from_numpy(learned.labels).to(self.device)
            clean, corrupted = REFIT
            self._fit_one(clean, readers, _in_order(images, labels))
            self._fit_one(corrupted, readers, _mixed(images, labels, self.photos))

    def _fit_one(self, head: str, readers: list[Reader], batches: Iterable[Shown]) -> None:
        features: list[list[torch.Tensor]] = [[] for _ in readers]
        labels: list[torch.Tensor] = []
        for shown in batches:
            for reader, found in zip(readers, features, strict=True):
                found.append(reader.features(shown.images))
                self.stop.check()
            labels.append(shown.labels)
            self.bar.advance(lambda: head)
        for reader, found in zip(readers, features, strict=True):
            reader.fit(head, torch.cat(found), torch.cat(labels))
            self.stop.check()


def _in_order(images: torch.Tensor, labels: torch.Tensor) -> Iterator[Shown]:
    for start in range(0, len(labels), BATCH):
        yield Shown(images[start : start + BATCH], labels[start : start + BATCH])


def _mixed(images: torch.Tensor, labels: torch.Tensor, photos: Photos | None) -> Iterator[Shown]:
    """Every training image once, corrupted: the i-th by pair i mod 95 of corruption and severity."""
    for first, (name, severity) in enumerate(PAIRS[: len(labels)]):
        rows = torch.arange(first, len(labels), len(PAIRS), device=images.device)
        yield Shown(corrupt(images[rows], name, severity, rows, photos, split="train"), labels[rows])
