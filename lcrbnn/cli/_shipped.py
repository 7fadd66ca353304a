"""The model that a command is given: a .bnn file, or a network of the zoo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lcrbnn.errors import InputError
from lcrbnn.zoo import named

if TYPE_CHECKING:
    from pathlib import Path

    from lcrbnn.engine import Model

MODEL = "a .bnn file, or zoo:NAME (lcrbnn zoo lists them)"


def find_model(given: Path) -> tuple[Model, Path | bytes]:
    """The model, and what the engine reads it from. A network of the zoo is exported first, which needs torch."""
    from lcrbnn.engine.format import read_model, to_bytes

    name = named(given)
    if name is None:
        _check_file(given)
        return read_model(given), given
    from lcrbnn.cli._given import find_subject
    from lcrbnn.export import export_model

    subject = find_subject(given)
    model = export_model(subject.model, subject.row, name)
    return model, to_bytes(model)


def _check_file(given: Path) -> None:
    """Say what it is, if something else than a file is there."""
    from lcrbnn.data.listing import other_kind
    from lcrbnn.runs.folder import RunFolder

    if RunFolder(given).exists():
        raise InputError(
            f"{given} is the folder of a run, and a model is a file: `lcrbnn export {given} -o FILE.bnn` writes it"
        )
    if (kind := other_kind(given)) is not None:
        raise InputError(f"{given} is {kind}, and a model is {MODEL}")
