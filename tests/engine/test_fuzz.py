"""Files that mean harm: a short run of tools/fuzz.py, every flipped bit, and two readers that agree."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lcrbnn.engine import lib
from lcrbnn.engine.format import to_bytes
from lcrbnn.errors import Failed, InputError
from tests.engine.files import opens
from tools.build import build, compiler
from tools.fuzz import HARM, fuzz, small_models, write_models

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def program() -> Path:
    if not compiler() and not os.environ.get("CI"):
        pytest.skip("there is no C++ compiler")  # then there is no engine either
    return build("fuzz", ROOT / "build" / "sanitized", HARM)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


def engine_there() -> None:
    try:
        lib.library()
    except InputError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))  # the engine is not built


def cases(path: Path) -> Iterator[bytes]:
    data, at = path.read_bytes(), 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


@pytest.mark.slow  # the engine is built once more, with the sanitizers; the next time it is there
def test_five_thousand_cases(program: Path, models: Path) -> None:
    """The start of `python -m tools.fuzz --seed 1`."""
    found = fuzz(program, models, 1, 0, 5000)
    assert found["cases"] == found["refused"] + found["accepted"] + found["no_memory"] == 5000
    assert found["refused"] > 2500
    assert found["run"] > 500
    assert found["accepted"] >= found["run"]
    assert found["peak_mib"] < 256
    assert len(found["reasons"]) > 120  # the deep checks were reached


def test_a_case_is_the_same_again(program: Path, models: Path, tmp_path: Path) -> None:
    fuzz(program, models, 3, 0, 40, "--write", str(tmp_path / "many"))
    fuzz(program, models, 3, 30, 1, "--write", str(tmp_path / "one"))
    assert list(cases(tmp_path / "one")) == list(cases(tmp_path / "many"))[30:31]
    words = [str(program), str(models), "--seed", "3", "--case", "30"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.count("\n") == 1


def test_what_ends_badly_names_its_case(program: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.bnn").write_bytes(b"none")
    with pytest.raises(Failed, match="seed 7 case 0"):
        fuzz(program, tmp_path, 7, 0, 1)


def test_both_readers_agree(program: Path, models: Path, tmp_path: Path) -> None:
    engine_there()
    fuzz(program, models, 2, 0, 5000, "--write", str(tmp_path / "cases"))
    found = Counter(opens(data) for data in cases(tmp_path / "cases"))
    assert found[True, False] == found[False, True] == found[False, None] == 0
    assert found[True, True] > 500
    assert found[False, False] > 2500


def test_every_flipped_bit_is_refused() -> None:
    engine_there()
    data = to_bytes(dict(small_models())["signs 0"])
    assert opens(data) == (True, True)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert opens(bytes(changed)) == (False, False), bit
