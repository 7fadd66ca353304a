"""Which runs go side by side, and which wait for others."""

from __future__ import annotations

import shutil
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


def test_a_run_that_fails_takes_along_only_those_that_need_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = 'recipe = "digits"\nseeds = [0]\ncontrol = "fine"\n[settings]\nepochs = 1\nbatch = 500\n'
    arms = "[arms.bad]\nlr = 1e30\n[arms.fine]\n"
    arms += "".join(f'[arms.after-{name}]\nstart = "study:small/{name}/seed-0"\n' for name in ("bad", "fine"))
    (tmp_path / "small.toml").write_text(f"# Small\n{settings}{arms}")
    words = ["study", str(tmp_path / "small.toml"), "--run", str(tmp_path / "runs" / "small"), "--device", "cpu"]
    assert main([*words, "--records", str(tmp_path / "records")]) == 1
    assert {path.parent.name for path in (tmp_path / "records").glob("*/*.json")} == {"fine", "after-fine"}
    *_, said = capsys.readouterr().err.splitlines()
    lacking = f"{(tmp_path / 'runs' / 'small' / 'bad' / 'seed-0').absolute()} has no record.json"
    assert said.startswith("lcrbnn: bad/seed-0: bad numbers at step 1 ")
    assert said.endswith(f"; after-bad/seed-0: a run starts from a finished one, and {lacking}")


def test_a_finished_run_needs_nothing_any_more(tmp_path: Path) -> None:
    settings = 'recipe = "digits"\nseeds = [0]\ncontrol = "b"\n[settings]\nepochs = 1\nbatch = 500\n'
    (tmp_path / "first.toml").write_text(f"# First\n{settings}[arms.b]\n")
    (tmp_path / "second.toml").write_text(f'# Second\n{settings}[arms.b]\nstart = "study:first/b/seed-0"\n')
    for name in ("first", "second"):
        words = ["study", str(tmp_path / f"{name}.toml"), "--run", str(tmp_path / "runs" / name), "--device", "cpu"]
        words += ["--records", str(tmp_path / "records" / name)]
        assert main(words) == 0
    shutil.rmtree(tmp_path / "runs" / "first")
    assert main(words) == 0


def test_a_plan_that_names_its_own_runs_finds_them_where_they_are_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = 'recipe = "digits"\nseeds = [0]\ncontrol = "a"\n[settings]\nepochs = 1\nbatch = 500\n'
    (tmp_path / "own.toml").write_text(f'# Own\n{settings}[arms.a]\n[arms.b]\nstart = "study:own/a"\n')
    words = ["study", str(tmp_path / "own.toml"), "--records", str(tmp_path / "records"), "--device", "cpu"]
    assert main([*words, "--run", str(tmp_path / "runs" / "second")]) == 2
    said = capsys.readouterr().err
    assert "names study:own/a/seed-0, which lies in" in said
    assert f"run the plan into a folder called own, not {tmp_path / 'runs' / 'second'}" in said
    assert not (tmp_path / "runs").exists()
    assert main([*words, "--run", str(tmp_path / "runs" / "own")]) == 0
