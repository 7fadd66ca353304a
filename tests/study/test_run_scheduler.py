"""Groups of runs that train in one process, and the order of runs that reference other runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lcrbnn.cli.main import main
from lcrbnn.errors import InputError
from lcrbnn.study.run_scheduler import schedule_runs
from lcrbnn.train.setup.spec import TrainSpec

RUNS_FOLDER = Path("runs")


def schedule_names(specs: dict[str, TrainSpec], parallel_runs: int) -> list[list[str]]:
    groups = schedule_runs({RUNS_FOLDER / name: spec for name, spec in specs.items()}, parallel_runs, RUNS_FOLDER)
    return [[str(path.relative_to(RUNS_FOLDER)) for path in group] for group in groups]


def test_runs_with_the_same_compiled_step_are_grouped() -> None:
    variants = {
        "none": TrainSpec(),
        "strong": TrainSpec(lcr_weight=8.0),
        "other": TrainSpec(method="xnor"),
        "weak": TrainSpec(lcr_gradient_ratio=0.01),
    }
    seeds = {"none": 3, "strong": 5, "other": 2, "weak": 4}
    specs = {
        f"{variant}-{seed}": spec.replace(seed=seed)
        for variant, spec in variants.items()
        for seed in range(seeds[variant])
    }
    groups = schedule_names(specs, 6)
    assert groups == [
        ["none-0", "none-1", "none-2", "weak-1", "weak-2", "weak-3"],
        ["strong-0", "strong-1", "strong-2", "strong-3", "strong-4", "weak-0"],
        ["other-0", "other-1"],
    ]
    assert sorted(name for group in groups for name in group) == sorted(specs)


def test_runs_with_different_shared_settings_are_separated() -> None:
    specs = {
        "a": TrainSpec(),
        "b": TrainSpec(precision="bfloat16"),
        "c": TrainSpec(train_split="train+valid"),
        "d": TrainSpec(method="xnor"),
    }
    assert schedule_names(specs, 4) == [["a", "d"], ["b"], ["c"]]


def test_run_is_scheduled_after_the_runs_it_references() -> None:
    specs = {
        "p/third/seed-0": TrainSpec(init_from="study:p/second/seed-0"),
        "p/second/seed-0": TrainSpec(init_from="study:p/first/seed-0", teacher=str(RUNS_FOLDER / "q/teacher/seed-0")),
        "p/first/seed-0": TrainSpec(),
        "q/teacher/seed-0": TrainSpec(method="xnor"),
        "q/free/seed-0": TrainSpec(init_from="study:q/finished/seed-0"),  # not part of this study
    }
    assert schedule_names(specs, 9) == [
        ["p/first/seed-0", "q/teacher/seed-0", "q/free/seed-0"],
        ["p/second/seed-0"],
        ["p/third/seed-0"],
    ]


def test_circular_references_are_rejected() -> None:
    specs = {"a": TrainSpec(init_from="study:b"), "b": TrainSpec(teacher="study:a"), "c": TrainSpec()}
    with pytest.raises(
        InputError, match=r"^the runs runs/a, runs/b cannot start: each needs another of them to be finished$"
    ):
        schedule_names(specs, 2)


def test_plan_with_references_and_two_precisions_trains_in_one_call(tmp_path: Path) -> None:
    settings = 'recipe = "digits"\nseeds = [0]\nbaseline = "a"\n[settings]\nepochs = 1\nbatch_size = 500\n'
    variants = '[variants.a]\n[variants.b]\ninit_from = "study:small/a/seed-0"\n[variants.c]\nprecision = "bfloat16"\n'
    (tmp_path / "small.toml").write_text(f"# Small\n{settings}{variants}")
    argv = ["study", str(tmp_path / "small.toml"), "--runs-folder", str(tmp_path / "runs" / "small"), "--device", "cpu"]
    assert main([*argv, "--records", str(tmp_path / "records")]) == 0
    assert len(list((tmp_path / "records").glob("*/seed-0.json"))) == 3


def test_failed_run_blocks_only_the_runs_that_reference_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = 'recipe = "digits"\nseeds = [0]\nbaseline = "fine"\n[settings]\nepochs = 1\nbatch_size = 500\n'
    variants = "[variants.bad]\nlr = 1e30\n[variants.fine]\n"
    variants += "".join(
        f'[variants.after-{name}]\ninit_from = "study:small/{name}/seed-0"\n' for name in ("bad", "fine")
    )
    (tmp_path / "small.toml").write_text(f"# Small\n{settings}{variants}")
    argv = ["study", str(tmp_path / "small.toml"), "--runs-folder", str(tmp_path / "runs" / "small"), "--device", "cpu"]
    assert main([*argv, "--records", str(tmp_path / "records")]) == 1
    assert {path.parent.name for path in (tmp_path / "records").glob("*/*.json")} == {"fine", "after-fine"}
    *_, last_line = capsys.readouterr().err.splitlines()
    reason = f"{(tmp_path / 'runs' / 'small' / 'bad' / 'seed-0').absolute()} has no record.json"
    assert last_line.startswith("lcrbnn: bad/seed-0: non-finite values at step 1 ")
    assert last_line.endswith(f"; after-bad/seed-0: init_from needs a finished run, and {reason}")


def test_finished_run_does_not_need_its_references(tmp_path: Path) -> None:
    settings = 'recipe = "digits"\nseeds = [0]\nbaseline = "b"\n[settings]\nepochs = 1\nbatch_size = 500\n'
    (tmp_path / "first.toml").write_text(f"# First\n{settings}[variants.b]\n")
    (tmp_path / "second.toml").write_text(f'# Second\n{settings}[variants.b]\ninit_from = "study:first/b/seed-0"\n')
    for name in ("first", "second"):
        argv = [
            "study",
            str(tmp_path / f"{name}.toml"),
            "--runs-folder",
            str(tmp_path / "runs" / name),
            "--device",
            "cpu",
        ]
        argv += ["--records", str(tmp_path / "records" / name)]
        assert main(argv) == 0
    shutil.rmtree(tmp_path / "runs" / "first")
    assert main(argv) == 0


def test_plan_that_references_its_own_runs_needs_its_own_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = 'recipe = "digits"\nseeds = [0]\nbaseline = "a"\n[settings]\nepochs = 1\nbatch_size = 500\n'
    (tmp_path / "own.toml").write_text(f'# Own\n{settings}[variants.a]\n[variants.b]\ninit_from = "study:own/a"\n')
    argv = ["study", str(tmp_path / "own.toml"), "--records", str(tmp_path / "records"), "--device", "cpu"]
    assert main([*argv, "--runs-folder", str(tmp_path / "runs" / "second")]) == 2
    error_text = capsys.readouterr().err
    assert "references study:own/a/seed-0 in" in error_text
    assert f"run the plan into a folder called own, not {tmp_path / 'runs' / 'second'}" in error_text
    assert not (tmp_path / "runs").exists()
    assert main([*argv, "--runs-folder", str(tmp_path / "runs" / "own")]) == 0
