"""Pipes, sockets and devices are no pictures, whatever their names: nothing opens them, so nothing waits for them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest

from lcrbnn.data.listing import Broken, Files, Listing, Member
from lcrbnn.data.pictures import find_pictures, read_picture
from lcrbnn.data.tree import find_tree
from lcrbnn.engine import Model
from lcrbnn.errors import InputError
from tests.data.trees import as_folder, encoded, generated, smooth

pytestmark = pytest.mark.timeout(20)  # reading from a pipe without a writer lasts for ever
TREE = generated(train=2, val=1)
MODEL = Model("", (4, 6, 3), 255.0, (0.0,) * 3, (1.0,) * 3, ("a",), ())


def make_socket(path: Path) -> None:
    with chdir(path.parent), socket.socket(socket.AF_UNIX) as server:  # chdir, because a socket's path is short
        server.bind(path.name)


def link_to_pipe(path: Path) -> None:
    os.mkfifo(path.parent / ".pipe")
    path.symlink_to(".pipe")


SPECIAL: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pipe": (os.mkfifo, "it is a pipe, not a regular file"),
    "a link to a pipe": (link_to_pipe, "it is a pipe, not a regular file"),
    "a socket": (make_socket, "it is a socket, not a regular file"),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a regular file"),
}


def names_in(listing: Listing) -> list[str]:
    return [Path(listing[row].name).name for row in range(len(listing))]


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_special_file_in_a_class_folder_is_not_listed(kind: str, tmp_path: Path) -> None:
    usual = find_tree(as_folder(TREE, tmp_path / "usual"))
    special = as_folder(TREE, tmp_path / "special")
    for folder in ("train/ant", "val/bee"):
        SPECIAL[kind][0](special / folder / "x.png")
    tree = find_tree(special)
    assert names_in(tree.train) == names_in(usual.train)
    assert names_in(tree.test) == names_in(usual.test)
    for row in range(len(tree.train)):
        Files().read(tree.train[row])


def test_a_link_to_a_regular_file_is_a_picture(tmp_path: Path) -> None:
    top = as_folder(TREE, tmp_path / "top")
    (tmp_path / "elsewhere").write_bytes(encoded(smooth(40, 30, 1), "PNG"))
    (top / "train/ant/x.png").symlink_to(tmp_path / "elsewhere")
    assert "x.png" in names_in(find_tree(top).train)
    assert find_pictures([top / "train/ant"])[-1] == top / "train/ant/x.png"


@pytest.mark.parametrize("name", ["train.zip", "train.tar"])
def test_an_archive_that_is_a_pipe_is_refused(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=rf"{name} cannot be read: it is a pipe"):
        find_tree(tmp_path)


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_special_file_is_never_read(kind: str, tmp_path: Path) -> None:
    make, reason = SPECIAL[kind]
    path = tmp_path / "x.png"
    make(path)
    with pytest.raises(InputError, match=reason):
        read_picture(path, MODEL)
    with pytest.raises(Broken, match=reason):
        Files().read(Member(str(path), str(path)))


def test_predict_passes_over_a_pipe_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(smooth(40, 30, 1), "PNG"))
    os.mkfifo(tmp_path / "x.png")
    assert find_pictures([tmp_path]) == [tmp_path / "a.png"]
