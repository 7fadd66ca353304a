"""The picture of all gains: which rows it has, with what figures, and that the committed one is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcrbnn.cli import main
from lcrbnn.errors import InputError
from lcrbnn.study.gains import all_gains, gains_table
from lcrbnn.study.gains_figure import draw_gains
from lcrbnn.study.promise import Promise, read_promise
from tests.test_results import PLAN, ROOT, promise, put

__all__ = ["promise"]  # the fixture


def labels(svg: str) -> list[str]:
    return [line.strip() for line in svg.splitlines() if "<!--" in line]


def test_rows_are_arms_with_retention_and_two_pairs_each_once(promise: Promise, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no arm with retention has two pairs of runs"):
        draw_gains(all_gains(promise), tmp_path / "a.svg")
    for seed, (without, kept) in enumerate([(80.0, 80.5), (81.0, 81.1), (82.0, 82.6)]):
        put(promise, "one/none", seed, without)
        put(promise, "one/kept", seed, kept, share=0.02)
    put(promise, "two/none", 0, 70.0)
    put(promise, "two/kept", 0, 71.0)  # one pair: no interval, no row
    (row,) = all_gains(promise)
    assert (row.table, row.row, str(row.found)) == ("A", "with", "+0.40 [-0.26, +1.06]")
    assert row.paper == pytest.approx(0.6)
    (tmp_path / "plan.toml").write_text(PLAN.replace('of = "two/kept", seeds = 1', 'of = "one/kept", seeds = 3'))
    assert all_gains(read_promise(tmp_path / "plan.toml")) == [row]  # in another table too
    draw_gains([row], tmp_path / "a.svg")
    drawn = labels((tmp_path / "a.svg").read_text())
    assert "<!-- +0.40 [−0.26, +1.06], 3 pairs -->" in drawn
    assert "<!-- A -->" in drawn


def test_the_table_has_the_same_rows_and_marks_what_is_decided(promise: Promise) -> None:
    for seed, (without, kept) in enumerate([(80.0, 80.5), (81.0, 81.1), (82.0, 82.6)]):
        put(promise, "one/none", seed, without)
        put(promise, "one/kept", seed, kept, share=0.02)
    put(promise, "one/none", 3, 10.0)  # without a partner: in neither mean
    line = gains_table(all_gains(promise)).splitlines()[-1]
    assert [cell.strip() for cell in line.split("|")[1:-1]] == [
        *("A", "with", "3", "81.00", "81.40", "+0.40 [−0.26, +1.06]", "+0.6")
    ]
    for seed in range(3):
        put(promise, "one/kept", seed, 78.0 + seed)
    assert "| **−2.00 [−2.00, −2.00]** |" in gains_table(all_gains(promise))


def test_what_is_far_out_is_an_arrow_with_its_number(promise: Promise, tmp_path: Path) -> None:
    for seed, lost in enumerate((40.0, 42.0)):
        put(promise, "one/none", seed, 80.0)
        put(promise, "one/kept", seed, 80.0 - lost)
    draw_gains(all_gains(promise), tmp_path / "far.svg")
    far = (tmp_path / "far.svg").read_text()
    assert "<!-- −41.00 [−53.71, −28.29], 2 pairs -->" in far
    assert "−40 -->" not in far  # the axis stays as it is
    put(promise, "one/kept", 0, 81.0)
    put(promise, "one/kept", 1, 80.5)
    draw_gains(all_gains(promise), tmp_path / "near.svg")
    patches = [text.count('<g id="patch_') for text in (far, (tmp_path / "near.svg").read_text())]
    assert patches[0] == patches[1] + 1


def test_the_committed_picture_is_that_of_the_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "gains.svg"
    words = ["reproduce", "--plan", str(ROOT / "results" / "plan.toml"), "--gains", str(place)]
    assert main(words) == 0
    assert capsys.readouterr().out == f"{place}\n"
    assert labels(place.read_text()) == labels((ROOT / "docs" / "gains.svg").read_text())
    assert {row.row for row in all_gains(read_promise(ROOT / "results" / "plan.toml"))} >= {"with LCR, `default` †"}
