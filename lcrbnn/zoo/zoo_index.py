"""The index of the zoo, index.json, has one entry per network. This module does not import torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lcrbnn.errors import InputError, lookup
from lcrbnn.runs.atomic_files import write_atomic

ZOO_FOLDER = Path(__file__).parent
# Prefix of the name of a zoo network on the command line; paths of runs and files do not have this prefix
ZOO_PREFIX = "zoo:"
# maximum number of bytes of a zoo file in the package, so that the wheel stays under 4 MB; larger files are not in the
# wheel
MAX_BYTES_IN_WHEEL = 500_000
LARGE_FILES_FOLDER = "zoo"  # folder for larger zoo files, in the root of the source tree


@dataclass(frozen=True)
class ZooMember:
    """Entry of the index for one zoo file. The record of the network has more details."""

    name: str
    model: str  # key of MODELS: the network
    method: str  # key of METHODS, with bit widths if they are not the default, or "real" for full precision
    dataset: str  # key of DATASETS: the data set
    lcr: str  # "none", or LCR variant and weight or gradient ratio, such as "default, gradient ratio 0.03"
    top1: float  # test accuracy in percent of the network in the zoo file, in float32
    images: int  # number of test images on which the accuracy was measured
    bytes: int
    sha256: str
    train_command: str  # command that trains this network
    record: str  # path of the record in the source tree
    seed: int  # random seed of the training run
    runs: int = 1  # number of finished runs that differ from this run only in the seed, this run included
    # mean test accuracy of these runs before rounding to the zoo format; None without a record of it
    mean_top1: float | None = None
    note: str = ""  # a warning for readers who compare this network with others

    @property
    def path(self) -> Path:
        """Return the path of the file. Large files are not installed with the package."""
        return member_path(self.name, self.bytes)


def member_path(name: str, size: int) -> Path:
    """Return the path for a file of `size` bytes.

    It is inside the package or, for large files, in the folder `zoo` of the source tree.
    """
    if size > MAX_BYTES_IN_WHEEL:
        return ZOO_FOLDER.parents[1] / LARGE_FILES_FOLDER / f"{name}.safetensors"
    return ZOO_FOLDER / "files" / f"{name}.safetensors"


def list_members() -> dict[str, ZooMember]:
    """Return all entries of the index, by name."""
    path = ZOO_FOLDER / "index.json"
    try:
        return {entry["name"]: ZooMember(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))}
    except OSError as error:
        raise InputError(f"cannot read the zoo index {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is not a valid zoo index: {error}") from None


def find_member(name: str) -> ZooMember:
    """Return the index entry with this name. If there is none, raise InputError."""
    return lookup(list_members(), name, "network of the zoo", "lcrbnn zoo")


def parse_zoo_name(text: str | Path) -> str | None:
    """Return NAME for the text "zoo:NAME", and None for any other text."""
    return str(text).removeprefix(ZOO_PREFIX) if str(text).startswith(ZOO_PREFIX) else None


def write_index(members: dict[str, ZooMember]) -> None:
    """Write the index, sorted by name, with one entry per line."""
    lines = ",\n ".join(json.dumps(asdict(members[name])) for name in sorted(members))
    write_atomic(ZOO_FOLDER / "index.json", [f"[{lines}]\n".encode()])
