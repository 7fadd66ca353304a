"""Draw all gains from LCR, with mean differences, 95 % intervals and the paper's gains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError
from lcrbnn.evaluation.table_cells import use_minus_sign
from lcrbnn.report.figures.figure import BLUE, ORANGE, draw_figure, escape_label
from paper.tables.gains import Gain
from paper.tables.table_spec import FAULT_MARK

# The axis ends at this many percentage points on either side of 0. A larger gain is drawn as an arrow with its number.
MAX_GAIN = 3.0
TEXT_COLOR = "0.4"  # colour of the paper's gains: a dark grey
# the background hides the grid lines behind a heading
HEADING_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 1}


def draw_gains(gains: list[Gain], path: Path) -> None:
    """Draw one row per gain, from top to bottom. Rows are grouped by table."""
    if not gains:
        raise InputError("there is no gain to draw: no variant with LCR has two pairs of runs with test results")
    is_first = [i == 0 or gain.table != gains[i - 1].table for i, gain in enumerate(gains)]
    positions, position = [], 0.0
    for starts_table in is_first:
        position += 1.9 if starts_table else 1.0
        positions.append(position)
    with draw_figure(path, 1, 1, 8.5, 0.7 + 0.27 * position) as (_, grid):
        axes = grid[0, 0]
        axes.axvline(0, color="black", linewidth=0.8)
        for gain, y, starts_table in zip(gains, positions, is_first, strict=True):
            if starts_table:
                axes.text(-MAX_GAIN, y - 0.85, escape_label(gain.table), va="center", fontsize=8, bbox=HEADING_BOX)
            _draw_row(axes, gain, y)
        has_fault = any(gain.row.endswith(FAULT_MARK) for gain in gains)
        note = "\n† trained with a faulty GPU kernel, see paper/docs/results.md" if has_fault else ""
        axes.set(
            xlim=(-MAX_GAIN, MAX_GAIN),
            ylim=(position + 0.8, 0.3),
            xlabel="Test accuracy gain from LCR, percentage points (CIFAR-10 unless stated)" + note,
        )
        axes.set_yticks(positions, [escape_label(gain.row.replace("`", "")) for gain in gains])
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        _draw_legend(axes)


def _draw_row(axes: Any, gain: Gain, y: float) -> None:
    difference = gain.difference
    if abs(difference.mean) <= MAX_GAIN:
        axes.plot([difference.low, difference.high], [y, y], color=BLUE, linewidth=1.6, solid_capstyle="butt")
        axes.plot([difference.mean], [y], "o", color=BLUE, markersize=5)
    else:
        end = MAX_GAIN if difference.mean > 0 else -MAX_GAIN
        arrow = {"arrowstyle": "->", "color": BLUE, "linewidth": 1.6}
        axes.annotate("", xy=(end, y), xytext=(end * 0.88, y), arrowprops=arrow, annotation_clip=False)
    if gain.paper_gain is not None:
        axes.plot([gain.paper_gain], [y], "D", markerfacecolor="none", markeredgecolor=ORANGE, markersize=5)
    text = f"{use_minus_sign(str(difference))}, {difference.num_pairs} pairs"
    axes.text(1.01, y, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8, color=TEXT_COLOR)


def _draw_legend(axes: Any) -> None:
    axes.plot([], [], "o-", color=BLUE, markersize=5, label="here: mean of pairs, 95 % interval")
    axes.plot([], [], "D", markerfacecolor="none", markeredgecolor=ORANGE, markersize=5, label="the paper's gain")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
