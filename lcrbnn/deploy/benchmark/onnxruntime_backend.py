"""Run float32 models and 8-bit models with ONNX Runtime."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lcrbnn.deploy.benchmark.runtimes import RunBatch
from lcrbnn.deploy.engine.graph import BnnModel
from lcrbnn.deploy.export.onnx_writer import name_onnx_outputs, to_onnx

CALIBRATION_BATCHES = 8  # number of noise batches for calibration; the speed does not depend on the calibration data


def make_runner(model: BnnModel, threads: int, batch: int, kind: str) -> RunBatch:
    """Return a function that runs a batch in an ONNX Runtime session and returns the first output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    data = to_onnx(model) if kind == "float32" else quantize_int8(model)
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = list(name_onnx_outputs(model))
    return lambda images: session.run(names, {"images": to_channels_first(images)})[0]


def to_channels_first(images: np.ndarray) -> np.ndarray:
    """Return an array (n, h, w, c) as (n, c, h, w)."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Disable warnings inside the context. The quantizer recommends a preprocessing that the model does not need."""
    disabled_level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled_level)


def quantize_int8(model: BnnModel, float_nodes: Sequence[str] = ()) -> bytes:
    """Return the ONNX model with 8-bit weights and activations (u8 by s8, a scale per channel), calibrated on noise.

    The ONNX nodes named in `float_nodes` stay in float32.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Noise(CalibrationDataReader):
        def __init__(self) -> None:
            h, w, c = model.shape
            draw = np.random.default_rng(0)
            self.batches = iter([draw.standard_normal((2, c, h, w), np.float32) for _ in range(CALIBRATION_BATCHES)])

        def get_next(self) -> dict[str, Any] | None:
            images = next(self.batches, None)
            return None if images is None else {"images": images}

    with tempfile.TemporaryDirectory() as folder:
        float_path, int8_path = Path(folder) / "float32.onnx", Path(folder) / "int8.onnx"
        float_path.write_bytes(to_onnx(model))
        with _without_warnings():
            quantize_static(
                float_path,
                int8_path,
                Noise(),
                quant_format=QuantFormat.QDQ,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                per_channel=True,
                nodes_to_exclude=list(float_nodes),
            )
        return int8_path.read_bytes()
