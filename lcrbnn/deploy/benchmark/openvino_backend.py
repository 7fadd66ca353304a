"""Run float32 and 8-bit ONNX models with OpenVINO, and binary models with OpenVINO's own binary convolution."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from lcrbnn.deploy.benchmark.onnxruntime_backend import quantize_int8, to_channels_first
from lcrbnn.deploy.benchmark.runtimes import RunBatch
from lcrbnn.deploy.engine.graph import BnnModel


class CompiledModel:
    """An OpenVINO model compiled for one batch size and number of threads."""

    def __init__(self, model: BnnModel, threads: int, batch: int, kind: str, *, profile: bool = False) -> None:
        """Build the graph, or read it from ONNX, and compile it. If `profile` is set, the nodes are timed."""
        import openvino as ov

        core = ov.Core()
        # Arrays that must stay alive, because OpenVINO does not copy the weight bits
        self._weight_arrays: list[Any] = []
        if kind == "binary":
            from lcrbnn.deploy.benchmark.openvino_binary import build_openvino_model

            graph = build_openvino_model(model, ov, self._weight_arrays, batch)
        else:
            from lcrbnn.deploy.export.onnx_writer import to_onnx

            data = to_onnx(model) if kind == "float32" else quantize_int8(model, _find_padded_shortcuts(model))
            graph = core.read_model(data)
            h, w, c = model.shape
            graph.reshape([batch, c, h, w])
        settings: dict[str, Any] = {"PERF_COUNT": profile, "INFERENCE_NUM_THREADS": threads}
        settings |= {"NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
        settings["INFERENCE_PRECISION_HINT"] = "f32"  # without this setting, OpenVINO computes in bfloat16 on some CPUs
        self._compiled = core.compile_model(graph, "CPU", settings)
        self._request = self._compiled.create_infer_request()

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Return the logits of a batch."""
        return self._request.infer([to_channels_first(images)])[0]

    def node_milliseconds(self) -> dict[str, float]:
        """Return the milliseconds of each node type in the last call, as measured by OpenVINO."""
        milliseconds: dict[str, float] = {}
        for node in self._request.profiling_info:
            node_time = 1000 * node.real_time.total_seconds()
            milliseconds[node.node_type] = milliseconds.get(node.node_type, 0.0) + node_time
        return milliseconds

    def count_primitives(self) -> dict[str, int]:
        """Return the number of nodes per layer type and primitive, with OpenVINO's names."""
        infos = (node.get_rt_info() for node in self._compiled.get_runtime_model().get_ops())
        names = (" ".join(str(info[key].value) for key in ("layerType", "primitiveType")) for info in infos)
        return dict(sorted(Counter(names).items()))


def _find_padded_shortcuts(model: BnnModel) -> list[str]:
    """Return the ONNX names of the nodes that pad channels and of those that subsample or pool before them.

    In 8 bits, OpenVINO (seen with 2026.4) cannot compile such a shortcut ("Argument shapes are inconsistent"): it gives
    the scale of the padded map, which has more channels, also to the convolution that reads the map before the padding.
    ONNX Runtime runs the same file.
    """
    indices = set()
    for index, node in enumerate(model.nodes):
        if node.op == "channels":
            # Index of the node that computes the input; −1 if the input is the images (value 0)
            source = node.inputs[0] - 1
            resizes = source >= 0 and model.nodes[source].op in ("subsample", "avgpool")
            indices |= {index, source} if resizes else {index}
    return [f"{index} {model.nodes[index].name}" for index in sorted(indices)]


def make_runner(model: BnnModel, threads: int, batch: int, kind: str) -> RunBatch:
    """Return a function that runs batches of this size."""
    return CompiledModel(model, threads, batch, kind)
