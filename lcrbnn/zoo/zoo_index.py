"""Index of the zoo: index.json with one entry per network. Reading it does not import torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lcrbnn.errors import InputError, lookup
from lcrbnn.runs.atomic_files import write_atomic

ZOO_FOLDER = Path(__file__).parent
ZOO_PREFIX = "zoo:"  # distinguishes a zoo name from a run or a file on the command line
MAX_BYTES_IN_WHEEL = 500_000  # larger files stay in the source tree, so that the wheel stays under 4 MB
LARGE_FILES_FOLDER = "zoo"  # folder of larger files in the root of the source tree


@dataclass(frozen=True)
class ZooMember:
    """Entry of the index for one zoo file. Its record has more details."""

    name: str
    model: str  # MODELS
    method: str  # METHODS, with bit widths if they differ from the default; or real
    dataset: str  # DATASETS
    lcr: str  # none, or LCR variant and weight or gradient ratio, such as "default, gradient ratio 0.03"
    top1: float  # test accuracy of this file in float32, in percent
    images: int  # number of test images
    bytes: int
    sha256: str
    train_command: str  # the command that trains it
    record: str  # path in the source tree
    seed: int  # of the run the file was made from
    runs: int = 1  # number of finished runs that differ from this one only in the seed, this one included
    mean_top1: float | None = None  # mean test accuracy of these runs as trained; None without a record of it
    note: str = ""  # a caveat for comparisons with other networks

    @property
    def path(self) -> Path:
        """Path of the file. A large file is not installed with the package."""
        return member_path(self.name, self.bytes)


def member_path(name: str, size: int) -> Path:
    """Path of a file of `size` bytes: inside the package, or in the folder `zoo` of the source tree if it is large."""
    if size > MAX_BYTES_IN_WHEEL:
        return ZOO_FOLDER.parents[1] / LARGE_FILES_FOLDER / f"{name}.safetensors"
    return ZOO_FOLDER / "files" / f"{name}.safetensors"


def list_members() -> dict[str, ZooMember]:
    """Return all entries of the index by name."""
    path = ZOO_FOLDER / "index.json"
    try:
        return {entry["name"]: ZooMember(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))}
    except OSError as error:
        raise InputError(f"cannot read the zoo index {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is not a valid zoo index: {error}") from None


def find_member(name: str) -> ZooMember:
    """Return the entry of this name, and raise InputError if there is none."""
    return lookup(list_members(), name, "network of the zoo", "lcrbnn zoo")


def parse_zoo_name(text: str | Path) -> str | None:
    """Return NAME for "zoo:NAME", and None for anything else."""
    return str(text).removeprefix(ZOO_PREFIX) if str(text).startswith(ZOO_PREFIX) else None


def write_index(members: dict[str, ZooMember]) -> None:
    """Write the index, one entry per line, sorted by name."""
    lines = ",\n ".join(json.dumps(asdict(members[name])) for name in sorted(members))
    write_atomic(ZOO_FOLDER / "index.json", [f"[{lines}]\n".encode()])
