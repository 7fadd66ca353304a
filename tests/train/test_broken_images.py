"""Broken image files end a run, or are left out and listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcrbnn.cli.main import main
from lcrbnn.errors import InputError
from lcrbnn.evaluation.evaluate import evaluate
from lcrbnn.runs.record import read_record
from lcrbnn.runs.run_folder import RunFolder
from tests.data.image_folders import write_folder, write_zip
from tests.train.helpers import train_small_run
from tests.train.test_folder_run import BAD, SETTINGS, SPEC, TREE, crash_run, make_options


def test_a_broken_image_ends_a_run_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder({**TREE, **BAD}, tmp_path / "images")
    words = [*SETTINGS, "--device", "cpu", "--workers", "0", "--data-folder", str(tmp_path / "images")]
    assert main(["train", *words, "--run-folder", str(tmp_path / "run")]) == 2
    error_text = capsys.readouterr().err.strip().splitlines()[-1]
    assert error_text.startswith(f"lcrbnn: {tmp_path}/images/train/")
    assert "JPEG is broken: it is " in error_text
    assert (
        main(["train", *words, "--run-folder", str(tmp_path / "run"), "--skip-broken-images"]) == 0
    )  # as the message suggests
    capsys.readouterr()
    assert main(["train", *words, "--run-folder", str(tmp_path / "run"), "--skip-broken-images"]) == 2
    assert "there is a run in" in capsys.readouterr().err


def test_broken_images_are_left_out_counted_and_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder({**TREE, **BAD}, tmp_path / "images")
    spec, run_options = SPEC.replace(skip_broken_images=True), make_options(tmp_path / "images")
    crash_run(tmp_path / "run", spec, run_options, 3, monkeypatch)
    (tmp_path / "images/train/cat/000.JPEG").write_bytes(b"")  # a resumed run uses its list of broken images
    with pytest.raises(InputError, match=r"000.JPEG is broken: it is empty"):
        train_small_run(tmp_path / "run", spec, run_options, resume=True)
    write_folder(TREE, tmp_path / "images")  # an image that was left out stays left out
    write_folder({"val/cat/003.JPEG": b"no image"}, tmp_path / "images")
    train_small_run(tmp_path / "run", spec, run_options, resume=True)
    record = read_record(tmp_path / "run/record.json")
    files = record["figures"]["data_loading"]
    assert files["num_broken_images"] == 2
    assert list(files["broken_images"].items()) == [  # paths relative to the image folder
        ("train/ant/002.JPEG", "it is not an image that Pillow can read"),
        ("train/bee/001.JPEG", "it is empty"),
    ]
    assert files["broken_images"] == RunFolder(tmp_path / "run").read_broken_images()
    assert record["figures"]["num_images"] == {"train": 53, "valid": 5}
    words = ["--device", "cpu", "--workers", "0", "--data-folder", str(tmp_path / "images")]
    assert main(["eval", str(tmp_path / "run"), "--test", *words]) == 0
    assert "11 test images (evaluation 1); broken images skipped: 1\n" in capsys.readouterr().out
    (reading,) = read_record(tmp_path / "run/record.json")["test_results"]
    assert list(reading["broken_images"]) == ["val/cat/003.JPEG"]


def test_a_class_with_broken_images_only_is_an_error(tmp_path: Path) -> None:
    gone = {name: b"" for name in TREE if name.startswith("train/bee/")}
    write_folder({**TREE, **gone}, tmp_path / "images")
    with pytest.raises(InputError, match=r"^all training images of the class 'bee' are broken: it cannot be learned$"):
        train_small_run(tmp_path / "run", SPEC.replace(skip_broken_images=True), make_options(tmp_path / "images"))


def test_broken_images_are_left_out_of_archives_and_folders(tmp_path: Path) -> None:
    files = {**TREE, "train/ant/001.JPEG": b"broken", "train/bee/002.JPEG": b""}
    for split in ("train", "val"):
        part = {name: content for name, content in files.items() if name.startswith(split)}
        write_zip(part, tmp_path / "zips" / f"{split}.zip")
    write_folder(files, tmp_path / "folder")
    run = train_small_run(tmp_path / "run", SPEC.replace(skip_broken_images=True), make_options(tmp_path / "zips"))
    assert sorted(RunFolder(run).read_broken_images()) == ["train/ant/001.JPEG", "train/bee/002.JPEG"]
    zip_accuracy, folder_accuracy = (
        evaluate(run, make_options(tmp_path / form)).accuracy for form in ("zips", "folder")
    )
    assert zip_accuracy == folder_accuracy
