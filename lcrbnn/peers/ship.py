"""A trained run as a file, checked: the engine against PyTorch on the same images, by answers and by speed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lcrbnn.data import data_folder
from lcrbnn.engine.format import write_model
from lcrbnn.engine.lib import Engine
from lcrbnn.export import export_model
from lcrbnn.peers.timing import in_turns
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train.build import load_network
from lcrbnn.train.dataset import data_row
from lcrbnn.train.numerics import one_thread

MOST = 1000  # images that are compared
CALLS = 50  # of one image each, for the speed


@dataclass(frozen=True)
class Shipped:
    """How a file fares: answers like PyTorch's, the largest difference of a logit, milliseconds an image of both.

    These are the best of many calls on one core each: what other work on the machine takes from either is left out.
    """

    path: Path
    images: int
    same: int
    apart: float
    engine_ms: float
    torch_ms: float

    def __str__(self) -> str:
        """Two lines for a reader."""
        return (
            f"file:     {self.path}, {self.path.stat().st_size:,} bytes; the engine gives PyTorch's answer on "
            f"{self.same} of {self.images} test images, logits within {self.apart:.1g}\n"
            f"speed:    {self.engine_ms:.3f} ms an image on one core, PyTorch {self.torch_ms:.3f} ms: "
            f"{self.torch_ms / self.engine_ms:.0f} times as fast"
        )


def ship(run: Path, path: Path) -> Shipped:
    """Export a finished run, and let engine and PyTorch answer for its test images; no label is read."""
    spec, net, _ = load_network(RunFolder(run))
    row = data_row(spec)
    write_model(path, export_model(net, row, f"{spec.model} {spec.method} {spec.data}"))
    pixels = row.load(data_folder()).test.images[:MOST]
    mean, std = (np.array(v, np.float32).reshape(-1, 1, 1) for v in (row.mean, row.std))
    inputs = (pixels.astype(np.float32) / np.float32(row.top) - mean) / std
    tensor, last = torch.from_numpy(inputs), np.ascontiguousarray(inputs.transpose(0, 2, 3, 1))
    net.eval()
    with torch.inference_mode(), Engine(path) as engine:
        wanted, found = net(tensor).numpy(), engine.run(last)
        with one_thread():
            times = in_turns({"engine": lambda: engine.run(last[:1]), "torch": lambda: net(tensor[:1])}, CALLS)
    same = int((found.argmax(1) == wanted.argmax(1)).sum())
    apart = float(np.abs(found - wanted).max())
    return Shipped(path, len(pixels), same, apart, times["engine"].best, times["torch"].best)
