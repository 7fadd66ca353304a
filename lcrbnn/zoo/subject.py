"""A network of the zoo as something that is measured."""

from __future__ import annotations

from lcrbnn.train.dataset import data_row
from lcrbnn.train.subject import Subject
from lcrbnn.zoo.file import read_member
from lcrbnn.zoo.index import PREFIX, find

PRECISION = "float32"  # that of the listed figures, whatever a network was trained in


def member_subject(name: str) -> Subject:
    """The committed network. The digest is that of its file: of the run that it came from it is a rounded copy."""
    member = find(name)
    small = read_member(member)
    said = {
        "zoo": name,
        "run": small.spec.stored(),
        "precision": PRECISION,
        "checkpoint_sha256": member.sha256,
    }
    return Subject(f"{PREFIX}{name}", small.spec.but(precision=PRECISION), small.model, data_row(small.spec), said)
