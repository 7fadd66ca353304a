"""Index of image folders: the same images in folders, zip and tar archives give the same index."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from lcrbnn.data import datasets
from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.image_files.image_folder import find_image_folder
from lcrbnn.data.image_files.image_index import BrokenImage, ImageIndex, ImageReader
from tests.data.image_folders import (
    CLASSES,
    FILES,
    KAGGLE_LABELS,
    TINY_IMAGENET_LABELS,
    FolderFiles,
    encode_class_archive,
    encode_image,
    make_flat_val,
    make_image_files,
    make_smooth_image,
    select_split,
    write_folder,
    write_tar,
    write_zip,
)


def read_contents(image_index: ImageIndex) -> list[tuple[bytes, int]]:
    reader = ImageReader()
    contents = [(reader.read(image_index[i]), int(image_index.labels[i])) for i in range(len(image_index))]
    reader.close()
    return contents


TRAIN_CONTENTS = [(FILES[name], CLASSES.index(name.split("/")[1])) for name in sorted(select_split(FILES, "train"))]


def write_zip_shards(folder: Path) -> Path:
    names = list(FILES)
    for i in range(3):
        write_zip({n: FILES[n] for n in names[i::3]}, folder / f"train-{i}.zip", deflated=i == 1)
    return folder


def write_tar_and_folder(folder: Path) -> Path:
    write_tar(select_split(FILES, "train", keep_split_folder=False), folder / "train-0000.tar")
    write_folder(select_split(FILES, "val"), folder)
    return folder


def write_nested_zip(folder: Path) -> Path:
    """Write one archive with a folder above train and val, and a folder in each class, as in Tiny-ImageNet."""
    names = {name: f"some-set/{name.rsplit('/', 1)[0]}/images/{name.rsplit('/', 1)[1]}" for name in FILES}
    return write_zip({names[n]: c for n, c in FILES.items()}, folder / "whole.zip")


def write_original_imagenet(folder: Path) -> Path:
    """Write the archives of ImageNet's authors: train has a tar archive per class, val has no class folders."""
    class_archives = {f"{c}.tar": encode_class_archive(c, folder) for c in CLASSES}
    write_tar(class_archives, folder / "ILSVRC2012_img_train.tar")
    flat_images = {k: v for k, v in make_flat_val("", val_folder="val").items() if k.endswith("JPEG")}
    write_tar(select_split(flat_images, "val", keep_split_folder=False), folder / "ILSVRC2012_img_val.tar")
    (folder / "LOC_val_solution.csv").write_text(KAGGLE_LABELS)
    return folder


def write_zip_per_split(folder: Path) -> Path:
    for split in ("train", "val"):
        write_zip(select_split(FILES, split), folder / f"{split}.zip")
    return folder


FORMS: dict[str, Callable[[Path], Path]] = {
    "folder": lambda folder: write_folder(FILES, folder),
    "zip": write_zip_per_split,
    "deflated": lambda folder: write_zip(FILES, folder / "all.zip", deflated=True),
    "tar": lambda folder: write_tar(FILES, folder / "all.tar"),
    "zip shards": write_zip_shards,
    "tar without train in its names, and a folder": write_tar_and_folder,
    "nested": write_nested_zip,
    "ImageNet's original": write_original_imagenet,
}


@pytest.mark.parametrize("form", FORMS)
def test_folders_and_archives_give_the_same_images_in_the_same_order(form: str, tmp_path: Path) -> None:
    image_folder = find_image_folder(FORMS[form](tmp_path / "images"))
    assert image_folder.classes == CLASSES
    assert read_contents(image_folder.train) == TRAIN_CONTENTS
    assert len(image_folder.test) == 6


@pytest.mark.parametrize(
    "files",
    [
        make_flat_val(TINY_IMAGENET_LABELS),
        make_flat_val(TINY_IMAGENET_LABELS.replace("\t", " "), "val_labels.txt", "val"),
        make_flat_val(KAGGLE_LABELS, "LOC_val_solution.csv", "val"),
    ],
    ids=["tiny-imagenet", "val_labels.txt", "kaggle"],
)
@pytest.mark.parametrize("is_zip", [False, True])
def test_a_val_without_class_folders_is_read_with_a_label_file(
    files: FolderFiles, is_zip: bool, tmp_path: Path
) -> None:
    root = write_zip(files, tmp_path / "all.zip") if is_zip else write_folder(files, tmp_path)
    assert find_image_folder(root).test.labels.tolist() == [0, 0, 1, 1, 2, 2]


