"""Find vague names in code, such as variables `found` or `theirs`, and functions such as `told`.

    python -m tools.check_names FOLDER ... [--max PERCENT] [--list]

It prints two percentages per folder: variables and arguments with a vague name, and functions whose name is only a
participle. A name counts once per assignment or definition. Test files are skipped, unless the folder itself is named
`tests`. The exit code is 1 if a percentage exceeds --max.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

VAGUE_WORDS = """
    alone apart asked both done due each even found given held here how kept known late made mine more named one other
    others ours own said seen shown some theirs there told wanted what where which whole wide
"""
VAGUE_NAMES = frozenset(VAGUE_WORDS.split())
PARTICIPLE = re.compile(
    "_?([a-z]+ed|found|given|held|told|seen|made|known|kept|shown|said|taught|drawn|written|fed|begun|gone|taken)"
)
# These words end in "ed" but are verbs or nouns, so they are allowed.
NO_PARTICIPLES = frozenset({"seed", "feed", "embed", "speed", "need", "exceed", "proceed", "succeed", "shed"})
DEFAULT_MAX_PERCENT = 0.5


class Occurrence(NamedTuple):
    """A name, and the file and line in which it is assigned or defined."""

    name: str
    path: Path
    line: int


class NameCounts(NamedTuple):
    """All variables and functions of a folder, and those of them with vague names."""

    num_variables: int
    num_functions: int
    vague_variables: list[Occurrence]
    participle_functions: list[Occurrence]

    @property
    def percentages(self) -> tuple[float, float]:
        """Return two percentages: variables with a vague name, and functions whose name is only a participle."""
        return (
            100 * len(self.vague_variables) / max(self.num_variables, 1),
            100 * len(self.participle_functions) / max(self.num_functions, 1),
        )


def is_participle(name: str) -> bool:
    """Return whether a function name is only a participle, such as `told` or `_settled`."""
    return PARTICIPLE.fullmatch(name) is not None and name.removeprefix("_") not in NO_PARTICIPLES


def count_names(folder: Path) -> NameCounts:
    """Return the names in all Python files of a folder."""
    variables: list[Occurrence] = []
    functions: list[Occurrence] = []
    for path in _list_files(folder):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                variables.append(Occurrence(node.id, path, node.lineno))
            elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
                variables.append(Occurrence(node.arg, path, node.lineno))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append(Occurrence(node.name, path, node.lineno))
    vague = [variable for variable in variables if variable.name in VAGUE_NAMES]
    participles = [function for function in functions if is_participle(function.name)]
    return NameCounts(len(variables), len(functions), vague, participles)


def _list_files(folder: Path) -> Iterator[Path]:
    skips_tests = folder.resolve().name != "tests"
    for path in sorted(folder.rglob("*.py")):
        relative = path.relative_to(folder)
        is_test = "tests" in relative.parts or relative.name.startswith("test_")
        if not (skips_tests and is_test):
            yield path


def main(arguments: list[str] | None = None) -> int:
    """Print the percentages for each folder. Return 1 if one of them exceeds the maximum."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--max",
        type=float,
        default=DEFAULT_MAX_PERCENT,
        metavar="PERCENT",
        help="maximum percentage of vague names (default: %(default)s)",
    )
    parser.add_argument("--list", action="store_true", help="list every occurrence of a vague name")
    args = parser.parse_args(arguments)
    is_exceeded = False
    for folder in args.folders:
        counts = count_names(folder)
        variable_percent, function_percent = counts.percentages
        is_folder_exceeded = max(variable_percent, function_percent) > args.max
        is_exceeded |= is_folder_exceeded
        print(
            f"{folder}: {variable_percent:.2f} % of {counts.num_variables} variables and arguments are vague, "
            f"{function_percent:.2f} % of {counts.num_functions} functions are bare participles"
            + (f" (maximum {args.max:g} %)" if is_folder_exceeded else "")
        )
        if args.list or is_folder_exceeded:
            for occurrence in [*counts.vague_variables, *counts.participle_functions]:
                print(f"  {occurrence.path}:{occurrence.line} {occurrence.name}")
    return int(is_exceeded)


if __name__ == "__main__":
    sys.exit(main())
