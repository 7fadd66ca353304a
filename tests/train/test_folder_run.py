"""From a zip of images to a record: trained, interrupted, resumed and read through the command line."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from lcrbnn.analyze.layers import first_images, look_at_run
from lcrbnn.cli import main
from lcrbnn.data.listing import Files
from lcrbnn.engine.format import read_model
from lcrbnn.errors import InputError
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.record import read_record
from lcrbnn.train import Spec
from lcrbnn.train.build import read_spec
from lcrbnn.train.dataset import data_row
from lcrbnn.train.options import Options
from lcrbnn.train.reading import evaluate
from lcrbnn.train.sources import open_splits, splits_of
from tests.data.trees import as_folder, as_tar, as_zip, generated
from tests.train.helpers import Crash, arrays, crash_after, environment, small_run
from tests.train.test_pool import alive, gone

SIDE = 16
TREE = generated(train=20, val=4, size=(24, 20))
SETTINGS = ["--data", "folder", "--side", str(SIDE), "--epochs", "2", "--batch", "12", "--lr", "0.1"]
SPEC = Spec(data="folder", side=SIDE, epochs=2, batch=12, lr=0.1)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_zip(TREE, tmp_path_factory.mktemp("images") / "images.zip")


def options(folder: Path, **more: Any) -> Options:
    return Options(**{"device": "cpu", "save_seconds": 0.0, "data_folder": folder, "workers": 0, **more})


def log(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's log, times aside."""
    return [{k: v for k, v in line.items() if k not in ("seconds", "wait")} for line in RunFolder(path).read_log()]


def assert_same(one: Path, other: Path) -> None:
    mine, theirs = arrays(one), arrays(other)
    assert log(one) == log(other)
    assert [n for n in mine if mine[n].tobytes() != theirs[n].tobytes()] == []


