"""Trained networks in the package (`lcrbnn zoo`), with 1 bit per binary weight and 16 bits per real number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lcrbnn.zoo.zoo_index import ZooMember, find_member, list_members, parse_zoo_name

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ZooMember", "find_member", "list_members", "load", "parse_zoo_name"]


def load(name: str) -> nn.Module:
    """Return the network of this name in evaluation mode, ready for inference and further training."""
    from lcrbnn.zoo.zoo_file import load_member

    return load_member(find_member(name)).model
