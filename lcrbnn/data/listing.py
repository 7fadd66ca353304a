"""Where images lie: files of their own, or entries of zip and tar files, each found by its offset without unpacking."""

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

ARCHIVES = (".zip", ".tar")
LARGEST = 1 << 28  # bytes of one image file; more is refused before it is read
OPEN = 64  # archives that a process keeps open
FILE, TAR, STORED, DEFLATED = range(4)  # kinds of a member
OTHERS = {  # what is no plain file
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}
_LOCAL = struct.Struct("<4s22xHH")  # of a zip entry, before its name: signature, length of the name, of the extras


def other_kind(path: Path) -> str | None:
    """What is there if it is no plain file, such as a folder; None of a file, and where nothing can be looked at."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    return next((kind for is_one, kind in OTHERS.items() if is_one(mode)), None)


class Broken(Exception):
    """An image cannot be had as it should be; the message says why, without its name."""


class Member(NamedTuple):
    """One image file: its name for messages, and where its bytes are."""

    name: str
    path: str  # the file itself, or the archive
    kind: int = FILE
    offset: int = 0  # in the archive: of the bytes (tar) or of the entry's own header (zip)
    packed: int = 0  # bytes in the archive
    size: int = 0  # bytes once unpacked
    crc: int = 0  # CRC-32 of a zip entry


class Listing:
    """Images and their labels, a member each, kept as columns: a million of them take a few hundred MB, not more."""

    def __init__(
        self,
        members: Iterable[Member],
        labels: Sequence[int] | np.ndarray,
        top: str = "",
        inside: list[str] | None = None,
    ) -> None:
        """Take the members in the order of the labels; `top` is the folder or archive that all of them are in.

        `inside` are their names in the tree, where those are not what follows `top`: of archives with names of splits.
        """
        paths: dict[str, int] = {}
        self._names: list[str] = []
        rows = []
        for one in members:
            self._names.append(one.name)
            path = 0 if one.kind == FILE else paths.setdefault(one.path, len(paths))
            rows.append((path, one.kind, one.offset, one.packed, one.size, one.crc))
        self._paths = list(paths)
        self._numbers = np.array(rows, np.int64).reshape(len(rows), 6)
        self.labels = np.asarray(labels, np.int64)
        self.top = top
        self._inside = inside

    def __len__(self) -> int:
        """The number of images."""
        return len(self.labels)

    def __getitem__(self, row: int) -> Member:
        """The member of a row."""
        path, kind, *rest = self._numbers[row].tolist()
        name = self._names[row]
        return Member(name, name if kind == FILE else self._paths[path], kind, *rest)

    def inside(self, row: int) -> str:
        """The name of a row in the tree, train/... or val/...: the same wherever and in whatever form the tree lies."""
        if self._inside is not None:
            return self._inside[row]
        return self._names[row].removeprefix(f"{self.top}/")

    def digest(self) -> str:
        """A short name of the images in their order: of their file names and labels, wherever and however they lie."""
        made = hashlib.sha256(self.labels.astype("<i8").tobytes())
        for name in self._names:
            made.update(name.rpartition("/")[2].encode("utf-8", "surrogateescape") + b"\0")
        return made.hexdigest()[:16]

    def take(self, rows: np.ndarray) -> Listing:
        """Some of the images, in the order of the rows; of the archives only those that they lie in."""
        part = Listing([], self.labels[rows], self.top)
        part._names = [self._names[row] for row in rows.tolist()]
        part._inside = None if self._inside is None else [self._inside[row] for row in rows.tolist()]
        part._numbers = self._numbers[rows]
        used, part._numbers[:, 0] = np.unique(part._numbers[:, 0], return_inverse=True)
        part._paths = [self._paths[i] for i in used.tolist()] if self._paths else []
        return part


class Files:
    """Reads members; the archives that were read last stay open."""

    def __init__(self) -> None:
        """Nothing is open yet."""
        self._open: OrderedDict[str, int] = OrderedDict()

    def read(self, member: Member) -> bytes:
        """The bytes of an image; Broken if they cannot be had, or are not those that the archive promises."""
        try:
            if member.kind == FILE:
                return read_file(Path(member.path))
            if max(member.packed, member.size) > LARGEST:
                raise Broken(f"it has {max(member.packed, member.size):,} bytes; the most is {LARGEST:,}")
            handle = self._handle(member.path)
            if member.kind == TAR:
                return _exactly(handle, member.offset, member.size)
            return _entry(handle, member)
        except OSError as error:
            raise Broken(f"it cannot be read: {error.strerror or error}") from None

    def close(self) -> None:
        """Close every archive."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _handle(self, path: str) -> int:
        if path not in self._open:
            if len(self._open) >= OPEN:
                os.close(self._open.popitem(last=False)[1])
            self._open[path] = os.open(path, os.O_RDONLY)
        self._open.move_to_end(path)
        return self._open[path]