@pytest.fixture(scope="module")
def straight(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return small_run(tmp_path_factory.mktemp("runs") / "straight", SPEC, options(images))


def crashed(path: Path, spec: Spec, how: Options, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ended after so many steps."""
    with monkeypatch.context() as patched:
        crash_after(patched, steps)
        with pytest.raises(Crash):
            small_run(path, spec, how)


def test_the_command_line_trains_evaluates_and_keeps_what_it_read(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--data-folder", str(images), "--device", "cpu"]
    learning = ["--epochs", "4", "--lr", "0.02", "--workers", "1"]
    assert main(["train", *SETTINGS, *learning, *where, "--run", str(tmp_path / "run")]) == 0
    record = read_record(tmp_path / "run/record.json")
    assert record["settings"]["classes"] == 3
    assert record["figures"]["images"] == {"train": 54, "valid": 6}
    files = record["figures"]["files"]
    assert (files["images"], files["workers"]) == ("streamed", 1)
    assert [0 <= share < 1 for share in files["wait"]] == [True] * 4
    assert record["figures"]["last"]["train"] > 50  # of three classes, which differ in brightness
    capsys.readouterr()
    where += ["--workers", "0"]
    assert main(["eval", str(tmp_path / "run"), *where]) == 0
    assert "6 validation images" in capsys.readouterr().out
    assert main(["eval", str(tmp_path / "run"), "--final", *where]) == 0
    assert "12 test images (reading 1)" in capsys.readouterr().out


def test_a_run_resumed_in_the_middle_of_an_epoch_is_an_undisturbed_one(
    images: Path, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(tmp_path, SPEC, options(images), 7, monkeypatch)  # of 10 steps
    small_run(tmp_path, SPEC, options(images, workers=1), resume=True)
    assert_same(tmp_path, straight)


def test_folder_zip_and_tar_train_the_same_network(straight: Path, tmp_path: Path) -> None:
    as_folder(TREE, tmp_path / "folder")
    as_tar(TREE, tmp_path / "all.tar")
    for name in ("folder", "all.tar"):
        small_run(tmp_path / f"run-{name}", SPEC, options(tmp_path / name))
        assert_same(tmp_path / f"run-{name}", straight)


@pytest.mark.parametrize("augment", ["crop-flip", "zoom-flip"])
def test_a_cached_run_is_a_streamed_one(augment: str, images: Path, tmp_path: Path) -> None:
    for cache in ("yes", "no"):
        small_run(tmp_path / cache, SPEC.but(augment=augment), options(images, cache=cache))
    assert_same(tmp_path / "yes", tmp_path / "no")
    found = [read_record(tmp_path / cache / "record.json")["figures"]["files"] for cache in ("yes", "no")]
    assert found[0] == {"images": "cached"}
    assert set(found[1]) == {"images", "workers", "wait"}


BAD = {"train/ant/002.JPEG": b"no image", "train/bee/001.JPEG": b"", "val/cat/003.JPEG": b"no image"}


def test_a_broken_image_ends_a_run_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_folder({**TREE, **BAD}, tmp_path / "images")
    words = [*SETTINGS, "--device", "cpu", "--workers", "0", "--data-folder", str(tmp_path / "images")]
    assert main(["train", *words, "--run", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(f"lcrbnn: {tmp_path}/images/train/")
    assert "JPEG is broken: it is " in said
    assert main(["train", *words, "--run", str(tmp_path / "run"), "--skip-broken"]) == 0  # as the sentence says
    capsys.readouterr()
    assert main(["train", *words, "--run", str(tmp_path / "run"), "--skip-broken"]) == 2
    assert "there is a run in" in capsys.readouterr().err


def test_broken_images_are_left_out_counted_and_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_folder({**TREE, **BAD}, tmp_path / "images")
    spec, how = SPEC.but(skip_broken=True), options(tmp_path / "images")
    crashed(tmp_path / "run", spec, how, 3, monkeypatch)
    (tmp_path / "images/train/cat/000.JPEG").write_bytes(b"")  # a run goes on with the list that it began with
    with pytest.raises(InputError, match=r"000.JPEG is broken: it is empty"):
        small_run(tmp_path / "run", spec, how, resume=True)
    as_folder(TREE, tmp_path / "images")  # nor is an image taken back that was left out
    as_folder({"val/cat/003.JPEG": b"no image"}, tmp_path / "images")
    small_run(tmp_path / "run", spec, how, resume=True)
    record = read_record(tmp_path / "run/record.json")
    files = record["figures"]["files"]
    assert files["broken"] == 2
    assert list(files["which"].items()) == [  # by their names in the tree, wherever that lies
        ("train/ant/002.JPEG", "it is no image that Pillow knows"),
        ("train/bee/001.JPEG", "it is empty"),
    ]
    assert files["which"] == RunFolder(tmp_path / "run").read_broken()
    assert record["figures"]["images"] == {"train": 53, "valid": 5}
    words = ["--device", "cpu", "--workers", "0", "--data-folder", str(tmp_path / "images")]
    assert main(["eval", str(tmp_path / "run"), "--final", *words]) == 0
    assert "11 test images (reading 1); broken images left out: 1\n" in capsys.readouterr().out
    (reading,) = read_record(tmp_path / "run/record.json")["readings"]
    assert list(reading["broken"]) == ["val/cat/003.JPEG"]


def test_a_class_of_which_all_is_broken_is_not_left_out_in_silence(tmp_path: Path) -> None:
    gone = {name: b"" for name in TREE if name.startswith("train/bee/")}
    as_folder({**TREE, **gone}, tmp_path / "images")
    with pytest.raises(InputError, match=r"^all training images of the class 'bee' are broken: it cannot be learned$"):
        small_run(tmp_path / "run", SPEC.but(skip_broken=True), options(tmp_path / "images"))


def test_what_takes_a_tree_as_arrays_finds_the_images_that_the_run_learned_from(tmp_path: Path) -> None:
    as_folder({**TREE, **BAD}, tmp_path)
    spec = SPEC.but(skip_broken=True, classes=3)
    row = data_row(spec)
    assert row.image == SIDE
    whole = row.load(tmp_path)
    assert (len(whole.train.labels), len(whole.test.labels)) == (58, 11)
    learned, watched = splits_of(spec, row, whole)
    with ExitStack() as held:
        (found,) = open_splits([spec], options(tmp_path).files, torch.device("cpu"), held)
    assert found.valid is not None
    assert watched is not None
    for mine, theirs in ((learned, found.train), (watched, found.valid)):
        assert mine.labels.tolist() == theirs.labels.tolist()
        assert len(mine.labels) == len(theirs) > 0
    assert splits_of(spec.but(images="all"), row, whole)[1] is None


def test_other_classes_than_a_run_began_with_are_refused(images: Path, tmp_path: Path) -> None:
    small_run(tmp_path / "run", SPEC.but(epochs=1), options(images))
    (tmp_path / "run/record.json").unlink()
    more = as_zip({**TREE, "train/dog/0.JPEG": TREE["train/ant/000.JPEG"]}, tmp_path / "more.zip")
    with pytest.raises(InputError, match="classes 3 and now it is 4"):
        small_run(tmp_path / "run", SPEC.but(epochs=1), options(more), resume=True)


def test_a_run_keeps_the_names_of_its_classes_and_its_exported_network_says_them(
    images: Path, straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert RunFolder(straight).read_classes() == ("ant", "bee", "cat")
    assert main(["export", str(straight), "-o", str(tmp_path / "model.bnn")]) == 0
    (tmp_path / "one.jpg").write_bytes(TREE["val/cat/000.JPEG"])
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "model.bnn"), str(tmp_path / "one.jpg"), "--top", "3"]) == 0
    said = capsys.readouterr().out
    assert sorted(said.split()[1::3]) == ["ant", "bee", "cat"]
    older = tmp_path / "older"
    shutil.copytree(straight, older)
    (older / "classes.json").unlink()  # it was made before names were kept
    assert main(["export", str(older), "-o", str(tmp_path / "older.bnn")]) == 0
    assert read_model(tmp_path / "older.bnn").classes == ("0", "1", "2")
    (older / "classes.json").write_text("{}")
    assert main(["export", str(older), "-o", str(tmp_path / "older.bnn")]) == 2
    assert "it holds no names of classes" in capsys.readouterr().err


NOT_UTF8 = os.fsdecode(b"b\xe9e")  # a Latin-1 name, as an old archive leaves it on a disk


@pytest.mark.parametrize("make", [as_folder, lambda tree, where: as_tar(tree, where.with_suffix(".tar"))])
@pytest.mark.parametrize("name", [NOT_UTF8, "zwölf 12"])
def test_training_refuses_a_class_whose_name_no_file_can_hold(
    make: Callable[[Any, Path], Path], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = make({path.replace("/bee/", f"/{name}/"): content for path, content in TREE.items()}, tmp_path / "images")
    where = ["--data-folder", str(place), "--device", "cpu", "--workers", "0", "--run", str(tmp_path / "run")]
    for more in ([], ["--classes", "3"], ["--skip-broken"]):
        code = main(["train", *SETTINGS, *where, *more])
        assert (code, (tmp_path / "run").exists()) == ((2, False) if name == NOT_UTF8 else (0, True))
        if code == 0:
            return
        said = capsys.readouterr().err
        assert "class" in said
        assert "UTF-8" in said
        assert r"b\udce9e" in said


def test_layers_are_looked_at_with_a_few_images_of_all_classes(
    images: Path, straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    whole = Files.read
    monkeypatch.setattr(Files, "read", lambda self, member: read.append(member.name) or whole(self, member))
    spec = read_spec(RunFolder(straight))
    assert first_images(spec, options(images), 6).shape == (6, 3, SIDE, SIDE)
    assert [Path(name).parent.name for name in read] == ["ant", "ant", "bee", "bee", "cat", "cat"]
    assert look_at_run(straight, options(images))["images"] == 60  # there are no more


def test_a_run_does_not_go_on_with_classes_of_other_names(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(tmp_path / "run", SPEC, options(images), 3, monkeypatch)
    other = as_zip({name.replace("bee", "wasp"): content for name, content in TREE.items()}, tmp_path / "other.zip")
    with pytest.raises(InputError, match="has other classes than the images: bee, wasp in one of them only"):
        small_run(tmp_path / "run", SPEC, options(other), resume=True)


def test_a_run_goes_on_with_the_images_that_it_began_with_in_any_form(
    straight: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, more = tmp_path / "run", tmp_path / "more"
    crashed(run, SPEC, options(images), 3, monkeypatch)
    as_folder({**TREE, "train/ant/one-more.JPEG": TREE["train/ant/000.JPEG"]}, more)
    with pytest.raises(InputError, match="was made with other training images than those that are there now"):
        small_run(run, SPEC, options(more), resume=True)
    (more / "train/ant/one-more.JPEG").unlink()
    small_run(run, SPEC, options(more), resume=True)  # other places and forms are the same images
    assert_same(run, straight)


def test_no_figure_is_read_on_images_of_other_classes(
    images: Path, straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = as_zip({name.replace("bee", "wasp"): content for name, content in TREE.items()}, tmp_path / "other.zip")
    where = ["--device", "cpu", "--data-folder", str(other)]
    before = RunFolder(straight).record.read_bytes()
    for words in (
        ["eval", str(straight)],
        ["eval", str(straight), "--final"],
        ["attack", str(straight), "--attacks", "fgsm", "--eps", "1/255", "--images", "4"],
        ["analyze", str(straight), "--images", "4"],
        ["layers", str(straight), "--images", "4", "-o", str(tmp_path / "layers")],
    ):
        assert main([*words, *where]) == 2, words
        said = capsys.readouterr().err
        assert "other.zip has other classes than the network learned: bee, wasp in one of them only" in said
    assert RunFolder(straight).record.read_bytes() == before


def test_a_teacher_or_a_start_of_other_classes_is_refused_before_anything_is_written(
    straight: Path, tmp_path: Path
) -> None:
    other = as_zip({name.replace("bee", "wasp"): content for name, content in TREE.items()}, tmp_path / "other.zip")
    fewer = as_zip({name: content for name, content in TREE.items() if "bee" not in name}, tmp_path / "fewer.zip")
    taught, begun = SPEC.but(teacher=str(straight), distill=0.5), SPEC.but(start=str(straight))
    for spec, where, sentence in (
        (taught, other, "^the teacher in .*straight has other classes than the images: bee, wasp in one of them only$"),
        (begun, other, "^the run to start from in .*straight has other classes than the images: bee, wasp in one of"),
        (taught, fewer, "^the teacher in .*straight knows 3 classes, and this run has 2$"),
    ):
        with pytest.raises(InputError, match=sentence):
            small_run(tmp_path / "run", spec, options(where))
        assert not (tmp_path / "run").exists()


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_run_whose_reader_is_killed_ends_with_a_sentence_and_leaves_no_process(images: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "lcrbnn", "train", *SETTINGS, "--epochs", "10000", "--run", str(tmp_path / "run")]
    words += ["--data-folder", str(images), "--device", "cpu", "--workers", "2", "--save-seconds", "0"]
    with subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True) as run:
        try:
            until = time.monotonic() + 60
            while not RunFolder(tmp_path / "run").listed() and time.monotonic() < until:
                time.sleep(0.1)
            readers = children(run.pid)
            assert len(readers) == 2
            os.kill(readers[0], signal.SIGKILL)
            _, said = run.communicate(timeout=30)
        finally:
            run.kill()
    assert run.returncode == 1
    assert said.strip().splitlines()[-1].startswith("lcrbnn: a process that reads images was ended by signal 9")
    assert not any(alive(pid) for pid in readers) or gone(readers)
    assert RunFolder(tmp_path / "run").listed()


def test_a_run_is_not_read_or_built_on_with_other_training_images(
    straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which images are held out follows from all of them: one more, and images it has learned would be among them."""
    folder = as_folder(TREE, tmp_path / "images")
    where = ["--data-folder", str(folder), "--device", "cpu", "--workers", "0"]
    assert main(["eval", str(straight), *where]) == 0
    first = next(path for path in sorted((folder / "train").rglob("*")) if path.is_file())
    shutil.copy(first, first.with_name("more.JPEG"))
    assert main(["eval", str(straight), *where]) == 2
    sentence = "learned from other training images than are there now (files were added, removed or renamed)"
    assert f"the run in {straight} {sentence}" in capsys.readouterr().err
    words = ["train", *SETTINGS, *where, "--run", str(tmp_path / "next"), "--start-from", str(straight)]
    assert main(words) == 2
    assert f"the run to start from in {straight} {sentence}" in capsys.readouterr().err
    assert not (tmp_path / "next").exists()
    assert main([*words, "--images", "all", "--drop-last"]) == 0  # it is judged by none of them


def test_broken_images_are_left_out_of_every_form_of_a_tree(tmp_path: Path) -> None:
    files = {**TREE, "train/ant/001.JPEG": b"broken", "train/bee/002.JPEG": b""}
    for split in ("train", "val"):
        part = {name: content for name, content in files.items() if name.startswith(split)}
        as_zip(part, tmp_path / "zips" / f"{split}.zip")
    as_folder(files, tmp_path / "folder")
    made = small_run(tmp_path / "run", SPEC.but(skip_broken=True), options(tmp_path / "zips"))
    assert sorted(RunFolder(made).read_broken()) == ["train/ant/001.JPEG", "train/bee/002.JPEG"]
    one, other = (evaluate(made, options(tmp_path / form)).accuracy for form in ("zips", "folder"))
    assert one == other
