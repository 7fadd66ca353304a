"""Which runs go side by side, and which wait for others."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcrbnn.cli import main
from lcrbnn.errors import InputError
from lcrbnn.study.turns import side_by_side
from lcrbnn.train import Spec

RUNS = Path("runs")


def turns(specs: dict[str, Spec], width: int) -> list[list[str]]:
    groups = side_by_side({RUNS / place: spec for place, spec in specs.items()}, width, RUNS)
    return [[str(path.relative_to(RUNS)) for path in group] for group in groups]


def test_runs_with_the_same_compiled_step_come_together() -> None:
    arms = {"none": Spec(), "strong": Spec(weight=8.0), "other": Spec(method="xnor"), "weak": Spec(share=0.01)}
    seeds = {"none": 3, "strong": 5, "other": 2, "weak": 4}
    specs = {f"{arm}-{seed}": spec.but(seed=seed) for arm, spec in arms.items() for seed in range(seeds[arm])}
    found = turns(specs, 6)
    assert found == [
        ["none-0", "none-1", "none-2", "weak-1", "weak-2", "weak-3"],
        ["strong-0", "strong-1", "strong-2", "strong-3", "strong-4", "weak-0"],
        ["other-0", "other-1"],
    ]
    assert sorted(place for group in found for place in group) == sorted(specs)


def test_runs_that_differ_in_what_is_shared_take_turns() -> None:
    specs = {"a": Spec(), "b": Spec(precision="bfloat16"), "c": Spec(images="all"), "d": Spec(method="xnor")}
    assert turns(specs, 4) == [["a", "d"], ["b"], ["c"]]


def test_a_run_comes_after_those_that_it_needs() -> None:
    specs = {
        "p/third/seed-0": Spec(start="study:p/second/seed-0"),
        "p/second/seed-0": Spec(start="study:p/first/seed-0", teacher=str(RUNS / "q/teacher/seed-0")),
        "p/first/seed-0": Spec(),
        "q/teacher/seed-0": Spec(method="xnor"),
        "q/free/seed-0": Spec(start="study:q/finished/seed-0"),  # made before
    }
    assert turns(specs, 9) == [
        ["p/first/seed-0", "q/teacher/seed-0", "q/free/seed-0"],
        ["p/second/seed-0"],
        ["p/third/seed-0"],
    ]


def test_runs_that_need_each_other_are_refused() -> None:
    specs = {"a": Spec(start="study:b"), "b": Spec(teacher="study:a"), "c": Spec()}
    with pytest.raises(InputError, match=r"^the runs runs/a, runs/b cannot begin: each needs one of them finished$"):
        turns(specs, 2)


def test_a_plan_of_two_steps_and_two_precisions_is_made_in_one_go(tmp_path: Path) -> None:
    settings = 'recipe = "digits"\nseeds = [0]\ncontrol = "a"\n[settings]\nepochs = 1\nbatch = 500\n'
    arms = '[arms.a]\n[arms.b]\nstart = "study:small/a/seed-0"\n[arms.c]\nprecision = "bfloat16"\n'
    (tmp_path / "small.toml").write_text(f"# Small\n{settings}{arms}")
    words = ["study", str(tmp_path / "small.toml"), "--run", str(tmp_path / "runs" / "small"), "--device", "cpu"]
    assert main([*words, "--records", str(tmp_path / "records")]) == 0
    assert len(list((tmp_path / "records").glob("*/seed-0.json"))) == 3
