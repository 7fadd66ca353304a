"""Class folders without train and val: layouts, archives, rejected folders, and `lcrbnn data check`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lcrbnn.cli.main import main
from lcrbnn.data.image_files.class_folders import find_pictures
from lcrbnn.data.image_files.image_folder import ImageFolder, find_image_folder
from lcrbnn.data.image_files.image_index import ImageReader
from lcrbnn.data.image_files.picture_split import PictureSplit
from lcrbnn.data.image_files.read_arrays import read_image_arrays
from lcrbnn.errors import InputError
from tests.data.image_folders import CLASSES, FILES, FolderFiles, select_split, write_folder, write_tar, write_zip

PICTURES = select_split(FILES, "train", keep_split_folder=False)  # ant/000.JPEG, ... four per class
NESTED = {(f"{n[:4]}deep/er/{n[4:]}" if "2." in n else n): content for n, content in PICTURES.items()}
JUNK = {
    "__MACOSX/ant/._000.JPEG": b"x",
    "__MACOSX/ant/000.JPEG": b"x",
    "ant/.hidden.png": b"x",
    "ant/Thumbs.db": b"x",
    "Thumbs.db": b"x",
    ".DS_Store": b"x",
    "notes.txt": b"x",
}


def describe(folder: ImageFolder) -> tuple[object, ...]:
    """Return classes, split, and name, label and content of each image."""
    reader = ImageReader()
    images = [
        (index.relative_name(i), int(index.labels[i]), reader.read(index[i]))
        for index in (*folder.split_validation(0), folder.test)
        for i in range(len(index))
    ]
    return folder.classes, folder.picture_split, images


LAYOUTS: dict[str, Callable[[FolderFiles, Path], Path]] = {
    "folder": lambda files, top: write_folder(files, top / "pics"),
    "zip": lambda files, top: write_zip(files, top / "pics.zip", deflated=True),
    "tar": lambda files, top: write_tar(files, top / "pics.tar"),
    "zip of a folder": lambda files, top: write_zip({f"my/pics/{n}": c for n, c in files.items()}, top / "a.zip"),
}


@pytest.mark.parametrize("files", [PICTURES, NESTED, {**NESTED, **JUNK}], ids=["flat", "nested", "junk"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_layouts_give_the_same_images_and_split(layout: str, files: FolderFiles, tmp_path: Path) -> None:
    path = LAYOUTS[layout](files, tmp_path)
    expected_files = {n: c for n, c in files.items() if n not in JUNK}
    classes, split, images = describe(find_pictures(path))
    assert classes == CLASSES
    assert isinstance(split, PictureSplit)
    assert [len(part) for part in split[1:]] == [6, 3, 3]
    assert [name for name, *_ in images] == [*split.train, *split.valid, *split.test]
    assert {name: content for name, _, content in images} == expected_files
    assert [CLASSES[label] for _, label, _ in images] == [name[:3] for name, *_ in images]


def test_a_folder_with_train_and_val_is_read_as_before(tmp_path: Path) -> None:
    path = write_folder(FILES, tmp_path / "pics")
    assert find_pictures(path).picture_split is None
    assert find_pictures(path).digest() == find_image_folder(path).train.digest()
    archive = write_zip({f"x/{n}": c for n, c in FILES.items()}, tmp_path / "pics.zip")
    assert find_pictures(archive).picture_split is None
    assert find_pictures(archive).digest() == find_image_folder(path).train.digest()


def test_a_stored_split_is_used_instead_of_the_seed(tmp_path: Path) -> None:
    path = write_folder(PICTURES, tmp_path / "pics")
    stored = find_pictures(path, 5).picture_split
    assert stored is not None
    assert stored != find_pictures(path, 0).picture_split
    assert describe(find_pictures(path, 0, stored)) == describe(find_pictures(path, 5))
    (path / "ant/new.png").write_bytes(b"x")
    with pytest.raises(InputError, match=r"other pictures than the run was started with \(new: ant/new.png\)"):
        find_pictures(path, 5, stored)


def test_a_changed_archive_is_indexed_again(tmp_path: Path) -> None:
    path = write_zip(PICTURES, tmp_path / "pics.zip")
    assert len(find_pictures(path).train) == 9
    write_zip({**PICTURES, "ant/x.png": b"x"}, path)
    assert len(find_pictures(path).train) == 10


def test_a_stored_split_rejects_train_and_val(tmp_path: Path) -> None:
    stored = find_pictures(write_folder(PICTURES, tmp_path / "pics")).picture_split
    with pytest.raises(InputError, match="has train and val, and the run was started with class folders"):
        find_pictures(write_folder(FILES, tmp_path / "other"), 0, stored)


def test_the_arrays_have_the_validation_images_of_the_split(tmp_path: Path) -> None:
    path = write_folder(PICTURES, tmp_path / "pics")
    arrays = read_image_arrays(find_pictures, path, image_size=16, resize_ratio=1.0)
    train, valid = arrays.split_validation(10_000)
    assert (len(train.labels), len(valid.labels), len(arrays.train.labels), len(arrays.test.labels)) == (6, 3, 9, 3)
    both = np.concatenate([train.images, valid.images]).reshape(9, -1)
    assert sorted(map(bytes, both)) == sorted(map(bytes, arrays.train.images.reshape(9, -1)))


REJECTED: dict[str, tuple[FolderFiles, str]] = {
    "an image at the top": ({**PICTURES, "x.png": b"1"}, r"x.png is directly in .*; each class must have its own"),
    "an empty class": ({**PICTURES, "dog/readme.txt": b"1"}, r"dog has no images; remove the empty class folder"),
    "a class called test": ({**PICTURES, "Test/x.png": b"1"}, "'Test', which is not called like a class"),
    "one class": (select_split(PICTURES, "ant"), "has only one class, 'ant'"),
    "too few pictures": ({"a/1.png": b"1", "b/1.png": b"1", "b/2.png": b"2"}, "no class with three pictures or more"),
    "no pictures": ({"a/1.txt": b"1"}, "no training images|no images in train"),
}


@pytest.mark.parametrize("layout", ["folder", "zip"])
@pytest.mark.parametrize("case", REJECTED)
def test_a_folder_that_cannot_be_divided_is_rejected(case: str, layout: str, tmp_path: Path) -> None:
    files, message = REJECTED[case]
    with pytest.raises(InputError, match=message):
        find_pictures(LAYOUTS[layout](files, tmp_path))


def test_an_empty_folder_of_a_class_is_rejected(tmp_path: Path) -> None:
    (write_folder(PICTURES, tmp_path / "pics") / "dog").mkdir()
    with pytest.raises(InputError, match="dog has no images"):
        find_pictures(tmp_path / "pics")


# -- lcrbnn data check -----------------------------------------------------------------------------------------------


def test_the_check_reports_classes_sizes_and_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_zip(PICTURES, tmp_path / "pics.zip")
    assert main(["data", "check", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:5]] == [
        ["class", "train", "valid", "test"],
        *([name, "2", "1", "1"] for name in CLASSES),
        ["all", "6", "3", "3"],
    ]
    assert "split: computed, --split-seed 0" in lines
    assert "sizes in pixels: smallest 40 x 30, median 40 x 30, largest 40 x 30" in lines
    assert "formats: JPEG 12" in lines
    assert "broken images: 0" in lines


def test_the_check_lists_broken_and_identical_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = find_pictures(write_folder(PICTURES, tmp_path / "pics")).picture_split
    assert split is not None
    (tmp_path / "pics" / split.train[0]).write_bytes(PICTURES[split.test[0]])
    (tmp_path / "pics" / split.train[1]).write_bytes(b"no image")
    assert main(["data", "check", str(tmp_path / "pics")]) == 1
    out = capsys.readouterr().out
    assert f"broken images: 1\n  {split.train[1]}: it is not an image" in out
    assert f"identical files in different splits: 1 group\n  {split.train[0]}, {split.test[0]}\n" in out
    assert "identical files within one split: 0 groups" in out


def test_the_check_shows_the_split_of_train_and_val_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_folder(FILES, tmp_path / "pics")
    assert main(["data", "check", str(path)]) == 0
    out = capsys.readouterr().out
    assert "split: train and val folders" in out
    assert ["all", "11", "1", "6"] in [line.split() for line in out.splitlines()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check"], "needs a folder"),
        (["check", "missing"], "missing does not exist"),
        (["cifar10", "x"], "are for `lcrbnn data check FOLDER`"),
        (["check", ".", "--split-seed", "-1"], "--split-seed must be a whole number"),
    ],
)
def test_wrong_arguments_of_the_check_are_rejected(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", *words]) == 2
    assert message in capsys.readouterr().err
