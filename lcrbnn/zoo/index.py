"""The list of the zoo: index.json beside the files, an entry each. Reading it needs no torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lcrbnn.errors import InputError, choose
from lcrbnn.runs.files import write_whole

FOLDER = Path(__file__).parent
PREFIX = "zoo:"  # before a name, where a command takes a run or a file too


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

    @property
    def path(self) -> Path:
        """Its file."""
        return FOLDER / "files" / f"{self.name}.safetensors"


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