def read_file(path: Path) -> bytes:
    """The bytes of a regular file; Broken if something else has this name, or if the file is too large."""
    kind = other_kind(path)  # before it is opened: that waits until something writes to a pipe
    if kind is not None:
        raise Broken(f"it is {kind}, not a regular file")
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise Broken(f"it has more than {LARGEST:,} bytes")
    return content


def _exactly(handle: int, offset: int, size: int) -> bytes:
    content = os.pread(handle, size, offset)
    if len(content) != size:
        raise Broken("the archive ends before it does")
    return content


def _entry(handle: int, member: Member) -> bytes:
    """An entry of a zip file; its checksum is compared, for a JPEG with a wrong bit is decoded without complaint."""
    guess = _LOCAL.size + 256 + member.packed
    content = os.pread(handle, guess, member.offset)
    if len(content) < _LOCAL.size or content[:4] != b"PK\x03\x04":
        raise Broken("the zip file has no entry where its list says")
    _, name, extra = _LOCAL.unpack_from(content)
    start = _LOCAL.size + name + extra
    packed = content[start : start + member.packed]
    if len(packed) < member.packed:
        packed = _exactly(handle, member.offset + start, member.packed)
    if member.kind == DEFLATED:
        try:
            packed = zlib.decompressobj(-15).decompress(packed, member.size + 1)
        except zlib.error as error:
            raise Broken(f"its entry of the zip file cannot be unpacked ({error})") from None
    if len(packed) != member.size or zlib.crc32(packed) != member.crc:
        raise Broken("its bytes do not have the checksum that the zip file promises")
    return packed


def members_of(path: Path) -> Iterator[tuple[str, Member | None]]:
    """What is in an archive, in its order: the name inside, and the member; None for a folder."""
    reader = {".zip": _zip_members, ".tar": _tar_members}[path.suffix.lower()]
    seen: set[str] = set()
    kind = other_kind(path)
    if kind is not None:
        raise InputError(f"{path} cannot be read: it is {kind}, not a regular file")
    try:
        for name, member in reader(path):
            if name in seen and member is not None:
                raise InputError(f"{path} holds {name!r} twice")
            seen.add(name)
            yield name, member
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, ValueError, struct.error) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read as a {path.suffix[1:]} file: {error}") from None
    except NotImplementedError as error:
        raise InputError(f"{path} is a zip file of a kind that is not known here: {error}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _zip_members(path: Path) -> Iterator[tuple[str, Member | None]]:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.is_dir():
                yield entry.filename, None
                continue
            if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise InputError(f"{path}: {entry.filename!r} is encrypted, or neither stored nor deflated")
            kind = STORED if entry.compress_type == zipfile.ZIP_STORED else DEFLATED
            where = (entry.header_offset, entry.compress_size, entry.file_size, entry.CRC)
            yield entry.filename, Member(f"{path}/{entry.filename}", str(path), kind, *where)


def _tar_members(path: Path) -> Iterator[tuple[str, Member | None]]:
    """Of ImageNet's archive of archives, a tar file a class, the name of each is that of a folder."""
    with path.open("rb") as file:
        for entry, inner in _tar_entries(path, file, path.stat().st_size):
            if inner is None:
                yield entry.name, None
                continue
            if not entry.name.lower().endswith(".tar"):
                yield _tar_member(path, entry.name, entry.offset_data, entry.size)
                continue
            folder = entry.name[: -len(".tar")]
            yield folder, None
            for one, plain in _tar_entries(f"{path}/{entry.name}", inner, entry.size):
                if plain is None:
                    continue
                yield _tar_member(path, f"{folder}/{one.name}", entry.offset_data + one.offset_data, one.size)


def _tar_member(path: Path, name: str, offset: int, size: int) -> tuple[str, Member]:
    return name, Member(f"{path}/{name}", str(path), TAR, offset, size, size)


def _tar_entries(name: Path | str, file: IO[bytes], size: int) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """The plain files in a tar file of this size, and how to read each; None for a folder. `name` is for messages."""
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for entry in archive:
            if entry.isdir():
                yield entry, None
                continue
            inner = archive.extractfile(entry) if entry.isreg() and not entry.issparse() else None
            if inner is None:
                raise InputError(f"{name}: {entry.name!r} is a link, or no plain file")
            if entry.offset_data + entry.size > size:
                raise InputError(f"{name} is cut short: it ends inside {entry.name!r}")
            yield entry, inner
        if size < archive.offset + tarfile.BLOCKSIZE:
            raise InputError(f"{name} is cut short: a tar file ends with an empty block")
