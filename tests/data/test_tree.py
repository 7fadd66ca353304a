"""Where images are found, and in which order: folders, zip files and tar files of the same tree are the same."""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from lcrbnn.data import DATASETS, table
from lcrbnn.data.listing import Broken, Files, Listing
from lcrbnn.data.tree import find_tree
from lcrbnn.errors import InputError
from tests.data.trees import CLASSES, Tree, as_folder, as_tar, as_zip, encoded, generated, smooth, under

TREE = generated(train=4, val=2)


def contents(listing: Listing) -> list[tuple[bytes, int]]:
    files = Files()
    read = [(files.read(listing[i]), int(listing.labels[i])) for i in range(len(listing))]
    files.close()
    return read


WANTED = [(TREE[name], CLASSES.index(name.split("/")[1])) for name in sorted(under(TREE, "train"))]


def _split_zips(top: Path) -> Path:
    names = list(TREE)
    for i in range(3):
        as_zip({n: TREE[n] for n in names[i::3]}, top / f"train-{i}.zip", deflated=i == 1)
    return top


def _mixed(top: Path) -> Path:
    as_tar(under(TREE, "train", keep=False), top / "train-0000.tar")
    as_folder(under(TREE, "val"), top)
    return top


def _nested(top: Path) -> Path:
    """A whole data set in one archive, below a folder, with images below the class folders, as Tiny-ImageNet has."""
    names = {name: f"some-set/{name.rsplit('/', 1)[0]}/images/{name.rsplit('/', 1)[1]}" for name in TREE}
    return as_zip({names[n]: c for n, c in TREE.items()}, top / "whole.zip")


def packed(tree: Tree, top: Path) -> bytes:
    """A tar file as bytes."""
    return as_tar(tree, top / "scratch.tar").read_bytes()


def _original(top: Path) -> Path:
    """As ImageNet's authors give it: an archive of archives, one a class, and a val without classes."""
    inner = {f"{c}.tar": packed(under(under(TREE, "train", keep=False), c, keep=False), top) for c in CLASSES}
    as_tar(inner, top / "ILSVRC2012_img_train.tar")
    as_tar(
        under({k: v for k, v in flat("", images="val").items() if k.endswith("JPEG")}, "val", keep=False),
        top / "ILSVRC2012_img_val.tar",
    )
    (top / "LOC_val_solution.csv").write_text(KAGGLE)
    (top / "scratch.tar").unlink()
    return top


