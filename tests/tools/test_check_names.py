from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_names import count_names, is_participle, main

SOURCE = """
def told(model, given):
    found = [one for one in given]
    return found

async def read_batch(self, seed):
    count = seed
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "package" / "tests").mkdir(parents=True)
    (tmp_path / "package" / "module.py").write_text(SOURCE)
    (tmp_path / "package" / "test_module.py").write_text("found = 1\n")
    (tmp_path / "package" / "tests" / "helpers.py").write_text("found = 1\n")
    return tmp_path / "package"


def test_vague_variables_and_participle_functions_are_counted(folder: Path) -> None:
    counts = count_names(folder)
    assert (counts.num_variables, counts.num_functions) == (6, 2)  # self is not counted
    assert sorted(occurrence.name for occurrence in counts.vague_variables) == ["found", "given", "one"]
    assert [(function.name, function.line) for function in counts.participle_functions] == [("told", 2)]
    assert counts.percentages == (50, 50)


def test_tests_are_counted_only_in_a_folder_named_tests(folder: Path) -> None:
    assert count_names(folder / "tests").num_variables == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [("settled", True), ("_told", True), ("seed", False), ("read_batch", False), ("kept_x", False)],
)
def test_a_participle_is_a_whole_name(name: str, expected: bool) -> None:
    assert is_participle(name) == expected


def test_the_exit_code_is_one_above_the_maximum(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder)]) == 1
    output = capsys.readouterr().out
    assert "50.00 % of 6 variables and arguments are vague, 50.00 % of 2 functions" in output
    assert f"{folder / 'module.py'}:2 told" in output
    assert main([str(folder), "--max", "50"]) == 0
    assert "told" not in capsys.readouterr().out
