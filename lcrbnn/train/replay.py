"""Work on the device that is done again and again with the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

Found = TypeVar("Found")


class Replay(Generic[Found]):
    """On a GPU captured at the first call, into another graph's memory, and replayed; on a CPU just done.

    What it returns on a GPU lies in the graph's memory: use it before the next call.
    """

    def __init__(self, work: Callable[[], Found], beside: Any, stream: Any, mode: str = "global") -> None:
        """Keep the work; `beside` is a captured graph, or no graph where nothing is captured."""
        self.work, self.beside, self.stream, self.mode = work, beside, stream, mode
        self._graph: Any = None
        self._found: Any = None

    def __call__(self) -> Found:
        """Do it."""
        if self.stream is None:
            return self.work()
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, self.beside.pool(), self.stream, self.mode):
                self._found = self.work()
        self._graph.replay()
        return self._found