FORMS: dict[str, Callable[[Path], Path]] = {
    "folder": lambda top: as_folder(TREE, top),
    "zip": lambda top: (
        as_zip(under(TREE, "train"), as_zip(under(TREE, "val"), top / "val.zip").parent / "train.zip").parent
    ),
    "deflated": lambda top: as_zip(TREE, top / "all.zip", deflated=True),
    "tar": lambda top: as_tar(TREE, top / "all.tar"),
    "zip shards": _split_zips,
    "tar without train in its names, and a folder": _mixed,
    "nested": _nested,
    "ImageNet's original": _original,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_tree_is_the_same_images_in_the_same_order(form: str, tmp_path: Path) -> None:
    tree = find_tree(FORMS[form](tmp_path / "top"))
    assert tree.classes == CLASSES
    assert contents(tree.train) == WANTED
    assert len(tree.test) == 6


def test_the_validation_images_are_always_the_same_and_a_tenth_at_most(tmp_path: Path) -> None:
    tree = find_tree(as_folder(generated(train=10, val=1), tmp_path))
    learned, held = tree.divided(10_000)
    again = tree.divided(10_000)[1]
    assert (len(learned), len(held)) == (27, 3)
    assert [held[i].name for i in range(3)] == [again[i].name for i in range(3)]
    assert not {held[i].name for i in range(3)} & {learned[i].name for i in range(27)}
    assert len(tree.divided(2)[1]) == 2


def flat(labels: str, name: str = "val/val_annotations.txt", images: str = "val/images") -> Tree:
    pictures = {f"{images}/val_{i}.JPEG": c for i, c in enumerate(under(TREE, "val").values())}
    return {**under(TREE, "train"), **pictures, name: labels.encode()}


TINY = "".join(f"val_{i}.JPEG\t{CLASSES[i // 2]}\t0\t32\t44\t62\n" for i in range(6))
KAGGLE = "ImageId,PredictionString\n" + "".join(f"val_{i},{CLASSES[i // 2]} 85 1 499 272 \n" for i in range(6))


@pytest.mark.parametrize(
    "tree",
    [
        flat(TINY),
        flat(TINY.replace("\t", " "), "val_labels.txt", "val"),
        flat(KAGGLE, "LOC_val_solution.csv", "val"),
    ],
    ids=["tiny-imagenet", "val_labels.txt", "kaggle"],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_val_without_class_folders_has_a_file_of_labels(tree: Tree, zipped: bool, tmp_path: Path) -> None:
    top = as_zip(tree, tmp_path / "all.zip") if zipped else as_folder(tree, tmp_path)
    assert find_tree(top).test.labels.tolist() == [0, 0, 1, 1, 2, 2]


def usual_folders(name: str) -> list[str]:
    """Where a data set looks inside the folder that it is given."""
    with mock.patch.object(table, "find_tree") as asked:
        find = DATASETS[name].tree
        assert find is not None
        find(Path("somewhere"))
    return list(asked.call_args.args[1:])


@pytest.mark.parametrize("above", [True, False])
def test_kaggles_file_of_labels_lies_above_its_images(above: bool, tmp_path: Path) -> None:
    tree = flat(KAGGLE, "LOC_val_solution.csv", "val")
    inside = {f"ILSVRC/Data/CLS-LOC/{n}": c for n, c in tree.items() if n != "LOC_val_solution.csv"}
    top = as_folder({**inside, "LOC_val_solution.csv": tree["LOC_val_solution.csv"]}, tmp_path)
    found = find_tree(top if above else top / "ILSVRC/Data/CLS-LOC", *usual_folders("imagenet"))
    assert found.test.labels.tolist() == [0, 0, 1, 1, 2, 2]


def cut(path: Path, size: int) -> Path:
    path.write_bytes(path.read_bytes()[:size])
    return path


def cut_between(path: Path) -> None:
    with tarfile.open(path) as archive:
        end = archive.getmembers()[-1].offset
    cut(path, end)


def without(*gone: str) -> Tree:
    return {n: c for n, c in TREE.items() if not n.startswith(gone)}


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda top: top.mkdir(), "has no images for training: neither a folder train nor"),
    "no val": (lambda top: as_folder(without("val"), top), "has no images in val"),
    "an empty class": (lambda top: (as_folder(TREE, top) / "train/dog").mkdir(), "dog has no images: an empty class"),
    "an image outside the classes": (
        lambda top: as_folder({**TREE, "train/x.png": b"1"}, top),
        "x.png lies in train itself",
    ),
    "one class": (lambda top: as_folder(without("train/ant", "train/bee"), top), "one class in train, 'cat'"),
    "a class of val alone": (
        lambda top: as_folder({**TREE, "val/dog/1.png": b"1"}, top),
        "class 'dog' is not in train",
    ),
    "a flat val without labels": (
        lambda top: as_folder({**without("val"), "val/1.png": b"1"}, top),
        "are in no class folder of train, and none of",
    ),
    "an image without a label": (
        lambda top: as_folder(flat(TINY.replace("val_3.JPEG", "other.JPEG")), top),
        "the file of labels does not name it",
    ),
    "a label of no class": (
        lambda top: as_folder(flat(TINY.replace("bee", "dog")), top),
        "once, and its class; got 'val_2",
    ),
    "an image in a folder and in a zip": (
        lambda top: as_zip(under(TREE, "train"), as_folder(TREE, top) / "train.zip"),
        "is there twice",
    ),
    "no zip": (lambda top: as_zip(TREE, top / "train.zip").write_bytes(b"no zip"), "cannot be read as a zip file"),
    "a zip cut short": (lambda top: cut(as_zip(TREE, top / "train.zip"), 3000), "cannot be read as a zip file"),
    "a tar cut inside an image": (lambda top: cut(as_tar(TREE, top / "train.tar"), 1300), "cut short"),
    "a tar cut between images": (lambda top: cut_between(as_tar(TREE, top / "train.tar")), "ends with an empty block"),
    "a tar in a tar, cut short": (
        lambda top: as_tar({"ant.tar": packed(under(TREE, "train"), top)[:1300]}, top / "train.tar"),
        "train.tar/ant.tar is cut short: it ends inside",
    ),
    "a tar in a tar that is none": (
        lambda top: as_tar({"ant.tar": b"x" * 2000}, top / "train.tar"),
        "train.tar cannot be read as a tar file",
    ),
    "an empty class in a tar of tars": (
        lambda top: as_tar(
            {
                f"{c}.tar": packed(under(under(TREE, "train", keep=False), c, keep=False), top)
                for c in (*CLASSES, "dog")
            },
            top / "train.tar",
        ),
        "train.tar/dog has no images: an empty class",
    ),
    "a class of other files in a zip": (
        lambda top: as_zip({**TREE, "train/dog/1.avif": b"1"}, top / "train.zip"),
        "train.zip/train/dog has no images: an empty class",
    ),
    "a class that links to nothing": (
        lambda top: (as_folder(TREE, top) / "train/dog").symlink_to("/there/is/no/dog"),
        "train/dog is a link to /there/is/no/dog, which is not there",
    ),
    "a folder beside train in a zip of train": (
        lambda top: as_zip({**TREE, "test/ant/1.png": b"1"}, top / "train.zip"),
        "and, beside train, 'test/ant/1.png': an archive that is called after a split",
    ),
    "a picture beside train in a zip of train": (
        lambda top: as_zip({f"d/{n}": c for n, c in {**TREE, "preview.png": b"1"}.items()}, top / "train.zip"),
        "and, beside train, 'd/preview.png'",
    ),
    "one label for two images": (
        lambda top: as_folder({**flat(TINY), "val/more/val_3.JPEG": TREE["val/bee/000.JPEG"]}, top),
        "the file of labels has one 'val_3.JPEG', for ",
    ),
    "a compressed tar": (
        lambda top: as_tar(TREE, top / "train.tar").rename(top / "train.tar.gz"),
        "train.tar.gz is compressed as a whole, and cannot be read without unpacking",
    ),
    "no folder at all": (
        lambda top: None,
        "top is not there; it would hold train and val, as folders, zip or tar files",
    ),
    "no tar": (lambda top: as_tar(TREE, top / "train.tar").write_bytes(b"x" * 2000), "cannot be read as a tar file"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_tree_that_cannot_be_right_is_refused_in_a_sentence(case: str, tmp_path: Path) -> None:
    make, said = BAD[case]
    make(tmp_path / "top")
    with pytest.raises(InputError) as caught:
        find_tree(tmp_path / "top")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_byte_in_a_zip_file_is_found_though_a_jpeg_would_show_it(tmp_path: Path) -> None:
    path = as_zip(TREE, tmp_path / "all.zip")
    with zipfile.ZipFile(path) as archive:
        entry = archive.infolist()[0]
    content = bytearray(path.read_bytes())
    content[entry.header_offset + 30 + len(entry.filename) + entry.file_size - 20] ^= 1
    path.write_bytes(bytes(content))
    tree = find_tree(path)
    at = next(i for i in range(len(tree.train)) if tree.train[i].name.endswith(entry.filename))
    with pytest.raises(Broken, match="do not have the checksum"):
        Files().read(tree.train[at])


def test_a_file_that_is_gone_or_too_large_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = find_tree(as_folder(TREE, tmp_path))
    Path(tree.train[0].path).unlink()
    with pytest.raises(Broken, match="cannot be read: No such file"):
        Files().read(tree.train[0])
    monkeypatch.setattr("lcrbnn.data.listing.LARGEST", 100)
    with pytest.raises(Broken, match="more than 100 bytes"):
        Files().read(tree.train[1])


def test_more_archives_than_may_be_open_are_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lcrbnn.data.listing.OPEN", 1)
    assert contents(find_tree(_split_zips(tmp_path)).train) == WANTED


def test_a_listing_of_some_rows_has_their_members(tmp_path: Path) -> None:
    whole = find_tree(_split_zips(tmp_path)).train
    some = whole.take(np.array([7, 2]))
    assert [some[0], some[1]] == [whole[7], whole[2]]
    assert some.labels.tolist() == whole.labels[[7, 2]].tolist()


def test_arrays_of_a_small_tree_are_there_for_what_needs_them_whole(tmp_path: Path) -> None:
    images = DATASETS["folder"].sized(16, 3).load(as_folder(TREE, tmp_path))
    assert images.train.images.shape == (12, 3, 16, 16)
    means = [images.train.images[images.train.labels == c].mean() for c in range(3)]
    assert means == sorted(means)
    as_folder({"train/ant/000.JPEG": b"html"}, tmp_path)
    broken = DATASETS["folder"].sized(16, 3).load(tmp_path)
    assert len(broken.test.labels) == len(images.test.labels)  # what is not asked for is not read
    with pytest.raises(InputError, match=r"000.JPEG is broken: it is no image that Pillow knows"):
        _ = broken.train


def test_a_tree_that_does_not_fit_into_memory_is_not_loaded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = DATASETS["folder"].sized(16, 3).load(as_folder(TREE, tmp_path))
    monkeypatch.setattr("lcrbnn.data.pixels.MOST", 11 * 3 * 16**2)  # as many as the test has, but not all
    assert len(images.test.labels) < 12
    with pytest.raises(InputError, match=r"12 images in .* lcrbnn train and eval read them piece by piece"):
        _ = images.train


def test_an_image_has_a_name_that_does_not_depend_on_where_the_tree_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = generated(train=1, val=1)
    as_folder(files, tmp_path / "folder")
    as_zip(files, tmp_path / "one.zip")
    as_zip(under(files, "train"), tmp_path / "shards" / "train-0.zip")
    as_zip(under(files, "val"), tmp_path / "shards" / "val.zip")
    as_tar(under(files, "train", keep=False), tmp_path / "bare" / "train.tar")
    as_tar(under(files, "val", keep=False), tmp_path / "bare" / "val.tar")
    name = "train/ant/000.JPEG"
    for form in ("folder", "one.zip", "shards", "bare"):
        assert find_tree(tmp_path / form).train.inside(0) == name
        assert find_tree(tmp_path / form).train.take(np.array([1, 0])).inside(1) == name
    monkeypatch.chdir(tmp_path / "folder")
    assert find_tree(Path()).train.inside(0) == "train/ant/000.JPEG"


def named_like_splits(train: int, val: int) -> dict[str, bytes]:
    """A tree with a class that is called train, as COCO has one, and a folder more in each class."""
    return {
        f"{split}/{name}/images/{split}{i}.png": encoded(smooth(8, 8, i), "PNG")
        for split, count in (("train", train), ("val", val))
        for name in ("bus", "car", "train")
        for i in range(count)
    }


@pytest.mark.parametrize("keep", [True, False])
def test_a_class_may_be_called_train_in_any_form(tmp_path: Path, keep: bool) -> None:
    files = named_like_splits(4, 2)
    as_folder(files, tmp_path / "folder")
    as_zip(files, tmp_path / "one.zip")
    for split in ("train", "val"):
        as_zip(under(files, split, keep=keep), tmp_path / "zips" / f"{split}.zip")
        as_tar(under(files, split, keep=keep), tmp_path / "tars" / f"{split}.tar")
    for form in ("folder", "one.zip", "zips", "tars"):
        tree = find_tree(tmp_path / form)
        assert tree.classes == ("bus", "car", "train"), form
        assert (len(tree.train), len(tree.test)) == (12, 6)
        assert tree.train.inside(0) == "train/bus/images/train0.png"


def test_names_from_the_root_are_taken_and_names_that_lead_out_refused(tmp_path: Path) -> None:
    files = generated(train=4, val=1)
    train = under(files, "train", keep=False)
    as_tar({f"/{name}": content for name, content in train.items()}, tmp_path / "root" / "train-0.tar")
    as_tar(under(files, "val", keep=False), tmp_path / "root" / "val.tar")
    assert len(find_tree(tmp_path / "root").train) == len(train)
    as_tar({f"../{name}": content for name, content in train.items()}, tmp_path / "out" / "train-0.tar")
    as_tar(under(files, "val", keep=False), tmp_path / "out" / "val.tar")
    with pytest.raises(InputError, match=r"train-0\.tar: '\.\./ant/.*' leads out of the archive"):
        find_tree(tmp_path / "out")


@pytest.mark.parametrize("name", ["x.bnn", "tree"])
def test_a_file_of_another_kind_is_called_so(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"LCRBNN")
    with pytest.raises(
        InputError, match=rf"{name} is a file that is neither \.zip nor \.tar: images come from a folder"
    ):
        find_tree(tmp_path / name, "tiny-imagenet")


def test_a_pipe_is_called_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"pipe is a pipe: images come from a folder, a \.zip or a \.tar file$"):
        find_tree(tmp_path / "pipe")


@pytest.mark.parametrize("form", ["zip", "tar"])
def test_an_empty_class_in_an_archive_is_refused_as_in_a_folder(tmp_path: Path, form: str) -> None:
    files = generated(train=2, val=1)
    path = (as_zip if form == "zip" else as_tar)(files, tmp_path / f"tree.{form}")
    if form == "zip":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("train/ant/", b"")
            archive.writestr("train/zzz/", b"")
    else:
        with tarfile.open(path, "a") as archive:
            entry = tarfile.TarInfo("train/zzz")
            entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
    with pytest.raises(InputError, match=rf"tree\.{form}/train/zzz/? has no images: an empty class cannot be learned"):
        find_tree(path)
