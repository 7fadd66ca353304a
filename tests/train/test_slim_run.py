"""A slim copy of a run can still be a teacher, initialize other runs, and be evaluated."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path

import pytest
import torch

from lcrbnn.errors import InputError
from lcrbnn.evaluation.evaluate import evaluate
from lcrbnn.nn.model_hooks import iter_binary_layers
from lcrbnn.runs.checkpoint import read_checkpoint
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.build import build_training_parts
from lcrbnn.train.setup.load import load_network
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.state import module_to_arrays
from tests.train.helpers import SMALL, Crash, assert_same_runs, crash_after, train_small_run
from tools.slim_run import slim_run

CPU = torch.device("cpu")


def test_a_slim_run_initializes_and_teaches_like_the_full_run(tmp_path: Path) -> None:
    full_run = train_small_run(tmp_path / "whole", SMALL.replace(epochs=1))
    slim_size = slim_run(full_run, tmp_path / "slim")
    newest = RunFolder(full_run).find_newest_checkpoint()
    assert newest is not None
    assert slim_size.name == newest.name
    assert slim_size.stat().st_size < 0.6 * newest.stat().st_size
    spec = SMALL.replace(seed=4)
    all_parts = [
        build_training_parts(spec.replace(init_from=str(run), teacher=str(run), distillation_alpha=0.5), CPU)
        for run in (full_run, tmp_path / "slim")
    ]
    for full_model, slim_model in (
        (all_parts[0].model, all_parts[1].model),
        (all_parts[0].teacher, all_parts[1].teacher),
    ):
        assert full_model is not None
        assert slim_model is not None
        first_arrays, second_arrays = module_to_arrays(full_model, "m"), module_to_arrays(slim_model, "m")
        assert [n for n in first_arrays if first_arrays[n].tobytes() != second_arrays[n].tobytes()] == []
    options = RunOptions(device="cpu")
    assert evaluate(tmp_path / "slim", options).accuracy == evaluate(full_run, options).accuracy
    both_read = [evaluate(run, options, use_test_split=True) for run in (tmp_path / "slim", full_run)]
    assert both_read[0].accuracy == both_read[1].accuracy
    with pytest.raises(InputError, match="is not empty"):
        slim_run(full_run, tmp_path / "slim")
    RunFolder(full_run).record_file.unlink()
    with pytest.raises(InputError, match="there is no finished run in"):
        slim_run(full_run, tmp_path / "other")


def test_a_run_resumes_with_a_slim_copy_of_its_teacher(tmp_path: Path) -> None:
    teacher = train_small_run(tmp_path / "teacher", SMALL.replace(epochs=1))
    spec = SMALL.replace(seed=4, teacher=str(teacher), distillation_alpha=0.5)
    straight = train_small_run(tmp_path / "straight", spec)
    with pytest.MonkeyPatch.context() as patch:
        crash_after(patch, 5)
        with pytest.raises(Crash):
            train_small_run(tmp_path / "run", spec)
    slim_run(teacher, tmp_path / "slim")
    slim_run(tmp_path / "slim", tmp_path / "again")
    shutil.rmtree(teacher)
    (tmp_path / "again").rename(teacher)
    train_small_run(tmp_path / "run", spec, resume=True)
    assert_same_runs(straight, tmp_path / "run")


@pytest.mark.parametrize("method", ["reactnet", "irnet", "recu"])
def test_a_slim_run_of_signs_predicts_the_same(method: str, tmp_path: Path) -> None:
    full_run = train_small_run(tmp_path / "whole", SMALL.replace(epochs=1, method=method))
    slim_size = slim_run(full_run, tmp_path / "signs", signs_only=True)
    arrays = read_checkpoint(slim_size).arrays
    _, net, digest = load_network(RunFolder(tmp_path / "signs"))
    assert digest == load_network(RunFolder(full_run))[2]
    for name, _ in iter_binary_layers(net):
        assert len(set(abs(arrays[f"model/{name}.weight"][0]).ravel())) == 1
    options = RunOptions(device="cpu")
    two = [evaluate(run, options, use_test_split=True).accuracy for run in (tmp_path / "signs", full_run)]
    assert two[0] == two[1]
    newest = RunFolder(full_run).find_newest_checkpoint()
    assert newest is not None
    packed = [len(zlib.compress(path.read_bytes())) for path in (slim_size, newest)]
    assert packed[0] < packed[1] / 6


def test_signs_with_other_predictions_are_rejected(tmp_path: Path) -> None:
    full_run = train_small_run(tmp_path / "whole", SMALL.replace(epochs=1, method="siman"))
    with pytest.raises(InputError, match="depend on more than the signs"):
        slim_run(full_run, tmp_path / "signs", signs_only=True)
    assert not (tmp_path / "signs").exists()


@pytest.mark.parametrize("part", ["teacher", "start"])
def test_a_run_rejects_a_teacher_or_start_trained_on_its_validation_images(part: str, tmp_path: Path) -> None:
    other_run = str(train_small_run(tmp_path / "other", SMALL.replace(epochs=1, train_split="train+valid")))
    spec = SMALL.replace(
        **({"teacher": other_run, "distillation_alpha": 0.5} if part == "teacher" else {"init_from": other_run})
    )
    with pytest.raises(
        InputError, match="was trained on all training images, which include the validation images of this run"
    ):
        build_training_parts(spec, CPU)
    build_training_parts(spec.replace(train_split="train+valid"), CPU)
