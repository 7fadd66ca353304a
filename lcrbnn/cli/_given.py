"""The networks that a command is given by a user's words: those of runs, or zoo:NAME."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from lcrbnn.errors import InputError
from lcrbnn.zoo import named

if TYPE_CHECKING:
    from lcrbnn.study.groups import Groups
    from lcrbnn.train.subject import Subject

SPACED = "the first; of images in files, evenly spaced ones"  # which images are taken
ZOO = "zoo:NAME (lcrbnn zoo lists them)"
COMMANDS = ("predict", "eval", "export", "inspect", "bench", "robustness", "attack", "analyze", "cost")  # that take it


def find_subject(given: Path, *, finished: bool = False, done: str = "measured") -> Subject:
    """The network of one run, or of the zoo; `finished` is for what reads test images, which are for finished runs.

    A folder of several runs is refused: one is `done` something with.
    """
    if (name := named(given)) is not None:
        from lcrbnn.zoo.subject import member_subject

        return member_subject(name)
    from lcrbnn.train.subject import run_subject

    found = places(given)
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise InputError(f"{given} holds several runs, {names}, and one is {done}: say which")
    return run_subject(found[0], finished=finished)


def places(given: Path) -> list[Path]:
    """The runs in a folder, in the order of their seeds; zoo:NAME is a place of its own."""
    from lcrbnn.runs.folder import runs_in

    return [given] if named(given) is not None else runs_in(given)


def find_groups(given: Iterable[str]) -> Groups:
    """Groups of runs as `lcrbnn.study.groups` has them; zoo:NAME and GROUP=zoo:NAME are groups too, of one seed."""
    from lcrbnn.study import groups

    def member(place: str) -> tuple[str, int] | None:
        name = named(place)
        return None if name is None else (name, find_subject(Path(place)).spec.seed)

    return groups.find_groups(given, member)


def refuse_members(words: Iterable[str | Path], sentence: str) -> None:
    """Raise with this sentence, and what takes zoo:NAME, if a word is one; NAME= may stand before it."""
    for word in words:
        if named(str(word).rpartition("=")[2]) is not None:
            raise InputError(f"{sentence}; zoo:NAME is for {', '.join(COMMANDS)}")
