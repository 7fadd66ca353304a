"""Capture calls once as CUDA graphs and replay them on fixed tensors. GraphPredictor captures a forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from lcrbnn.device import autocast_precision
from lcrbnn.train.setup.spec import TrainSpec


class GraphPredictor:
    """Computes the logits of a network in evaluation mode, in float32.

    On a GPU, the first input shape gets a CUDA graph. The graph reads the weights from their addresses. So it always
    uses the current weights. The logits are in the memory of the graph: use them before the next call.
    """

    def __init__(self, model: nn.Module, spec: TrainSpec, *, capture: bool = False) -> None:
        """Store the network. If `capture` is set, the first call captures its forward pass."""
        self.model, self.spec, self.capture = model, spec, capture
        self._graph: Any = None
        self._images = self._logits = torch.empty(0)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits (n, classes) of images (n, channels, h, w)."""
        if not (self.capture and images.is_cuda):
            return self._predict_uncaptured(images)
        if self._graph is None:
            self._capture(images)
        if images.shape != self._images.shape:
            return self._predict_uncaptured(images)
        self._images.copy_(images)
        self._graph.replay()
        return self._logits

    @torch.no_grad()
    def _predict_uncaptured(self, images: Tensor) -> Tensor:
        with autocast_precision(self.spec.precision, images.device):
            return self.model(images).float()

    def _capture(self, images: Tensor) -> None:
        self._images = images.clone()
        # libraries must be initialised before the capture, on another stream than the default one
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._predict_uncaptured(self._images)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = self._predict_uncaptured(self._images)


Result = TypeVar("Result")


class CapturedCall(Generic[Result]):
    """A function that is captured as a CUDA graph at its first call and replayed later. A CPU captures nothing.

    On a GPU, the result is in the memory of the graph: use it before the next call.
    """

    def __init__(
        self, function: Callable[[], Result], shared_graph: Any, stream: Any, capture_error_mode: str = "global"
    ) -> None:
        """Store the function. Without a stream, the function is never captured.

        The new graph shares the memory of `shared_graph`.
        """
        self.function, self.shared_graph = function, shared_graph
        self.stream, self.capture_error_mode = stream, capture_error_mode
        self._graph: Any = None
        self._result: Any = None

    def __call__(self) -> Result:
        """Return the result of the function."""
        if self.stream is None:
            return self.function()
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, self.shared_graph.pool(), self.stream, self.capture_error_mode):
                self._result = self.function()
        self._graph.replay()
        return self._result
