"""PEERS: runtimes that a user could pick instead of our engine, each from the same model, and how they are timed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from lcrbnn.engine import Model

Call = Callable[[np.ndarray], np.ndarray]  # float32 images (n, h, w, c) -> logits (n, classes)


@dataclass(frozen=True)
class Peer:
    """A row of PEERS: the packages it needs, the module that has `make`, what that is told, and what then runs."""

    needs: tuple[str, ...]
    module: str
    kind: str
    about: str

    def missing(self) -> str | None:
        """A package that it lacks here, if any."""
        return next((name for name in self.needs if importlib.util.find_spec(name) is None), None)

    def make(self, model: Model, threads: int, batch: int) -> Call:
        """Get ready to run batches of this size."""
        return import_module(f"lcrbnn.peers.{self.module}").make(model, threads, batch, self.kind)


PEERS: dict[str, Peer] = {
    "onnxruntime": Peer(("onnx", "onnxruntime"), "onnx_runtime", "float32", "this network in float32"),
    "onnxruntime int8": Peer(("onnx", "onnxruntime"), "onnx_runtime", "int8", "this network in 8 bits"),
    "openvino": Peer(("onnx", "openvino"), "open_vino", "float32", "this network in float32"),
    "openvino int8": Peer(("onnx", "onnxruntime", "openvino"), "open_vino", "int8", "this network in 8 bits"),
    "openvino binary": Peer(("openvino",), "open_vino", "binary", "this network, BinaryConvolution"),
}
