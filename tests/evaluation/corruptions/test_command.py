from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from lcrbnn.cli.main import main
from lcrbnn.runs.record import read_record
from tests.evaluation.corruptions.helpers import load_enlarged_digits
from tests.evaluation.corruptions.test_corrupted_sets import write_cifar_c
from tests.train.helpers import train_small_run

FAST_OPTIONS = ["--corruptions", "contrast", "fog", "--device", "cpu", "--num-images", "30"]


def run_robustness(data_folder: Path, *arguments: str) -> int:
    return main(["robustness", *arguments, "--data-folder", str(data_folder)])


def test_two_groups_are_measured_and_compared(
    trained_runs: Path, data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other_runs = tmp_path / "other"
    for seed in (0, 1):  # the same networks, so all differences are 0
        shutil.copytree(trained_runs / f"seed-{seed}", other_runs / f"seed-{seed}")
    assert (
        run_robustness(data_folder, str(trained_runs), str(other_runs), *FAST_OPTIONS, "--records", str(tmp_path / "r"))
        == 0
    )
    output = capsys.readouterr()
    assert f"{trained_runs}, as trained, mean of 2 runs: error in %" in output.out
    lines = [line.split() for line in output.out.splitlines()]
    fog_line = next(line for line in lines if line[:1] == ["fog"])
    records = [read_record(tmp_path / "r" / "plain" / f"seed-{seed}.json")["figures"] for seed in (0, 1)]
    expected = [sum(r["errors"]["as trained"]["fog"][s] for r in records) / 2 for s in range(5)]
    assert [float(cell) for cell in fog_line[1:6]] == pytest.approx(expected, abs=0.006)
    assert f"{other_runs} minus {trained_runs}, 2 pairs, 95 %:" in output.out
    assert "clean                   +0.00 [+0.00, +0.00]" in output.out
    assert (tmp_path / "r" / "other" / "seed-1.json").exists()
    assert "fog 5" in output.err


def test_the_default_path_of_a_record_is_the_run_folder(trained_runs: Path, data_folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained_runs / "seed-0", tmp_path / "run")
    assert run_robustness(data_folder, str(run), *FAST_OPTIONS) == 0
    assert read_record(run / "robustness.json")["figures"]["complete"] is True


def test_a_published_folder_is_used_unchanged(trained_runs: Path, data_folder: Path, tmp_path: Path) -> None:
    """The folder contains clean images, so the errors equal the clean error."""
    folder = write_cifar_c(tmp_path / "c", ("contrast",))
    np.save(folder / "contrast.npy", np.tile(load_enlarged_digits().test.images.transpose(0, 2, 3, 1), (5, 1, 1, 1)))
    arguments = [
        "--corruptions",
        "contrast",
        "--corrupted-data",
        str(folder),
        "--device",
        "cpu",
        "--records",
        str(tmp_path / "r"),
    ]
    assert run_robustness(data_folder, str(trained_runs / "seed-0"), *arguments) == 0
    record = read_record(tmp_path / "r" / "plain" / "seed-0.json")
    assert record["settings"]["corrupted_images"] == "official arrays"
    assert record["figures"]["errors"]["as trained"]["contrast"] == [record["figures"]["clean"]["as trained"]] * 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--corruptions", "rain"], "no corruption is called 'rain'"),
        (["--num-images", "0"], "--num-images must be a whole number from 1 to 60; got 0"),
        (["--num-images", "61"], "--num-images must be a whole number from 1 to 60; got 61"),
        (["--corrupted-data", "nowhere"], "there is no folder nowhere"),
        (["--frost-photos", "nowhere"], "frost1.png is missing; "),
        (["--frost-photos", "nowhere", "--corruptions", "fog"], "--frost-photos has no effect: it needs --refit-head"),
        (
            ["--frost-photos", "nowhere", "--corrupted-data", "elsewhere"],
            "--frost-photos has no effect: it needs --refit-head",
        ),
        (["--device", "tpu"], "no device is called 'tpu'"),
    ],
)
def test_invalid_options_give_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    trained_runs: Path,
    data_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_robustness(data_folder, str(trained_runs), "--records", str(tmp_path / "r"), *arguments) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_an_unwritable_record_path_is_rejected_before_the_evaluation(
    trained_runs: Path, data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert (
        run_robustness(data_folder, str(trained_runs / "seed-0"), *FAST_OPTIONS, "--records", str(tmp_path / "file"))
        == 2
    )
    error = capsys.readouterr().err
    assert error.startswith(f"lcrbnn: a record cannot be written to {tmp_path / 'file' / 'plain' / 'seed-0.json'}: ")
    assert error.count("\n") == 1


def test_small_gray_images_are_rejected(tmp_path: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_small_run(tmp_path / "run")
    assert run_robustness(data_folder, str(tmp_path / "run")) == 2
    supported = "colour images of 32, 64 or 224 pixels"
    assert (
        capsys.readouterr().err
        == f"lcrbnn: corruptions are defined for {supported}, and digits has images of 1 x 8 x 8\n"
    )


def test_two_runs_with_the_same_record_path_are_rejected(
    trained_runs: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_robustness(data_folder, str(trained_runs), str(trained_runs / "seed-0"), "--records", "r") == 2
    assert "two of the networks would have the same record file" in capsys.readouterr().err
