"""The list of the zoo: index.json beside the files, an entry each. Reading it needs no torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lcrbnn.errors import InputError, choose
from lcrbnn.runs.files import write_whole

FOLDER = Path(__file__).parent
PREFIX = "zoo:"  # before a name, where a command takes a run or a file too
MAX_BYTES_IN_WHEEL = 500_000  # larger files stay in the source tree, so that the wheel stays under 4 MB
OUTSIDE_WHEEL = "zoo"  # their folder, at the root of the source tree


@dataclass(frozen=True)
class Member:
    """What the list says of one file; its record says more."""

    name: str
    network: str  # MODELS
    method: str  # METHODS, with its bits if they are not its own; or real
    data: str  # DATASETS
    retention: str  # none, or its form and strength
    top1: float  # of this very file, in float32, percent of all test images
    images: int
    bytes: int
    sha256: str
    recipe: str  # the command that trains it
    record: str  # in the source tree
    seed: int  # of the run that the file was made from
    runs: int = 1  # number of finished runs that differ from this one only in the seed, this one included
    mean_top1: float | None = None  # mean test accuracy of these runs as trained; None without a record of it
    note: str = ""  # what a reader must know before comparing two networks

    @property
    def path(self) -> Path:
        """Path of the file; a large file is not installed with the package."""
        return member_path(self.name, self.bytes)


def member_path(name: str, size: int) -> Path:
    """Path of a file of `size` bytes: inside the package, or in the folder `zoo` of the source tree if it is large."""
    if size > MAX_BYTES_IN_WHEEL:
        return FOLDER.parents[1] / OUTSIDE_WHEEL / f"{name}.safetensors"
    return FOLDER / "files" / f"{name}.safetensors"


def members() -> dict[str, Member]:
    """Every network of the zoo by its name."""
    path = FOLDER / "index.json"
    try:
        return {one["name"]: Member(**one) for one in json.loads(path.read_text(encoding="utf-8"))}
    except OSError as error:
        raise InputError(f"the list of the zoo, {path}, cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is no list of networks: {error}") from None


def find(name: str) -> Member:
    """The network of this name."""
    return choose(members(), name, "network of the zoo")


def named(text: str | Path) -> str | None:
    """NAME of "zoo:NAME"; None for anything else."""
    return str(text).removeprefix(PREFIX) if str(text).startswith(PREFIX) else None


def write_index(listed: dict[str, Member]) -> None:
    """Write the list, an entry a line, by name."""
    lines = ",\n ".join(json.dumps(asdict(listed[name])) for name in sorted(listed))
    write_whole(FOLDER / "index.json", [f"[{lines}]\n".encode()])
