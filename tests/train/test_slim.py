"""A run that was made smaller for a journey still teaches, starts others, and is read as what it is."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path

import pytest
import torch

from lcrbnn.errors import InputError
from lcrbnn.layers import binary_layers
from lcrbnn.runs.checkpoint import read_checkpoint
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train.build import build, load_network
from lcrbnn.train.options import Options
from lcrbnn.train.reading import evaluate
from lcrbnn.train.state import module_arrays
from tests.train.helpers import SMALL, Crash, assert_same, crash_after, small_run
from tools.slim import slim

CPU = torch.device("cpu")


def test_a_slim_run_starts_and_teaches_as_the_whole_one_does(tmp_path: Path) -> None:
    whole = small_run(tmp_path / "whole", SMALL.but(epochs=1))
    made = slim(whole, tmp_path / "slim")
    newest = RunFolder(whole).newest()
    assert newest is not None
    assert made.name == newest.name
    assert made.stat().st_size < 0.6 * newest.stat().st_size
    spec = SMALL.but(seed=4)
    both = [build(spec.but(start=str(run), teacher=str(run), distill=0.5), CPU) for run in (whole, tmp_path / "slim")]
    for one, other in ((both[0].model, both[1].model), (both[0].teacher, both[1].teacher)):
        assert one is not None
        assert other is not None
        mine, theirs = module_arrays(one, "m"), module_arrays(other, "m")
        assert [n for n in mine if mine[n].tobytes() != theirs[n].tobytes()] == []
    options = Options(device="cpu")
    assert evaluate(tmp_path / "slim", options).accuracy == evaluate(whole, options).accuracy
    both_read = [evaluate(run, options, final=True) for run in (tmp_path / "slim", whole)]
    assert both_read[0].accuracy == both_read[1].accuracy
    with pytest.raises(InputError, match="is not empty"):
        slim(whole, tmp_path / "slim")
    RunFolder(whole).record.unlink()
    with pytest.raises(InputError, match="there is no finished run in"):
        slim(whole, tmp_path / "other")


def test_what_began_with_a_teacher_goes_on_with_its_slim_copy(tmp_path: Path) -> None:
    teacher = small_run(tmp_path / "teacher", SMALL.but(epochs=1))
    spec = SMALL.but(seed=4, teacher=str(teacher), distill=0.5)
    straight = small_run(tmp_path / "straight", spec)
    with pytest.MonkeyPatch.context() as patch:
        crash_after(patch, 5)
        with pytest.raises(Crash):
            small_run(tmp_path / "run", spec)
    slim(teacher, tmp_path / "slim")
    slim(tmp_path / "slim", tmp_path / "again")
    shutil.rmtree(teacher)
    (tmp_path / "again").rename(teacher)
    small_run(tmp_path / "run", spec, resume=True)
    assert_same(straight, tmp_path / "run")


@pytest.mark.parametrize("method", ["reactnet", "irnet", "recu"])
def test_the_signs_alone_answer_alike(method: str, tmp_path: Path) -> None:
    whole = small_run(tmp_path / "whole", SMALL.but(epochs=1, method=method))
    made = slim(whole, tmp_path / "signs", signs=True)
    arrays = read_checkpoint(made).arrays
    _, net, digest = load_network(RunFolder(tmp_path / "signs"))
    assert digest == load_network(RunFolder(whole))[2]
    for name, _ in binary_layers(net):
        assert len(set(abs(arrays[f"model/{name}.weight"][0]).ravel())) == 1
    options = Options(device="cpu")
    two = [evaluate(run, options, final=True).accuracy for run in (tmp_path / "signs", whole)]
    assert two[0] == two[1]
    newest = RunFolder(whole).newest()
    assert newest is not None
    packed = [len(zlib.compress(path.read_bytes())) for path in (made, newest)]
    assert packed[0] < packed[1] / 6


def test_signs_that_do_not_answer_alike_are_refused(tmp_path: Path) -> None:
    whole = small_run(tmp_path / "whole", SMALL.but(epochs=1, method="siman"))
    with pytest.raises(InputError, match="are not all that its answers depend on"):
        slim(whole, tmp_path / "signs", signs=True)
    assert not (tmp_path / "signs").exists()


@pytest.mark.parametrize("part", ["teacher", "start"])
def test_a_run_is_not_judged_by_images_that_its_teacher_or_start_learned(part: str, tmp_path: Path) -> None:
    other = str(small_run(tmp_path / "other", SMALL.but(epochs=1, images="all")))
    spec = SMALL.but(**({"teacher": other, "distill": 0.5} if part == "teacher" else {"start": other}))
    with pytest.raises(InputError, match="learned from all training images, and this run is judged by some of them"):
        build(spec, CPU)
    build(spec.but(images="all"), CPU)
