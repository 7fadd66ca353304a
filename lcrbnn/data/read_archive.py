"""Read selected files from a compressed tar archive, with limits on memory and on decompressed bytes."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable, Mapping
from typing import IO

MAX_ARCHIVE_BYTES = 256 << 20  # maximum size in bytes of a compressed archive; that of CIFAR-10 has 163 MiB
MAX_UNPACKED_BYTES = 512 << 20  # maximum size in bytes of all decompressed files together
MAX_MEMBER_BYTES = 64 << 20  # maximum size in bytes of an image file; the largest one has 29 MiB
MAX_LABEL_BYTES = 1 << 20  # maximum size in bytes of a label file; the largest one has about 100 KiB


class ArchiveTooLarge(ValueError):
    """An archive or a file in it is larger than allowed. The message states its size and the limit."""


class _LimitedGzip(gzip.GzipFile):
    """A gzip file whose `read` raises ArchiveTooLarge after `bytes_left` decompressed bytes."""

    bytes_left = 0

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes of the file, at most `size` bytes."""
        num_bytes = self.bytes_left + 1 if size is None or size < 0 else min(size, self.bytes_left + 1)
        block = super().read(num_bytes)
        self.bytes_left -= len(block)
        if self.bytes_left < 0:
            raise ArchiveTooLarge(f"its archive unpacks to more than {MAX_UNPACKED_BYTES:,} bytes")
        return block


def check_archive_size(size: int) -> None:
    """Raise ArchiveTooLarge if an archive of this many bytes is larger than allowed."""
    if size > MAX_ARCHIVE_BYTES:
        raise ArchiveTooLarge(f"its archive has {size:,} bytes or more; at most {MAX_ARCHIVE_BYTES:,} are allowed")


def check_member_size(name: str, size: int, limit: int) -> None:
    """Raise ArchiveTooLarge if a member of this many bytes is larger than the limit."""
    if size > limit:
        raise ArchiveTooLarge(f"its {name} has {size:,} bytes; at most {limit:,} are allowed")


def read_members(archive: IO[bytes], limits: Mapping[str, int], name_of: Callable[[str], str]) -> dict[str, bytes]:
    """Return the contents of selected files of a tar.gz archive, by name. No other file is kept in memory.

    `limits` maps the name of each selected file to its maximum size. `name_of` converts a path in the archive to such a
    name. Files are read and not extracted. So no path in the archive decides where a file is written.
    """
    contents: dict[str, bytes] = {}
    try:
        with _LimitedGzip(fileobj=archive, mode="rb") as source:
            source.bytes_left = MAX_UNPACKED_BYTES
            with tarfile.open(fileobj=source, mode="r|") as tar:
                for member in tar:
                    name = name_of(member.name)
                    if name not in limits or not member.isfile():
                        continue
                    # a small archive can contain a header that declares a huge sparse file
                    check_member_size(name, member.size, limits[name])
                    stream = tar.extractfile(member)
                    assert stream is not None
                    contents[name] = stream.read()
    except gzip.BadGzipFile as error:
        raise tarfile.ReadError(str(error)) from None
    return contents
