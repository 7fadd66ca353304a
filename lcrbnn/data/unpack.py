"""Reading chosen members of a compressed tar archive with an upper limit for the memory and for the work."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable, Mapping
from typing import IO

MAX_ARCHIVE_BYTES = 256 << 20  # of an archive as it is downloaded; that of CIFAR-10 has 163 MiB
MAX_UNPACKED_BYTES = 512 << 20  # of all that is decompressed
MAX_MEMBER_BYTES = 64 << 20  # of an image file; the largest has 29 MiB
MAX_LABEL_BYTES = 1 << 20  # of a file of labels; the largest has about 100 KiB


class TooLarge(ValueError):
    """An archive or one of its members is larger than allowed. The message names both sizes."""


class _LimitedGzip(gzip.GzipFile):
    """A file that is decompressed while it is read, and raises `TooLarge` after MAX_UNPACKED_BYTES."""

    left = 0

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, at most `size`."""
        wanted = self.left + 1 if size is None or size < 0 else min(size, self.left + 1)
        piece = super().read(wanted)
        self.left -= len(piece)
        if self.left < 0:
            raise TooLarge(f"its archive unpacks to more than {MAX_UNPACKED_BYTES:,} bytes")
        return piece


def check_archive_size(size: int) -> None:
    """Raise `TooLarge` if an archive of this many bytes is larger than allowed."""
    if size > MAX_ARCHIVE_BYTES:
        raise TooLarge(f"its archive has {size:,} bytes or more; at most {MAX_ARCHIVE_BYTES:,} are allowed")


def check_member_size(name: str, size: int, limit: int) -> None:
    """Raise `TooLarge` if a member of this many bytes is larger than the limit."""
    if size > limit:
        raise TooLarge(f"its {name} has {size:,} bytes; at most {limit:,} are allowed")


def read_members(archive: IO[bytes], limits: Mapping[str, int], name_of: Callable[[str], str]) -> dict[str, bytes]:
    """Return the wanted members of a tar.gz archive by name; no other member is kept in memory.

    `limits` has the largest size of each wanted member, `name_of` turns the path of a member into its name there.
    Members are read, not extracted: no path in the archive decides where anything is written.
    """
    contents: dict[str, bytes] = {}
    try:
        with _LimitedGzip(fileobj=archive, mode="rb") as source:
            source.left = MAX_UNPACKED_BYTES
            with tarfile.open(fileobj=source, mode="r|") as tar:
                for member in tar:
                    name = name_of(member.name)
                    if name not in limits or not member.isfile():
                        continue
                    check_member_size(name, member.size, limits[name])  # the holes of a sparse file take no place in it
                    stream = tar.extractfile(member)
                    assert stream is not None
                    contents[name] = stream.read()
    except gzip.BadGzipFile as error:
        raise tarfile.ReadError(str(error)) from None
    return contents
