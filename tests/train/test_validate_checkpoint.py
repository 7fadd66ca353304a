"""Every command rejects a checkpoint with valid checksums and invalid content in one sentence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lcrbnn.cli.main import main
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.validate_checkpoint import SOURCE_DIGEST
from tests.train.helpers import SMALL, Crash, crash_after, read_log_without_times, train_small_run

CPU = ["--device", "cpu"]
COMMANDS = {
    "resume": ["train", "--run-folder", "RUN", "--resume", *CPU],
    "eval": ["eval", "RUN", *CPU],
    "export": ["export", "RUN", "-o", "OUT.bnn"],
}
SPECS = {
    "sgd": SMALL.replace(lcr_weight=1.0),
    "adam": SMALL.replace(optimizer="adam", lr=0.01, lcr_variant="default", lcr_gradient_ratio=0.03),
    "plain": SMALL.replace(momentum=0.0),
}
STEP = 6  # the second step of the second epoch of 4 steps
Arrays = dict[str, np.ndarray]
Facts = dict[str, Any]
Change = Callable[[Arrays, Facts], Any]  # its result, if not None, replaces the metadata


@pytest.fixture(scope="module")
def interrupted_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return runs that crashed at step STEP, by name of their spec."""
    torch.set_num_threads(1)
    runs = {}
    for name, spec in SPECS.items():
        runs[name] = tmp_path_factory.mktemp("runs") / name
        with pytest.MonkeyPatch.context() as patch:
            crash_after(patch, STEP + 1)
            with pytest.raises(Crash):
                train_small_run(runs[name], spec)
        newest = RunFolder(runs[name]).find_newest_checkpoint()
        assert newest is not None
        assert newest.stem == f"step-{STEP:09d}"
    return runs


def set_metadata(name: str, value: Any) -> Change:
    return lambda arrays, facts: facts.update({name: value})


def drop_all_optimizer_state(arrays: Arrays, facts: Facts) -> None:
    for name in [name for name in arrays if name.startswith("optimizer/")]:
        del arrays[name]
    facts["without_memory"] = [name for name in arrays if name.startswith("model/")]


def drop_metadata(name: str) -> Change:
    return lambda arrays, facts: facts.__delitem__(name)


def change_array(name: str, change: Callable[[np.ndarray], Any]) -> Change:
    """Return a change of the first array with this end of its name; None removes the array."""

    def apply(arrays: Arrays, facts: Facts) -> None:
        full = next(n for n in arrays if n.endswith(name))
        value = change(arrays.pop(full).copy())
        if value is not None:
            arrays[full] = np.asarray(value)

    return apply


def add_array(name: str, value: np.ndarray) -> Change:
    return lambda arrays, facts: arrays.update({name: value})


