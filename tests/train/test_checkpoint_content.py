"""A checkpoint whose checksums are right and whose content is wrong: every command refuses it in one sentence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lcrbnn.cli import main
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train.finished import WHOLE
from tests.train.helpers import SMALL, Crash, crash_after, log, small_run

CPU = ["--device", "cpu"]
COMMANDS = {
    "resume": ["train", "--run", "RUN", "--resume", *CPU],
    "eval": ["eval", "RUN", *CPU],
    "export": ["export", "RUN", "-o", "OUT.bnn"],
}
SPECS = {
    "sgd": SMALL.but(weight=1.0),
    "adam": SMALL.but(optimizer="adam", lr=0.01, form="default", share=0.03),
    "plain": SMALL.but(momentum=0.0),
}
STEP = 6  # the second step of the second epoch of 4 steps
Arrays = dict[str, np.ndarray]
Facts = dict[str, Any]
Change = Callable[[Arrays, Facts], Any]  # what it returns, if not None, takes the place of the facts


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that ended at step STEP as by a kill, by name of their spec."""
    torch.set_num_threads(1)
    runs = {}
    for name, spec in SPECS.items():
        runs[name] = tmp_path_factory.mktemp("runs") / name
        with pytest.MonkeyPatch.context() as patch:
            crash_after(patch, STEP + 1)
            with pytest.raises(Crash):
                small_run(runs[name], spec)
        newest = RunFolder(runs[name]).newest()
        assert newest is not None
        assert newest.stem == f"step-{STEP:09d}"
    return runs


def fact(name: str, value: Any) -> Change:
    return lambda arrays, facts: facts.update({name: value})


def without_any_memory(arrays: Arrays, facts: Facts) -> None:
    for name in [name for name in arrays if name.startswith("optimizer/")]:
        del arrays[name]
    facts["without_memory"] = [name for name in arrays if name.startswith("model/")]


def without_fact(name: str) -> Change:
    return lambda arrays, facts: facts.__delitem__(name)


def array(name: str, change: Callable[[np.ndarray], Any]) -> Change:
    """Change the first array whose name ends so; None removes it."""

    def apply(arrays: Arrays, facts: Facts) -> None:
        full = next(one for one in arrays if one.endswith(name))
        value = change(arrays.pop(full).copy())
        if value is not None:
            arrays[full] = np.asarray(value)

    return apply


def added(name: str, value: np.ndarray) -> Change:
    return lambda arrays, facts: arrays.update({name: value})


