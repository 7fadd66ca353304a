"""Check of an image folder before training: classes, sizes, formats, broken images, identical files."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lcrbnn.data.image_files.decode import decode_rgb, open_image
from lcrbnn.data.image_files.image_folder import ImageFolder
from lcrbnn.data.image_files.image_index import BrokenImage, ImageIndex, ImageReader


@dataclass
class PictureReport:
    """The results of reading every image of a folder once."""

    classes: tuple[str, ...]
    class_counts: dict[str, Counter[int]] = field(default_factory=dict)  # by split: images per class number
    formats: Counter[str] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)  # width and height in pixels
    broken_images: dict[str, str] = field(default_factory=dict)  # name: reason
    names_by_content: dict[bytes, list[tuple[str, str]]] = field(default_factory=dict)  # SHA-256: (split, name)

    def find_identical_files(self, *, across_splits: bool) -> list[tuple[str, ...]]:
        """Return the names of files with the same bytes, in one split or in several splits."""
        return [
            tuple(name for _, name in files)
            for files in self.names_by_content.values()
            if len(files) > 1 and (len({split for split, _ in files}) > 1) == across_splits
        ]


def check_pictures(
    image_folder: ImageFolder, num_validation_images: int, report_progress: Callable[[int], None] = lambda count: None
) -> PictureReport:
    """Read and decode every image. `report_progress` gets the number of images that were read."""
    train, valid = image_folder.split_validation(num_validation_images)
    report = PictureReport(image_folder.classes)
    num_checked = 0
    for split, index in (("train", train), ("valid", valid), ("test", image_folder.test)):
        report.class_counts[split] = Counter(index.labels.tolist())
        reader = ImageReader()
        for row in range(len(index)):
            _check_image(report, reader, split, index, row)
            num_checked += 1
            report_progress(num_checked)
        reader.close()
    return report


def _check_image(report: PictureReport, reader: ImageReader, split: str, index: ImageIndex, row: int) -> None:
    name = index.relative_name(row)
    try:
        content = reader.read(index[row])
        report.names_by_content.setdefault(hashlib.sha256(content).digest(), []).append((split, name))
        image = open_image(content)
        image_format, size = image.format, image.size
        decode_rgb(image)
    except BrokenImage as error:
        report.broken_images[name] = str(error)
    else:
        report.formats[image_format] += 1
        report.sizes[size] += 1


def find_median(sizes: Counter[tuple[int, int]]) -> tuple[int, int]:
    """Return the size of the image that is in the middle when the images are ordered by their number of pixels."""
    ordered_sizes: Sequence[tuple[int, int]] = sorted(sizes.elements(), key=lambda size: (size[0] * size[1], size))
    return ordered_sizes[len(ordered_sizes) // 2]