def set_to(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda a: np.full_like(a, value)


def drop_all(prefix: str) -> Change:
    def apply(arrays: Arrays, facts: Facts) -> None:
        for name in [n for n in arrays if n.startswith(prefix)]:
            del arrays[name]

    return apply


MOMENTUM, SQUARES, COUNT = "/momentum_buffer", "/exp_avg_sq", "weight/step"
CASES: dict[str, tuple[str, Change]] = {
    "no facts at all": ("sgd", lambda arrays, facts: facts.clear()),
    "facts that are a list": ("sgd", lambda arrays, facts: [1, 2]),
    "facts that are a text": ("sgd", lambda arrays, facts: "facts"),
    **{f"no {n}": ("sgd", drop_metadata(n)) for n in ("spec", "teacher", "made", "weight", "epoch", "step", "seconds")},
    "a spec that is a number": ("sgd", set_metadata("spec", 3)),
    "the spec of another run": ("sgd", set_metadata("spec", "0" * 16)),
    "a teacher that is a list": ("sgd", set_metadata("teacher", [])),
    "made is a number": ("sgd", set_metadata("made", 1.5)),
    "images are a number": ("sgd", set_metadata("images", 7)),
    "a digest that is a number": ("sgd", set_metadata(SOURCE_DIGEST, 7)),
    "a digest that is no digest": ("sgd", set_metadata(SOURCE_DIGEST, "xyz")),
    "no memory of any parameter": ("sgd", drop_all_optimizer_state),
    "no memory of a parameter that is not there": ("sgd", set_metadata("without_memory", ["model/nobody"])),
    "seconds with 400 digits": ("sgd", set_metadata("seconds", 10**400)),
    "an epoch that is true": ("sgd", set_metadata("epoch", True)),
    "an epoch that is a text": ("sgd", set_metadata("epoch", "1")),
    "an epoch that is a fraction": ("sgd", set_metadata("epoch", 1.0)),
    "an epoch below 0": ("sgd", set_metadata("epoch", -1)),
    "an epoch after the last": ("sgd", set_metadata("epoch", 3)),
    "an earlier epoch": ("sgd", set_metadata("epoch", 0)),
    "a step that is a text": ("sgd", set_metadata("step", "two")),
    "a step of null": ("sgd", set_metadata("step", None)),
    "a step below 0": ("sgd", set_metadata("step", -2)),
    "step 10^9": ("sgd", set_metadata("step", 10**9)),
    "step 10^400": ("sgd", set_metadata("step", 10**400)),
    "another step": ("sgd", set_metadata("step", 5)),
    "seconds of NaN": ("sgd", set_metadata("seconds", float("nan"))),
    "seconds that are a text": ("sgd", set_metadata("seconds", "long")),
    "seconds below 0": ("sgd", set_metadata("seconds", -5.0)),
    "lambda is NaN": ("sgd", set_metadata("weight", float("nan"))),
    "lambda is infinite": ("adam", set_metadata("weight", float("inf"))),
    "lambda is a text": ("sgd", set_metadata("weight", "1.0")),
    "lambda is null": ("adam", set_metadata("weight", None)),
    "lambda below 0": ("adam", set_metadata("weight", -1.0)),
    "another lambda than the spec": ("sgd", set_metadata("weight", 50.0)),
    "names without memory that are a text": ("sgd", set_metadata("without_memory", "model/stem.weight")),
    "no arrays": ("sgd", drop_all("")),
    "no network": ("sgd", drop_all("model/")),
    "a weight that is NaN": ("sgd", change_array("weight", set_to(np.nan))),
    "a weight of another shape": ("sgd", change_array("weight", lambda a: a[..., :1])),
    "a weight in float64": ("sgd", change_array("weight", lambda a: a.astype(np.float64))),
    "a negative variance": ("sgd", change_array("running_var", set_to(-1.0))),
    "an array of nothing": ("sgd", add_array("elsewhere/a", np.zeros(3, np.float32))),
    "no sums": ("sgd", change_array("sums", lambda a: None)),
    "sums of another length": ("sgd", change_array("sums", lambda a: a[:3])),
    "sums in float32": ("sgd", change_array("sums", lambda a: a.astype(np.float32))),
    "sums that are NaN": ("sgd", change_array("sums", set_to(np.nan))),
    "sums of no images": ("sgd", change_array("sums", set_to(0.0))),
    "more correct answers than images": ("sgd", change_array("sums", lambda a: a * [1, 1, 1000, 1])),
    "correct answers below 0": ("sgd", change_array("sums", lambda a: a * [1, 1, -1, 1])),
    "no memory of the optimiser": ("sgd", drop_all("optimizer/")),
    "one array of memory is missing": ("sgd", change_array(MOMENTUM, lambda a: None)),
    "memory of another shape": ("sgd", change_array(MOMENTUM, lambda a: a.reshape(-1)[:1])),
    "memory that would broadcast": ("sgd", change_array(MOMENTUM, lambda a: a[:1])),
    "memory in float64": ("sgd", change_array(MOMENTUM, lambda a: a.astype(np.float64))),
    "memory that is infinite": ("sgd", change_array(MOMENTUM, set_to(np.inf))),
    "memory of an unknown parameter": (
        "sgd",
        add_array("optimizer/model/none/momentum_buffer", np.zeros(3, np.float32)),
    ),
    "memory of an unknown kind": ("sgd", add_array("optimizer/model/stem.weight/exp_avg", np.zeros(3, np.float32))),
    "memory of another optimiser": ("plain", add_array("optimizer/model/stem.weight/momentum_buffer", np.zeros(3))),
    "no mean of squares": ("adam", change_array(SQUARES, lambda a: None)),
    "a mean of squares below 0": ("adam", change_array(SQUARES, set_to(-1.0))),
    "no count of steps": ("adam", change_array(COUNT, lambda a: None)),
    "a count of steps that is a list": ("adam", change_array(COUNT, lambda a: a.reshape(1))),
    "a count of steps of 10^9": ("adam", change_array(COUNT, set_to(1e9))),
    "a count of steps below 0": ("adam", change_array(COUNT, set_to(-3.0))),
    "half a step": ("adam", change_array(COUNT, set_to(2.5))),
    "steps that are whole numbers": ("adam", change_array(COUNT, lambda a: a.astype(np.int64))),
}


def write_damaged_checkpoint(path: Path, change: Change) -> None:
    """Write the checkpoint again with other content and valid checksums."""
    arrays, facts = read_checkpoint(path)
    facts = change(arrays, facts) or facts
    write_checkpoint(path, Checkpoint(arrays, facts))


def copy_run(run: Path, tmp_path: Path) -> tuple[RunFolder, Path]:
    shutil.copytree(run, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    newest = folder.find_newest_checkpoint()
    assert newest is not None
    return folder, newest


def run_command(name: str, folder: RunFolder) -> int:
    filled = {"RUN": str(folder.path), "OUT.bnn": str(folder.path.parent / "out.bnn")}
    return main([filled.get(word, word) for word in COMMANDS[name]])


@pytest.mark.parametrize("name", CASES)
def test_every_command_rejects_invalid_content(
    name: str, interrupted_runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_name, change = CASES[name]
    folder, newest = copy_run(interrupted_runs[run_name], tmp_path)
    for older in folder.list_checkpoints()[:-1]:
        older.unlink()
    write_damaged_checkpoint(newest, change)
    before = newest.read_bytes(), folder.log_file.read_bytes()
    for command in COMMANDS:
        capsys.readouterr()
        assert run_command(command, folder) == 2, command
        error_text = capsys.readouterr().err.strip()
        assert str(newest) in error_text
        assert len(error_text) < 500
        assert "\n" not in error_text
        assert (newest.read_bytes(), folder.log_file.read_bytes()) == before
    assert not (tmp_path / "out.bnn").exists()


@pytest.mark.parametrize("name", SPECS)
def test_valid_content_is_accepted(name: str, interrupted_runs: dict[str, Path], tmp_path: Path) -> None:
    folder, newest = copy_run(interrupted_runs[name], tmp_path)
    write_damaged_checkpoint(newest, lambda arrays, facts: None)
    assert [run_command(command, folder) for command in ("eval", "export", "resume")] == [0, 0, 0]
    assert len(read_log_without_times(folder.path)) == SMALL.epochs


@pytest.mark.parametrize("name", ["an epoch that is a text", "one array of memory is missing", "no sums"])
def test_a_run_resumes_from_the_checkpoint_before_an_invalid_one(
    name: str, interrupted_runs: dict[str, Path], tmp_path: Path
) -> None:
    run_name, change = CASES[name]
    folder, newest = copy_run(interrupted_runs[run_name], tmp_path)
    write_damaged_checkpoint(newest, change)
    assert run_command("resume", folder) == 0
    assert newest.with_name(newest.name + ".damaged").exists()
    train_small_run(tmp_path / "straight", SPECS[run_name])
    assert read_log_without_times(folder.path) == read_log_without_times(tmp_path / "straight")


def test_no_run_resumes_from_a_slim_copy(
    interrupted_runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, newest = copy_run(interrupted_runs["sgd"], tmp_path)
    for older in folder.list_checkpoints()[:-1]:
        older.unlink()
    write_damaged_checkpoint(newest, drop_all("optimizer/"))
    write_damaged_checkpoint(newest, change_array("sums", lambda a: None))
    write_damaged_checkpoint(newest, set_metadata(SOURCE_DIGEST, "0" * 64))
    assert run_command("resume", folder) == 2
    assert "slim copy" in capsys.readouterr().err
