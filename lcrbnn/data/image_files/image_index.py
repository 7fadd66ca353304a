"""Index of images in separate files or in zip and tar archives. Images in archives are read without unpacking."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from lcrbnn.errors import InputError

ARCHIVE_SUFFIXES = (".zip", ".tar")
MAX_IMAGE_BYTES = 1 << 28  # maximum size in bytes of an image file; a larger file counts as broken and is not read
MAX_OPEN_ARCHIVES = 64  # maximum number of open archives per process
PLAIN_FILE, TAR_MEMBER, ZIP_STORED, ZIP_DEFLATED = range(4)  # values of ImageLocation.storage
NON_FILE_KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}
# Header of a zip entry: signature, length of the file name, length of the extra field
_ZIP_LOCAL_HEADER = struct.Struct("<4s22xHH")


def describe_non_file(path: Path) -> str | None:
    """Return what a path is if it is not a regular file, such as "a folder", and None otherwise."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    return next((kind for is_kind, kind in NON_FILE_KINDS.items() if is_kind(mode)), None)


class BrokenImage(Exception):
    """An image cannot be read or decoded. The message gives the reason, without the name of the image."""


class ImageLocation(NamedTuple):
    """Location of the bytes of one image, and its name for messages."""

    name: str
    path: str  # path of the image file, or of the archive that contains the image
    storage: int = PLAIN_FILE
    offset: int = 0  # position in a tar archive where the image begins, or in a zip archive where its header begins
    packed_size: int = 0  # number of bytes of the image in the archive
    size: int = 0  # number of bytes of the image after unpacking
    crc: int = 0  # CRC-32 checksum of the image in a zip archive


class ImageIndex:
    """Locations and labels of images. A million images take a few hundred MB, because the index stores columns."""

    def __init__(
        self,
        locations: Iterable[ImageLocation],
        labels: Sequence[int] | np.ndarray,
        root: str = "",
        relative_names: list[str] | None = None,
    ) -> None:
        """Store the locations, in the order of the labels. `root` is the folder or archive that contains all of them.

        `relative_names` are the names of the images in the image folder. They are needed if the names differ from the
        paths below `root`, as in archives that are called like a split.
        """
        archive_numbers: dict[str, int] = {}
        self._names: list[str] = []
        rows = []
        for location in locations:
            self._names.append(location.name)
            is_file = location.storage == PLAIN_FILE
            archive = 0 if is_file else archive_numbers.setdefault(location.path, len(archive_numbers))
            rows.append((archive, location.storage, location.offset, location.packed_size, location.size, location.crc))
        self._archives = list(archive_numbers)
        self._columns = np.array(rows, np.int64).reshape(len(rows), 6)
        self.labels = np.asarray(labels, np.int64)
        self.root = root
        self._relative_names = relative_names

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def __getitem__(self, row: int) -> ImageLocation:
        """Return the location of the image in this row."""
        archive, storage, *rest = self._columns[row].tolist()
        name = self._names[row]
        return ImageLocation(name, name if storage == PLAIN_FILE else self._archives[archive], storage, *rest)

    def relative_name(self, row: int) -> str:
        """Return the name of an image in its image folder, train/... or val/..., which is the same in an archive."""
        if self._relative_names is not None:
            return self._relative_names[row]
        return self._names[row].removeprefix(f"{self.root}/")

    def digest(self) -> str:
        """Return a hash of the file names and labels, in order, which does not depend on the folder or archive."""
        digest = hashlib.sha256(self.labels.astype("<i8").tobytes())
        for name in self._names:
            digest.update(name.rpartition("/")[2].encode("utf-8", "surrogateescape") + b"\0")
        return digest.hexdigest()[:16]

    def take(self, rows: np.ndarray) -> ImageIndex:
        """Return the index of these rows, in this order. The new index lists only the archives of these images."""
        subset = ImageIndex([], self.labels[rows], self.root)
        subset._names = [self._names[row] for row in rows.tolist()]
        if self._relative_names is not None:
            subset._relative_names = [self._relative_names[row] for row in rows.tolist()]
        subset._columns = self._columns[rows]
        used_archives, subset._columns[:, 0] = np.unique(subset._columns[:, 0], return_inverse=True)
        subset._archives = [self._archives[i] for i in used_archives.tolist()] if self._archives else []
        return subset


class ImageReader:
    """Reads the bytes of images. The most recently used archives stay open."""

    def __init__(self) -> None:
        """Create a reader without open archives."""
        self._handles: OrderedDict[str, int] = OrderedDict()

    def read(self, location: ImageLocation) -> bytes:
        """Return the bytes of an image. Raise BrokenImage if the bytes cannot be read or do not match the checksum."""
        try:
            if location.storage == PLAIN_FILE:
                return read_file(Path(location.path))
            num_bytes = max(location.packed_size, location.size)
            if num_bytes > MAX_IMAGE_BYTES:
                raise BrokenImage(f"it has {num_bytes:,} bytes; at most {MAX_IMAGE_BYTES:,} are allowed")
            handle = self._open_archive(location.path)
            if location.storage == TAR_MEMBER:
                return _read_exactly(handle, location.offset, location.size)
            return _read_zip_entry(handle, location)
        except OSError as error:
            raise BrokenImage(f"it cannot be read: {error.strerror or error}") from None

    def close(self) -> None:
        """Close all archives."""
        while self._handles:
            os.close(self._handles.popitem()[1])

    def _open_archive(self, path: str) -> int:
        if path not in self._handles:
            if len(self._handles) >= MAX_OPEN_ARCHIVES:
                os.close(self._handles.popitem(last=False)[1])
            self._handles[path] = os.open(path, os.O_RDONLY)
        self._handles.move_to_end(path)
        return self._handles[path]


