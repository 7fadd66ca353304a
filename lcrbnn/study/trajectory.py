"""How runs got where they are: accuracies and the ratios of each block over training, a colour an arm."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError
from lcrbnn.retention import Form
from lcrbnn.runs.folder import RunFolder, runs_in
from lcrbnn.runs.record import read_record
from lcrbnn.study.figure import COLORS, drawing, named
from lcrbnn.train.build import chosen_form, read_spec
from lcrbnn.train.figures import over_training
from lcrbnn.train.spec import Spec

MEASURES = ("matrix", "normalization", "reference", "maps", "root")  # of a form: what decides what a ratio is
LEFT = 2  # columns of small panels that the accuracies take
FAR = 10.0  # ratios are drawn on a logarithmic axis where one is larger, or the others would lie on one line
SMALLEST = 0.01  # of such an axis

Lines = list[dict[str, Any]]
Curve = dict[int, float]  # a value an epoch


@dataclass
class Arm:
    """Runs that differ in their seed, each as its lines over training."""

    name: str
    spec: Spec  # of the first
    runs: list[Lines] = field(default_factory=list)

    @property
    def form(self) -> Form:
        """What the ratios are of."""
        return chosen_form(self.spec)

    @property
    def matrices(self) -> int:
        """How many ratios a line has; 0 where none were measured."""
        return max(len(line["ratios"] or ()) for lines in self.runs for line in lines)

    @property
    def largest(self) -> float:
        """Of all ratios; 0 where none were measured."""
        return max((ratio for lines in self.runs for line in lines for ratio in line["ratios"] or ()), default=0.0)

    def curves(self, column: str) -> list[Curve]:
        """A number of each run over training, where there is one."""
        found = [{line["epoch"]: line[column] for line in lines if line[column] is not None} for lines in self.runs]
        return [curve for curve in found if curve]

    def ratio(self, from_end: int) -> list[Curve]:
        """A ratio of each run over training, counted from the last matrix, which is 1."""
        found = [
            {line["epoch"]: line["ratios"][-from_end] for line in lines if len(line["ratios"] or ()) >= from_end}
            for lines in self.runs
        ]
        return [curve for curve in found if curve]


def read_arms(paths: Sequence[Path]) -> list[Arm]:
    """The runs of records or folders, in their order, an arm for each folder that holds seeds."""
    arms: dict[Path, Arm] = {}
    found = {one.absolute(): one for given in paths for one in find_runs(given)}
    for place, path in found.items():
        lines, spec = read_run(path)
        arm = arms.setdefault(home(place), Arm(home(place).name, spec))
        differs = arm.spec.difference(spec.but(seed=arm.spec.seed))
        if differs is not None:
            raise InputError("the runs of {} are not of one arm: {} is {} and {}".format(arm.name, *differs))
        arm.runs.append(lines)
    names = [arm.name for arm in arms.values()]
    for place, arm in arms.items():
        if names.count(arm.name) > 1:  # of two plans
            arm.name = f"{place.parent.name}/{place.name}"
    return list(arms.values())


def find_runs(path: Path) -> list[Path]:
    """A file as it is; of a folder its records, or the runs in it."""
    return [path] if not path.is_dir() else sorted(path.glob("seed-*.json")) or runs_in(path)


def home(path: Path) -> Path:
    """The folder of the arm that a run or a record belongs to; a run that is no seed of several is its own."""
    run = path if path.is_dir() else path.parent if path.name == "record.json" else path.with_suffix("")
    return run.parent if re.fullmatch(r"seed-\d+", run.name) else run


def read_run(path: Path) -> tuple[Lines, Spec]:
    """The lines over training and the spec of a run, from its folder or its record."""
    return _read_folder(RunFolder(path)) if path.is_dir() else _read_file(path)


def _read_folder(folder: RunFolder) -> tuple[Lines, Spec]:
    """From the log, so that a run can be looked at before it ends; then its record must agree with log and spec."""
    if folder.record.exists():
        folder.check_finished()
    lines = over_training(folder.read_log())
    if not lines:
        raise InputError(f"the run in {folder.path} has not finished an epoch yet")
    return lines, read_spec(folder)


def _read_file(path: Path) -> tuple[Lines, Spec]:
    record = read_record(path)
    lines = record["figures"].get("over_training")
    if lines is None:
        raise InputError(
            f"{path} has no figures over training: it is not of a run, or of an older one, whose folder can be drawn"
        )
    if not isinstance(lines, list) or not lines or not all(map(_whole, lines)):
        raise InputError(f"{path} is no record: its figures over training are damaged")
    try:
        return lines, Spec.of(record["settings"])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _whole(line: Any) -> bool:
    if not isinstance(line, dict) or not {"epoch", "train", "valid", "ratios"} <= set(line):
        return False
    ratios = [] if line["ratios"] is None else line["ratios"]
    valid = [] if line["valid"] is None else [line["valid"]]
    return isinstance(ratios, list) and all(
        isinstance(one, int | float) for one in (line["epoch"], line["train"], *valid, *ratios)
    )


def draw_trajectories(arms: Sequence[Arm], path: Path) -> None:
    """Accuracies left, a small panel a block right: a thin line a seed, the mean of an arm thick."""
    if len(arms) > len(COLORS):
        raise InputError(
            f"a figure shows at most {len(COLORS)} arms; got {len(arms)}: {', '.join(a.name for a in arms)}"
        )
    what = _spans(arms)
    count = max(arm.matrices for arm in arms)
    columns = count if count <= 3 else math.ceil(math.sqrt(count))
    rows = math.ceil(count / max(columns, 1)) or 1
    with drawing(path, rows, LEFT + columns, 4.5 + 1.75 * columns, max(1.45 * rows + 1, 3.2)) as (figure, grid):
        left = figure.add_subplot(grid[0, 0].get_gridspec()[:, :LEFT])
        panels = list(grid[:, LEFT:].flat)
        for axis in [*grid[:, :LEFT].flat, *panels[count:]]:
            axis.remove()
        for number, axis in enumerate(panels[:count]):
            axis.sharey(panels[0])
            axis.axhline(1, color="0.35", linewidth=0.8, linestyle=":")
            axis.set_title(f"{what} {number + 1}")
            if number % columns == 0:
                axis.set_ylabel(r"$\sigma_B\,/\,\sigma_F$")
            if number + columns >= count:
                axis.set_xlabel("epoch")
            axis.tick_params(labelleft=number % columns == 0, labelbottom=number + columns >= count)
        for arm, color in zip(arms, COLORS, strict=False):
            _lines(left, arm.curves("train"), color, "--")
            _lines(left, arm.curves("valid"), color, "-")
            left.plot([], [], color=color, label=named(_label(arm, arms[0])))
            for k in range(1, arm.matrices + 1):  # from the end: an arm may watch only the last blocks
                _lines(panels[count - k], arm.ratio(k), color, "-")
        if max(arm.largest for arm in arms) > FAR:
            panels[0].set_yscale("log", nonpositive="clip")
            panels[0].set_ylim(bottom=max(panels[0].get_ylim()[0], SMALLEST))
        watched = any(arm.curves("valid") for arm in arms)
        left.set_title("training (dashed) and validation images" if watched else "training images (dashed)")
        left.set(xlabel="epoch", ylabel="accuracy, %")
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=min(len(arms), 4))


def _spans(arms: Sequence[Arm]) -> str:
    """What a panel stands for, block, layer or stage; arms whose panels would not be the same are refused."""
    measured = [arm for arm in arms if arm.matrices]
    for arm in measured:
        for what in ("data", "model"):
            _same(what, {one.name: getattr(one.spec, what) for one in (measured[0], arm)})
        _same("ratios", {one.name: f"of {one.form.spans}" for one in (measured[0], arm)})
    return measured[0].form.spans.removesuffix("s") if measured else ""


def _same(what: str, values: dict[str, str]) -> None:
    if len(set(values.values())) > 1:
        shown = " and ".join(f"{name} {value}" for name, value in values.items())
        raise InputError(f"arms of one figure share {what}; got {shown}")


def _label(arm: Arm, first: Arm) -> str:
    """The name of an arm; with what its ratios are of, where that differs from the first arm's."""
    ours, theirs = asdict(arm.form), asdict(first.form)
    differs = [f"{name}={ours[name]}" for name in MEASURES if ours[name] != theirs[name]]
    return arm.name + (f" (ratios: {', '.join(differs)})" if differs and arm.matrices else "")


def _lines(axis: Any, curves: list[Curve], color: str, style: str) -> None:
    """A thin line a curve, and their mean over the epochs that all of them have."""
    for curve in curves if len(curves) > 1 else []:
        axis.plot(list(curve), list(curve.values()), color=color, linewidth=0.6, alpha=0.5, linestyle=style)
    epochs = [epoch for epoch in curves[0] if all(epoch in curve for curve in curves)] if curves else []
    means = [statistics.fmean(curve[epoch] for curve in curves) for epoch in epochs]
    axis.plot(epochs, means, color=color, linewidth=1.6, linestyle=style)
