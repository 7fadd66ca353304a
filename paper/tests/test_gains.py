"""The figure and the table of all gains: their rows and values, and that the committed figure is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcrbnn.cli.main import main
from lcrbnn.errors import InputError
from paper.tables.gains import compute_all_gains, pool_gains, render_gains, render_pooled_gains
from paper.tables.gains_figure import draw_gains
from paper.tables.table_spec import PaperTables, read_table_spec
from paper.tests.test_results import PLAN, ROOT, paper_tables, write_run_record

__all__ = ["paper_tables"]  # the fixture


def read_labels(svg: str) -> list[str]:
    return [line.strip() for line in svg.splitlines() if "<!--" in line]


def test_gains_need_lcr_and_two_pairs_and_appear_once(paper_tables: PaperTables, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no variant with LCR has two pairs of runs"):
        draw_gains(compute_all_gains(paper_tables), tmp_path / "a.svg")
    for seed, (without, with_lcr) in enumerate([(80.0, 80.5), (81.0, 81.1), (82.0, 82.6)]):
        write_run_record(paper_tables, "one/none", seed, without)
        write_run_record(paper_tables, "one/kept", seed, with_lcr, gradient_ratio=0.02)
    write_run_record(paper_tables, "two/none", 0, 70.0)
    write_run_record(paper_tables, "two/kept", 0, 71.0)  # one pair: no interval, no row
    (row,) = compute_all_gains(paper_tables)
    assert (row.table, row.row, str(row.difference)) == ("A", "with", "+0.40 [-0.26, +1.06]")
    assert row.paper_gain == pytest.approx(0.6)
    (tmp_path / "plan.toml").write_text(PLAN.replace('of = "two/kept", seeds = 1', 'of = "one/kept", seeds = 3'))
    assert compute_all_gains(read_table_spec(tmp_path / "plan.toml")) == [row]  # in another table too
    draw_gains([row], tmp_path / "a.svg")
    drawn = read_labels((tmp_path / "a.svg").read_text())
    assert "<!-- +0.40 [−0.26, +1.06], 3 pairs -->" in drawn
    assert "<!-- A -->" in drawn


def test_significant_gains_are_bold(paper_tables: PaperTables) -> None:
    for seed, (without, with_lcr) in enumerate([(80.0, 80.5), (81.0, 81.1), (82.0, 82.6)]):
        write_run_record(paper_tables, "one/none", seed, without)
        write_run_record(paper_tables, "one/kept", seed, with_lcr, gradient_ratio=0.02)
    write_run_record(paper_tables, "one/none", 3, 10.0)  # without a partner: in neither mean
    line = render_gains(compute_all_gains(paper_tables)).splitlines()[-1]
    assert [cell.strip() for cell in line.split("|")[1:-1]] == [
        *("A", "with", "3", "81.00", "81.40", "+0.40 [−0.26, +1.06]", "[−1.97, +2.77]", "+0.97", "0.120", "+0.6")
    ]
    for seed, with_lcr in enumerate((77.9, 79.0, 80.1)):
        write_run_record(paper_tables, "one/kept", seed, with_lcr)
    assert "| **−2.00 [−2.25, −1.75]** |" in render_gains(compute_all_gains(paper_tables))


def test_a_gain_that_is_one_of_many_comparisons_is_not_bold(paper_tables: PaperTables) -> None:
    for seed, (without, with_lcr) in enumerate([(80.0, 81.0), (81.0, 81.5), (82.0, 83.0)]):
        write_run_record(paper_tables, "one/none", seed, without)
        write_run_record(paper_tables, "one/kept", seed, with_lcr, gradient_ratio=0.02)
    (gain,) = compute_all_gains(paper_tables)
    assert 0.02 < gain.p_value < 0.05
    assert "**" in render_gains([gain])
    assert "**" not in render_gains([gain] * 3)


def test_pooled_gains_keep_networks_and_faulty_runs_apart(paper_tables: PaperTables, tmp_path: Path) -> None:
    for seed, (without, with_lcr) in enumerate([(80.0, 80.5), (81.0, 81.1), (82.0, 82.6)]):
        write_run_record(paper_tables, "one/none", seed, without)
        write_run_record(paper_tables, "one/kept", seed, with_lcr, gradient_ratio=0.02)
    (gain,) = compute_all_gains(paper_tables)
    assert pool_gains([gain]) == []  # no row names a pool
    gain = gain._replace(pool="P")
    other = gain._replace(without=(70.0, 70.0), with_lcr=(75.1, 75.3), paper_gain=3.0)
    faulty = gain._replace(is_faulty=True)
    pooled, pooled_faulty = pool_gains([gain, other, faulty])
    assert (pooled.title, pooled.num_pairs, pooled.num_networks) == ("P", 5, 2)
    assert (pooled_faulty.title, pooled_faulty.num_pairs) == ("P †", 3)
    assert pooled.difference.mean == pytest.approx((0.5 + 0.1 + 0.6 + 5.1 + 5.3) / 5)
    assert pooled.difference.degrees_of_freedom == 3
    assert pooled.paper_gain == pytest.approx((3 * 0.6 + 2 * 3.0) / 5)
    low, high = pooled.difference.interval
    assert high - low < 2  # the variance inside the networks, not the distance between them
    assert render_pooled_gains([pooled]).splitlines()[-1].endswith("| +1.56        | no            |")


def test_a_gain_outside_the_axis_is_an_arrow_with_its_number(paper_tables: PaperTables, tmp_path: Path) -> None:
    for seed, lost in enumerate((40.0, 42.0)):
        write_run_record(paper_tables, "one/none", seed, 80.0)
        write_run_record(paper_tables, "one/kept", seed, 80.0 - lost)
    draw_gains(compute_all_gains(paper_tables), tmp_path / "far.svg")
    far = (tmp_path / "far.svg").read_text()
    assert "<!-- −41.00 [−53.71, −28.29], 2 pairs -->" in far
    assert "−40 -->" not in far  # the axis stays as it is
    write_run_record(paper_tables, "one/kept", 0, 81.0)
    write_run_record(paper_tables, "one/kept", 1, 80.5)
    draw_gains(compute_all_gains(paper_tables), tmp_path / "near.svg")
    patches = [text.count('<g id="patch_') for text in (far, (tmp_path / "near.svg").read_text())]
    assert patches[0] == patches[1] + 1


def test_the_committed_figure_equals_the_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gains.svg"
    arguments = ["reproduce", "--table-spec", str(ROOT / "paper" / "tables.toml"), "--gains-figure", str(path)]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert read_labels(path.read_text()) == read_labels((ROOT / "paper" / "docs" / "gains.svg").read_text())
    assert {row.row for row in compute_all_gains(read_table_spec(ROOT / "paper" / "tables.toml"))} >= {
        "with LCR, `default` †"
    }
