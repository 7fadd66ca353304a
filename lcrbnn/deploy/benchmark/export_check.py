"""Export a finished run, and compare predictions and speed of the engine with those of PyTorch on the same images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lcrbnn.data.datasets import default_data_folder
from lcrbnn.deploy.benchmark.runtimes import time_alternately
from lcrbnn.deploy.engine.bnn_file import write_model
from lcrbnn.deploy.engine.runtime import Engine
from lcrbnn.deploy.export.export_model import export_model
from lcrbnn.device import single_thread
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.dataset import find_dataset
from lcrbnn.train.setup.load import load_network

MAX_IMAGES = 1000
TIMED_CALLS = 50  # number of timed calls, with one image per call


@dataclass(frozen=True)
class ExportCheck:
    """Comparison of a file with PyTorch, with equal predictions, largest logit difference and milliseconds per image.

    The times are the minimum over many calls on one core, so that other load on the machine has little influence.
    """

    path: Path
    num_images: int
    num_equal_predictions: int
    max_logit_difference: float
    engine_ms: float
    torch_ms: float

    def __str__(self) -> str:
        """Return two lines for the terminal."""
        return (
            f"file:     {self.path}, {self.path.stat().st_size:,} bytes; the engine predicts PyTorch's class for "
            f"{self.num_equal_predictions} of {self.num_images} test images, logits within "
            f"{self.max_logit_difference:.1g}\n"
            f"speed:    {self.engine_ms:.3f} ms per image on one core, PyTorch {self.torch_ms:.3f} ms: "
            f"{self.torch_ms / self.engine_ms:.0f} times as fast"
        )


def export_and_check(run: Path, path: Path) -> ExportCheck:
    """Export a finished run, and compare the engine with PyTorch on its test images. Labels are not used."""
    spec, net, _ = load_network(RunFolder(run))
    dataset = find_dataset(spec)
    write_model(path, export_model(net, dataset, f"{spec.model} {spec.method} {spec.dataset}"))
    pixels = dataset.load(default_data_folder()).test.images[:MAX_IMAGES]
    mean, std = (np.array(v, np.float32).reshape(-1, 1, 1) for v in (dataset.mean, dataset.std))
    inputs = (pixels.astype(np.float32) / np.float32(dataset.max_pixel_value) - mean) / std
    tensor, channels_last = torch.from_numpy(inputs), np.ascontiguousarray(inputs.transpose(0, 2, 3, 1))
    net.eval()
    with torch.inference_mode(), Engine(path) as engine:
        torch_logits, engine_logits = net(tensor).numpy(), engine.run(channels_last)
        with single_thread():
            times = time_alternately(
                {"engine": lambda: engine.run(channels_last[:1]), "torch": lambda: net(tensor[:1])}, TIMED_CALLS
            )
    num_equal_predictions = int((engine_logits.argmax(1) == torch_logits.argmax(1)).sum())
    max_logit_difference = float(np.abs(engine_logits - torch_logits).max())
    return ExportCheck(
        path, len(pixels), num_equal_predictions, max_logit_difference, times["engine"].best, times["torch"].best
    )