def get_default_subfolders(name: str) -> list[str]:
    """Return the subfolders in which a data set is searched."""
    with mock.patch.object(datasets, "find_image_folder") as find_mock:
        find_folder = DATASETS[name].find_image_folder
        assert find_folder is not None
        find_folder(Path("somewhere"))
    return list(find_mock.call_args.args[1:])


@pytest.mark.parametrize("starts_at_top", [True, False])
def test_kaggles_label_file_is_found_in_the_top_folder(starts_at_top: bool, tmp_path: Path) -> None:
    files = make_flat_val(KAGGLE_LABELS, "LOC_val_solution.csv", "val")
    nested_files = {f"ILSVRC/Data/CLS-LOC/{n}": c for n, c in files.items() if n != "LOC_val_solution.csv"}
    root = write_folder({**nested_files, "LOC_val_solution.csv": files["LOC_val_solution.csv"]}, tmp_path)
    image_folder = find_image_folder(
        root if starts_at_top else root / "ILSVRC/Data/CLS-LOC", *get_default_subfolders("imagenet")
    )
    assert image_folder.test.labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_relative_names_do_not_depend_on_folder_or_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_image_files(train=1, val=1)
    write_folder(files, tmp_path / "folder")
    write_zip(files, tmp_path / "one.zip")
    write_zip(select_split(files, "train"), tmp_path / "shards" / "train-0.zip")
    write_zip(select_split(files, "val"), tmp_path / "shards" / "val.zip")
    write_tar(select_split(files, "train", keep_split_folder=False), tmp_path / "bare" / "train.tar")
    write_tar(select_split(files, "val", keep_split_folder=False), tmp_path / "bare" / "val.tar")
    name = "train/ant/000.JPEG"
    for form in ("folder", "one.zip", "shards", "bare"):
        assert find_image_folder(tmp_path / form).train.relative_name(0) == name
        assert find_image_folder(tmp_path / form).train.take(np.array([1, 0])).relative_name(1) == name
    monkeypatch.chdir(tmp_path / "folder")
    assert find_image_folder(Path()).train.relative_name(0) == "train/ant/000.JPEG"


def make_files_with_class_train(train: int, val: int) -> dict[str, bytes]:
    """Return an image folder with a class called train, as in COCO, and a folder in each class."""
    return {
        f"{split}/{name}/images/{split}{i}.png": encode_image(make_smooth_image(8, 8, i), "PNG")
        for split, count in (("train", train), ("val", val))
        for name in ("bus", "car", "train")
        for i in range(count)
    }


@pytest.mark.parametrize("keep_split_folder", [True, False])
def test_a_class_can_be_called_train(tmp_path: Path, keep_split_folder: bool) -> None:
    files = make_files_with_class_train(4, 2)
    write_folder(files, tmp_path / "folder")
    write_zip(files, tmp_path / "one.zip")
    for split in ("train", "val"):
        write_zip(select_split(files, split, keep_split_folder=keep_split_folder), tmp_path / "zips" / f"{split}.zip")
        write_tar(select_split(files, split, keep_split_folder=keep_split_folder), tmp_path / "tars" / f"{split}.tar")
    for form in ("folder", "one.zip", "zips", "tars"):
        image_folder = find_image_folder(tmp_path / form)
        assert image_folder.classes == ("bus", "car", "train"), form
        assert (len(image_folder.train), len(image_folder.test)) == (12, 6)
        assert image_folder.train.relative_name(0) == "train/bus/images/train0.png"


def test_a_zip_file_with_backslashes_is_read(tmp_path: Path) -> None:
    files = make_image_files(train=4, val=1)
    backslash_zip = write_zip(
        {name.replace("/", "\\"): content for name, content in files.items()}, tmp_path / "odd.zip"
    )
    expected, actual = (
        find_image_folder(path).train for path in (write_zip(files, tmp_path / "usual.zip"), backslash_zip)
    )
    assert actual.labels.tolist() == expected.labels.tolist()
    assert [actual.relative_name(i) for i in range(len(actual))] == [
        expected.relative_name(i) for i in range(len(expected))
    ]


