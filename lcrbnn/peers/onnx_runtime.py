"""ONNX Runtime, as it comes and quantised to 8 bits."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lcrbnn.engine import Model
from lcrbnn.export.onnx import to_onnx
from lcrbnn.peers import Call

CALIBRATION = 8  # batches of noise: what it costs does not depend on what it sees


def make(model: Model, threads: int, batch: int, kind: str) -> Call:
    """A session with so many threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    data = to_onnx(model) if kind == "float32" else quantized(model)
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return lambda images: session.run(["logits"], {"images": first_channels(images)})[0]


def first_channels(images: np.ndarray) -> np.ndarray:
    """(n, h, w, c) as (n, c, h, w)."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside, warnings are not logged: the quantiser advises to prepare a model that has nothing to prepare."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def quantized(model: Model, float_nodes: Sequence[str] = ()) -> bytes:
    """The model with 8-bit weights and activations (u8 by s8, a scale a channel), calibrated on noise.

    The ONNX nodes named in `float_nodes` stay in float32.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Noise(CalibrationDataReader):
        def __init__(self) -> None:
            h, w, c = model.shape
            draw = np.random.default_rng(0)
            self.left = iter([draw.standard_normal((2, c, h, w), np.float32) for _ in range(CALIBRATION)])

        def get_next(self) -> dict[str, Any] | None:
            found = next(self.left, None)
            return None if found is None else {"images": found}

    with tempfile.TemporaryDirectory() as folder:
        plain, short = Path(folder) / "plain.onnx", Path(folder) / "short.onnx"
        plain.write_bytes(to_onnx(model))
        with _quiet():
            quantize_static(
                plain,
                short,
                Noise(),
                quant_format=QuantFormat.QDQ,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                per_channel=True,
                nodes_to_exclude=list(float_nodes),
            )
        return short.read_bytes()
