"""Invalid run folders and the error messages about them before any work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lcrbnn.cli.main import main
from lcrbnn.nn.models.model_registry import create_model
from lcrbnn.runs.record import DIGEST_KEY
from lcrbnn.study.plan import read_plan
from tests.data.image_folders import make_image_files, write_zip
from tests.train.helpers import SMALL, assert_same_runs

QUICK = ["--epochs", "1", "--batch-size", "300", "--device", "cpu"]


def resume_by_command(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["train", "--run-folder", str(path), "--resume", "--device", "cpu"])
    output = capsys.readouterr()
    return code, output.out, output.err


# -- a finished run with damaged files -------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [20, 1, 10**6])
def test_a_finished_run_with_a_damaged_log_is_rejected(
    cut: int, straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(straight, tmp_path / "run"))
    content = (run / "log.jsonl").read_bytes()
    (run / "log.jsonl").write_bytes(content[: max(0, len(content) - cut)])
    code, out, err = resume_by_command(run, capsys)
    ends = 1 if cut < 10**6 else 0
    assert (code, out) == (2, "")
    assert err == (
        f"lcrbnn: {run / 'log.jsonl'} ends after epoch {ends}, but {run / 'record.json'} is from a run of 2 epochs: "
        "restore the log\n"
    )


@pytest.mark.parametrize("text", ["{}", "[]", "", "half", '{"schema": 1, "settings": {}, "figures": {}}', "other"])
def test_a_finished_run_with_a_damaged_record_is_rejected_and_its_end_can_be_repeated(
    text: str, straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(straight, tmp_path / "run"))
    record_text = (run / "record.json").read_text()
    other_record = json.loads(record_text) | {"settings": SMALL.replace(seed=5).to_dict()}
    other_text = json.dumps({name: value for name, value in other_record.items() if name != DIGEST_KEY})
    (run / "record.json").write_text(
        {"half": record_text[: len(record_text) // 2], "other": other_text}.get(text, text)
    )
    code, out, err = resume_by_command(run, capsys)
    assert (code, out) == (2, "")
    assert err.startswith(f"lcrbnn: {run / 'record.json'} is no record")
    assert err.endswith("; if it is deleted, --resume repeats the end of the run\n")
    assert err.count("\n") == 1
    (run / "record.json").unlink()
    code, out, err = resume_by_command(run, capsys)
    assert code == 0
    assert out.startswith(f"{run}: epoch 2, ")
    assert_same_runs(run, straight)


def test_a_study_rejects_a_damaged_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.toml"
    path.write_text(
        'recipe = "digits"\nseeds = [0]\nbaseline = "a"\n[settings]\nepochs = 1\nbatch_size = 300\n[variants.a]\n'
    )
    words = ["study", str(path), "--runs-folder", str(tmp_path / "runs"), "--records", str(tmp_path / "kept")]
    assert main([*words, "--device", "cpu"]) == 0
    shutil.rmtree(tmp_path / "kept")
    (tmp_path / "runs/a/seed-0/record.json").write_text("{}")
    capsys.readouterr()
    assert main([*words, "--device", "cpu"]) == 2
    assert "a/seed-0/record.json is no record" in capsys.readouterr().err
    assert not (tmp_path / "kept").exists()


# -- one run, or one run per seed ------------------------------------------------------------------------------------


def test_a_folder_contains_either_one_run_or_seed_folders(
    straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    single_run = Path(shutil.copytree(straight, tmp_path / "one"))
    before = sorted(single_run.rglob("*"))
    for extra_words in ([], ["--resume"]):
        assert main(["train", "digits", "--run-folder", str(single_run), "--seeds", "0-1", *QUICK, *extra_words]) == 2
        reason = "is the folder of one run, and --seeds needs a folder per seed: choose another folder"
        assert capsys.readouterr().err == f"lcrbnn: {single_run} {reason}\n"
    assert sorted(single_run.rglob("*")) == before
    shutil.copytree(straight, tmp_path / "several" / "seed-0")
    for extra_words in ([], ["--resume"]):
        assert main(["train", "digits", "--run-folder", str(tmp_path / "several"), *QUICK, *extra_words]) == 2
        expected_error = (
            f"lcrbnn: {tmp_path / 'several'} contains seed-0: choose some of them with --seeds, or another folder\n"
        )
        assert capsys.readouterr().err == expected_error
    assert sorted(p.name for p in (tmp_path / "several").iterdir()) == ["seed-0"]


# -- order of messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [["--method", "x"], ["--model", "x"], ["--dataset", "cifar10"], ["--lcr", "x"]])
@pytest.mark.parametrize("extra_words", [["--resume"], ["--resume", "--seeds", "0-1"], ["--seeds", "0-1"]], ids=str)
def test_a_rejected_run_is_not_announced(
    wrong: list[str], extra_words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = ["--run-folder", str(tmp_path / "new"), "--data-folder", str(tmp_path)]
    assert main(["train", *folders, *wrong, *extra_words, *QUICK]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("lcrbnn: ")
    assert output.err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_resume_announces_a_new_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--run-folder", str(tmp_path / "new"), "--resume", *QUICK]) == 0
    assert capsys.readouterr().err.startswith(f"no run in {tmp_path / 'new'} yet: starting it\nepoch 1/1  ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--lcr", "default", "--lcr-weight", "2"],
            "--lcr default sets lcr_gradient_ratio 0.03: give --lcr-gradient-ratio, or --lcr-gradient-ratio 0 and "
            "--lcr-weight",
        ),
        (
            ["--lcr", "paper", "--lcr-gradient-ratio", "2"],
            "--lcr paper sets lcr_weight 4: give --lcr-weight, or --lcr-weight 0 and --lcr-gradient-ratio",
        ),
        (
            ["mine.toml", "--lcr-gradient-ratio", "2"],
            "the recipe mine.toml sets lcr_weight 3: give --lcr-weight, or --lcr-weight 0 and --lcr-gradient-ratio",
        ),
        (
            ["--lcr-gradient-ratio", "2", "--lcr-weight", "1"],
            "give lcr_weight (a fixed λ) or lcr_gradient_ratio (which chooses λ), not both",
        ),
    ],
)
def test_lcr_weight_and_gradient_ratio_exclude_each_other(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("lcr_weight = 3\n")
    assert main(["train", *words, "--run-folder", "run", *QUICK]) == 2
    assert capsys.readouterr().err == f"lcrbnn: {sentence}\n"
    assert not (tmp_path / "run").exists()


def test_an_explicit_lcr_weight_replaces_the_recommended_one(tmp_path: Path) -> None:
    for name, words in (
        ("a", ["--lcr-weight", "2", "--lcr-gradient-ratio", "0"]),
        ("b", ["--lcr-gradient-ratio", "0.1"]),
    ):
        assert main(["train", "--lcr", "default", "--run-folder", str(tmp_path / name), *QUICK, *words]) == 0
    specs = [json.loads((tmp_path / name / "spec.json").read_text()) for name in "ab"]
    assert [(spec["lcr_weight"], spec["lcr_gradient_ratio"]) for spec in specs] == [(2.0, 0.0), (0.0, 0.1)]


# -- other commands --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", ["runs", "runs/seed-0", "runs/seed-0/record.json", "./runs", "kept/../runs"])
def test_a_run_is_plotted_once(
    second: str, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(straight, tmp_path / "runs" / "seed-0")
    (tmp_path / "kept").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["plot", "runs", second, "-o", "a.svg"]) == 2
    error_text = capsys.readouterr().err
    assert error_text.startswith("lcrbnn: ")
    assert error_text.endswith(" is given twice; give each run or record once\n")
    assert not (tmp_path / "a.svg").exists()
    assert main(["plot", "runs", "-o", "a.svg"]) == 0


def test_missing_image_files_are_reported_with_the_data_folder_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = write_zip(make_image_files(train=20, val=4, size=(24, 20)), tmp_path / "images.zip")
    words = [
        "--dataset",
        "folder",
        "--image-size",
        "16",
        "--epochs",
        "1",
        "--batch-size",
        "12",
        "--workers",
        "0",
        "--device",
        "cpu",
    ]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LCRBNN_DATA", raising=False)
    assert main(["train", "--run-folder", "run", "--data-folder", str(images), *words]) == 0
    for folder in ("none", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        for extra_words in ([], ["--test"]):
            capsys.readouterr()
            assert main(["eval", "run", "--data-folder", folder, "--device", "cpu", *extra_words]) == 2
            error_text = capsys.readouterr().err
            assert error_text.startswith(f"lcrbnn: {folder} ")
            assert error_text.endswith(
                "; give the same --data-folder as in training, because a run does not store it\n"
            )


def test_full_precision_is_called_real_in_python() -> None:
    twins = create_model("resnet8-double", "real"), create_model("resnet8-double")
    assert repr(twins[0]) == repr(twins[1])
    with pytest.raises(ValueError, match="bits and options require a method; got bits"):
        create_model("resnet8-double", "real", bits="1/1")


# -- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_needs_no_settings(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(
        'recipe = "digits"\nseeds = [0]\nbaseline = "a"\n[variants.a]\nlcr_weight = 1\n'
    )
    assert read_plan(tmp_path / "small.toml").variants["a"].lcr_weight == 1