def set_to(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda a: np.full_like(a, value)


def drop_all(prefix: str) -> Change:
    def apply(arrays: Arrays, facts: Facts) -> None:
        for name in [one for one in arrays if one.startswith(prefix)]:
            del arrays[name]

    return apply


MOMENTUM, SQUARES, COUNT = "/momentum_buffer", "/exp_avg_sq", "weight/step"
CASES: dict[str, tuple[str, Change]] = {
    "no facts at all": ("sgd", lambda arrays, facts: facts.clear()),
    "facts that are a list": ("sgd", lambda arrays, facts: [1, 2]),
    "facts that are a text": ("sgd", lambda arrays, facts: "facts"),
    **{f"no {n}": ("sgd", without_fact(n)) for n in ("spec", "teacher", "made", "weight", "epoch", "step", "seconds")},
    "a spec that is a number": ("sgd", fact("spec", 3)),
    "the spec of another run": ("sgd", fact("spec", "0" * 16)),
    "a teacher that is a list": ("sgd", fact("teacher", [])),
    "made is a number": ("sgd", fact("made", 1.5)),
    "images are a number": ("sgd", fact("images", 7)),
    "a digest that is a number": ("sgd", fact(WHOLE, 7)),
    "a digest that is no digest": ("sgd", fact(WHOLE, "xyz")),
    "no memory of any parameter": ("sgd", without_any_memory),
    "no memory of a parameter that is not there": ("sgd", fact("without_memory", ["model/nobody"])),
    "seconds with 400 digits": ("sgd", fact("seconds", 10**400)),
    "an epoch that is true": ("sgd", fact("epoch", True)),
    "an epoch that is a text": ("sgd", fact("epoch", "1")),
    "an epoch that is a fraction": ("sgd", fact("epoch", 1.0)),
    "an epoch below 0": ("sgd", fact("epoch", -1)),
    "an epoch after the last": ("sgd", fact("epoch", 3)),
    "an earlier epoch": ("sgd", fact("epoch", 0)),
    "a step that is a text": ("sgd", fact("step", "two")),
    "a step of null": ("sgd", fact("step", None)),
    "a step below 0": ("sgd", fact("step", -2)),
    "step 10^9": ("sgd", fact("step", 10**9)),
    "step 10^400": ("sgd", fact("step", 10**400)),
    "another step": ("sgd", fact("step", 5)),
    "seconds of NaN": ("sgd", fact("seconds", float("nan"))),
    "seconds that are a text": ("sgd", fact("seconds", "long")),
    "seconds below 0": ("sgd", fact("seconds", -5.0)),
    "lambda is NaN": ("sgd", fact("weight", float("nan"))),
    "lambda is infinite": ("adam", fact("weight", float("inf"))),
    "lambda is a text": ("sgd", fact("weight", "1.0")),
    "lambda is null": ("adam", fact("weight", None)),
    "lambda below 0": ("adam", fact("weight", -1.0)),
    "another lambda than the spec": ("sgd", fact("weight", 50.0)),
    "names without memory that are a text": ("sgd", fact("without_memory", "model/stem.weight")),
    "no arrays": ("sgd", drop_all("")),
    "no network": ("sgd", drop_all("model/")),
    "a weight that is NaN": ("sgd", array("weight", set_to(np.nan))),
    "a weight of another shape": ("sgd", array("weight", lambda a: a[..., :1])),
    "a weight in float64": ("sgd", array("weight", lambda a: a.astype(np.float64))),
    "a negative variance": ("sgd", array("running_var", set_to(-1.0))),
    "an array of nothing": ("sgd", added("elsewhere/a", np.zeros(3, np.float32))),
    "no sums": ("sgd", array("sums", lambda a: None)),
    "sums of another length": ("sgd", array("sums", lambda a: a[:3])),
    "sums in float32": ("sgd", array("sums", lambda a: a.astype(np.float32))),
    "sums that are NaN": ("sgd", array("sums", set_to(np.nan))),
    "sums of no images": ("sgd", array("sums", set_to(0.0))),
    "more correct answers than images": ("sgd", array("sums", lambda a: a * [1, 1, 1000, 1])),
    "correct answers below 0": ("sgd", array("sums", lambda a: a * [1, 1, -1, 1])),
    "no memory of the optimiser": ("sgd", drop_all("optimizer/")),
    "one array of memory is missing": ("sgd", array(MOMENTUM, lambda a: None)),
    "memory of another shape": ("sgd", array(MOMENTUM, lambda a: a.reshape(-1)[:1])),
    "memory that would broadcast": ("sgd", array(MOMENTUM, lambda a: a[:1])),
    "memory in float64": ("sgd", array(MOMENTUM, lambda a: a.astype(np.float64))),
    "memory that is infinite": ("sgd", array(MOMENTUM, set_to(np.inf))),
    "memory of an unknown parameter": ("sgd", added("optimizer/model/none/momentum_buffer", np.zeros(3, np.float32))),
    "memory of an unknown kind": ("sgd", added("optimizer/model/stem.weight/exp_avg", np.zeros(3, np.float32))),
    "memory of another optimiser": ("plain", added("optimizer/model/stem.weight/momentum_buffer", np.zeros(3))),
    "no mean of squares": ("adam", array(SQUARES, lambda a: None)),
    "a mean of squares below 0": ("adam", array(SQUARES, set_to(-1.0))),
    "no count of steps": ("adam", array(COUNT, lambda a: None)),
    "a count of steps that is a list": ("adam", array(COUNT, lambda a: a.reshape(1))),
    "a count of steps of 10^9": ("adam", array(COUNT, set_to(1e9))),
    "a count of steps below 0": ("adam", array(COUNT, set_to(-3.0))),
    "half a step": ("adam", array(COUNT, set_to(2.5))),
    "steps that are whole numbers": ("adam", array(COUNT, lambda a: a.astype(np.int64))),
}


def spoil(path: Path, change: Change) -> None:
    """Write the checkpoint again with other content; its checksums are right."""
    arrays, facts = read_checkpoint(path)
    facts = change(arrays, facts) or facts
    write_checkpoint(path, Checkpoint(arrays, facts))


def copy_run(run: Path, tmp_path: Path) -> tuple[RunFolder, Path]:
    shutil.copytree(run, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    newest = folder.newest()
    assert newest is not None
    return folder, newest


def call(name: str, folder: RunFolder) -> int:
    filled = {"RUN": str(folder.path), "OUT.bnn": str(folder.path.parent / "out.bnn")}
    return main([filled.get(word, word) for word in COMMANDS[name]])


@pytest.mark.parametrize("name", CASES)
def test_every_command_refuses_wrong_content(
    name: str, interrupted: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    which, change = CASES[name]
    folder, newest = copy_run(interrupted[which], tmp_path)
    for older in folder.listed()[:-1]:
        older.unlink()
    spoil(newest, change)
    before = newest.read_bytes(), folder.log.read_bytes()
    for command in COMMANDS:
        capsys.readouterr()
        assert call(command, folder) == 2, command
        said = capsys.readouterr().err.strip()
        assert str(newest) in said
        assert len(said) < 500
        assert "\n" not in said
        assert (newest.read_bytes(), folder.log.read_bytes()) == before
    assert not (tmp_path / "out.bnn").exists()


@pytest.mark.parametrize("name", SPECS)
def test_good_content_is_read(name: str, interrupted: dict[str, Path], tmp_path: Path) -> None:
    folder, newest = copy_run(interrupted[name], tmp_path)
    spoil(newest, lambda arrays, facts: None)
    assert [call(command, folder) for command in ("eval", "export", "resume")] == [0, 0, 0]
    assert len(log(folder.path)) == SMALL.epochs


@pytest.mark.parametrize("name", ["an epoch that is a text", "one array of memory is missing", "no sums"])
def test_a_run_goes_on_from_the_checkpoint_before_a_wrong_one(
    name: str, interrupted: dict[str, Path], tmp_path: Path
) -> None:
    which, change = CASES[name]
    folder, newest = copy_run(interrupted[which], tmp_path)
    spoil(newest, change)
    assert call("resume", folder) == 0
    assert newest.with_name(newest.name + ".damaged").exists()
    small_run(tmp_path / "straight", SPECS[which])
    assert log(folder.path) == log(tmp_path / "straight")


def test_no_run_goes_on_from_a_slim_copy(
    interrupted: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, newest = copy_run(interrupted["sgd"], tmp_path)
    for older in folder.listed()[:-1]:
        older.unlink()
    spoil(newest, drop_all("optimizer/"))
    spoil(newest, array("sums", lambda a: None))
    spoil(newest, fact(WHOLE, "0" * 64))
    assert call("resume", folder) == 2
    assert "slim copy" in capsys.readouterr().err
