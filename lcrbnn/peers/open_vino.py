"""OpenVINO: from ONNX, from an 8-bit ONNX, and with its binary convolution."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from lcrbnn.engine import Model
from lcrbnn.peers import Call
from lcrbnn.peers.onnx_runtime import first_channels, quantized


class Compiled:
    """A compiled model for batches of one size, with so many threads."""

    def __init__(self, model: Model, threads: int, batch: int, kind: str, *, counts: bool = False) -> None:
        """Build the graph, or read it from ONNX, and compile it; with `counts` it times its nodes."""
        import openvino as ov

        core = ov.Core()
        self._kept: list[Any] = []  # the bits of the weights must live as long as the graph
        if kind == "binary":
            from lcrbnn.peers.openvino_binary import build

            graph = build(model, ov, self._kept, batch)
        else:
            from lcrbnn.export.onnx import to_onnx

            data = to_onnx(model) if kind == "float32" else quantized(model, _padded_shortcuts(model))
            graph = core.read_model(data)
            h, w, c = model.shape
            graph.reshape([batch, c, h, w])
        settings: dict[str, Any] = {"PERF_COUNT": counts, "INFERENCE_NUM_THREADS": threads}
        settings |= {"NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
        settings["INFERENCE_PRECISION_HINT"] = "f32"  # or it takes bfloat16 where the CPU has it, with other answers
        self._compiled = core.compile_model(graph, "CPU", settings)
        self._request = self._compiled.create_infer_request()

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """The logits of a batch."""
        return self._request.infer([first_channels(images)])[0]

    def milliseconds(self) -> dict[str, float]:
        """What the nodes of each type took in the last call, by its own count."""
        found: dict[str, float] = {}
        for node in self._request.profiling_info:
            took = 1000 * node.real_time.total_seconds()
            found[node.node_type] = found.get(node.node_type, 0.0) + took
        return found

    def primitives(self) -> dict[str, int]:
        """How many of its nodes run as what, by OpenVINO's own names."""
        infos = (node.get_rt_info() for node in self._compiled.get_runtime_model().get_ops())
        names = (" ".join(str(info[key].value) for key in ("layerType", "primitiveType")) for info in infos)
        return dict(sorted(Counter(names).items()))


def _padded_shortcuts(model: Model) -> list[str]:
    """Return the ONNX names of the nodes that pad channels and of those that subsample or pool before them.

    In 8 bits, OpenVINO (seen with 2026.4) cannot compile such a shortcut ("Argument shapes are inconsistent"): it gives
    the scale of the padded map, which has more channels, also to the convolution that reads the map before the padding.
    ONNX Runtime runs the same file.
    """
    indices = set()
    for index, node in enumerate(model.nodes):
        if node.op == "channels":
            source = node.inputs[0] - 1  # value 0 is the images
            resizes = source >= 0 and model.nodes[source].op in ("subsample", "avgpool")
            indices |= {index, source} if resizes else {index}
    return [f"{index} {model.nodes[index].name}" for index in sorted(indices)]


def make(model: Model, threads: int, batch: int, kind: str) -> Call:
    """Get ready to run batches of this size."""
    return Compiled(model, threads, batch, kind)
