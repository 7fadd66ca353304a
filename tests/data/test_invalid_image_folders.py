"""Image folders and archives that are rejected with a message of one sentence."""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lcrbnn.data.image_files.image_folder import find_image_folder
from lcrbnn.errors import InputError
from tests.data.image_folders import (
    CLASSES,
    FILES,
    TINY_IMAGENET_LABELS,
    FolderFiles,
    encode_class_archive,
    encode_tar,
    make_flat_val,
    make_image_files,
    select_split,
    write_folder,
    write_tar,
    write_zip,
)


def truncate_file(path: Path, size: int) -> Path:
    path.write_bytes(path.read_bytes()[:size])
    return path


def truncate_before_last_member(path: Path) -> None:
    with tarfile.open(path) as archive:
        end = archive.getmembers()[-1].offset
    truncate_file(path, end)


def drop_files(*prefixes: str) -> FolderFiles:
    return {n: c for n, c in FILES.items() if not n.startswith(prefixes)}


INVALID_FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty folder": (
        lambda top: top.mkdir(),
        "has no training images: there is no folder train, train*.zip or train*.tar",
    ),
    "no val": (lambda top: write_folder(drop_files("val"), top), "has no images in val"),
    "an empty class": (
        lambda top: (write_folder(FILES, top) / "train/dog").mkdir(),
        "dog has no images; remove the empty class folder",
    ),
    "an image outside the classes": (
        lambda top: write_folder({**FILES, "train/x.png": b"1"}, top),
        "x.png is directly in train",
    ),
    "one class": (
        lambda top: write_folder(drop_files("train/ant", "train/bee"), top),
        "only one class in train, 'cat'",
    ),
    "a class that is only in val": (
        lambda top: write_folder({**FILES, "val/dog/1.png": b"1"}, top),
        "class 'dog' is not in train",
    ),
    "a flat val without labels": (
        lambda top: write_folder({**drop_files("val"), "val/1.png": b"1"}, top),
        "are in no class folder of train, and there is no label file (val_annotations.txt, ",
    ),
    "an image without a label": (
        lambda top: write_folder(make_flat_val(TINY_IMAGENET_LABELS.replace("val_3.JPEG", "other.JPEG")), top),
        "the label file does not name it",
    ),
    "a label that is not a class": (
        lambda top: write_folder(make_flat_val(TINY_IMAGENET_LABELS.replace("bee", "dog")), top),
        "its class, once per image; got 'val_2",
    ),
    "an image in a folder and in a zip": (
        lambda top: write_zip(select_split(FILES, "train"), write_folder(FILES, top) / "train.zip"),
        "exists twice",
    ),
    "a zip file with other content": (
        lambda top: write_zip(FILES, top / "train.zip").write_bytes(b"no zip"),
        "cannot be read as a zip file",
    ),
    "a zip cut short": (
        lambda top: truncate_file(write_zip(FILES, top / "train.zip"), 3000),
        "cannot be read as a zip file",
    ),
    "a tar cut inside an image": (lambda top: truncate_file(write_tar(FILES, top / "train.tar"), 1300), "cut short"),
    "a tar cut between images": (
        lambda top: truncate_before_last_member(write_tar(FILES, top / "train.tar")),
        "does not end with an empty block",
    ),
    "a tar in a tar, cut short": (
        lambda top: write_tar({"ant.tar": encode_tar(select_split(FILES, "train"), top)[:1300]}, top / "train.tar"),
        "train.tar/ant.tar is cut short: it ends inside",
    ),
    "a tar in a tar with other content": (
        lambda top: write_tar({"ant.tar": b"x" * 2000}, top / "train.tar"),
        "train.tar cannot be read as a tar file",
    ),
    "an empty class in a tar of tars": (
        lambda top: write_tar({f"{c}.tar": encode_class_archive(c, top) for c in (*CLASSES, "dog")}, top / "train.tar"),
        "train.tar/dog has no images; remove the empty class folder",
    ),
    "a class of other files in a zip": (
        lambda top: write_zip({**FILES, "train/dog/1.avif": b"1"}, top / "train.zip"),
        "train.zip/train/dog has no images; remove the empty class folder",
    ),
    "a class that is a dangling link": (
        lambda top: (write_folder(FILES, top) / "train/dog").symlink_to("/there/is/no/dog"),
        "train/dog is a link to /there/is/no/dog, which does not exist",
    ),
    "a folder next to train in train.zip": (
        lambda top: write_zip({**FILES, "test/ant/1.png": b"1"}, top / "train.zip"),
        "and, outside of train, 'test/ant/1.png'; an archive called like a split must contain only that split",
    ),
    "an image next to train in train.zip": (
        lambda top: write_zip({f"d/{n}": c for n, c in {**FILES, "preview.png": b"1"}.items()}, top / "train.zip"),
        "and, outside of train, 'd/preview.png'",
    ),
    "one label for two images": (
        lambda top: write_folder(
            {**make_flat_val(TINY_IMAGENET_LABELS), "val/more/val_3.JPEG": FILES["val/bee/000.JPEG"]}, top
        ),
        "the label file has only one 'val_3.JPEG', which also fits ",
    ),
    "a compressed tar": (
        lambda top: write_tar(FILES, top / "train.tar").rename(top / "train.tar.gz"),
        "train.tar.gz is compressed as a whole and cannot be read without unpacking",
    ),
    "a missing folder": (
        lambda top: None,
        "images does not exist; it must contain train and val, as folders, zip or tar files",
    ),
    "a tar file with other content": (
        lambda top: write_tar(FILES, top / "train.tar").write_bytes(b"x" * 2000),
        "cannot be read as a tar file",
    ),
}