def test_a_tar_file_can_contain_the_folder_itself(tmp_path: Path) -> None:
    """`tar -C folder -cf train.tar .` writes such a file."""
    files = make_image_files(train=4, val=1)
    for split in ("train", "val"):
        folder = write_folder(select_split(files, split, keep_split_folder=False), tmp_path / split)
        (tmp_path / "tree").mkdir(exist_ok=True)
        with tarfile.open(tmp_path / "tree" / f"{split}.tar", "w") as archive:
            archive.add(folder, ".")
    assert find_image_folder(tmp_path / "tree").classes == CLASSES


def test_the_validation_split_is_always_the_same_and_at_most_a_tenth(tmp_path: Path) -> None:
    image_folder = find_image_folder(write_folder(make_image_files(train=10, val=1), tmp_path))
    train, validation = image_folder.split_validation(10_000)
    repeated = image_folder.split_validation(10_000)[1]
    assert (len(train), len(validation)) == (27, 3)
    assert [validation[i].name for i in range(3)] == [repeated[i].name for i in range(3)]
    assert not {validation[i].name for i in range(3)} & {train[i].name for i in range(27)}
    assert len(image_folder.split_validation(2)[1]) == 2


@pytest.mark.parametrize("has_two_archives", [False, True])
def test_archives_are_indexed_again_only_after_a_change(tmp_path: Path, has_two_archives: bool) -> None:
    root = tmp_path if has_two_archives else tmp_path / "tree.zip"

    def write_archives(train: int, val: int) -> None:
        files = make_image_files(train=train, val=val)
        archives = (
            {name: select_split(files, name) for name in ("train", "val")} if has_two_archives else {"tree": files}
        )
        for name, archive_files in archives.items():
            write_zip(archive_files, tmp_path / f"{name}.zip")

    write_archives(4, 1)
    first = find_image_folder(root)
    assert find_image_folder(root) is first
    write_archives(4, 2)  # only val differs
    second = find_image_folder(root)
    assert (len(first.test), len(second.test)) == (len(CLASSES), 2 * len(CLASSES))


def test_folders_are_indexed_each_time(tmp_path: Path) -> None:
    root = write_folder(make_image_files(train=4, val=1), tmp_path)
    count = len(find_image_folder(root).train)
    image_file = next((root / "train" / CLASSES[0]).iterdir())
    image_file.with_name("another.JPEG").write_bytes(image_file.read_bytes())
    assert len(find_image_folder(root).train) == count + 1


def test_take_keeps_locations_and_labels(tmp_path: Path) -> None:
    train = find_image_folder(write_zip_shards(tmp_path)).train
    subset = train.take(np.array([7, 2]))
    assert [subset[0], subset[1]] == [train[7], train[2]]
    assert subset.labels.tolist() == train.labels[[7, 2]].tolist()


def test_more_archives_than_can_stay_open_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lcrbnn.data.image_files.image_index.MAX_OPEN_ARCHIVES", 1)
    assert read_contents(find_image_folder(write_zip_shards(tmp_path)).train) == TRAIN_CONTENTS


def test_a_wrong_byte_in_a_zip_file_is_detected(tmp_path: Path) -> None:
    path = write_zip(FILES, tmp_path / "all.zip")
    with zipfile.ZipFile(path) as archive:
        entry = archive.infolist()[0]
    content = bytearray(path.read_bytes())
    content[entry.header_offset + 30 + len(entry.filename) + entry.file_size - 20] ^= 1
    path.write_bytes(bytes(content))
    image_folder = find_image_folder(path)
    row = next(i for i in range(len(image_folder.train)) if image_folder.train[i].name.endswith(entry.filename))
    with pytest.raises(BrokenImage, match="do not match the checksum"):
        ImageReader().read(image_folder.train[row])


def test_a_missing_or_too_large_file_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image_folder = find_image_folder(write_folder(FILES, tmp_path))
    Path(image_folder.train[0].path).unlink()
    with pytest.raises(BrokenImage, match="cannot be read: No such file"):
        ImageReader().read(image_folder.train[0])
    monkeypatch.setattr("lcrbnn.data.image_files.image_index.MAX_IMAGE_BYTES", 100)
    with pytest.raises(BrokenImage, match="more than 100 bytes"):
        ImageReader().read(image_folder.train[1])
