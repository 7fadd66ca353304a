"""The demo: a small binary network on the embedded digits, with and without retention, in a plain loop."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.data import load_digits
from lcrbnn.errors import InputError
from lcrbnn.layers import advance, evaluating, project, start_epoch
from lcrbnn.models import Network, network
from lcrbnn.retention import Retention
from lcrbnn.retention.regularizer import frozen_statistics
from lcrbnn.runs.progress import Progress
from lcrbnn.study.figure import BLUE, ORANGE, drawing

BATCH = 64
LEARNING_RATE = 0.05


@dataclass
class Curves:
    """What one run showed, an entry an epoch."""

    accuracy: list[float] = field(default_factory=list)  # percent of the validation images
    ratios: list[list[float]] = field(default_factory=list)  # sigma_B / sigma_F of each block


def train(weight: float, seed: int, epochs: int, progress: Progress, **form: Any) -> Curves:
    """Train the demo's network once: weight is lambda, 0 for a run without retention; further settings of the loss."""
    with one_thread():
        return _train(weight, seed, epochs, progress, form)


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch computes on one core: a small network gains nothing from two, and loses all if one is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(weight: float, seed: int, epochs: int, progress: Progress, form: dict[str, Any]) -> Curves:
    (images, labels), (valid_images, valid_labels) = (
        (torch.from_numpy(s.images), torch.from_numpy(s.labels)) for s in load_digits()
    )
    torch.manual_seed(seed)
    model = network("resnet8-double", "irnet", in_channels=1)
    retention = Retention(model, weight=weight, **form)
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, momentum=0.9, weight_decay=1e-4)
    steps = len(labels) // BATCH
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    curves = Curves()
    for epoch in range(epochs):
        advance(model, epoch / epochs)
        start_epoch(model)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed * 1000 + epoch))
        for step in range(steps):
            batch = order[step * BATCH : (step + 1) * BATCH]
            loss = F.cross_entropy(model(images[batch]), labels[batch]) + retention.loss()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            project(model)
        curves.accuracy.append(_accuracy(model, valid_images, valid_labels))
        curves.ratios.append(measure_ratios(model, valid_images[:BATCH], **form))
        progress.advance(f"lambda {weight:g}, seed {seed}, epoch {epoch + 1}: {curves.accuracy[-1]:.1f} %")
    retention.close()
    return curves


@torch.no_grad()
def _accuracy(model: Network, images: Tensor, labels: Tensor) -> float:
    with evaluating(model):
        return 100 * (model(images).argmax(1) == labels).float().mean().item()


@torch.no_grad()
def measure_ratios(model: Network, images: Tensor, **form: Any) -> list[float]:
    """sigma_B / sigma_F of each block on these images, as in a training step that leaves no trace."""
    watch = Retention(model, **form)
    with frozen_statistics(model):
        model(images)
        watch.loss()
    watch.close()
    assert watch.ratios is not None
    return watch.ratios.tolist()


def run_demo(out: Path, *, weight: float, seeds: int, epochs: int) -> str:
    """Train with and without retention, write demo.png into `out`, and return the table."""
    progress = Progress(2 * seeds * epochs)
    runs = {w: [train(w, seed, epochs, progress) for seed in range(seeds)] for w in (0.0, weight)}
    picture = out / "demo.png"
    try:
        _draw(runs, picture)
        shown = f"curves: {picture}"
    except InputError as error:  # without matplotlib, or a place to write, the table is still worth having
        shown = f"no curves: {error}"
    rows = [_row(w, curves) for w, curves in runs.items()]
    head = f"{'lambda':>8}  {'accuracy, 500 held-out digits':<30}  {'mean |sigma_B / sigma_F - 1| over blocks':<40}"
    who = f"mean and standard deviation of {seeds} paired seeds" if seeds > 1 else "one seed"
    note = f"{who}, last of {epochs} epochs: too few to claim a difference"
    return "\n".join([head, *rows, note, shown])


def _gap(ratios: list[float]) -> float:
    return statistics.fmean(abs(r - 1) for r in ratios)


def _row(weight: float, curves: list[Curves]) -> str:
    def cell(values: list[float], digits: int, unit: str) -> str:
        spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.{digits}f}{spread}{unit}"

    accuracy = cell([c.accuracy[-1] for c in curves], 1, " %")
    gap = cell([_gap(c.ratios[-1]) for c in curves], 3, "")
    return f"{weight:>8g}  {accuracy:<30}  {gap:<40}"


def _draw(runs: dict[float, list[Curves]], path: Path) -> None:
    with drawing(path, 1, 2, 8, 3) as (_, grid):
        left, right = grid[0]
        for (weight, curves), color in zip(runs.items(), (BLUE, ORANGE), strict=True):
            label = "without retention" if weight == 0 else f"with retention, λ = {weight:g}"
            for i, curve in enumerate(curves):
                epochs = range(1, len(curve.accuracy) + 1)
                only_first = label if i == 0 else None
                left.plot(epochs, curve.accuracy, color=color, alpha=0.7, label=only_first)
                right.plot(epochs, [_gap(r) for r in curve.ratios], color=color, alpha=0.7, label=only_first)
        left.set(xlabel="epoch", ylabel="accuracy on held-out digits, %", title="Accuracy, a line a seed")
        right.set(xlabel="epoch", ylabel="mean |σ_B / σ_F − 1| over blocks", title="Distance from the reference")
        right.set_ylim(bottom=0)
        left.legend(loc="lower right")
