"""`lcrbnn data`: the list of data sets, downloads, and the check of an image folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lcrbnn.cli.run_options import add_data_folder_option
from lcrbnn.data.datasets import DATASETS
from lcrbnn.errors import InputError, check_number, lookup
from lcrbnn.runs.terminal import redraw_line

if TYPE_CHECKING:
    from lcrbnn.data.image_files.check_pictures import PictureReport

EXAMPLES = ("lcrbnn data", "lcrbnn data cifar10", "lcrbnn data check pictures/")
CHECK = "check"
MAX_LISTED_FILES = 10  # broken images and groups of identical files in the output of the check


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the data set or the folder to check, the data folder and the seed of the split."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="data set to download, or check = read every image of FOLDER and print classes, sizes, formats, broken "
        "images, identical files and the split (default: list all data sets)",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="FOLDER",
        help="folder, zip or tar file with class folders, or with train and val (for check)",
    )
    parser.add_argument(
        "--split-seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the split of class folders without train and val, as in lcrbnn train (for check)",
    )
    add_data_folder_option(parser)


def execute(args: argparse.Namespace) -> int:
    """List the data sets, download one, or check an image folder."""
    if args.name == CHECK:
        return _check_folder(args.folder, args.split_seed)
    if args.folder is not None or args.split_seed:
        raise InputError("a folder and --split-seed are for `lcrbnn data check FOLDER`")
    if args.name is None:
        width = max(map(len, DATASETS))
        for row in DATASETS.values():
            print(f"{row.name:<{width}} {row.summary}")
        print(f"{'frost':<{width}} five photos of frost, for the corruption frost of lcrbnn robustness")
        return 0
    if args.name in DATASETS and DATASETS[args.name].find_image_folder is not None:
        raise InputError(
            f"{args.name} cannot be downloaded: lcrbnn train reads it from --data-folder, as docs/data.md explains"
        )
    if args.name in DATASETS and args.name not in DOWNLOADS:
        raise InputError(f"{args.name} is part of the package and needs no download; there are {', '.join(DOWNLOADS)}")
    return lookup(DOWNLOADS, args.name, "data set to download", "lcrbnn data")(args.data_folder)


def _check_folder(folder: Path | None, split_seed: int) -> int:
    """Print the content of an image folder. Return 1 if an image is broken."""
    from lcrbnn.data.image_files.check_pictures import check_pictures
    from lcrbnn.data.image_files.class_folders import find_pictures

    if folder is None:
        raise InputError("lcrbnn data check needs a folder: lcrbnn data check FOLDER")
    check_number(split_seed, "--split-seed", low=0, high=2**63 - 1, integer=True)
    image_folder = find_pictures(folder, split_seed)
    num_images, is_terminal = len(image_folder.train) + len(image_folder.test), sys.stderr.isatty()

    def show_progress(num_checked: int) -> None:
        if is_terminal and (num_checked % 100 == 0 or num_checked == num_images):
            redraw_line(sys.stderr, f"{num_checked:,} of {num_images:,} images" + "\n" * (num_checked == num_images))

    report = check_pictures(image_folder, DATASETS["folder"].num_validation_images, show_progress)
    origin = "train and val folders" if image_folder.picture_split is None else f"computed, --split-seed {split_seed}"
    print("\n".join(_format_report(report, origin)))
    return 1 if report.broken_images else 0


def _format_report(report: PictureReport, split_origin: str) -> Iterator[str]:
    """Yield the lines of the report on an image folder."""
    from lcrbnn.data.image_files.check_pictures import find_median

    splits = list(report.class_counts)
    width = max(map(len, (*report.classes, "class")))
    yield f"{'class':<{width}} " + " ".join(f"{split:>9}" for split in splits)
    for number, name in enumerate(report.classes):
        yield f"{name:<{width}} " + " ".join(f"{report.class_counts[split][number]:>9,}" for split in splits)
    yield f"{'all':<{width}} " + " ".join(f"{report.class_counts[split].total():>9,}" for split in splits)
    yield f"split: {split_origin}"
    if report.sizes:
        by_pixels = sorted(report.sizes, key=lambda size: (size[0] * size[1], size))
        sizes = (by_pixels[0], find_median(report.sizes), by_pixels[-1])
        smallest, median, largest = (f"{image_width} x {height}" for image_width, height in sizes)
        yield f"sizes in pixels: smallest {smallest}, median {median}, largest {largest}"
        yield "formats: " + ", ".join(f"{name} {count:,}" for name, count in report.formats.most_common())
    yield f"broken images: {len(report.broken_images):,}"
    yield from _shorten_list([f"  {name}: {reason}" for name, reason in report.broken_images.items()])
    for across_splits, place in ((True, "in different splits"), (False, "within one split")):
        groups = report.find_identical_files(across_splits=across_splits)
        yield f"identical files {place}: {len(groups):,} group{'' if len(groups) == 1 else 's'}"
        yield from _shorten_list([f"  {', '.join(names)}" for names in groups])


def _shorten_list(lines: list[str]) -> list[str]:
    hidden_lines = [f"  and {len(lines) - MAX_LISTED_FILES:,} more"] if len(lines) > MAX_LISTED_FILES else []
    return lines[:MAX_LISTED_FILES] + hidden_lines


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr)


def _download_cifar10(folder: Path) -> int:
    from lcrbnn.data.download import download_cifar10

    is_terminal = sys.stderr.isatty()

    def show_progress(received_bytes: int, total_bytes: int) -> None:
        if is_terminal:
            total = f" of {total_bytes / 1e6:.0f}" if total_bytes else ""
            end = "\n" if received_bytes == total_bytes else ""
            redraw_line(sys.stderr, f"{received_bytes / 1e6:.0f}{total} MB{end}")

    print(f"{download_cifar10(folder, _print_progress, show_progress)}: 60,000 images")
    return 0


def _download_frost(folder: Path) -> int:
    from lcrbnn.evaluation.corruptions.frost_photos import PHOTO_SHA256, download_frost

    print(f"{download_frost(folder, _print_progress)}: {len(PHOTO_SHA256)} photos")
    return 0


DOWNLOADS: dict[str, Callable[[Path], int]] = {
    "cifar10": _download_cifar10,
    "cifar10-small": _download_cifar10,
    "frost": _download_frost,
}
