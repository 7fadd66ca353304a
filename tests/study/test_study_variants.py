"""Variants that extend variants of other plans, and references to other runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lcrbnn.cli.main import main
from lcrbnn.errors import InputError
from lcrbnn.study.plan import StudyPlan, read_plan, render_study_table, run_plan
from lcrbnn.train.setup.options import RunOptions

FIRST_PLAN = """# The first
recipe = "digits"
seeds = [0, 1]
baseline = "none"
[settings]
epochs = 1
batch_size = 300
[variants.none]
[variants.default]
lcr_gradient_ratio = 0.04
lcr_warmup_epochs = 1
lcr_options = ["beta=1", "num_last_matrices=3"]
"""
SECOND_PLAN = """# The second, like the first
recipe = "digits"
seeds = [0, 1]
baseline = "first/none"
[settings]
batch_size = 200
[variants.same]
extends = "first/default"
[variants.half]
extends = "first/default"
lcr_multiplier = 0.5
lcr_options = ["num_last_matrices=2", "sqrt_eigenvalue=true"]
[variants.again]
extends = "second/half"
lcr_multiplier = 4
"""


def write_plans(folder: Path, second_plan: str = SECOND_PLAN, first_plan: str = FIRST_PLAN) -> StudyPlan:
    (folder / "first.toml").write_text(first_plan)
    (folder / "second.toml").write_text(second_plan)
    return read_plan(folder / "second.toml")


def test_extending_variant_inherits_only_the_settings_of_the_variant(tmp_path: Path) -> None:
    plan = write_plans(tmp_path)
    variant = plan.variants["same"]
    assert (variant.lcr_gradient_ratio, variant.lcr_warmup_epochs, variant.lcr_options) == (
        0.04,
        1.0,
        ("beta=1", "num_last_matrices=3"),
    )
    assert (variant.batch_size, variant.epochs) == (200, 15)  # from this plan and its recipe, not from the other plan
    assert plan.undecided == ()


def test_lcr_multiplier_scales_the_strength_and_options_are_merged_by_name(tmp_path: Path) -> None:
    plan = write_plans(tmp_path)
    assert (plan.variants["half"].lcr_gradient_ratio, plan.variants["half"].lcr_weight) == (0.02, 0.0)
    assert plan.variants["half"].lcr_options == ("beta=1", "num_last_matrices=2", "sqrt_eigenvalue=true")
    assert plan.variants["again"].lcr_gradient_ratio == pytest.approx(
        0.08
    )  # extends a variant that extends another one
    plan_with_weight = write_plans(
        tmp_path, first_plan=FIRST_PLAN.replace("lcr_gradient_ratio = 0.04", "lcr_weight = 3.0")
    )
    assert (plan_with_weight.variants["half"].lcr_weight, plan_with_weight.variants["half"].lcr_gradient_ratio) == (
        1.5,
        0.0,
    )


def test_variant_is_undecided_while_the_extended_one_is_missing(tmp_path: Path) -> None:
    plan = write_plans(tmp_path, first_plan=FIRST_PLAN.split("[variants.default]")[0])
    assert (plan.variants, plan.undecided) == ({}, ("same", "half", "again"))
    assert render_study_table(plan, tmp_path / "second").count("not decided") == 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'extends = "first/default"\n[variants.half]',
            'extends = "first"\n[variants.half]',
            "variant same: extends must be PLAN/VARIANT",
        ),
        (
            'extends = "first/default"\n[variants.half]',
            'extends = "third/a"\n[variants.half]',
            "third.toml cannot be read",
        ),
        ('extends = "second/half"', 'extends = "second/again"', "variant again: second/again extends itself"),
        (
            "lcr_multiplier = 0.5",
            "lcr_multiplier = -1",
            "variant half: lcr_multiplier must be a number of at least 0; got -1",
        ),
        ('extends = "second/half"', "", "variant again: lcr_multiplier needs extends"),
        (
            'extends = "second/half"',
            'extends = "first/none"',
            "variant again: lcr_multiplier needs an lcr_weight or lcr_gradient_ratio",
        ),
        (
            '["num_last_matrices=2", "sqrt_eigenvalue=true"]',
            '"num_last_matrices=2"',
            "variant half: options must be a list of NAME=VALUE",
        ),
        ('baseline = "first/none"', 'baseline = "first/"', "the baseline of another plan must be PLAN/VARIANT"),
    ],
)
def test_invalid_extends_is_rejected(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in SECOND_PLAN
    with pytest.raises(InputError) as error:
        write_plans(tmp_path, SECOND_PLAN.replace(old, new))
    assert message in str(error.value)


def test_baseline_may_be_a_variant_of_another_plan(tmp_path: Path) -> None:
    second = SECOND_PLAN.replace("batch_size = 200", "batch_size = 300\nepochs = 1").split("[variants.half]")[0]
    plan = write_plans(tmp_path, second)
    first = read_plan(tmp_path / "first.toml")
    for planned_study in (first, plan):
        run_plan(
            planned_study,
            tmp_path / "runs" / planned_study.name,
            tmp_path / "kept" / planned_study.name,
            RunOptions(device="cpu"),
            4,
        )

    def read_valid_top1(record_name: str) -> float:
        return json.loads((tmp_path / "kept" / f"{record_name}.json").read_text())["figures"]["last_epoch"][
            "valid_top1"
        ]

    mean_difference = (
        sum(read_valid_top1(f"second/same/seed-{seed}") - read_valid_top1(f"first/none/seed-{seed}") for seed in (0, 1))
        / 2
    )
    lines = render_study_table(plan, tmp_path / "kept" / "second").splitlines()
    assert "difference to first/none" in lines[0]
    assert f"{mean_difference:+.2f} [" in lines[1]
    assert read_valid_top1("second/same/seed-0") == read_valid_top1("first/default/seed-0")  # the same run


REFERENCING_PLAN = """# Two steps, as ReActNet's
recipe = "digits"
seeds = [1, 4]
baseline = "none"
[settings]
epochs = 1
batch_size = 300
init_from = "study:first/none"
teacher = "study:first/none/seed-1"
distillation_alpha = 0.5
[variants.none]
"""


def test_reference_without_seed_is_the_run_of_the_same_seed(tmp_path: Path) -> None:
    plan = write_plans(tmp_path, REFERENCING_PLAN, FIRST_PLAN.replace("[0, 1]", "[1, 4]"))
    assert [(run.spec.init_from, run.spec.teacher) for run in plan.list_runs()] == [
        ("study:first/none/seed-1", "study:first/none/seed-1"),
        ("study:first/none/seed-4", "study:first/none/seed-1"),
    ]
    options = RunOptions(device="cpu", runs_folder=tmp_path / "runs")  # records do not depend on this folder
    with pytest.raises(InputError, match=r"init_from needs a finished run, and .*first/none/seed-1 has no record"):
        run_plan(plan, tmp_path / "runs/second", tmp_path / "results/second", options, 1)
    first = read_plan(tmp_path / "first.toml")
    run_plan(first, tmp_path / "runs/first", tmp_path / "results/first", options, 2)
    argv = ["study", str(plan.path), "--runs-folder", str(tmp_path / "runs/second"), "--device", "cpu"]
    assert main([*argv, "--records", str(tmp_path / "results/second")]) == 0
    for seed in (1, 4):
        record = json.loads((tmp_path / f"results/second/none/seed-{seed}.json").read_text())
        assert record["settings"]["init_from"] == f"study:first/none/seed-{seed}"


@pytest.mark.parametrize("name", ["study:first", "study:first/none/4", "study:/none", "study:a/b/seed-0/c"])
def test_invalid_reference_to_a_run_is_rejected(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"variant none: init_from must be study:PLAN/VARIANT"):
        write_plans(tmp_path, REFERENCING_PLAN.replace('study:first/none"', name + '"'))


def test_missing_teacher_is_reported_before_any_training(tmp_path: Path) -> None:
    text = FIRST_PLAN.replace("lcr_warmup_epochs = 1", f'teacher = "{tmp_path / "teacher"}"\ndistillation_alpha = 0.5')
    (tmp_path / "first.toml").write_text(text.replace('lcr_options = ["beta=1", "num_last_matrices=3"]', ""))
    plan = read_plan(tmp_path / "first.toml")
    with pytest.raises(InputError, match=r"a teacher is a finished run, and .*teacher has no record"):
        run_plan(plan, tmp_path / "runs/first", tmp_path / "results/first", RunOptions(device="cpu"), 2)
    assert not (tmp_path / "runs").exists()


def test_run_may_start_from_an_earlier_run_of_the_same_study(tmp_path: Path) -> None:
    text = FIRST_PLAN.split("[variants.default]")[0] + '[variants.second]\ninit_from = "study:first/none"\n'
    (tmp_path / "first.toml").write_text(text)
    options = RunOptions(device="cpu", runs_folder=tmp_path / "runs")
    run_plan(read_plan(tmp_path / "first.toml"), tmp_path / "runs/first", tmp_path / "results/first", options, 2)
    assert len(list((tmp_path / "results").rglob("*.json"))) == 4
