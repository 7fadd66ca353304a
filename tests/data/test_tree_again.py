"""Trees that are indexed again, and names that other programs write."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest

from lcrbnn.data.pixels import pillow_square, read_tree
from lcrbnn.data.tree import find_tree
from tests.data.trees import CLASSES, as_folder, as_zip, generated, under


@pytest.mark.parametrize("form", ["one zip", "a zip a split"])
def test_a_tree_in_archives_is_indexed_once_until_one_of_them_changes(tmp_path: Path, form: str) -> None:
    split = form == "a zip a split"
    where = tmp_path if split else tmp_path / "tree.zip"

    def write(train: int, val: int) -> None:
        made = generated(train=train, val=val)
        parts = {name: under(made, name) for name in ("train", "val")} if split else {"tree": made}
        for name, part in parts.items():
            as_zip(part, tmp_path / f"{name}.zip")

    write(4, 1)
    first = find_tree(where)
    assert find_tree(where) is first
    write(4, 2)  # val alone is another
    second = find_tree(where)
    assert (len(first.test), len(second.test)) == (len(CLASSES), 2 * len(CLASSES))


def test_a_tree_in_folders_is_looked_through_each_time(tmp_path: Path) -> None:
    where = as_folder(generated(train=4, val=1), tmp_path)
    count = len(find_tree(where).train)
    one = next((where / "train" / CLASSES[0]).iterdir())
    one.with_name("another.JPEG").write_bytes(one.read_bytes())
    assert len(find_tree(where).train) == count + 1


def test_labels_are_found_by_the_path_in_val_too_and_after_a_byte_order_mark(tmp_path: Path) -> None:
    made = generated(train=4, val=1)
    files = {f"val/{c}-side/1.png": made[f"val/{c}/000.JPEG"] for c in CLASSES}
    text = "\ufeff" + "".join(f"{c}-side/1.png {c}\n" for c in CLASSES)
    where = as_folder({**under(made, "train"), **files, "val_labels.txt": text.encode()}, tmp_path)
    assert find_tree(where).test.labels.tolist() == list(range(len(CLASSES)))


def test_a_zip_file_of_a_program_that_writes_backslashes_is_read(tmp_path: Path) -> None:
    made = generated(train=4, val=1)
    odd = as_zip({name.replace("/", "\\"): content for name, content in made.items()}, tmp_path / "odd.zip")
    wanted, found = (find_tree(path).train for path in (as_zip(made, tmp_path / "usual.zip"), odd))
    assert found.labels.tolist() == wanted.labels.tolist()
    assert [found.inside(i) for i in range(len(found))] == [wanted.inside(i) for i in range(len(wanted))]


def test_a_tar_file_of_a_whole_folder_names_the_folder_itself(tmp_path: Path) -> None:
    """As `tar -C folder -cf train.tar .` writes it."""
    files = generated(train=4, val=1)
    for split in ("train", "val"):
        folder = as_folder(under(files, split, keep=False), tmp_path / split)
        (tmp_path / "tree").mkdir(exist_ok=True)
        with tarfile.open(tmp_path / "tree" / f"{split}.tar", "w") as archive:
            archive.add(folder, ".")
    assert find_tree(tmp_path / "tree").classes == CLASSES


def test_a_broken_image_is_left_out_with_its_label_and_no_other(tmp_path: Path) -> None:
    tree = generated(train=2, val=2)
    tree["train/bee/000.JPEG"] = b"no picture"
    images = read_tree(find_tree, as_folder(tree, tmp_path), side=8, margin=1.0, skip_broken=True)
    assert images.train.labels.tolist() == [0, 0, 1, 2, 2]
    for row, name in enumerate(("ant/000", "ant/001", "bee/001", "cat/000", "cat/001")):
        whole = pillow_square(tree[f"train/{name}.JPEG"], 8, 1.0)
        assert np.array_equal(images.train.images[row], whole.transpose(2, 0, 1)), name
    assert images.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
