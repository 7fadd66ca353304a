"""What docs/corruptions.md says of the committed records is what they hold."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from lcrbnn.corrupt.scores import summarize
from lcrbnn.corrupt.table import CORRUPTIONS
from lcrbnn.runs.record import read_record
from lcrbnn.study.paired import Paired, paired
from lcrbnn.study.robustness import TITLES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "corruptions.md").read_text()
ARMS = ("none", "default")
HEADS = ("as trained", "refit on clean", "refit on corrupted")
RECORDS = {
    arm: [read_record(ROOT / "results" / "robust" / "cifar10-double" / arm / f"seed-{s}.json") for s in range(5)]
    for arm in ARMS
}


def values(arm: str, head: str) -> dict[str, list[float]]:
    """By title, a figure a seed."""
    found = [one["figures"] for one in RECORDS[arm]]
    means = [summarize(one["errors"][head], one["clean"][head], 32) for one in found]
    rows = {title: [getattr(one, name) for one in means] for name, title in TITLES.items()}
    return {"clean": [one["clean"][head] for one in found]} | {t: v for t, v in rows.items() if None not in v}


def difference(head: str, title: str) -> Paired:
    return paired(*(values(arm, head)[title] for arm in ARMS))


def test_the_table_of_means_is_that_of_the_records() -> None:
    for head in HEADS:
        for title in values("none", head):
            cells = [
                f"{statistics.fmean(v):.2f} ({statistics.stdev(v):.2f})"
                for v in (values(arm, head)[title] for arm in ARMS)
            ]
            text = str(difference(head, title)).replace("-", "−")
            assert f"| {head} | {title} | {cells[0]} | {cells[1]} | {text} |" in TEXT


def test_the_table_of_corruptions_is_that_of_the_records() -> None:
    for name in CORRUPTIONS:
        means = [[statistics.fmean(one["figures"]["errors"][HEADS[0]][name]) for one in RECORDS[arm]] for arm in ARMS]
        cells = " | ".join(f"{statistics.fmean(one):.1f}" for one in means)
        assert f"| {name} | {cells} | {str(paired(*means)).replace('-', '−')} |" in TEXT


def test_what_is_said_of_the_differences_holds() -> None:
    decided = [(head, title) for head in HEADS for title in values("none", head) if difference(head, title).decided]
    assert not decided
    each = {
        name: paired(
            *([statistics.fmean(o["figures"]["errors"][HEADS[0]][name]) for o in RECORDS[arm]] for arm in ARMS)
        )
        for name in CORRUPTIONS
    }
    assert [name for name, one in each.items() if one.decided] == DECIDED
    visible = difference("refit on clean", "mean of 19, severity 5").visible
    assert f"a true difference of {visible:.1f} would have shown" in TEXT


DECIDED = ["snow", "frost"]  # corruptions whose interval leaves 0 out


def test_records_are_complete_and_of_the_runs_of_the_study() -> None:
    for arm, records in RECORDS.items():
        for seed, record in enumerate(records):
            assert record["figures"]["complete"]
            assert record["settings"]["images"] == 10_000
            trained = read_record(ROOT / "results" / "cifar10-double" / arm / f"seed-{seed}.json")
            assert record["settings"]["checkpoint_sha256"] == trained["figures"]["checkpoint_sha256"]


def test_times_are_those_of_the_records() -> None:
    folder = ROOT / "results" / "bench"
    gpu, cpu = (json.loads((folder / f"corruptions-{n}.json").read_text())["figures"] for n in ("h200", "cpu"))
    assert f"in {gpu['whole_s']:.0f} s on an H200" in TEXT
    assert f"{cpu['whole_cpu_s']:.0f} s of one core" in TEXT
    assert {one["largest"] for one in gpu["each"].values()} == {0}
