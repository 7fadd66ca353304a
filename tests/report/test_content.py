"""What a report says: numbers by hand, records of the right network, a hint where something is not there."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from lcrbnn.cli import main
from lcrbnn.report.charts import Dots, Gallery, HeatMap, Hint, Histogram, Lines, Link, Part, Report, Table
from lcrbnn.report.content import SECTIONS, gather
from lcrbnn.study.paired import paired
from tests.report.made import LAYERS, ROOT, errors, make_cost, make_records, make_runs


def _gather(runs: list[str], *records: Path, folder: Path = ROOT) -> Report:
    return gather(runs, list(records), folder=folder, frost=folder / "frost")


def _parts(report: Report, section: str) -> tuple[Part, ...]:
    return next(one.parts for one in report.sections if one.title == section)


def _table(report: Report, section: str, title: str) -> dict[str, tuple[Any, ...]]:
    table = next(p for p in _parts(report, section) if isinstance(p, Table) and p.title == title)
    return {str(row[0]): row[1:] for row in table.rows}


def _chart(report: Report, section: str, title: str) -> Any:
    return next(
        p for p in _parts(report, section) if isinstance(p, Lines | Dots | HeatMap | Histogram) and p.title == title
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return make_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def report(runs: list[str], tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = make_records(tmp_path_factory.mktemp("records"), runs)
    make_cost(folder / "cost.json")
    return _gather(runs, folder, ROOT / "results" / "layers")


def _tops(run: str) -> list[float]:
    return [json.loads(p.read_text())["readings"][-1]["top1"] for p in sorted(Path(run).glob("*.json"))]


def test_accuracies_are_those_of_the_records_with_paired_differences(report: Report, runs: list[str]) -> None:
    none, lcr = map(_tops, runs)
    one, two, apart = _table(report, "Accuracy", "Accuracy")["test, %"]
    assert one.startswith(f"{statistics.fmean(none):.2f} [")
    assert two.startswith(f"{statistics.fmean(lcr):.2f} [")
    assert apart.replace("−", "-").replace("\u00a0", " ") == str(paired(none, lcr))
    dots = _chart(report, "Accuracy", "Difference in accuracy").series[0].dots[0]
    assert (dots.value, dots.low, dots.high) == pytest.approx(paired(none, lcr)[1:2] + paired(none, lcr)[3:5])
    seeds = _table(report, "Accuracy", "Accuracy on test images by seed, %")
    assert [cells[0] for cells in seeds.values()] == [f"{top:.2f}" for top in none]


def test_a_number_that_some_runs_lack_says_of_how_many_seeds_it_is(runs: list[str], tmp_path: Path) -> None:
    records = make_records(tmp_path / "records", runs)
    for path in records.rglob("*.json"):
        stored = json.loads(path.read_text())
        if stored["kind"] == "attack" and stored["settings"]["run"]["seed"] == 2:
            path.unlink()
    rows = _table(_gather(runs, records), "In short", "Main figures")
    assert "right after all attacks at 2/255, % (2 of 3 seeds)" in rows
    assert "accuracy on test images, %" in rows


def test_settings_say_what_differs(report: Report) -> None:
    text, table = _parts(report, "What was trained")
    assert text == "What differs between the groups: share (0 / 0.03); ramp (0 / 400)."
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["retention (LCR)"] == ("none", "form default, share 0.03, over 400 epochs")
    assert rows["seeds"] == ("0, 1, 2", "0, 1, 2")
    assert rows["hardware"] == ("NVIDIA H200", "NVIDIA H200")


def test_groups_that_differ_in_their_seed_differ_in_nothing_else(runs: list[str]) -> None:
    report = _gather([f"a={runs[0]}/seed-0.json", f"b={runs[0]}/seed-1.json"])
    assert _parts(report, "What was trained")[0] == "The groups differ in nothing but their name."
    assert _table(report, "Accuracy", "Accuracy")["test, %"][2] == "–"  # no seed is in both


def test_one_pair_has_a_difference_and_no_interval(runs: list[str]) -> None:
    report = _gather([f"{run}/seed-0.json" for run in runs])
    assert _table(report, "Accuracy", "Accuracy")["test, %"] == ("84.99", "86.43", "+1.44")
    dot = _chart(report, "Accuracy", "Difference in accuracy").series[0].dots[0]
    assert (dot.value, dot.low, dot.high) == (pytest.approx(1.44), None, None)


def test_curves_are_means_with_the_range_of_seeds(report: Report, runs: list[str]) -> None:
    chart = _chart(report, "Over training", "Accuracy on training images")
    assert (chart.x.label, chart.y.label) == ("epoch", "accuracy, %")
    stored = [json.loads(p.read_text())["figures"]["over_training"] for p in sorted(Path(runs[0]).glob("*.json"))]
    last = [lines[-1]["train"] for lines in stored]
    line = chart.lines[0]
    assert line.x[-1] == 400
    assert (line.y[-1], line.low[-1], line.high[-1]) == pytest.approx((statistics.fmean(last), min(last), max(last)))
    ratio = _chart(report, "Over training", "Retention over training").lines[0]
    wanted = [statistics.fmean(abs(r - 1) for r in lines[-1]["ratios"]) for lines in stored]
    assert ratio.y[-1] == pytest.approx(statistics.fmean(wanted))


def test_heat_maps_hold_mean_errors_and_their_differences(report: Report) -> None:
    shifts = {"none": [0.0, 0.5, 1.0], "lcr": [-1.0, -0.6, -0.2]}
    for name, values in shifts.items():
        chart = _chart(report, "Corruptions", f"Error under corruption: {name}")
        assert chart.values[3][4] == pytest.approx(errors(statistics.fmean(values))["defocus_blur"][4])
        assert chart.rows[3] == "defocus blur"
        assert chart.rows[-1] == "saturate (extra)"
    apart = _chart(report, "Corruptions", "Difference of errors: lcr − none")
    assert apart.signed
    assert all(v == pytest.approx(-1.1) for line in apart.values for v in line)
    dots = _chart(report, "Corruptions", "Difference by corruption").series[0].dots
    assert all(
        (d.value, d.low, d.high)
        == pytest.approx(
            paired([0.0, 0.5, 1.0], [-1.0, -0.6, -0.2])[1:2] + paired([0.0, 0.5, 1.0], [-1.0, -0.6, -0.2])[3:5]
        )
        for d in dots
    )
    means = _table(report, "Corruptions", "Errors, as trained")
    assert means["mean of 15, error, %"][2].startswith("−1.10 [")
    assert means["mean of 15, error, %"][2].endswith("*")
    assert "mCE (AlexNet 100)" not in means  # images of this size have no normaliser


def test_attacks_tell_of_masked_gradients(report: Report) -> None:
    chart = _chart(report, "Attacks", "Under attack, ε = 8/255")
    assert chart.rows == ("no attack", "fgsm", "pgd", "square", "worst case")
    assert chart.series[0].dots[4].value == pytest.approx(5.5)
    loud = [p for p in _parts(report, "Attacks") if isinstance(p, str) and p.startswith("MASKED GRADIENTS")]
    assert len(loud) == 1
    assert "none at 8/255: an attack without gradients wins in 3 of 3 runs." in loud[0]
    assert "2/255" not in loud[0]


def test_norms_are_intervals_and_ratios_have_their_mark(report: Report) -> None:
    norms = _chart(report, "Lipschitz continuity", "Operator norm by layer")
    assert norms.rows == LAYERS
    assert norms.log
    assert (norms.series[0].dots[0].low, norms.series[0].dots[0].high) == pytest.approx((0.3, 0.4))
    assert _chart(report, "Lipschitz continuity", "Retention ratio by layer").mark == 1.0
    assert _chart(report, "Lipschitz continuity", "Sign flips by layer, noise 0.08").series[0].dots[0].value > 10
    table = _table(report, "Lipschitz continuity", "Continuity")
    assert table["sign flips under noise 0.08, %"][0].startswith("10.50 [")
    assert table["flips under noise 0.08 / flips between images"][0].startswith("0.263 [")  # 10.5 of 40
    assert _chart(report, "Lipschitz continuity", "Sensitivity").rows == ("|Δx| = 0.1", "|Δx| = 1")


def test_histograms_are_densities_of_one_network_a_group(report: Report) -> None:
    shown = [p for p in _parts(report, "Latent weights") if isinstance(p, Histogram)]
    assert len(shown) == 6
    for chart in shown:
        assert [one.name for one in chart.series] == ["none, seed 0", "lcr, seed 0"]
        for one in chart.series:
            assert sum(one.heights) * (one.high - one.low) / len(one.heights) == pytest.approx(1)


def test_cost_comes_from_its_record_or_from_the_modules(report: Report, runs: list[str]) -> None:
    assert _table(report, "Cost and size", "Cost of a network")["file, bytes (.bnn)"] == ("51,234",)
    counted = _gather(runs)
    assert _table(counted, "Cost and size", "Cost of a network")["parameters"] == ("269,850",)
    assert any(isinstance(p, Hint) and p.command.startswith("lcrbnn cost") for p in _parts(counted, "Cost and size"))


def test_every_file_that_was_read_is_linked(report: Report, runs: list[str]) -> None:
    rows = next(p for p in _parts(report, "Records") if isinstance(p, Table)).rows
    targets = [row[2].target for row in rows if isinstance(row[2], Link)]
    assert len(targets) == len(rows) == 6 * 4 + 2 + 1  # training and three kinds, two with histograms, the cost
    assert all((ROOT / target).exists() for target in targets)
    assert rows[0][:2] == ("none, seed 0", "training")


def test_without_records_each_section_names_the_command(runs: list[str]) -> None:
    report = _gather(runs)
    assert [one.title for one in report.sections] == list(SECTIONS)
    hints = {one.title: p.command for one in report.sections for p in one.parts if isinstance(p, Hint)}
    assert hints == {
        "Corruptions": "lcrbnn robustness RUN",
        "What the corruptions look like": "lcrbnn data frost",
        "Attacks": "lcrbnn attack RUN -o RECORDS",
        "Lipschitz continuity": "lcrbnn analyze RUN -o RECORDS",
        "Latent weights": "lcrbnn layers RUN -o FOLDER",
        "Cost and size": "lcrbnn cost RUN -o RECORDS/cost.json",
    }


def test_one_group_of_one_run_has_no_differences_and_no_intervals(runs: list[str]) -> None:
    report = _gather([f"alone={runs[0]}/seed-0.json"])
    cells = _table(report, "In short", "Main figures")["accuracy on test images, %"]
    assert cells == ("84.99",)
    assert not any(isinstance(p, Dots) and "Difference" in p.title for one in report.sections for p in one.parts)


def test_records_of_most_runs_are_taken_and_of_other_networks_not(runs: list[str], tmp_path: Path) -> None:
    make_records(tmp_path / "a", runs, images=100, kinds=("robustness",))
    make_records(tmp_path / "b", runs[:1], images=5000, kinds=("robustness",))
    text = _parts(_gather(runs, tmp_path), "Corruptions")[0]
    assert isinstance(text, str)
    assert text.startswith("Errors on 100 test images")
    for path in (tmp_path / "a").rglob("*.json"):
        record = json.loads(path.read_text())
        record["settings"]["checkpoint_sha256"] = f"of another network, {path}"
        path.write_text(json.dumps(record))
    parts = _parts(_gather(runs, tmp_path), "Corruptions")
    assert str(parts[0]).startswith("Errors on 5,000 test images")
    assert [p.text for p in parts if isinstance(p, Hint)] == ["Not measured in all runs of lcr. This goes on:"]
    assert not any("lcr" in p.title for p in parts if isinstance(p, HeatMap))


def test_a_run_in_two_groups_has_its_records_in_both(runs: list[str], tmp_path: Path) -> None:
    make_records(tmp_path, runs[:1], kinds=("robustness",))
    report = _gather([f"a={runs[0]}", f"b={runs[0]}"], tmp_path)
    shown = [p.title for p in _parts(report, "Corruptions") if isinstance(p, HeatMap)]
    assert shown == ["Error under corruption: a", "Error under corruption: b"]
    assert _table(report, "Corruptions", "Errors, as trained")["mean of 15, error, %"][2].startswith("+0.00 [+0.00")


def test_photos_of_frost_that_cannot_be_read_are_refused_before_the_runs_are_read(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", *runs, "-o", str(tmp_path / "page.html"), "--frost"]
    (tmp_path / "text").write_text("none")
    for place in ("nowhere", "text", "."):
        assert main([*words, str(tmp_path / place), "--data-folder", str(tmp_path)]) == 2
        assert "frost1.png" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
    assert main(["report", "nowhere", "-o", "page.html", "--frost", str(tmp_path)]) == 2
    assert "frost1.png" in capsys.readouterr().err


def test_every_corruption_is_shown_but_frost_without_photos(report: Report) -> None:
    gallery = next(p for p in _parts(report, "What the corruptions look like") if isinstance(p, Gallery))
    assert len(gallery.pictures) == 1 + 18
    assert len({picture.png for picture in gallery.pictures}) == 19
    assert all(picture.png.startswith(b"\x89PNG") for picture in gallery.pictures)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{runs}/none", "-o", "{tmp}/a.pdf"], "no kind of report is called '.pdf'; there are .html, .md"),
        (
            ["{runs}/nothing", "-o", "{tmp}/a.html"],
            "the record {runs}/nothing cannot be read: No such file or directory",
        ),
        (["=x", "-o", "{tmp}/a.html"], "a group is written NAME=FOLDER; got '=x'"),
        (["a={runs}/none", "a={runs}/none", "-o", "{tmp}/a.html"], "two runs of the group 'a' have seed 0"),
        (
            ["a={runs}/none/seed-0.json", "a={runs}/lcr/seed-1.json", "-o", "{tmp}/a.html"],
            "the runs of a are not of one group",
        ),
        (["{runs}/none", "--records", "{tmp}/gone", "-o", "{tmp}/a.html"], "there are no records at {tmp}/gone"),
        (["{runs}/none", "--records", "{runs}/torn.json", "-o", "{tmp}/a.html"], "{runs}/torn.json is no record: "),
        (
            ["{runs}/none", "--records", "{runs}/short.json", "-o", "{tmp}/a.html"],
            "short.json is no record of robustness",
        ),
        (["{runs}/none", "--records", "{runs}/nan.json", "-o", "{tmp}/a.html"], "nan is no number to show"),
        (
            ["{runs}/none", "--picture", "{runs}/torn.json", "-o", "{tmp}/a.html"],
            "the picture {runs}/torn.json cannot be read",
        ),
        (["{runs}/none", "-o", "{runs}/torn.json/a.html"], "a report cannot be written to"),
        (
            [*(f"g{i}={{runs}}/none/seed-0.json" for i in range(7)), "-o", "{tmp}/a.html"],
            "a report compares at most 6 groups",
        ),
    ],
)
def test_what_cannot_be_reported(
    words: list[str], sentence: str, runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Path(runs[0]).parent
    (home / "torn.json").write_text('{"kind": "robust')
    made = make_records(tmp_path / "made", [runs[0]], kinds=("robustness",)) / "robustness" / "none" / "seed-0.json"
    for name, first in (("short", [1.0]), ("nan", [float("nan")] * 5)):
        record = json.loads(made.read_text())
        record["figures"]["errors"]["as trained"]["fog"] = first
        (home / f"{name}.json").write_text(json.dumps(record))
    assert main(["report", *(word.format(runs=home, tmp=tmp_path) for word in words)]) == 2
    said = capsys.readouterr().err
    assert sentence.format(runs=home, tmp=tmp_path) in said
    assert re.fullmatch(r"lcrbnn: [^\n]+\n", said)
    assert not (tmp_path / "a.html").exists()


def _edited(run: str, target: Path, change: Any) -> str:
    """The records of an arm, each changed by its seed."""
    target.mkdir(parents=True)
    for path in sorted(Path(run).glob("*.json")):
        record = json.loads(path.read_text())
        change(record, record["settings"]["seed"])
        (target / path.name).write_text(json.dumps(record))
    return str(target)


def test_ratios_of_different_matrices_are_not_compared() -> None:
    places = [f"{name}={ROOT / 'results' / 'cifar10-double' / name}" for name in ("none", "paper")]
    report = _gather(places)
    rows = _table(report, "In short", "Main figures")
    assert not any(title.startswith("retention") for title in rows)
    said = [part for part in _parts(report, "In short") if isinstance(part, str)]
    assert "are of different things" in said[-1]
    assert "none: square matrices, unit maps, of blocks; paper: batch matrices, raw maps, of layers" in said[-1]
    assert not any(isinstance(p, Lines) and p.title.startswith("Retention") for p in _parts(report, "Over training"))


def test_the_first_reading_counts(runs: list[str], tmp_path: Path) -> None:
    def again(record: Any, seed: int) -> None:
        record["readings"].append({**record["readings"][0], "top1": 99.0})

    changed = _gather([runs[0], f"lcr={_edited(runs[1], tmp_path / 'lcr', again)}"])
    assert (
        _table(changed, "Accuracy", "Accuracy")["test, %"]
        == _table(_gather([runs[0], f"lcr={runs[1]}"]), "Accuracy", "Accuracy")["test, %"]
    )


@pytest.mark.parametrize(("data", "model"), [("digits", "resnet8-double"), ("tiny-imagenet", "resnet18-double-tiny")])
def test_five_answers_are_counted_where_there_are_many_classes(
    runs: list[str], tmp_path: Path, data: str, model: str
) -> None:
    def five(record: Any, seed: int) -> None:
        record["readings"][0]["top5"] = 99.5 - seed
        record["settings"] |= {"data": data, "model": model}

    report = _gather([f"{name}={_edited(run, tmp_path / name, five)}" for name, run in zip("ab", runs, strict=True)])
    rows = _table(report, "Accuracy", "Accuracy")
    assert ("test, top-5, %" in rows) == (data != "digits")
    if data != "digits":
        assert rows["test, top-5, %"][0].startswith("98.50 [")


def test_a_run_on_its_way_is_in_no_figure_of_accuracy_and_broken_numbers_are_none(
    runs: list[str], tmp_path: Path
) -> None:
    def cut(record: Any, seed: int) -> None:
        if seed == 1:
            record["figures"]["over_training"] = record["figures"]["over_training"][:3]
        if seed == 2:
            record["figures"]["over_training"][-1] |= {"train": float("nan"), "ratios": [float("nan")]}

    report = _gather([runs[0], f"lcr={_edited(runs[1], tmp_path / 'lcr', cut)}"])
    assert "Not finished, and so in no figure of accuracy: lcr, seed 1." in _parts(report, "Accuracy")
    row = "training, last epoch, % (3 of 3, 1 of 3 seeds)"
    assert _table(report, "Accuracy", "Accuracy")[row][2].endswith("(1 pair)")


def test_a_difference_says_of_how_many_pairs_it_is(runs: list[str]) -> None:
    some = [f"a={runs[0]}", f"b={runs[1]}/seed-0.json", f"b={runs[1]}/seed-1.json"]
    cells = _table(_gather(some), "Accuracy", "Accuracy")["test, %"]
    assert cells[2].endswith("] (2 pairs)") or cells[2].endswith("] * (2 pairs)")


def test_bins_of_their_own_have_rows_of_their_own() -> None:
    from lcrbnn.report.charts import Axis, Steps
    from lcrbnn.report.words import numbers

    series = (Steps("a", 0, -1.0, 1.0, (1.0, 2.0)), Steps("b", 1, -2.0, 2.0, (3.0, 4.0, 5.0, 6.0)))
    table = numbers(Histogram("weights", "", Axis("weight"), Axis("density"), series))
    assert [row[0] for row in table.rows] == ["−1.5", "−0.5", "0.5", "1.5"]
    assert [row[1:] for row in table.rows] == [("", "3"), ("1", "4"), ("2", "5"), ("", "6")]


def test_long_names_of_a_difference_stay_apart() -> None:
    from lcrbnn.report.text import short_pair

    names = [f"retention-{kind}-{'x' * 40} − control-{'y' * 40}" for kind in ("early", "late")]
    assert all(len(short_pair(name, 44)) <= 47 for name in names)
    assert short_pair("a − b", 44) == "a − b"
    assert "y" in short_pair(names[0], 44)
    assert "x" in short_pair(names[0], 44)
