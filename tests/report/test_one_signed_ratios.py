"""A run whose binary feature maps have only one sign: log, record, plot, report and analyze show n/a."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import pytest

from lcrbnn.cli.main import main
from lcrbnn.evaluation.seed_groups import render_group_comparison
from lcrbnn.report.figures.training_curves import read_curve_groups
from lcrbnn.runs.record import read_record
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.options import RunOptions
from tests.train.helpers import SMALL, train_small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with a ReLU before each binary layer, trained for one epoch."""
    path = tmp_path_factory.mktemp("runs") / "relu" / "seed-0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = SMALL.replace(model="resnet20-relu", method="irnet", lcr_weight=1.0, epochs=1, lr=1e-6)
        return train_small_run(path, spec, RunOptions(device="cpu", step_mode="eager"))


def test_log_and_record_have_nan_and_no_loss(run: Path) -> None:
    line = RunFolder(run).read_log()[-1]
    assert all(math.isnan(ratio) for ratio in line["sigma_ratios"])
    assert line["lcr_loss"] == line["lcr_gradient_ratio"] == 0
    record = read_record(run / "record.json")
    assert all(math.isnan(ratio) for ratio in record["figures"]["last_epoch"]["sigma_ratios"])
    assert all(math.isnan(ratio) for ratio in record["figures"]["history"][-1]["sigma_ratios"])


def test_the_plot_shows_no_curve_but_not_available(run: Path, tmp_path: Path) -> None:
    (group,) = read_curve_groups([run.parent])
    assert group.num_ratios == 9
    assert group.largest_ratio == 0
    assert group.curves_of_ratio(1) == []
    assert main(["plot", str(run.parent), "-o", str(tmp_path / "a.svg")]) == 0
    assert "n/a" in (tmp_path / "a.svg").read_text()


def test_the_report_explains_the_missing_ratios(run: Path, tmp_path: Path) -> None:
    assert main(["report", str(run.parent), "-o", str(tmp_path / "a.md")]) == 0
    text = (tmp_path / "a.md").read_text()
    assert "relu: 9 of 9" in text
    assert "n/a" in text
    assert "LCR ratio gap" not in text


def test_analyze_shows_not_available(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = ["analyze", str(run), "--num-images", "64", "--per-layer", "--device", "cpu"]
        assert main([*arguments, "-o", str(tmp_path / "records")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (summary_line,) = [line for line in lines if "sigma_B / sigma_F - 1" in line]
    assert summary_line.endswith("n/a")
    (record_path,) = (tmp_path / "records").rglob("*.json")
    ratios = json.loads(record_path.read_text())["figures"]["ratios"]
    assert any(math.isnan(ratio["eq8-unit"]) for ratio in ratios.values())
    assert main(["report", str(run.parent), "--records", str(tmp_path / "records"), "-o", str(tmp_path / "b.md")]) == 0


def test_means_of_groups_leave_out_nan() -> None:
    figures = {"a": {0: {"x": 1.0, "y": math.nan}, 1: {"x": math.nan, "y": math.nan}}}
    lines = render_group_comparison(figures, {"x": "ex", "y": "why"}).splitlines()
    assert lines[1].split() == ["ex", "1"]
    assert lines[2].split() == ["why", "n/a"]
