"""The demo: the trainer on the embedded digits, with and without retention; a table, curves, where all of it lies."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, NamedTuple

from lcrbnn.errors import InputError
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.progress import Progress
from lcrbnn.runs.record import read_record
from lcrbnn.study.figure import BLUE, ORANGE, drawing
from lcrbnn.train import Spec
from lcrbnn.train.numerics import one_thread
from lcrbnn.train.opening import check_places
from lcrbnn.train.reading import evaluate
from lcrbnn.train.run import train


class Run(NamedTuple):
    """A finished run: the lines of its log, and its accuracy on the test images."""

    lines: list[dict[str, Any]]
    test: float


def run_demo(out: Path, *, weight: float, seeds: int, epochs: int) -> str:
    """Train with and without retention into folders of `out`, draw demo.png there, and return the table.

    Runs that are finished are not made again, interrupted ones go on.
    """
    specs = {
        out / f"lambda-{w:g}" / f"seed-{seed}": Spec(weight=w, seed=seed, epochs=epochs)
        for w in (0.0, weight)
        for seed in range(seeds)
    }
    todo = sum(not RunFolder(path).record.exists() for path in specs)
    shared: list[Progress] = []

    def progress(total: int, done: int) -> Progress:
        if not shared:
            shared.append(Progress(total * todo))
        shared[0].done += done
        shared[0].before += done
        return shared[0]

    runs: dict[float, list[Run]] = {0.0: [], weight: []}
    check_places(specs, True)
    with one_thread():
        for path, spec in specs.items():
            train(spec, path, resume=True, progress=progress)
            runs[spec.weight].append(_read(path))
    picture = out / "demo.png"
    try:
        _draw(runs, picture)
        shown = f"curves:   {picture}"
    except InputError as error:  # without matplotlib, or a place to write, the table is still worth having
        shown = f"no curves: {error}"
    columns = f"{'297 validation digits':<22}  {'500 test digits':<22}  mean |sigma_B / sigma_F - 1| over blocks"
    who = f"mean and standard deviation of {seeds} paired seeds" if seeds > 1 else "one seed"
    return "\n".join(
        [
            f"{'lambda':>8}  {columns}",
            *(_row(w, found) for w, found in runs.items()),
            f"{who}, last of {epochs} epochs: too few to claim a difference",
            shown,
            f"runs:     {out}/lambda-*/seed-*  (spec.json, log.jsonl, checkpoints, record.json)",
            f"again:    lcrbnn eval {out}/lambda-0   lcrbnn train digits --weight {weight:g} --run runs/mine",
        ]
    )


def _read(path: Path) -> Run:
    """The figures of a finished run; the test images are read once, and the record keeps what they gave."""
    folder = RunFolder(path)
    readings = read_record(folder.record).get("readings", [])
    test = readings[-1]["top1"] if readings else evaluate(path, final=True).accuracy.top1
    return Run(folder.read_log(), test)


def _gap(line: dict[str, Any]) -> float:
    return statistics.fmean(abs(r - 1) for r in line["ratios"])


def _row(weight: float, runs: list[Run]) -> str:
    def cell(values: list[float], digits: int, unit: str) -> str:
        spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.{digits}f}{spread}{unit}"

    valid = cell([run.lines[-1]["valid"] for run in runs], 1, " %")
    test = cell([run.test for run in runs], 1, " %")
    return f"{weight:>8g}  {valid:<22}  {test:<22}  {cell([_gap(run.lines[-1]) for run in runs], 3, '')}"


def _draw(runs: dict[float, list[Run]], path: Path) -> None:
    panels = [
        ("training loss", lambda line: line["loss"]),
        ("accuracy on validation digits, %", lambda line: line["valid"]),
        ("mean |σ_B / σ_F − 1| over blocks", _gap),
    ]
    with drawing(path, 1, 3, 11, 3) as (_, grid):
        for (weight, found), color in zip(runs.items(), (BLUE, ORANGE), strict=True):
            label = "without retention" if weight == 0 else f"with retention, λ = {weight:g}"
            for i, run in enumerate(found):
                epochs = [line["epoch"] for line in run.lines]
                for axis, (_, value) in zip(grid[0], panels, strict=True):
                    values = [value(line) for line in run.lines]
                    axis.plot(epochs, values, color=color, alpha=0.7, label=label if i == 0 else None)
        for axis, (name, _) in zip(grid[0], panels, strict=True):
            axis.set(xlabel="epoch", ylabel=name)
        grid[0, 0].set_ylim(bottom=0)
        grid[0, 2].set_ylim(bottom=0)
        grid[0, 0].set_title("A line a seed")
        grid[0, 1].legend(loc="lower right")
