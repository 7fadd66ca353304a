"""What docs/corruptions.md says of the committed records is what they hold."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from lcrbnn.corrupt.scores import summarize
from lcrbnn.corrupt.table import CORRUPTIONS
from lcrbnn.runs.record import read_record
from lcrbnn.study.paired import Paired, paired
from lcrbnn.study.robustness import TITLES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "corruptions.md").read_text()
ARMS = ("none", "default")
HEADS = ("as trained", "refit on clean", "refit on corrupted")


class Study:
    """The records of two arms, paired by seed, and perhaps of another for comparison."""

    def __init__(self, name: str, seeds: int, heads: tuple[str, ...], pixels: int, beside: str = "") -> None:
        self.name, self.heads, self.pixels = name, heads, pixels
        places = ({beside: 3} if beside else {}) | {f"{name}/{arm}": seeds for arm in ARMS}
        self.records = {
            place: [read_record(ROOT / "results" / "robust" / place / f"seed-{s}.json") for s in range(count)]
            for place, count in places.items()
        }

    def values(self, place: str, head: str) -> dict[str, list[float]]:
        """By title, a figure a seed."""
        found = [one["figures"] for one in self.records[place]]
        means = [summarize(one["errors"][head], one["clean"][head], self.pixels) for one in found]
        rows = {title: [getattr(one, name) for one in means] for name, title in TITLES.items()}
        return {"clean": [one["clean"][head] for one in found]} | {t: v for t, v in rows.items() if None not in v}

    def each(self, place: str, corruption: str) -> list[float]:
        """The mean over severities, a figure a seed."""
        return [statistics.fmean(one["figures"]["errors"][HEADS[0]][corruption]) for one in self.records[place]]

    def arms(self) -> list[str]:
        return [f"{self.name}/{arm}" for arm in ARMS]

    def difference(self, head: str, title: str) -> Paired:
        return paired(*(self.values(place, head)[title] for place in self.arms()))

    def decided(self) -> list[str]:
        """The corruptions whose interval leaves 0 out."""
        return [n for n in CORRUPTIONS if paired(*(self.each(place, n) for place in self.arms())).decided]


CIFAR = Study("cifar10-double", 5, HEADS, 32)
TINY = Study("tiny-irnet", 5, HEADS[:1], 64, beside="tiny-real/none")
REACT = Study("tiny-react18", 3, HEADS[:1], 64)
every = pytest.mark.parametrize("study", [CIFAR, TINY, REACT], ids=lambda study: study.name)


def signed(found: Paired) -> str:
    return str(found).replace("-", "−")


def spread(values: list[float]) -> str:
    return f"{statistics.fmean(values):.2f} ({statistics.stdev(values):.2f})"


@every
def test_the_table_of_means_is_that_of_the_records(study: Study) -> None:
    for head in study.heads:
        for title in study.values(study.arms()[0], head):
            cells = [spread(study.values(place, head)[title]) for place in study.records]
            named = [head, title] if len(study.heads) > 1 else [title]
            assert f"| {' | '.join([*named, *cells, signed(study.difference(head, title))])} |" in TEXT


@every
def test_the_table_of_corruptions_is_that_of_the_records(study: Study) -> None:
    for name in CORRUPTIONS:
        cells = [f"{statistics.fmean(study.each(place, name)):.1f}" for place in study.records]
        found = paired(*(study.each(place, name) for place in study.arms()))
        assert f"| {' | '.join([name, *cells, signed(found)])} |" in TEXT


def added_by(study: Study) -> dict[str, list[float]]:
    """What corruption adds to the error of clean images, by arm, a figure a seed."""
    places = {place: study.values(place, HEADS[0]) for place in study.records}
    return {
        place: [bad - good for bad, good in zip(found["mean of 15"], found["clean"], strict=True)]
        for place, found in places.items()
    }


@pytest.mark.parametrize("study", [TINY, REACT], ids=lambda study: study.name)
def test_what_corruption_adds_is_that_of_the_records(study: Study) -> None:
    added = added_by(study)
    more = paired(*(added[place] for place in study.arms()))
    assert f"| what corruption adds | {' | '.join(map(spread, added.values()))} | {signed(more)} |" in TEXT


def test_the_first_three_pairs_on_tiny_imagenet_are_told_too() -> None:
    first = Study("tiny-irnet", 3, HEADS[:1], 64).difference(HEADS[0], "mean of 15")
    assert f"had {signed(first)} in the mean of 15" in TEXT


def test_what_is_said_of_reactnets_holds() -> None:
    means = [REACT.difference(HEADS[0], title) for title in REACT.values(REACT.arms()[0], HEADS[0])]
    assert not any(found.decided for found in means)
    assert max(abs(end) for found in means[1:] for end in (found.low, found.high)) < 0.3
    assert REACT.decided() == ["glass_blur", "zoom_blur", "speckle_noise"]
    for study, most in ((REACT, 6), (TINY, 5)):
        apart = [
            abs(100 - trained["readings"][0]["top1"] - record["figures"]["clean"][HEADS[0]])
            for place in study.arms()
            for seed, record in enumerate(study.records[place])
            for trained in [read_record(ROOT / "results" / place / f"seed-{seed}.json")]
        ]
        assert round(max(apart) * 100) == most
    assert "within 6 images of 10,000" in TEXT


def test_what_is_said_of_the_differences_on_cifar_10_holds() -> None:
    titles = [(head, title) for head in HEADS for title in CIFAR.values(CIFAR.arms()[0], head)]
    assert not [one for one in titles if CIFAR.difference(*one).decided]
    assert CIFAR.decided() == ["snow", "frost"]
    visible = CIFAR.difference("refit on clean", "mean of 19, severity 5").visible
    assert f"a true difference of {visible:.1f} would have shown" in TEXT


def test_what_is_said_of_the_differences_on_tiny_imagenet_holds() -> None:
    means = {title: TINY.difference(HEADS[0], title) for title in TINY.values(TINY.arms()[0], HEADS[0])}
    assert all(found.decided for found in means.values())
    for title in ("mean of 15", "mean of 19", "clean", "mean of 19, severity 5"):
        assert TEXT.count(signed(means[title])) > 1  # in the table and in the text
    places = {place: TINY.values(place, HEADS[0]) for place in TINY.records}
    added = added_by(TINY)
    assert paired(*(added[place] for place in TINY.arms())).decided
    real, none = (statistics.fmean(added[place]) for place in list(added)[:2])
    assert f"({real:.2f} against {none:.2f} points)" in TEXT
    react = statistics.fmean(added_by(REACT)["tiny-react18/none"])
    assert f"adds {react:.2f} points, more than to IR-Net ({none:.2f}) and to full precision ({real:.2f})" in TEXT
    better = [
        statistics.fmean(places[TINY.arms()[0]][title]) - statistics.fmean(places["tiny-real/none"][title])
        for title in ("clean", "mean of 15")
    ]
    assert f"{better[0]:.1f} points better on clean and {better[1]:.1f} on corrupted" in TEXT


@every
def test_records_are_complete_and_of_the_runs_of_the_study(study: Study) -> None:
    for place, records in study.records.items():
        for seed, record in enumerate(records):
            assert record["figures"]["complete"]
            assert record["settings"]["images"] == 10_000
            trained = read_record(ROOT / "results" / place / f"seed-{seed}.json")
            assert record["settings"]["checkpoint_sha256"] == trained["figures"]["checkpoint_sha256"]


def test_times_are_those_of_the_records() -> None:
    folder = ROOT / "results" / "bench"
    gpu, cpu = (json.loads((folder / f"corruptions-{n}.json").read_text())["figures"] for n in ("h200", "cpu"))
    assert f"in {gpu['whole_s']:.0f} s on an H200" in TEXT
    assert f"{cpu['whole_cpu_s']:.0f} s of one core" in TEXT
    assert {one["largest"] for one in gpu["each"].values()} == {0}
