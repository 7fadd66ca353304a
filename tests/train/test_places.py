"""Folders of runs that are not what they should be, and what is said about them before any work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lcrbnn.cli import main
from lcrbnn.models import network
from lcrbnn.runs.record import DIGEST
from lcrbnn.study.plan import read_plan
from tests.data.trees import as_zip, generated
from tests.train.helpers import SMALL, assert_same

QUICK = ["--epochs", "1", "--batch", "300", "--device", "cpu"]


def resumed(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["train", "--run", str(path), "--resume", "--device", "cpu"])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


# -- a finished run whose files were damaged -------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [20, 1, 10**6])
def test_a_finished_run_whose_log_is_torn_is_refused(
    cut: int, straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(straight, tmp_path / "run"))
    content = (run / "log.jsonl").read_bytes()
    (run / "log.jsonl").write_bytes(content[: max(0, len(content) - cut)])
    code, out, err = resumed(run, capsys)
    ends = 1 if cut < 10**6 else 0
    assert (code, out) == (2, "")
    assert err == (
        f"lcrbnn: {run / 'log.jsonl'} ends after epoch {ends} and {run / 'record.json'} is of a run of 2 epochs: "
        "put the log back\n"
    )


@pytest.mark.parametrize("text", ["{}", "[]", "", "half", '{"schema": 1, "settings": {}, "figures": {}}', "other"])
def test_a_finished_run_whose_record_is_damaged_is_refused_and_its_end_can_be_made_again(
    text: str, straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(straight, tmp_path / "run"))
    whole = (run / "record.json").read_text()
    others = json.loads(whole) | {"settings": SMALL.but(seed=5).stored()}
    other = json.dumps({name: value for name, value in others.items() if name != DIGEST})
    (run / "record.json").write_text({"half": whole[: len(whole) // 2], "other": other}.get(text, text))
    code, out, err = resumed(run, capsys)
    assert (code, out) == (2, "")
    assert err.startswith(f"lcrbnn: {run / 'record.json'} is no record")
    assert err.endswith("; without it, --resume makes the end of the run again\n")
    assert err.count("\n") == 1
    (run / "record.json").unlink()
    code, out, err = resumed(run, capsys)
    assert code == 0
    assert out.startswith(f"{run}: epoch 2, ")
    assert_same(run, straight)


def test_a_study_does_not_take_a_damaged_record_for_a_finished_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "small.toml"
    path.write_text('recipe = "digits"\nseeds = [0]\ncontrol = "a"\n[settings]\nepochs = 1\nbatch = 300\n[arms.a]\n')
    words = ["study", str(path), "--run", str(tmp_path / "runs"), "--records", str(tmp_path / "kept")]
    assert main([*words, "--device", "cpu"]) == 0
    shutil.rmtree(tmp_path / "kept")
    (tmp_path / "runs/a/seed-0/record.json").write_text("{}")
    capsys.readouterr()
    assert main([*words, "--device", "cpu"]) == 2
    assert "a/seed-0/record.json is no record" in capsys.readouterr().err
    assert not (tmp_path / "kept").exists()


# -- one run, or one of each seed ------------------------------------------------------------------------------------


def test_seeds_do_not_lie_beside_a_run_nor_a_run_beside_seeds(
    straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Path(shutil.copytree(straight, tmp_path / "one"))
    before = sorted(one.rglob("*"))
    for more in ([], ["--resume"]):
        assert main(["train", "digits", "--run", str(one), "--seeds", "0-1", *QUICK, *more]) == 2
        said = f"lcrbnn: {one} holds one run, and --seeds makes a folder for each: choose another folder\n"
        assert capsys.readouterr().err == said
    assert sorted(one.rglob("*")) == before
    shutil.copytree(straight, tmp_path / "several" / "seed-0")
    for more in ([], ["--resume"]):
        assert main(["train", "digits", "--run", str(tmp_path / "several"), *QUICK, *more]) == 2
        said = f"lcrbnn: {tmp_path / 'several'} holds seed-0: say which with --seeds, or choose another folder\n"
        assert capsys.readouterr().err == said
    assert sorted(p.name for p in (tmp_path / "several").iterdir()) == ["seed-0"]


# -- what is said before what ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [["--method", "x"], ["--model", "x"], ["--data", "cifar10"], ["--lcr", "x"]])
@pytest.mark.parametrize("more", [["--resume"], ["--resume", "--seeds", "0-1"], ["--seeds", "0-1"]], ids=str)
def test_a_run_that_is_refused_is_not_said_to_start(
    wrong: list[str], more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = ["--run", str(tmp_path / "new"), "--data-folder", str(tmp_path)]
    assert main(["train", *folders, *wrong, *more, *QUICK]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("lcrbnn: ")
    assert shown.err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_run_that_is_new_to_resume_is_said_to_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--run", str(tmp_path / "new"), "--resume", *QUICK]) == 0
    assert capsys.readouterr().err.startswith(f"no run in {tmp_path / 'new'} yet: starting it\nepoch 1/1  ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--lcr", "default", "--weight", "2"],
            "--lcr default sets share 0.03: say --share, or --share 0 and --weight",
        ),
        (["--lcr", "paper", "--share", "2"], "--lcr paper sets weight 4: say --weight, or --weight 0 and --share"),
        (["mine.toml", "--share", "2"], "the recipe mine.toml sets weight 3: say --weight, or --weight 0 and --share"),
        (["--share", "2", "--weight", "1"], "say weight, a fixed lambda, or share, which sets lambda; not both"),
    ],
)
def test_a_strength_that_another_word_has_set_already(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("weight = 3\n")
    assert main(["train", *words, "--run", "run", *QUICK]) == 2
    assert capsys.readouterr().err == f"lcrbnn: {sentence}\n"
    assert not (tmp_path / "run").exists()


def test_a_strength_of_ones_own_in_place_of_that_of_the_form(tmp_path: Path) -> None:
    for name, words in (("a", ["--weight", "2", "--share", "0"]), ("b", ["--share", "0.1"])):
        assert main(["train", "--lcr", "default", "--run", str(tmp_path / name), *QUICK, *words]) == 0
    specs = [json.loads((tmp_path / name / "spec.json").read_text()) for name in "ab"]
    assert [(spec["weight"], spec["share"]) for spec in specs] == [(2.0, 0.0), (0.0, 0.1)]


# -- other commands --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", ["runs", "runs/seed-0", "runs/seed-0/record.json", "./runs", "kept/../runs"])
def test_a_run_is_plotted_once(
    second: str, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(straight, tmp_path / "runs" / "seed-0")
    (tmp_path / "kept").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["plot", "runs", second, "-o", "a.svg"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("lcrbnn: ")
    assert said.endswith(" is given twice: name each run or record once\n")
    assert not (tmp_path / "a.svg").exists()
    assert main(["plot", "runs", "-o", "a.svg"]) == 0


def test_a_run_of_pictures_names_the_option_that_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = as_zip(generated(train=20, val=4, size=(24, 20)), tmp_path / "images.zip")
    words = ["--data", "folder", "--side", "16", "--epochs", "1", "--batch", "12", "--workers", "0", "--device", "cpu"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LCRBNN_DATA", raising=False)
    assert main(["train", "--run", "run", "--data-folder", str(images), *words]) == 0
    for folder in ("none", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        for more in ([], ["--final"]):
            capsys.readouterr()
            assert main(["eval", "run", "--data-folder", folder, "--device", "cpu", *more]) == 2
            said = capsys.readouterr().err
            assert said.startswith(f"lcrbnn: {folder} ")
            assert said.endswith("; say --data-folder as in training: a run does not keep where its images lie\n")


def test_full_precision_is_called_real_in_python_too() -> None:
    twins = network("resnet8-double", "real"), network("resnet8-double")
    assert repr(twins[0]) == repr(twins[1])
    with pytest.raises(ValueError, match="without a method there are no bits or options; got bits"):
        network("resnet8-double", "real", bits="1/1")


# -- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_needs_no_settings(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text('recipe = "digits"\nseeds = [0]\ncontrol = "a"\n[arms.a]\nweight = 1\n')
    assert read_plan(tmp_path / "small.toml").arms["a"].weight == 1
