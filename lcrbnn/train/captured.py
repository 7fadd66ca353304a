"""A network that only answers, as a captured graph: at an epoch's end a GPU waits for launches, and this is one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lcrbnn.train.objective import arithmetic
from lcrbnn.train.spec import Spec


class Answers:
    """Logits of batches, in float32, by a network in evaluation mode; on a GPU captured for the first shape it sees.

    The graph reads the weights where they are, so that it follows training. The result lies in the graph's own memory:
    use it before the next call.
    """

    def __init__(self, model: nn.Module, spec: Spec, *, capture: bool = False) -> None:
        """Keep the network; the first call captures it."""
        self.model, self.spec, self.capture = model, spec, capture
        self._graph: Any = None
        self._images = self._logits = torch.empty(0)

    def __call__(self, images: Tensor) -> Tensor:
        """(n, channels, h, w) -> (n, classes)."""
        if not (self.capture and images.is_cuda):
            return self._plain(images)
        if self._graph is None:
            self._record(images)
        if images.shape != self._images.shape:
            return self._plain(images)
        self._images.copy_(images)
        self._graph.replay()
        return self._logits

    @torch.no_grad()
    def _plain(self, images: Tensor) -> Tensor:
        with arithmetic(self.spec, images.device):
            return self.model(images).float()

    def _record(self, images: Tensor) -> None:
        self._images = images.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._plain(self._images)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = self._plain(self._images)
