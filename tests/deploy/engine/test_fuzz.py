"""Malicious files: a short run of tools/native/fuzz_engine.py, all single bit flips, and agreement of both readers."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lcrbnn.deploy.engine import runtime as lib
from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.errors import InputError, RunFailed
from tests.deploy.engine.edited_files import try_both_readers
from tools.native.build import build_program, find_compiler
from tools.native.fuzz_engine import SANITIZER_FLAGS, make_small_models, run_cases, write_models

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def program() -> Path:
    if not find_compiler() and not os.environ.get("CI"):
        pytest.skip("there is no C++ compiler")  # then there is no engine either
    return build_program("fuzz", ROOT / "build" / "sanitized", SANITIZER_FLAGS)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


def skip_without_engine() -> None:
    try:
        lib.load_library()
    except InputError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))  # the engine is not built


def iter_cases(path: Path) -> Iterator[bytes]:
    data, offset = path.read_bytes(), 0
    while offset < len(data):
        size = int.from_bytes(data[offset : offset + 4], "little")
        yield data[offset + 4 : offset + 4 + size]
        offset += 4 + size


@pytest.mark.slow  # builds the engine with the sanitizers the first time
def test_five_thousand_fuzz_cases_cause_no_error(program: Path, models: Path) -> None:
    """Run the first cases of `python -m tools.native.fuzz_engine --seed 1`."""
    figures = run_cases(program, models, 1, 0, 5000)
    assert figures["cases"] == figures["refused"] + figures["accepted"] + figures["no_memory"] == 5000
    assert figures["refused"] > 2500
    assert figures["run"] > 500
    assert figures["accepted"] >= figures["run"]
    assert figures["peak_mib"] < 256
    assert len(figures["reasons"]) > 120  # later checks were reached


def test_a_fuzz_case_can_be_reproduced_alone(program: Path, models: Path, tmp_path: Path) -> None:
    run_cases(program, models, 3, 0, 40, "--write", str(tmp_path / "many"))
    run_cases(program, models, 3, 30, 1, "--write", str(tmp_path / "one"))
    assert list(iter_cases(tmp_path / "one")) == list(iter_cases(tmp_path / "many"))[30:31]
    words = [str(program), str(models), "--seed", "3", "--case", "30"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.count("\n") == 1


def test_a_crash_names_its_seed_and_case(program: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.bnn").write_bytes(b"none")
    with pytest.raises(RunFailed, match="seed 7 case 0"):
        run_cases(program, tmp_path, 7, 0, 1)


def test_both_readers_agree_on_fuzz_cases(program: Path, models: Path, tmp_path: Path) -> None:
    skip_without_engine()
    run_cases(program, models, 2, 0, 5000, "--write", str(tmp_path / "cases"))
    counts = Counter(try_both_readers(data) for data in iter_cases(tmp_path / "cases"))
    assert counts[True, False] == counts[False, True] == counts[False, None] == 0
    assert counts[True, True] > 500
    assert counts[False, False] > 2500


def test_every_flipped_bit_is_rejected_by_both_readers() -> None:
    skip_without_engine()
    data = to_bytes(dict(make_small_models())["signs 0"])
    assert try_both_readers(data) == (True, True)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert try_both_readers(bytes(changed)) == (False, False), bit
