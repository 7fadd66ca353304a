"""Modules that are of another class for a while: how a network is shown to a compiler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn


@contextmanager
def reclassed(modules: Sequence[nn.Module], kind: type[nn.Module]) -> Iterator[None]:
    """Inside, these are of this class, which adds no state; afterwards they are what they were."""
    before = [type(module) for module in modules]
    for module in modules:
        module.__class__ = kind
    try:
        yield
    finally:
        for module, was in zip(modules, before, strict=True):
            module.__class__ = was
