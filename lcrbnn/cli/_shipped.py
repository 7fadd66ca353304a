"""The model that a command is given: a .bnn file, or a network of the zoo."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from lcrbnn.engine import Model

MODEL = "a .bnn file, or zoo:NAME (lcrbnn zoo lists them)"


def find_model(given: Path) -> tuple[Model, Path | bytes]:
    """The model, and what the engine reads it from. A network of the zoo is exported first, which needs torch."""
    from lcrbnn.engine.format import read_model, to_bytes
    from lcrbnn.zoo import named

    name = named(given)
    if name is None:
        return read_model(given), given
    from lcrbnn.export import export_model
    from lcrbnn.train.dataset import data_row
    from lcrbnn.zoo.file import read_member
    from lcrbnn.zoo.index import find

    small = read_member(find(name))
    model = export_model(small.model, data_row(small.spec), name)
    return model, to_bytes(model)
