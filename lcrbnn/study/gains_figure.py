"""All gains of retention in one picture: mean difference, 95 % interval, the paper's gain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError
from lcrbnn.study.cells import minus
from lcrbnn.study.figure import BLUE, ORANGE, drawing, named
from lcrbnn.study.gains import Gain
from lcrbnn.study.readings import FAULT_MARK

WIDEST = 3.0  # points to either side that are drawn; what lies outside is an arrow with its number
FAINT = "0.4"  # grey of what is said beside the picture
HEADING = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # no line goes through it


def draw_gains(rows: list[Gain], path: Path) -> None:
    """A line a row, grouped by table, from top to bottom."""
    if not rows:
        raise InputError("there is no gain to draw: no arm with retention has two pairs of runs with test readings")
    places, at = [], 0.0
    for i, row in enumerate(rows):
        at += 1.9 if i == 0 or row.table != rows[i - 1].table else 1.0
        places.append(at)
    with drawing(path, 1, 1, 8.5, 0.7 + 0.27 * at) as (_, grid):
        axes = grid[0, 0]
        axes.axvline(0, color="black", linewidth=0.8)
        for i, (row, place) in enumerate(zip(rows, places, strict=True)):
            if i == 0 or row.table != rows[i - 1].table:
                axes.text(-WIDEST, place - 0.85, named(row.table), va="center", fontsize=8, bbox=HEADING)
            _draw_row(axes, row, place)
        note = "\n† trained with a faulty GPU kernel, see docs/results.md" if _any_faulty(rows) else ""
        axes.set(
            xlim=(-WIDEST, WIDEST),
            ylim=(at + 0.8, 0.3),
            xlabel="points of test accuracy, with less without LCR; CIFAR-10 unless said" + note,
        )
        axes.set_yticks(places, [named(row.row.replace("`", "")) for row in rows])
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        _explain(axes)


def _any_faulty(rows: list[Gain]) -> bool:
    return any(row.row.endswith(FAULT_MARK) for row in rows)


def _draw_row(axes: Any, row: Gain, place: float) -> None:
    found = row.found
    inside = abs(found.mean) <= WIDEST
    if inside:
        axes.plot([found.low, found.high], [place, place], color=BLUE, linewidth=1.6, solid_capstyle="butt")
        axes.plot([found.mean], [place], "o", color=BLUE, markersize=5)
    else:
        end = WIDEST if found.mean > 0 else -WIDEST
        away = {"arrowstyle": "->", "color": BLUE, "linewidth": 1.6}
        axes.annotate("", xy=(end, place), xytext=(end * 0.88, place), arrowprops=away, annotation_clip=False)
    if row.paper is not None:
        axes.plot([row.paper], [place], "D", markerfacecolor="none", markeredgecolor=ORANGE, markersize=5)
    text = f"{minus(str(found))}, {found.pairs} pairs"
    axes.text(1.01, place, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8, color=FAINT)


def _explain(axes: Any) -> None:
    axes.plot([], [], "o-", color=BLUE, markersize=5, label="here: mean of pairs, 95 % interval")
    axes.plot([], [], "D", markerfacecolor="none", markeredgecolor=ORANGE, markersize=5, label="the paper's gain")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
