"""The demo trains a network on the package's digits, with and without LCR, and makes a table and a figure."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, NamedTuple

from lcrbnn.device import single_thread
from lcrbnn.errors import InputError
from lcrbnn.evaluation.evaluate import evaluate
from lcrbnn.lcr.sigma_ratios import format_ratio, mean_ratio_gap
from lcrbnn.report.figures.figure import BLUE, ORANGE, draw_figure
from lcrbnn.runs.progress import ProgressBar
from lcrbnn.runs.record import read_record
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.setup.validate import check_run_folders
from lcrbnn.train.train import train


class DemoRun(NamedTuple):
    """Log lines and test accuracy of one finished run."""

    log_lines: list[dict[str, Any]]
    test_top1: float


def run_demo(out: Path, *, lcr_weight: float, num_seeds: int, epochs: int) -> str:
    """Train with and without LCR into folders of `out`, draw demo.png there, and return the table of results.

    Runs that are finished are not repeated, and interrupted runs are resumed.
    """
    specs = {
        out / f"lambda-{w:g}" / f"seed-{seed}": TrainSpec(lcr_weight=w, seed=seed, epochs=epochs)
        for w in (0.0, lcr_weight)
        for seed in range(num_seeds)
    }
    num_unfinished = sum(not RunFolder(path).record_file.exists() for path in specs)
    shared_bar: list[ProgressBar] = []

    def make_progress(total: int, num_done: int) -> ProgressBar:
        if not shared_bar:
            shared_bar.append(ProgressBar(total * num_unfinished))
        shared_bar[0].num_done += num_done
        shared_bar[0].num_done_at_start += num_done
        return shared_bar[0]

    runs: dict[float, list[DemoRun]] = {0.0: [], lcr_weight: []}
    check_run_folders(specs, True)
    with single_thread():
        for path, spec in specs.items():
            train(spec, path, resume=True, progress=make_progress)
            runs[spec.lcr_weight].append(_read_run(path))
    figure_path = out / "demo.png"
    try:
        _draw_curves(runs, figure_path)
        figure_line = f"curves:   {figure_path}"
    except InputError as error:  # the table is useful even without the figure, which needs matplotlib
        figure_line = f"no curves: {error}"
    columns = f"{'297 validation digits':<22}  {'500 test digits':<22}  mean |sigma_B / sigma_F - 1| over blocks"
    seeds_text = f"mean and standard deviation of {num_seeds} paired seeds" if num_seeds > 1 else "one seed"
    return "\n".join(
        [
            f"{'lambda':>8}  {columns}",
            *(_render_row(w, variant_runs) for w, variant_runs in runs.items()),
            f"{seeds_text}, last of {epochs} epochs: too few seeds to claim a difference",
            figure_line,
            f"runs:     {out}/lambda-*/seed-*  (spec.json, log.jsonl, checkpoints, record.json)",
            f"next:     lcrbnn eval {out}/lambda-0   "
            f"lcrbnn train digits --lcr-weight {lcr_weight:g} --run-folder runs/mine",
        ]
    )


def _read_run(path: Path) -> DemoRun:
    """Return log and test accuracy of a finished run.

    Only if its record has no test result, the test set is evaluated.
    """
    folder = RunFolder(path)
    test_results = read_record(folder.record_file).get("test_results", [])
    test_top1 = test_results[-1]["top1"] if test_results else evaluate(path, use_test_split=True).accuracy.top1
    return DemoRun(folder.read_log(), test_top1)


def _mean_ratio_gap(log_line: dict[str, Any]) -> float:
    return mean_ratio_gap(log_line["sigma_ratios"])


def _render_row(lcr_weight: float, runs: list[DemoRun]) -> str:
    def format_cell(values: list[float], digits: int, unit: str) -> str:
        spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        return f"{format_ratio(statistics.fmean(values), f'.{digits}f')}{spread}{unit}"

    valid = format_cell([run.log_lines[-1]["valid_top1"] for run in runs], 1, " %")
    test = format_cell([run.test_top1 for run in runs], 1, " %")
    ratio_gap = format_cell([_mean_ratio_gap(run.log_lines[-1]) for run in runs], 3, "")
    return f"{lcr_weight:>8g}  {valid:<22}  {test:<22}  {ratio_gap}"


def _draw_curves(runs: dict[float, list[DemoRun]], path: Path) -> None:
    panels = [
        ("training loss", lambda line: line["train_loss"]),
        ("accuracy on validation digits, %", lambda line: line["valid_top1"]),
        ("mean |σ_B / σ_F − 1| over blocks", _mean_ratio_gap),
    ]
    with draw_figure(path, 1, 3, 11, 3) as (_, axes):
        for (weight, variant_runs), color in zip(runs.items(), (BLUE, ORANGE), strict=True):
            label = "without LCR" if weight == 0 else f"with LCR, λ = {weight:g}"
            for i, run in enumerate(variant_runs):
                epochs = [line["epoch"] for line in run.log_lines]
                for axis, (_, read_value) in zip(axes[0], panels, strict=True):
                    values = [read_value(line) for line in run.log_lines]
                    axis.plot(epochs, values, color=color, alpha=0.7, label=label if i == 0 else None)
        for axis, (name, _) in zip(axes[0], panels, strict=True):
            axis.set(xlabel="epoch", ylabel=name)
        axes[0, 0].set_ylim(bottom=0)
        axes[0, 2].set_ylim(bottom=0)
        axes[0, 0].set_title("one line per seed")
        axes[0, 1].legend(loc="lower right")
