"""From a zip of images to a record: training, interruption, resume and evaluation through the command line."""

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

from lcrbnn.cli.main import main
from lcrbnn.data.image_files.image_index import ImageReader
from lcrbnn.deploy.engine.bnn_file import read_model
from lcrbnn.errors import InputError
from lcrbnn.evaluation.analysis.layer_report import load_first_images
from lcrbnn.runs.record import read_record
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.dataset import divide_splits, find_dataset, open_splits
from lcrbnn.train.setup.load import read_spec
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from paper.tables.layer_records import measure_run_layers
from tests.data.image_folders import make_image_files, write_folder, write_tar, write_zip
from tests.data.loading.test_worker_pool import is_alive, wait_until_dead
from tests.train.helpers import Crash, crash_after, make_environment, read_newest_arrays, train_small_run

SIDE = 16
TREE = make_image_files(train=20, val=4, size=(24, 20))
SETTINGS = ["--dataset", "folder", "--image-size", str(SIDE), "--epochs", "2", "--batch-size", "12", "--lr", "0.1"]
BAD = {"train/ant/002.JPEG": b"no image", "train/bee/001.JPEG": b"", "val/cat/003.JPEG": b"no image"}
SPEC = TrainSpec(dataset="folder", image_size=SIDE, epochs=2, batch_size=12, lr=0.1)


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_zip(TREE, tmp_path_factory.mktemp("images") / "images.zip")


def make_options(folder: Path, **more: Any) -> RunOptions:
    return RunOptions(**{"device": "cpu", "checkpoint_interval_s": 0.0, "data_folder": folder, "workers": 0, **more})


