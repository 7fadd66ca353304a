"""Pipes, sockets and devices with the name of an image are not opened, because that could block forever."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest

from lcrbnn.data.image_files.image_folder import find_image_folder
from lcrbnn.data.image_files.image_index import BrokenImage, ImageIndex, ImageLocation, ImageReader
from lcrbnn.deploy.engine.graph import BnnModel
from lcrbnn.deploy.pictures import find_pictures, read_picture
from lcrbnn.errors import InputError
from tests.data.image_folders import encode_image, make_image_files, make_smooth_image, write_folder

pytestmark = pytest.mark.timeout(20)  # reading from a pipe without a writer never ends
FILES = make_image_files(train=2, val=1)
MODEL = BnnModel("", (4, 6, 3), 255.0, (0.0,) * 3, (1.0,) * 3, ("a",), ())


def make_socket(path: Path) -> None:
    with (
        chdir(path.parent),
        socket.socket(socket.AF_UNIX) as server,
    ):  # chdir, because the length of a socket path is limited
        server.bind(path.name)


def make_link_to_pipe(path: Path) -> None:
    os.mkfifo(path.parent / ".pipe")
    path.symlink_to(".pipe")


SPECIAL_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pipe": (os.mkfifo, "it is a pipe, not a regular file"),
    "a link to a pipe": (make_link_to_pipe, "it is a pipe, not a regular file"),
    "a socket": (make_socket, "it is a socket, not a regular file"),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a regular file"),
}


def list_names(image_index: ImageIndex) -> list[str]:
    return [Path(image_index[row].name).name for row in range(len(image_index))]


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_a_special_file_in_a_class_folder_is_not_listed(kind: str, tmp_path: Path) -> None:
    expected = find_image_folder(write_folder(FILES, tmp_path / "usual"))
    root = write_folder(FILES, tmp_path / "special")
    for folder in ("train/ant", "val/bee"):
        SPECIAL_FILES[kind][0](root / folder / "x.png")
    image_folder = find_image_folder(root)
    assert list_names(image_folder.train) == list_names(expected.train)
    assert list_names(image_folder.test) == list_names(expected.test)
    for row in range(len(image_folder.train)):
        ImageReader().read(image_folder.train[row])


def test_a_link_to_a_regular_file_is_an_image(tmp_path: Path) -> None:
    root = write_folder(FILES, tmp_path / "top")
    (tmp_path / "elsewhere").write_bytes(encode_image(make_smooth_image(40, 30, 1), "PNG"))
    (root / "train/ant/x.png").symlink_to(tmp_path / "elsewhere")
    assert "x.png" in list_names(find_image_folder(root).train)
    assert find_pictures([root / "train/ant"])[-1] == root / "train/ant/x.png"


@pytest.mark.parametrize("name", ["train.zip", "train.tar"])
def test_an_archive_that_is_a_pipe_is_rejected(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=rf"{name} cannot be read: it is a pipe"):
        find_image_folder(tmp_path)


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_a_special_file_is_never_read(kind: str, tmp_path: Path) -> None:
    make_file, reason = SPECIAL_FILES[kind]
    path = tmp_path / "x.png"
    make_file(path)
    with pytest.raises(InputError, match=reason):
        read_picture(path, MODEL)
    with pytest.raises(BrokenImage, match=reason):
        ImageReader().read(ImageLocation(str(path), str(path)))


def test_find_pictures_ignores_a_pipe_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encode_image(make_smooth_image(40, 30, 1), "PNG"))
    os.mkfifo(tmp_path / "x.png")
    assert find_pictures([tmp_path]) == [tmp_path / "a.png"]