@pytest.mark.parametrize("case", INVALID_FOLDERS)
def test_an_invalid_image_folder_is_rejected(case: str, tmp_path: Path) -> None:
    write_files, message = INVALID_FOLDERS[case]
    write_files(tmp_path / "images")
    with pytest.raises(InputError) as error_info:
        find_image_folder(tmp_path / "images")
    assert message in str(error_info.value)
    assert "\n" not in str(error_info.value)


def test_absolute_member_names_are_accepted_and_names_that_lead_out_rejected(tmp_path: Path) -> None:
    files = make_image_files(train=4, val=1)
    train_files = select_split(files, "train", keep_split_folder=False)
    write_tar({f"/{name}": content for name, content in train_files.items()}, tmp_path / "root" / "train-0.tar")
    write_tar(select_split(files, "val", keep_split_folder=False), tmp_path / "root" / "val.tar")
    assert len(find_image_folder(tmp_path / "root").train) == len(train_files)
    write_tar({f"../{name}": content for name, content in train_files.items()}, tmp_path / "out" / "train-0.tar")
    write_tar(select_split(files, "val", keep_split_folder=False), tmp_path / "out" / "val.tar")
    with pytest.raises(InputError, match=r"train-0\.tar: '\.\./ant/.*' leads out of the archive"):
        find_image_folder(tmp_path / "out")


@pytest.mark.parametrize("name", ["x.bnn", "tree"])
def test_a_file_that_is_not_an_archive_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"LCRBNN")
    with pytest.raises(
        InputError, match=rf"{name} is a file that is neither \.zip nor \.tar; images are read from a folder"
    ):
        find_image_folder(tmp_path / name, "tiny-imagenet")


def test_a_pipe_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"pipe is a pipe; images are read from a folder, \.zip or \.tar file$"):
        find_image_folder(tmp_path / "pipe")


@pytest.mark.parametrize("form", ["zip", "tar"])
def test_an_empty_class_in_an_archive_is_rejected(tmp_path: Path, form: str) -> None:
    files = make_image_files(train=2, val=1)
    path = (write_zip if form == "zip" else write_tar)(files, tmp_path / f"tree.{form}")
    if form == "zip":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("train/ant/", b"")
            archive.writestr("train/zzz/", b"")
    else:
        with tarfile.open(path, "a") as archive:
            entry = tarfile.TarInfo("train/zzz")
            entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
    with pytest.raises(InputError, match=rf"tree\.{form}/train/zzz/? has no images; remove the empty class folder"):
        find_image_folder(path)
