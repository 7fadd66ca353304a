"""Trained networks that come with the package: one bit a binary weight, 16 a real number (`lcrbnn zoo`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lcrbnn.zoo.index import Member, find, members, named

if TYPE_CHECKING:
    from lcrbnn.models import Network

__all__ = ["Member", "find", "load", "members", "named"]


def load(name: str) -> Network:
    """The network of this name, in evaluation mode: it answers as its file does, and can be trained on."""
    from lcrbnn.zoo.file import read_member

    return read_member(find(name)).model