def read_log_without_data_time(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log without times."""
    return [
        {k: v for k, v in line.items() if k not in ("seconds", "data_time_fraction")}
        for line in RunFolder(path).read_log()
    ]


def assert_same_runs(first: Path, second: Path) -> None:
    first_arrays, second_arrays = read_newest_arrays(first), read_newest_arrays(second)
    assert read_log_without_data_time(first) == read_log_without_data_time(second)
    assert [n for n in first_arrays if first_arrays[n].tobytes() != second_arrays[n].tobytes()] == []


@pytest.fixture(scope="module")
def straight(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return train_small_run(tmp_path_factory.mktemp("runs") / "straight", SPEC, make_options(image_folder))


def crash_run(
    path: Path, spec: TrainSpec, run_options: RunOptions, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train a run that crashes after this number of steps."""
    with monkeypatch.context() as patched:
        crash_after(patched, steps)
        with pytest.raises(Crash):
            train_small_run(path, spec, run_options)


def test_the_command_line_trains_evaluates_and_records_the_images(
    image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_words = ["--data-folder", str(image_folder), "--device", "cpu"]
    learning = ["--epochs", "4", "--lr", "0.02", "--workers", "1"]
    assert main(["train", *SETTINGS, *learning, *data_words, "--run-folder", str(tmp_path / "run")]) == 0
    record = read_record(tmp_path / "run/record.json")
    assert record["settings"]["num_classes"] == 3
    assert record["figures"]["num_images"] == {"train": 54, "valid": 6}
    files = record["figures"]["data_loading"]
    assert (files["images"], files["workers"]) == ("streamed", 1)
    assert [0 <= share < 1 for share in files["data_time_fraction"]] == [True] * 4
    assert record["figures"]["last_epoch"]["train_top1"] > 50  # three classes that differ in brightness
    capsys.readouterr()
    data_words += ["--workers", "0"]
    assert main(["eval", str(tmp_path / "run"), *data_words]) == 0
    assert "6 validation images" in capsys.readouterr().out
    assert main(["eval", str(tmp_path / "run"), "--test", *data_words]) == 0
    assert "12 test images (evaluation 1)" in capsys.readouterr().out


def test_a_run_resumed_within_an_epoch_equals_an_uninterrupted_one(
    image_folder: Path, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_run(tmp_path, SPEC, make_options(image_folder), 7, monkeypatch)  # of 10 steps
    train_small_run(tmp_path, SPEC, make_options(image_folder, workers=1), resume=True)
    assert_same_runs(tmp_path, straight)


def test_folder_zip_and_tar_train_the_same_network(straight: Path, tmp_path: Path) -> None:
    write_folder(TREE, tmp_path / "folder")
    write_tar(TREE, tmp_path / "all.tar")
    for name in ("folder", "all.tar"):
        train_small_run(tmp_path / f"run-{name}", SPEC, make_options(tmp_path / name))
        assert_same_runs(tmp_path / f"run-{name}", straight)


@pytest.mark.parametrize("augment", ["crop-flip", "random-resized-crop-on-device"])
def test_a_cached_run_equals_a_streamed_run(augment: str, image_folder: Path, tmp_path: Path) -> None:
    for cache in ("yes", "no"):
        train_small_run(
            tmp_path / cache, SPEC.replace(augmentation=augment), make_options(image_folder, cache_images=cache)
        )
    assert_same_runs(tmp_path / "yes", tmp_path / "no")
    actual = [read_record(tmp_path / cache / "record.json")["figures"]["data_loading"] for cache in ("yes", "no")]
    assert actual[0] == {"images": "cached"}
    assert set(actual[1]) == {"images", "workers", "data_time_fraction"}


def test_an_image_folder_as_arrays_has_the_same_splits_as_the_run(tmp_path: Path) -> None:
    write_folder({**TREE, **BAD}, tmp_path)
    spec = SPEC.replace(skip_broken_images=True, num_classes=3)
    row = find_dataset(spec)
    assert row.image_size == SIDE
    image_arrays = row.load(tmp_path)
    assert (len(image_arrays.train.labels), len(image_arrays.test.labels)) == (58, 11)
    learned, watched = divide_splits(spec, row, image_arrays)
    with ExitStack() as stack:
        (splits,) = open_splits([spec], make_options(tmp_path).data_access, torch.device("cpu"), stack)
    assert splits.valid is not None
    assert watched is not None
    for split, batches in ((learned, splits.train), (watched, splits.valid)):
        assert split.labels.tolist() == batches.labels.tolist()
        assert len(split.labels) == len(batches) > 0
    assert divide_splits(spec.replace(train_split="train+valid"), row, image_arrays)[1] is None


def test_another_number_of_classes_is_rejected_on_resume(image_folder: Path, tmp_path: Path) -> None:
    train_small_run(tmp_path / "run", SPEC.replace(epochs=1), make_options(image_folder))
    (tmp_path / "run/record.json").unlink()
    larger_archive = write_zip({**TREE, "train/dog/0.JPEG": TREE["train/ant/000.JPEG"]}, tmp_path / "more.zip")
    with pytest.raises(InputError, match="num_classes 3, and now it is 4"):
        train_small_run(tmp_path / "run", SPEC.replace(epochs=1), make_options(larger_archive), resume=True)


def test_a_run_stores_its_class_names_and_exports_them(
    image_folder: Path, straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert RunFolder(straight).read_classes() == ("ant", "bee", "cat")
    assert main(["export", str(straight), "-o", str(tmp_path / "model.bnn")]) == 0
    (tmp_path / "one.jpg").write_bytes(TREE["val/cat/000.JPEG"])
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "model.bnn"), str(tmp_path / "one.jpg"), "--top", "3"]) == 0
    output_text = capsys.readouterr().out
    assert sorted(output_text.split()[1::3]) == ["ant", "bee", "cat"]
    older = tmp_path / "older"
    shutil.copytree(straight, older)
    (older / "classes.json").unlink()  # like a run from before class names were stored
    assert main(["export", str(older), "-o", str(tmp_path / "older.bnn")]) == 0
    assert read_model(tmp_path / "older.bnn").classes == ("0", "1", "2")
    (older / "classes.json").write_text("{}")
    assert main(["export", str(older), "-o", str(tmp_path / "older.bnn")]) == 2
    assert "it contains no names of classes" in capsys.readouterr().err


NOT_UTF8 = os.fsdecode(b"b\xe9e")  # a Latin-1 name, as an old archive is unpacked


@pytest.mark.parametrize("make", [write_folder, lambda tree, where: write_tar(tree, where.with_suffix(".tar"))])
@pytest.mark.parametrize("name", [NOT_UTF8, "zwölf 12"])
def test_training_rejects_a_class_name_that_is_not_utf8(
    make: Callable[[Any, Path], Path], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = make({path.replace("/bee/", f"/{name}/"): content for path, content in TREE.items()}, tmp_path / "images")
    data_words = [
        "--data-folder",
        str(place),
        "--device",
        "cpu",
        "--workers",
        "0",
        "--run-folder",
        str(tmp_path / "run"),
    ]
    for extra_words in ([], ["--num-classes", "3"], ["--skip-broken-images"]):
        code = main(["train", *SETTINGS, *data_words, *extra_words])
        assert (code, (tmp_path / "run").exists()) == ((2, False) if name == NOT_UTF8 else (0, True))
        if code == 0:
            return
        error_text = capsys.readouterr().err
        assert "class" in error_text
        assert "UTF-8" in error_text
        assert r"b\udce9e" in error_text


def test_layers_are_measured_on_a_few_images_of_all_classes(
    image_folder: Path, straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = ImageReader.read
    monkeypatch.setattr(ImageReader, "read", lambda self, member: read.append(member.name) or original(self, member))
    spec = read_spec(RunFolder(straight))
    assert load_first_images(spec, make_options(image_folder), 6).shape == (6, 3, SIDE, SIDE)
    assert [Path(name).parent.name for name in read] == ["ant", "ant", "bee", "bee", "cat", "cat"]
    assert measure_run_layers(straight, make_options(image_folder))["images"] == 60  # all images


def test_a_run_does_not_resume_with_other_class_names(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_run(tmp_path / "run", SPEC, make_options(image_folder), 3, monkeypatch)
    other_images = write_zip(
        {name.replace("bee", "wasp"): content for name, content in TREE.items()}, tmp_path / "other.zip"
    )
    with pytest.raises(InputError, match="has other classes than the images: bee, wasp in one of them only"):
        train_small_run(tmp_path / "run", SPEC, make_options(other_images), resume=True)


def test_a_run_resumes_with_the_same_images_in_another_format(
    straight: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other_folder = tmp_path / "run", tmp_path / "more"
    crash_run(run, SPEC, make_options(image_folder), 3, monkeypatch)
    write_folder({**TREE, "train/ant/one-more.JPEG": TREE["train/ant/000.JPEG"]}, other_folder)
    with pytest.raises(InputError, match="was trained on other images than the data folder has now"):
        train_small_run(run, SPEC, make_options(other_folder), resume=True)
    (other_folder / "train/ant/one-more.JPEG").unlink()
    train_small_run(run, SPEC, make_options(other_folder), resume=True)  # the same images in another folder and format
    assert_same_runs(run, straight)


def test_no_command_measures_on_images_of_other_classes(
    image_folder: Path, straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other_images = write_zip(
        {name.replace("bee", "wasp"): content for name, content in TREE.items()}, tmp_path / "other.zip"
    )
    data_words = ["--device", "cpu", "--data-folder", str(other_images)]
    before = RunFolder(straight).record_file.read_bytes()
    for words in (
        ["eval", str(straight)],
        ["eval", str(straight), "--test"],
        ["attack", str(straight), "--attacks", "fgsm", "--eps", "1/255", "--num-images", "4"],
        ["analyze", str(straight), "--num-images", "4"],
        ["layers", str(straight), "--num-images", "4", "-o", str(tmp_path / "layers")],
    ):
        assert main([*words, *data_words]) == 2, words
        error_text = capsys.readouterr().err
        assert "other.zip has other classes than the network learned; only one of them has bee, wasp" in error_text
    assert RunFolder(straight).record_file.read_bytes() == before


def test_a_teacher_or_start_with_other_classes_is_rejected_before_anything_is_written(
    straight: Path, tmp_path: Path
) -> None:
    other_images = write_zip(
        {name.replace("bee", "wasp"): content for name, content in TREE.items()}, tmp_path / "other.zip"
    )
    fewer = write_zip({name: content for name, content in TREE.items() if "bee" not in name}, tmp_path / "fewer.zip")
    taught, begun = SPEC.replace(teacher=str(straight), distillation_alpha=0.5), SPEC.replace(init_from=str(straight))
    for spec, images, sentence in (
        (
            taught,
            other_images,
            "^the teacher in .*straight has other classes than the images: bee, wasp in one of them only$",
        ),
        (
            begun,
            other_images,
            "^the init_from run in .*straight has other classes than the images: bee, wasp in one of",
        ),
        (taught, fewer, "^the teacher in .*straight has 3 classes, and this run has 2$"),
    ):
        with pytest.raises(InputError, match=sentence):
            train_small_run(tmp_path / "run", spec, make_options(images))
        assert not (tmp_path / "run").exists()


def list_child_pids(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_killed_worker_ends_the_run_in_one_sentence_and_leaves_no_process(image_folder: Path, tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "lcrbnn",
        "train",
        *SETTINGS,
        "--epochs",
        "10000",
        "--run-folder",
        str(tmp_path / "run"),
    ]
    words += ["--data-folder", str(image_folder), "--device", "cpu", "--workers", "2", "--checkpoint-interval", "0"]
    with subprocess.Popen(words, env=make_environment(), stderr=subprocess.PIPE, text=True) as run:
        try:
            until = time.monotonic() + 60
            while not RunFolder(tmp_path / "run").list_checkpoints() and time.monotonic() < until:
                time.sleep(0.1)
            readers = list_child_pids(run.pid)
            assert len(readers) == 2
            os.kill(readers[0], signal.SIGKILL)
            _, output_text = run.communicate(timeout=30)
        finally:
            run.kill()
    assert run.returncode == 1
    assert output_text.strip().splitlines()[-1].startswith("lcrbnn: a data-loading worker was killed by signal 9")
    assert not any(is_alive(pid) for pid in readers) or wait_until_dead(readers)
    assert RunFolder(tmp_path / "run").list_checkpoints()


def test_a_run_is_not_evaluated_or_used_with_other_training_images(
    straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The validation split depends on all images: with one more, it would contain images of the training split."""
    folder = write_folder(TREE, tmp_path / "images")
    data_words = ["--data-folder", str(folder), "--device", "cpu", "--workers", "0"]
    assert main(["eval", str(straight), *data_words]) == 0
    first = next(path for path in sorted((folder / "train").rglob("*")) if path.is_file())
    shutil.copy(first, first.with_name("more.JPEG"))
    assert main(["eval", str(straight), *data_words]) == 2
    sentence = "was trained on other images than the data folder has now (files were added, removed or renamed)"
    assert f"the run in {straight} {sentence}" in capsys.readouterr().err
    words = ["train", *SETTINGS, *data_words, "--run-folder", str(tmp_path / "next"), "--init-from", str(straight)]
    assert main(words) == 2
    assert f"the init_from run in {straight} {sentence}" in capsys.readouterr().err
    assert not (tmp_path / "next").exists()
    assert main([*words, "--train-split", "train+valid", "--drop-last"]) == 0  # without validation images
