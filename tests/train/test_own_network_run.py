"""A user's network and pictures on the command line: training, evaluation, export, resuming, changed files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from lcrbnn.cli.main import main
from lcrbnn.deploy.engine.bnn_file import read_model
from lcrbnn.runs.record import read_record
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.load import load_network, read_spec
from lcrbnn.train.setup.options import RunOptions
from tests.data.image_folders import write_zip
from tests.train.helpers import Crash, crash_after, read_newest_arrays, train_small_run
from tests.train.own_networks import NETWORK, make_pictures, write_network, write_pictures

LEARNING = ["--image-size", "16", "--epochs", "2", "--batch-size", "12", "--lcr", "default", "--device", "cpu"]
MODEL = ["--model", "my_net.py:make_model"]
QUIET = ["--workers", "0", "--checkpoint-interval", "0"]


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with my_net.py, pics/ and the finished run `run`."""
    folder = tmp_path_factory.mktemp("own")
    write_network(folder)
    write_pictures(folder / "pics")
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "--data", "pics/", *MODEL, *LEARNING, *QUIET, "--run-folder", "run"]) == 0
    return folder


@pytest.fixture
def work_folder(trained_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the trained folder, as the current folder."""
    shutil.copytree(trained_folder, tmp_path / "own")
    monkeypatch.chdir(tmp_path / "own")
    return tmp_path / "own"


def run(*words: str) -> int:
    return main([*words])


def test_the_run_stores_file_digest_blocks_and_split(work_folder: Path) -> None:
    folder = RunFolder(Path("run"))
    spec, record = read_spec(folder), read_record(folder.record_file)
    assert folder.network_file.read_text() == NETWORK
    assert spec.model == "my_net.py:make_model"
    assert record["settings"]["model_sha256"] == spec.model_sha256 != ""
    assert record["figures"]["lcr_modules"] == {"blocks": ["3", "4"]}
    assert record["figures"]["num_images"] == {"train": 72, "valid": 9}
    assert len(record["figures"]["last_epoch"]["sigma_ratios"]) == 2
    split = json.loads(folder.split_file.read_text())
    assert [len(split[part]) for part in ("train", "valid", "test")] == [72, 9, 9]
    assert sorted(split["train"] + split["valid"] + split["test"]) == sorted(make_pictures())


def test_eval_export_and_predict_work(work_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_zip(make_pictures(), Path("pics.zip"))
    assert run("eval", "run", "--data-folder", "pics", "--workers", "0") == 0
    assert "9 validation images" in capsys.readouterr().out
    assert run("eval", "run", "--test", "--data-folder", "pics.zip", "--workers", "0") == 0
    assert "9 test images (evaluation 1)" in capsys.readouterr().out
    Path("my_net.py").unlink()  # the copy in the run is enough
    assert run("export", "run", "-o", "model.bnn") == 0
    assert read_model(Path("model.bnn")).classes == ("ant", "bee", "cat")
    assert run("predict", "model.bnn", "pics/cat/000.png") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("pics/cat/000.png  ")


@pytest.mark.parametrize(
    "words",
    [
        ["analyze", "run", "--data-folder", "pics", "--num-images", "8", "-o", "records"],
        ["layers", "run", "--data-folder", "pics", "--num-images", "8", "-o", "figures"],
        ["cost", "run"],
        ["report", "run", "-o", "report.html"],
        ["plot", "run", "-o", "curves.svg"],
    ],
    ids=lambda words: words[0],
)
def test_other_commands_accept_the_run(words: list[str], work_folder: Path) -> None:
    assert run(*words) == 0
    if words[0] == "analyze":
        assert run("report", "run", "--records", "records", "-o", "report.html") == 0


def test_a_changed_file_is_rejected_by_every_command(work_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_net.py").write_text(NETWORK + "\n")
    for words in (
        ["eval", "run", "--data-folder", "pics"],
        ["export", "run", "-o", "model.bnn"],
        ["analyze", "run", "--data-folder", "pics"],
        ["train", "--run-folder", "run", "--resume", "--data-folder", "pics"],
        ["train", "--run-folder", "run", "--resume", "--data", "pics", *MODEL, *LEARNING],
    ):
        assert run(*words) == 2
        error = capsys.readouterr().err
        assert "my_net.py was changed after the run in run was started" in error
        assert error.count("\n") == 1


def test_a_finished_run_is_resumed_without_training(work_folder: Path) -> None:
    before = read_newest_arrays(Path("run"))
    assert run("train", "--run-folder", "run", "--resume", "--data", "pics", *MODEL, *LEARNING) == 0
    assert run("train", "--run-folder", "run", "--resume", "--data-folder", "pics") == 0
    after = read_newest_arrays(Path("run"))
    assert [name for name in before if before[name].tobytes() != after[name].tobytes()] == []


def interrupt_run(path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> RunOptions:
    """Train a run with the settings of `run` that stops within the second epoch. Return its options."""
    options = RunOptions(device="cpu", checkpoint_interval_s=0.0, data_folder=data, workers=0)
    with monkeypatch.context() as patched:
        crash_after(patched, 8)  # of 12 steps
        with pytest.raises(Crash):
            train_small_run(path, read_spec(RunFolder(Path("run"))), options)
    return options


def test_an_interrupted_run_resumes_from_its_copy_to_the_same_bits(
    work_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = interrupt_run(Path("other"), Path("pics"), monkeypatch)
    Path("my_net.py").unlink()
    train_small_run(Path("other"), read_spec(RunFolder(Path("other"))), options, resume=True)
    expected, arrays = read_newest_arrays(Path("run")), read_newest_arrays(Path("other"))
    assert [name for name in expected if expected[name].tobytes() != arrays[name].tobytes()] == []


def test_changed_pictures_are_rejected(
    work_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_run(Path("other"), Path("pics"), monkeypatch)
    Path("pics/ant/000.png").rename("pics/ant/new.png")
    for words in (
        ["eval", "run", "--data-folder", "pics", "--workers", "0"],
        ["eval", "run", "--test", "--data-folder", "pics", "--workers", "0"],
        ["train", "--run-folder", "other", "--resume", "--data-folder", "pics", "--workers", "0"],
    ):
        assert run(*words) == 2
        assert "(new: ant/new.png; missing: ant/000.png)" in capsys.readouterr().err


def test_the_stored_split_decides_and_not_the_current_rule(
    work_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lcrbnn.data.image_files.class_folders.divide_pictures", lambda names, seed: 1 / 0)
    assert run("eval", "run", "--data-folder", "pics", "--workers", "0") == 0
    assert "9 validation images" in capsys.readouterr().out


def test_several_seeds_and_chosen_blocks(work_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--lcr-blocks", "4,3.conv", "--split-seed", "3", "--seeds", "0-1", "--run-folder", "runs", "--epochs", "1"]
    assert run("train", "--data", "pics", *MODEL, *LEARNING, *QUIET, *words) == 2
    assert "blocks must have the order of the forward pass" in capsys.readouterr().err
    shutil.rmtree("runs", ignore_errors=True)
    words[1] = "3.conv,4"
    assert run("train", "--data", "pics", *MODEL, *LEARNING, *QUIET, *words) == 0
    folders = [RunFolder(Path(f"runs/seed-{seed}")) for seed in (0, 1)]
    assert {read_spec(folder).lcr_blocks for folder in folders} == {("3.conv", "4")}
    splits = [folder.read_split() for folder in folders]
    assert splits[0] == splits[1] != RunFolder(Path("run")).read_split()
    weights = [load_network(folder)[1].state_dict()["0.weight"] for folder in folders]
    assert not torch.equal(*weights)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "missing"], "--data missing does not exist, and no data set has this name"),
        (["--data", "pics", "--dataset", "digits"], "give --data or --dataset, not both"),
        (["--data", "pics", "--data-folder", "x"], "give --data PATH or --data-folder, not both"),
        (["--data", "pics", "--model", "my_net.py"], "names no function: write FILE.py:FUNCTION"),
        (["--data", "pics", "--model", "no.py:f"], "the network file no.py cannot be read"),
        (["--data", "pics", "--model", "my_net.py:f"], "my_net.py defines no function 'f'"),
        (["--data", "digits", "--split-seed", "1"], "split_seed is only for the data set 'folder'; got digits"),
        (["--data", "pics", *MODEL, "--lcr", "default", "--lcr-blocks", "x"], "no module of Sequential is called 'x'"),
        (["--data", "pics", *MODEL, "--model-sha256", "12"], "and the settings have model_sha256 12"),
    ],
)
def test_wrong_options_are_rejected_before_anything_is_written(
    words: list[str], message: str, work_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", *words, "--image-size", "16", "--run-folder", "new", "--workers", "0", "--device", "cpu") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not Path("new/spec.json").exists()


def test_the_name_of_a_data_set_is_accepted_as_data(work_folder: Path) -> None:
    words = ["--data", "digits", "--model", "my_net.py:make_digits_model", "--epochs", "1", "--batch-size", "300"]
    assert run("train", *words, "--device", "cpu", "--run-folder", "digits-run") == 0
    assert read_record(Path("digits-run/record.json"))["settings"]["dataset"] == "digits"
