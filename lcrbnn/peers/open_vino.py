"""OpenVINO: from ONNX, from an 8-bit ONNX, and with its binary convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

from lcrbnn.engine import Model
from lcrbnn.peers import Call
from lcrbnn.peers.onnx_runtime import first_channels, quantized


def make(model: Model, threads: int, batch: int, kind: str) -> Call:
    """A compiled model for batches of one size, with so many threads."""
    import openvino as ov

    core, kept = ov.Core(), list[Any]()
    if kind == "binary":
        from lcrbnn.peers.openvino_binary import build

        graph = build(model, ov, kept, batch)
    else:
        from lcrbnn.export.onnx import to_onnx

        graph = core.read_model(to_onnx(model) if kind == "float32" else quantized(model))
        h, w, c = model.shape
        graph.reshape([batch, c, h, w])
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    settings["INFERENCE_PRECISION_HINT"] = "f32"  # or it takes bfloat16 where the CPU has it, with other answers
    request = core.compile_model(graph, "CPU", settings).create_infer_request()

    def call(images: np.ndarray) -> np.ndarray:
        assert kept is not None  # the bits of the weights must live as long as the graph
        return request.infer([first_channels(images)])[0]

    return call