def read_file(path: Path) -> bytes:
    """Return the bytes of a regular file. Raise BrokenImage for any other path, or if the file is too large."""
    kind = describe_non_file(path)  # check before opening, because opening a pipe blocks until someone writes to it
    if kind is not None:
        raise BrokenImage(f"it is {kind}, not a regular file")
    with path.open("rb") as file:
        content = file.read(MAX_IMAGE_BYTES + 1)
    if len(content) > MAX_IMAGE_BYTES:
        raise BrokenImage(f"it has more than {MAX_IMAGE_BYTES:,} bytes")
    return content


def _read_exactly(handle: int, offset: int, size: int) -> bytes:
    content = os.pread(handle, size, offset)
    if len(content) != size:
        raise BrokenImage("the archive ends before the end of the image")
    return content


def _read_zip_entry(handle: int, location: ImageLocation) -> bytes:
    """Return the unpacked bytes of a zip entry. Raise BrokenImage if the checksum differs.

    The checksum is needed because a JPEG with a wrong bit can be decoded without an error.
    """
    # One read covers the header, the name, the extra field and the data in nearly all cases.
    read_size = _ZIP_LOCAL_HEADER.size + 256 + location.packed_size
    content = os.pread(handle, read_size, location.offset)
    if len(content) < _ZIP_LOCAL_HEADER.size or content[:4] != b"PK\x03\x04":
        raise BrokenImage("the zip file has no entry at the offset in its directory")
    _, name_size, extra_size = _ZIP_LOCAL_HEADER.unpack_from(content)
    start = _ZIP_LOCAL_HEADER.size + name_size + extra_size
    data = content[start : start + location.packed_size]
    if len(data) < location.packed_size:
        data = _read_exactly(handle, location.offset + start, location.packed_size)
    if location.storage == ZIP_DEFLATED:
        try:
            data = zlib.decompressobj(-15).decompress(data, location.size + 1)
        except zlib.error as error:
            raise BrokenImage(f"its entry of the zip file cannot be unpacked ({error})") from None
    if len(data) != location.size or zlib.crc32(data) != location.crc:
        raise BrokenImage("its bytes do not match the checksum in the zip file")
    return data


def list_archive(path: Path) -> Iterator[tuple[str, ImageLocation | None]]:
    """Yield name and location of each entry of an archive, in its order. The location of a folder is None."""
    list_format = {".zip": _list_zip, ".tar": _list_tar}[path.suffix.lower()]
    names: set[str] = set()
    kind = describe_non_file(path)
    if kind is not None:
        raise InputError(f"{path} cannot be read: it is {kind}, not a regular file")
    try:
        for name, location in list_format(path):
            if name in names and location is not None:
                raise InputError(f"{path} contains {name!r} twice")
            names.add(name)
            yield name, location
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, ValueError, struct.error) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read as a {path.suffix[1:]} file: {error}") from None
    except NotImplementedError as error:
        raise InputError(f"{path} is a zip file with an unsupported feature: {error}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _list_zip(path: Path) -> Iterator[tuple[str, ImageLocation | None]]:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.is_dir():
                yield entry.filename, None
                continue
            if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise InputError(
                    f"{path}: {entry.filename!r} is encrypted, or compressed with a method other than deflate"
                )
            storage = ZIP_STORED if entry.compress_type == zipfile.ZIP_STORED else ZIP_DEFLATED
            position = (entry.header_offset, entry.compress_size, entry.file_size, entry.CRC)
            yield entry.filename, ImageLocation(f"{path}/{entry.filename}", str(path), storage, *position)


def _list_tar(path: Path) -> Iterator[tuple[str, ImageLocation | None]]:
    """Yield the entries of a tar file. An inner tar file is listed as a folder, as ImageNet's archive needs it."""
    with path.open("rb") as file:
        for entry, entry_file in _iterate_tar(path, file, path.stat().st_size):
            if entry_file is None:
                yield entry.name, None
                continue
            if not entry.name.lower().endswith(".tar"):
                yield _locate_tar_member(path, entry.name, entry.offset_data, entry.size)
                continue
            folder = entry.name[: -len(".tar")]
            yield folder, None
            for inner_entry, inner_file in _iterate_tar(f"{path}/{entry.name}", entry_file, entry.size):
                if inner_file is None:
                    continue
                offset = entry.offset_data + inner_entry.offset_data
                yield _locate_tar_member(path, f"{folder}/{inner_entry.name}", offset, inner_entry.size)


def _locate_tar_member(path: Path, name: str, offset: int, size: int) -> tuple[str, ImageLocation]:
    return name, ImageLocation(f"{path}/{name}", str(path), TAR_MEMBER, offset, size, size)


def _iterate_tar(name: Path | str, file: IO[bytes], size: int) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """Yield each entry of a tar file of `size` bytes with its open content, or None for a folder. `name` is for errors.

    Raise InputError for links, and for files that are cut short: tarfile would end without an error.
    """
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for entry in archive:
            if entry.isdir():
                yield entry, None
                continue
            entry_file = archive.extractfile(entry) if entry.isreg() and not entry.issparse() else None
            if entry_file is None:
                raise InputError(f"{name}: {entry.name!r} is a link or not a regular file")
            if entry.offset_data + entry.size > size:
                raise InputError(f"{name} is cut short: it ends inside {entry.name!r}")
            yield entry, entry_file
        if size < archive.offset + tarfile.BLOCKSIZE:
            raise InputError(f"{name} is cut short: it does not end with an empty block")
