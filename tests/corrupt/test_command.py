from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from lcrbnn.cli import main
from lcrbnn.runs.record import read_record
from tests.corrupt.helpers import digits
from tests.corrupt.test_official import arrays
from tests.train.helpers import small_run

FEW = ["--corruptions", "contrast", "fog", "--device", "cpu", "--images", "30"]


def robustness(data: Path, *words: str) -> int:
    return main(["robustness", *words, "--data-folder", str(data)])


def test_two_groups_are_read_shown_and_compared(
    trained: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    for seed in (0, 1):  # the same networks: no difference
        shutil.copytree(trained / f"seed-{seed}", other / f"seed-{seed}")
    assert robustness(data, str(trained), str(other), *FEW, "--records", str(tmp_path / "r")) == 0
    shown = capsys.readouterr()
    assert f"{trained}, as trained, mean of 2 runs: error in %" in shown.out
    lines = [line.split() for line in shown.out.splitlines()]
    fog = next(line for line in lines if line[:1] == ["fog"])
    records = [read_record(tmp_path / "r" / "plain" / f"seed-{seed}.json")["figures"] for seed in (0, 1)]
    wanted = [sum(r["errors"]["as trained"]["fog"][s] for r in records) / 2 for s in range(5)]
    assert [float(cell) for cell in fog[1:6]] == pytest.approx(wanted, abs=0.006)
    assert f"{other} minus {trained}, 2 pairs, 95 %:" in shown.out
    assert "clean                   +0.00 [+0.00, +0.00]" in shown.out
    assert (tmp_path / "r" / "other" / "seed-1.json").exists()
    assert "fog 5" in shown.err


def test_a_record_lies_in_the_runs_folder_if_no_other_is_said(trained: Path, data: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained / "seed-0", tmp_path / "run")
    assert robustness(data, str(run), *FEW) == 0
    assert read_record(run / "robustness.json")["figures"]["complete"] is True


def test_an_official_folder_is_read_as_it_is(trained: Path, data: Path, tmp_path: Path) -> None:
    """With corruptions that are none, errors are the clean ones."""
    folder = arrays(tmp_path / "c", ("contrast",))
    np.save(folder / "contrast.npy", np.tile(digits().test.images.transpose(0, 2, 3, 1), (5, 1, 1, 1)))
    words = ["--corruptions", "contrast", "--folder", str(folder), "--device", "cpu", "--records", str(tmp_path / "r")]
    assert robustness(data, str(trained / "seed-0"), *words) == 0
    record = read_record(tmp_path / "r" / "plain" / "seed-0.json")
    assert record["settings"]["corrupted_images"] == "official arrays"
    assert record["figures"]["errors"]["as trained"]["contrast"] == [record["figures"]["clean"]["as trained"]] * 5


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--corruptions", "rain"], "no corruption is called 'rain'; there are gaussian_noise,"),
        (["--images", "0"], "--images must be a whole number from 1 to 60; got 0"),
        (["--images", "61"], "--images must be a whole number from 1 to 60; got 61"),
        (["--folder", "nowhere"], "there is no folder nowhere"),
        (["--frost", "nowhere"], "frost1.png is not there; `lcrbnn data frost"),
        (["--frost", "nowhere", "--corruptions", "fog"], "--frost is given and nothing uses it"),
        (["--frost", "nowhere", "--folder", "elsewhere"], "--frost is given and nothing uses it"),
        (["--device", "tpu"], "no device is called 'tpu'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    words: list[str], sentence: str, trained: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert robustness(data, str(trained), "--records", str(tmp_path / "r"), *words) == 2
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert shown.err.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_a_record_that_cannot_be_written_is_refused_before_any_work(
    trained: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert robustness(data, str(trained / "seed-0"), *FEW, "--records", str(tmp_path / "file")) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"lcrbnn: a record cannot be written to {tmp_path / 'file' / 'plain' / 'seed-0.json'}: ")
    assert shown.count("\n") == 1


def test_small_grey_digits_are_refused(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_run(tmp_path / "run")
    assert robustness(data, str(tmp_path / "run")) == 2
    known = "colour images of 32, 64 or 224 pixels"
    assert (
        capsys.readouterr().err == f"lcrbnn: corruptions are defined for {known}, and digits has images of 1 x 8 x 8\n"
    )


def test_two_runs_with_one_record_are_refused(trained: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert robustness(data, str(trained), str(trained / "seed-0"), "--records", "r") == 2
    assert "two of the networks would leave the same record" in capsys.readouterr().err
