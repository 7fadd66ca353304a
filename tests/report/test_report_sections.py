"""Contents of a report: numbers computed by hand, records matched to the right network, hints for missing data."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from lcrbnn.cli.main import main
from lcrbnn.evaluation.paired_difference import compare_paired
from lcrbnn.report.build_report import SECTIONS, build_report
from lcrbnn.report.elements import (
    CommandHint,
    DotChart,
    Element,
    Gallery,
    HeatMap,
    Histogram,
    LineChart,
    Link,
    Report,
    Table,
)
from lcrbnn.runs.record import read_record
from tests.report.sample_records import (
    LAYERS,
    ROOT,
    copy_records,
    make_cost_record,
    make_errors,
    make_measurement_records,
)


def _build(runs: list[str], *records: Path, folder: Path = ROOT) -> Report:
    return build_report(runs, list(records), report_folder=folder, frost_folder=folder / "frost")


def _get_section(report: Report, section: str) -> tuple[Element, ...]:
    return next(candidate.elements for candidate in report.sections if candidate.title == section)


def _get_table(report: Report, section: str, title: str) -> dict[str, tuple[Any, ...]]:
    table = next(
        element for element in _get_section(report, section) if isinstance(element, Table) and element.title == title
    )
    return {str(row[0]): row[1:] for row in table.rows}


def _get_chart(report: Report, section: str, title: str) -> Any:
    return next(
        element
        for element in _get_section(report, section)
        if isinstance(element, LineChart | DotChart | HeatMap | Histogram) and element.title == title
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return copy_records(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def report(runs: list[str], tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = make_measurement_records(tmp_path_factory.mktemp("records"), runs)
    make_cost_record(folder / "cost.json")
    return _build(runs, folder, ROOT / "paper" / "results" / "layers")


def _read_test_top1(run: str) -> list[float]:
    return [read_record(p)["test_results"][-1]["top1"] for p in sorted(Path(run).glob("*.json"))]


def test_accuracy_table_has_means_and_paired_differences_of_the_records(report: Report, runs: list[str]) -> None:
    none, lcr = map(_read_test_top1, runs)
    none_cell, lcr_cell, difference_cell = _get_table(report, "Accuracy", "Accuracy")["test, %"]
    assert none_cell.startswith(f"{statistics.fmean(none):.2f} [")
    assert lcr_cell.startswith(f"{statistics.fmean(lcr):.2f} [")
    assert difference_cell.replace("−", "-").replace("\u00a0", " ") == str(compare_paired(none, lcr))
    dots = _get_chart(report, "Accuracy", "Difference in accuracy").series[0].dots[0]
    assert (dots.value, dots.low, dots.high) == pytest.approx(
        compare_paired(none, lcr)[1:2] + compare_paired(none, lcr)[3:5]
    )
    seeds = _get_table(report, "Accuracy", "Accuracy on test images by seed, %")
    assert [cells[0] for cells in seeds.values()] == [f"{top:.2f}" for top in none]


def test_a_row_title_states_the_number_of_seeds_if_some_are_missing(runs: list[str], tmp_path: Path) -> None:
    records = make_measurement_records(tmp_path / "records", runs)
    for path in records.rglob("*.json"):
        stored = json.loads(path.read_text())
        if stored["kind"] == "attack" and stored["settings"]["run"]["seed"] == 2:
            path.unlink()
    rows = _get_table(_build(runs, records), "Summary", "Main figures")
    assert "accuracy under all attacks at ε = 2/255, % (2 of 3 seeds)" in rows
    assert "accuracy on test images, %" in rows


def test_training_section_lists_the_differing_settings(report: Report) -> None:
    text, table = _get_section(report, "Training settings")
    assert (
        text == "Settings that differ between the groups: lcr_gradient_ratio (0 / 0.03); lcr_warmup_epochs (0 / 400)."
    )
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["retention (LCR)"] == ("none", "variant default, gradient ratio 0.03, warm-up 400 epochs")
    assert rows["seeds"] == ("0, 1, 2", "0, 1, 2")
    assert rows["hardware"] == ("NVIDIA H200", "NVIDIA H200")


def test_groups_with_different_seeds_only_have_equal_settings(runs: list[str]) -> None:
    report = _build([f"a={runs[0]}/seed-0.json", f"b={runs[0]}/seed-1.json"])
    assert _get_section(report, "Training settings")[0] == "All groups have the same settings."
    assert _get_table(report, "Accuracy", "Accuracy")["test, %"][2] == "–"  # no seed is in both


def test_a_single_pair_has_a_difference_without_an_interval(runs: list[str]) -> None:
    report = _build([f"{run}/seed-0.json" for run in runs])
    assert _get_table(report, "Accuracy", "Accuracy")["test, %"] == ("84.99", "86.43", "+1.44")
    dot = _get_chart(report, "Accuracy", "Difference in accuracy").series[0].dots[0]
    assert (dot.value, dot.low, dot.high) == (pytest.approx(1.44), None, None)


def test_curves_are_means_with_the_range_of_seeds(report: Report, runs: list[str]) -> None:
    chart = _get_chart(report, "Training curves", "Accuracy on training images")
    assert (chart.x.label, chart.y.label) == ("epoch", "accuracy, %")
    stored = [read_record(p)["figures"]["history"] for p in sorted(Path(runs[0]).glob("*.json"))]
    last = [lines[-1]["train_top1"] for lines in stored]
    line = chart.lines[0]
    assert line.x[-1] == 400
    assert (line.y[-1], line.low[-1], line.high[-1]) == pytest.approx((statistics.fmean(last), min(last), max(last)))
    ratio = _get_chart(report, "Training curves", "LCR ratio gap").lines[0]
    expected_gaps = [statistics.fmean(abs(r - 1) for r in lines[-1]["sigma_ratios"]) for lines in stored]
    assert ratio.y[-1] == pytest.approx(statistics.fmean(expected_gaps))


def test_heat_maps_hold_mean_errors_and_their_differences(report: Report) -> None:
    shifts = {"none": [0.0, 0.5, 1.0], "lcr": [-1.0, -0.6, -0.2]}
    for name, values in shifts.items():
        chart = _get_chart(report, "Corruptions", f"Error under corruption: {name}")
        assert chart.values[3][4] == pytest.approx(make_errors(statistics.fmean(values))["defocus_blur"][4])
        assert chart.rows[3] == "defocus blur"
        assert chart.rows[-1] == "saturate (extra)"
    differences = _get_chart(report, "Corruptions", "Error difference: lcr − none")
    assert differences.is_signed
    assert all(v == pytest.approx(-1.1) for line in differences.values for v in line)
    dots = _get_chart(report, "Corruptions", "Difference by corruption").series[0].dots
    assert all(
        (d.value, d.low, d.high)
        == pytest.approx(
            compare_paired([0.0, 0.5, 1.0], [-1.0, -0.6, -0.2])[1:2]
            + compare_paired([0.0, 0.5, 1.0], [-1.0, -0.6, -0.2])[3:5]
        )
        for d in dots
    )
    means = _get_table(report, "Corruptions", "Errors, as trained")
    assert means["mean of 15, error, %"][2].startswith("−1.10 [")
    assert means["mean of 15, error, %"][2].endswith("*")
    assert "mCE (AlexNet 100)" not in means  # images of this size have no normaliser


def test_attacks_section_warns_of_masked_gradients(report: Report) -> None:
    chart = _get_chart(report, "Attacks", "Under attack, ε = 8/255")
    assert chart.rows == ("no attack", "fgsm", "pgd", "square", "worst case")
    assert chart.series[0].dots[4].value == pytest.approx(5.5)
    warnings = [p for p in _get_section(report, "Attacks") if isinstance(p, str) and p.startswith("MASKED GRADIENTS")]
    assert len(warnings) == 1
    assert "none at 8/255: a gradient-free attack is the strongest in 3 of 3 runs." in warnings[0]
    assert "2/255" not in warnings[0]


def test_norms_are_intervals_and_the_ratio_chart_marks_one(report: Report) -> None:
    norms = _get_chart(report, "Lipschitz continuity", "Operator norm by layer")
    assert norms.rows == LAYERS
    assert norms.is_log
    assert (norms.series[0].dots[0].low, norms.series[0].dots[0].high) == pytest.approx((0.3, 0.4))
    assert _get_chart(report, "Lipschitz continuity", "Retention ratio by layer").reference_value == 1.0
    assert _get_chart(report, "Lipschitz continuity", "Sign flips by layer, noise 0.08").series[0].dots[0].value > 10
    table = _get_table(report, "Lipschitz continuity", "Continuity")
    assert table["sign flips under noise 0.08, %"][0].startswith("10.50 [")
    assert table["flips under noise 0.08 / flips between images"][0].startswith("0.263 [")  # 10.5 of 40
    assert _get_chart(report, "Lipschitz continuity", "Sensitivity").rows == ("|Δx| = 0.1", "|Δx| = 1")


def test_histograms_are_densities_of_one_network_per_group(report: Report) -> None:
    histograms = [p for p in _get_section(report, "Latent weights") if isinstance(p, Histogram)]
    assert len(histograms) == 6
    for chart in histograms:
        assert [series.name for series in chart.series] == ["none, seed 0", "lcr, seed 0"]
        for series in chart.series:
            assert sum(series.heights) * (series.high - series.low) / len(series.heights) == pytest.approx(1)


def test_cost_is_read_from_its_record_or_counted_from_the_modules(report: Report, runs: list[str]) -> None:
    assert _get_table(report, "Cost and size", "Cost of a network")["file, bytes (.bnn)"] == ("51,234",)
    without_record = _build(runs)
    assert _get_table(without_record, "Cost and size", "Cost of a network")["parameters"] == ("269,850",)
    assert any(
        isinstance(p, CommandHint) and p.command.startswith("lcrbnn cost")
        for p in _get_section(without_record, "Cost and size")
    )


def test_every_file_read_is_linked(report: Report, runs: list[str]) -> None:
    rows = next(p for p in _get_section(report, "Records") if isinstance(p, Table)).rows
    targets = [row[2].target for row in rows if isinstance(row[2], Link)]
    assert len(targets) == len(rows) == 6 * 4 + 2 + 1  # training and three kinds, two with histograms, the cost
    assert all((ROOT / target).exists() for target in targets)
    assert rows[0][:2] == ("none, seed 0", "training")


def test_without_records_each_section_names_the_command(runs: list[str]) -> None:
    report = _build(runs)
    assert [section.title for section in report.sections] == list(SECTIONS)
    hints = {
        section.title: p.command for section in report.sections for p in section.elements if isinstance(p, CommandHint)
    }
    assert hints == {
        "Corruptions": "lcrbnn robustness RUN",
        "Corruption examples": "lcrbnn data frost",
        "Attacks": "lcrbnn attack RUN -o RECORDS",
        "Lipschitz continuity": "lcrbnn analyze RUN -o RECORDS",
        "Latent weights": "lcrbnn layers RUN -o FOLDER",
        "Cost and size": "lcrbnn cost RUN -o RECORDS/cost.json",
    }


def test_a_single_run_has_no_differences_and_no_intervals(runs: list[str]) -> None:
    report = _build([f"alone={runs[0]}/seed-0.json"])
    cells = _get_table(report, "Summary", "Main figures")["accuracy on test images, %"]
    assert cells == ("84.99",)
    assert not any(
        isinstance(p, DotChart) and "Difference" in p.title for section in report.sections for p in section.elements
    )


def test_records_covering_most_runs_are_used_and_other_networks_ignored(runs: list[str], tmp_path: Path) -> None:
    make_measurement_records(tmp_path / "a", runs, images=100, kinds=("robustness",))
    make_measurement_records(tmp_path / "b", runs[:1], images=5000, kinds=("robustness",))
    text = _get_section(_build(runs, tmp_path), "Corruptions")[0]
    assert isinstance(text, str)
    assert text.startswith("Errors on 100 test images")
    for path in (tmp_path / "a").rglob("*.json"):
        record = json.loads(path.read_text())
        record["settings"]["checkpoint_sha256"] = f"of another network, {path}"
        path.write_text(json.dumps(record))
    parts = _get_section(_build(runs, tmp_path), "Corruptions")
    assert str(parts[0]).startswith("Errors on 5,000 test images")
    hints = [p.text for p in parts if isinstance(p, CommandHint)]
    assert hints == ["Not measured in all runs of lcr. This command measures the others:"]
    assert not any("lcr" in p.title for p in parts if isinstance(p, HeatMap))


def test_a_run_in_two_groups_has_its_records_in_both(runs: list[str], tmp_path: Path) -> None:
    make_measurement_records(tmp_path, runs[:1], kinds=("robustness",))
    report = _build([f"a={runs[0]}", f"b={runs[0]}"], tmp_path)
    titles = [p.title for p in _get_section(report, "Corruptions") if isinstance(p, HeatMap)]
    assert titles == ["Error under corruption: a", "Error under corruption: b"]
    assert _get_table(report, "Corruptions", "Errors, as trained")["mean of 15, error, %"][2].startswith("+0.00 [+0.00")


def test_unreadable_frost_photos_are_rejected_before_the_runs_are_read(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["report", *runs, "-o", str(tmp_path / "page.html"), "--frost-photos"]
    (tmp_path / "text").write_text("none")
    for location in ("nowhere", "text", "."):
        assert main([*arguments, str(tmp_path / location), "--data-folder", str(tmp_path)]) == 2
        assert "frost1.png" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
    assert main(["report", "nowhere", "-o", "page.html", "--frost-photos", str(tmp_path)]) == 2
    assert "frost1.png" in capsys.readouterr().err


def test_every_corruption_is_shown_except_frost_without_photos(report: Report) -> None:
    gallery = next(p for p in _get_section(report, "Corruption examples") if isinstance(p, Gallery))
    assert len(gallery.images) == 1 + 18
    assert len({image.png for image in gallery.images}) == 19
    assert all(image.png.startswith(b"\x89PNG") for image in gallery.images)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{runs}/none", "-o", "{tmp}/a.pdf"], "no report format is called '.pdf'"),
        (
            ["{runs}/nothing", "-o", "{tmp}/a.html"],
            "the record {runs}/nothing cannot be read: No such file or directory",
        ),
        (["=x", "-o", "{tmp}/a.html"], "a group is written NAME=FOLDER; got '=x'"),
        (["a={runs}/none", "a={runs}/none", "-o", "{tmp}/a.html"], "two runs of the group 'a' have seed 0"),
        (
            ["a={runs}/none/seed-0.json", "a={runs}/lcr/seed-1.json", "-o", "{tmp}/a.html"],
            "the runs of group a must have equal settings",
        ),
        (["{runs}/none", "--records", "{tmp}/gone", "-o", "{tmp}/a.html"], "there are no records at {tmp}/gone"),
        (["{runs}/none", "--records", "{runs}/torn.json", "-o", "{tmp}/a.html"], "{runs}/torn.json is not a record: "),
        (
            ["{runs}/none", "--records", "{runs}/short.json", "-o", "{tmp}/a.html"],
            "short.json is not a robustness record",
        ),
        (["{runs}/none", "--records", "{runs}/nan.json", "-o", "{tmp}/a.html"], "nan is not a finite number"),
        (
            ["{runs}/none", "--sample-image", "{runs}/torn.json", "-o", "{tmp}/a.html"],
            "the sample image {runs}/torn.json cannot be read",
        ),
        (["{runs}/none", "-o", "{runs}/torn.json/a.html"], "a report cannot be written to"),
        (
            [*(f"g{i}={{runs}}/none/seed-0.json" for i in range(7)), "-o", "{tmp}/a.html"],
            "a report compares at most 6 groups",
        ),
    ],
)
def test_bad_report_arguments_are_rejected(
    arguments: list[str], message: str, runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Path(runs[0]).parent
    (home / "torn.json").write_text('{"kind": "robust')
    valid_record = (
        make_measurement_records(tmp_path / "made", [runs[0]], kinds=("robustness",))
        / "robustness"
        / "none"
        / "seed-0.json"
    )
    for name, errors in (("short", [1.0]), ("nan", [float("nan")] * 5)):
        record = json.loads(valid_record.read_text())
        record["figures"]["errors"]["as trained"]["fog"] = errors
        (home / f"{name}.json").write_text(json.dumps(record))
    assert main(["report", *(argument.format(runs=home, tmp=tmp_path) for argument in arguments)]) == 2
    stderr = capsys.readouterr().err
    assert message.format(runs=home, tmp=tmp_path) in stderr
    assert re.fullmatch(r"lcrbnn: [^\n]+\n", stderr)
    assert not (tmp_path / "a.html").exists()


def _copy_with_changes(run: str, target: Path, change: Any) -> str:
    """Copy the records of a group and apply `change(record, seed)` to each. Return the new folder."""
    target.mkdir(parents=True)
    for path in sorted(Path(run).glob("*.json")):
        record = read_record(path)
        change(record, record["settings"]["seed"])
        (target / path.name).write_text(json.dumps(record))
    return str(target)


def test_the_first_test_result_counts(runs: list[str], tmp_path: Path) -> None:
    def add_test_result(record: Any, seed: int) -> None:
        record["test_results"].append({**record["test_results"][0], "top1": 99.0})

    changed = _build([runs[0], f"lcr={_copy_with_changes(runs[1], tmp_path / 'lcr', add_test_result)}"])
    assert (
        _get_table(changed, "Accuracy", "Accuracy")["test, %"]
        == _get_table(_build([runs[0], f"lcr={runs[1]}"]), "Accuracy", "Accuracy")["test, %"]
    )


@pytest.mark.parametrize(
    ("dataset", "model"), [("digits", "resnet8-double"), ("tiny-imagenet", "resnet18-double-tiny")]
)
def test_top5_is_shown_for_many_classes(runs: list[str], tmp_path: Path, dataset: str, model: str) -> None:
    def add_top5(record: Any, seed: int) -> None:
        record["test_results"][0]["top5"] = 99.5 - seed
        record["settings"] |= {"dataset": dataset, "model": model}

    report = _build(
        [f"{name}={_copy_with_changes(run, tmp_path / name, add_top5)}" for name, run in zip("ab", runs, strict=True)]
    )
    rows = _get_table(report, "Accuracy", "Accuracy")
    assert ("test, top-5, %" in rows) == (dataset != "digits")
    if dataset != "digits":
        assert rows["test, top-5, %"][0].startswith("98.50 [")


def test_unfinished_runs_and_non_finite_values_are_left_out(runs: list[str], tmp_path: Path) -> None:
    def cut(record: Any, seed: int) -> None:
        if seed == 1:
            record["figures"]["history"] = record["figures"]["history"][:3]
        if seed == 2:
            record["figures"]["history"][-1] |= {"train_top1": float("nan"), "sigma_ratios": [float("nan")]}

    report = _build([runs[0], f"lcr={_copy_with_changes(runs[1], tmp_path / 'lcr', cut)}"])
    assert "Unfinished runs, not included in any accuracy: lcr, seed 1." in _get_section(report, "Accuracy")
    row = "training, last epoch, % (3 of 3, 1 of 3 seeds)"
    assert _get_table(report, "Accuracy", "Accuracy")[row][2].endswith("(1 pair)")


def test_a_difference_states_its_number_of_pairs(runs: list[str]) -> None:
    arguments = [f"a={runs[0]}", f"b={runs[1]}/seed-0.json", f"b={runs[1]}/seed-1.json"]
    cells = _get_table(_build(arguments), "Accuracy", "Accuracy")["test, %"]
    assert cells[2].endswith("] (2 pairs)") or cells[2].endswith("] * (2 pairs)")
