"""Draw accuracies and σ_B/σ_F ratios during training, with one colour per group of runs."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError
from lcrbnn.lcr.lcr_variants import LcrVariant
from lcrbnn.lcr.sigma_ratios import NOT_AVAILABLE
from lcrbnn.report.figures.figure import COLORS, draw_figure, escape_label
from lcrbnn.runs.record import read_record
from lcrbnn.runs.run_folder import RunFolder, find_runs
from lcrbnn.train.run_figures import sample_log_lines
from lcrbnn.train.setup.build_network import build_lcr_variant
from lcrbnn.train.setup.load import read_spec
from lcrbnn.train.setup.spec import TrainSpec

# Names of the fields of an LcrVariant on which the definition of a ratio depends.
RATIO_SETTINGS = ("matrix", "normalization", "reference", "activations", "sqrt_eigenvalue")
ACCURACY_COLUMNS = 2  # number of grid columns of the panel with the accuracies
LOG_SCALE_FROM = 10.0  # largest ratio on a linear axis. A larger ratio would make all other curves look like one line
LOG_SCALE_MINIMUM = 0.01  # lower end of a logarithmic axis

LogLines = list[dict[str, Any]]
Curve = dict[int, float]  # dictionary from an epoch to a value


@dataclass
class CurveGroup:
    """Logs of runs that have equal settings but different seeds."""

    name: str
    spec: TrainSpec  # training spec of the first run of the group
    logs: list[LogLines] = field(default_factory=list)

    @property
    def lcr_variant(self) -> LcrVariant:
        """Return the LCR variant that defines the ratios."""
        return build_lcr_variant(self.spec)

    @property
    def num_ratios(self) -> int:
        """Return the number of ratios per log line, or 0 if no ratios were measured."""
        return max(len(line["sigma_ratios"] or ()) for lines in self.logs for line in lines)

    @property
    def largest_ratio(self) -> float:
        """The largest of all ratios. It is 0 if no ratios were measured."""
        ratios = (ratio for lines in self.logs for line in lines for ratio in line["sigma_ratios"] or ())
        return max((ratio for ratio in ratios if not math.isnan(ratio)), default=0.0)

    def curves_of_column(self, column: str) -> list[Curve]:
        """Return one log column of each run over training. Runs without this column are left out."""
        curves = [{line["epoch"]: line[column] for line in lines if line[column] is not None} for lines in self.logs]
        return [curve for curve in curves if curve]

    def curves_of_ratio(self, index_from_end: int) -> list[Curve]:
        """Return one ratio of each run over training, without NaN.

        Ratios are counted from the end, so index 1 is the last matrix.
        """
        curves = [
            {
                line["epoch"]: line["sigma_ratios"][-index_from_end]
                for line in lines
                if len(line["sigma_ratios"] or ()) >= index_from_end
                and not math.isnan(line["sigma_ratios"][-index_from_end])
            }
            for lines in self.logs
        ]
        return [curve for curve in curves if curve]


def read_curve_groups(paths: Sequence[Path]) -> list[CurveGroup]:
    """Read runs from records or folders. Runs whose seeds are in the same folder form a group."""
    groups: dict[Path, CurveGroup] = {}
    files = {file.absolute(): file for path in paths for file in find_curve_files(path)}
    for absolute, path in files.items():
        lines, spec = read_training_log(path)
        group = groups.setdefault(find_group_folder(absolute), CurveGroup(find_group_folder(absolute).name, spec))
        difference = group.spec.difference(spec.replace(seed=group.spec.seed))
        if difference is not None:
            message = "the runs of group {} must have equal settings; {} is {} and {}"
            raise InputError(message.format(group.name, *difference))
        group.logs.append(lines)
    names = [group.name for group in groups.values()]
    for absolute, group in groups.items():
        if names.count(group.name) > 1:  # different plans can have variants with the same name
            group.name = f"{absolute.parent.name}/{absolute.name}"
    return list(groups.values())


def find_curve_files(path: Path) -> list[Path]:
    """Return the path itself if it is a file. Otherwise return the records or runs in the folder."""
    return [path] if not path.is_dir() else sorted(path.glob("seed-*.json")) or find_runs(path)


def find_group_folder(path: Path) -> Path:
    """Return the folder of the group to which a run or record belongs.

    A run without a seed folder is a group of its own.
    """
    run = path if path.is_dir() else path.parent if path.name == "record.json" else path.with_suffix("")
    return run.parent if re.fullmatch(r"seed-\d+", run.name) else run


def read_training_log(path: Path) -> tuple[LogLines, TrainSpec]:
    """Return a sample of the log lines and the spec of a run. The run is given as a folder or a record."""
    return _read_log_of_folder(RunFolder(path)) if path.is_dir() else _read_log_of_record(path)


def _read_log_of_folder(folder: RunFolder) -> tuple[LogLines, TrainSpec]:
    """Return the log and the spec of a run folder. The log also exists for unfinished runs.

    A finished run must match its record.
    """
    if folder.record_file.exists():
        folder.check_record_and_log()
    lines = sample_log_lines(folder.read_log())
    if not lines:
        raise InputError(f"the run in {folder.path} has not finished an epoch yet")
    return lines, read_spec(folder)


def _read_log_of_record(path: Path) -> tuple[LogLines, TrainSpec]:
    record = read_record(path)
    lines = record["figures"].get("history")
    if lines is None:
        raise InputError(f"{path} has no history: it is not the record of a run, or an older one; draw the run folder")
    if not isinstance(lines, list) or not lines or not all(map(_is_valid_line, lines)):
        raise InputError(f"{path} is not a valid record: its history is damaged")
    try:
        return lines, TrainSpec.from_dict(record["settings"])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _is_valid_line(line: Any) -> bool:
    if not isinstance(line, dict) or not {"epoch", "train_top1", "valid_top1", "sigma_ratios"} <= set(line):
        return False
    ratios = [] if line["sigma_ratios"] is None else line["sigma_ratios"]
    valid = [] if line["valid_top1"] is None else [line["valid_top1"]]
    return isinstance(ratios, list) and all(
        isinstance(value, int | float) for value in (line["epoch"], line["train_top1"], *valid, *ratios)
    )


def draw_training_curves(groups: Sequence[CurveGroup], path: Path) -> None:
    """Draw accuracies on the left and one panel per ratio on the right. Seeds are thin lines, means are thick lines."""
    if len(groups) > len(COLORS):
        names = ", ".join(group.name for group in groups)
        raise InputError(f"a figure shows at most {len(COLORS)} groups; got {len(groups)}: {names}")
    granularity = _find_common_granularity(groups)
    num_panels = max(group.num_ratios for group in groups)
    columns = num_panels if num_panels <= 3 else math.ceil(math.sqrt(num_panels))
    rows = math.ceil(num_panels / max(columns, 1)) or 1
    with draw_figure(path, rows, ACCURACY_COLUMNS + columns, 4.5 + 1.75 * columns, max(1.45 * rows + 1, 3.2)) as (
        figure,
        grid,
    ):
        accuracy_axis = figure.add_subplot(grid[0, 0].get_gridspec()[:, :ACCURACY_COLUMNS])
        panels = list(grid[:, ACCURACY_COLUMNS:].flat)
        for axis in [*grid[:, :ACCURACY_COLUMNS].flat, *panels[num_panels:]]:
            axis.remove()
        for number, axis in enumerate(panels[:num_panels]):
            axis.sharey(panels[0])
            axis.axhline(1, color="0.35", linewidth=0.8, linestyle=":")
            axis.set_title(f"{granularity} {number + 1}")
            if number % columns == 0:
                axis.set_ylabel(r"$\sigma_B\,/\,\sigma_F$")
            if number + columns >= num_panels:
                axis.set_xlabel("epoch")
            axis.tick_params(labelleft=number % columns == 0, labelbottom=number + columns >= num_panels)
        for group, color in zip(groups, COLORS, strict=False):
            _draw_curves(accuracy_axis, group.curves_of_column("train_top1"), color, "--")
            _draw_curves(accuracy_axis, group.curves_of_column("valid_top1"), color, "-")
            accuracy_axis.plot([], [], color=color, label=escape_label(_make_label(group, groups[0])))
            # count matrices from the end, because some variants only measure the last blocks
            for k in range(1, group.num_ratios + 1):
                _draw_curves(panels[num_panels - k], group.curves_of_ratio(k), color, "-")
        for k in range(1, num_panels + 1):
            if not any(group.curves_of_ratio(k) for group in groups):
                panels[num_panels - k].annotate(NOT_AVAILABLE, (0.5, 0.75), xycoords="axes fraction", ha="center")
                panels[num_panels - k].set_xticks([])
        if max(group.largest_ratio for group in groups) > LOG_SCALE_FROM:
            panels[0].set_yscale("log", nonpositive="clip")
            panels[0].set_ylim(bottom=max(panels[0].get_ylim()[0], LOG_SCALE_MINIMUM))
        has_validation = any(group.curves_of_column("valid_top1") for group in groups)
        accuracy_axis.set_title(
            "training (dashed) and validation images" if has_validation else "training images (dashed)"
        )
        accuracy_axis.set(xlabel="epoch", ylabel="accuracy, %")
        figure.legend(*accuracy_axis.get_legend_handles_labels(), loc="outside upper center", ncols=min(len(groups), 4))


def _find_common_granularity(groups: Sequence[CurveGroup]) -> str:
    """Return the granularity of all groups (block, layer or stage). Raise InputError if the groups differ."""
    measured = [group for group in groups if group.num_ratios]
    for group in measured:
        for setting in ("dataset", "model"):
            _check_equal(setting, {compared.name: getattr(compared.spec, setting) for compared in (measured[0], group)})
        _check_equal(
            "ratios", {compared.name: f"of {compared.lcr_variant.granularity}" for compared in (measured[0], group)}
        )
    return measured[0].lcr_variant.granularity.removesuffix("s") if measured else ""


def _check_equal(setting: str, values: dict[str, str]) -> None:
    if len(set(values.values())) > 1:
        listing = " and ".join(f"{name} {value}" for name, value in values.items())
        raise InputError(f"groups of one figure must have the same {setting}; got {listing}")


def _make_label(group: CurveGroup, first_group: CurveGroup) -> str:
    """Return the label of a group: the name, and the ratio settings in which the group differs from the first group."""
    settings, first_settings = asdict(group.lcr_variant), asdict(first_group.lcr_variant)
    differences = [f"{name}={settings[name]}" for name in RATIO_SETTINGS if settings[name] != first_settings[name]]
    return group.name + (f" (ratios: {', '.join(differences)})" if differences and group.num_ratios else "")


def _draw_curves(axis: Any, curves: list[Curve], color: str, line_style: str) -> None:
    """Draw each curve as a thin line and their mean as a thick line.

    The mean covers the epochs that all curves have.
    """
    for curve in curves if len(curves) > 1 else []:
        axis.plot(list(curve), list(curve.values()), color=color, linewidth=0.6, alpha=0.5, linestyle=line_style)
    epochs = [epoch for epoch in curves[0] if all(epoch in curve for curve in curves)] if curves else []
    means = [statistics.fmean(curve[epoch] for curve in curves) for epoch in epochs]
    axis.plot(epochs, means, color=color, linewidth=1.6, linestyle=line_style)
