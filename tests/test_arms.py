from __future__ import annotations

import json
from pathlib import Path

import pytest

from lcrbnn.cli import main
from lcrbnn.errors import InputError
from lcrbnn.study.plan import Plan, read_plan, run_plan, table
from lcrbnn.train.options import Options

FIRST = """# The first
recipe = "digits"
seeds = [0, 1]
control = "none"
[settings]
epochs = 1
batch = 300
[arms.none]
[arms.default]
share = 0.04
ramp = 1
form_options = ["beta=1", "last=3"]
"""
SECOND = """# The second, like the first
recipe = "digits"
seeds = [0, 1]
control = "first/none"
[settings]
batch = 200
[arms.same]
like = "first/default"
[arms.half]
like = "first/default"
times = 0.5
form_options = ["last=2", "root=true"]
[arms.again]
like = "second/half"
times = 4
"""


def plans(folder: Path, second: str = SECOND, first: str = FIRST) -> Plan:
    (folder / "first.toml").write_text(first)
    (folder / "second.toml").write_text(second)
    return read_plan(folder / "second.toml")


def test_an_arm_like_another_has_its_settings_and_no_others(tmp_path: Path) -> None:
    plan = plans(tmp_path)
    same = plan.arms["same"]
    assert (same.share, same.ramp, same.form_options) == (0.04, 1.0, ("beta=1", "last=3"))
    assert (same.batch, same.epochs) == (200, 15)  # of this plan and its recipe, not of the other plan
    assert plan.waiting == ()


def test_times_multiplies_the_strength_and_options_are_joined_by_name(tmp_path: Path) -> None:
    plan = plans(tmp_path)
    assert (plan.arms["half"].share, plan.arms["half"].weight) == (0.02, 0.0)
    assert plan.arms["half"].form_options == ("beta=1", "last=2", "root=true")
    assert plan.arms["again"].share == pytest.approx(0.08)  # like an arm that is itself like another
    weighed = plans(tmp_path, first=FIRST.replace("share = 0.04", "weight = 3.0"))
    assert (weighed.arms["half"].weight, weighed.arms["half"].share) == (1.5, 0.0)


def test_an_arm_waits_while_the_one_it_is_like_is_not_there(tmp_path: Path) -> None:
    plan = plans(tmp_path, first=FIRST.split("[arms.default]")[0])
    assert (plan.arms, plan.waiting) == ({}, ("same", "half", "again"))
    assert table(plan, tmp_path / "second").count("not decided") == 3


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('like = "first/default"\n[arms.half]', 'like = "first"\n[arms.half]', "arm same: like is written PLAN/ARM"),
        ('like = "first/default"\n[arms.half]', 'like = "third/a"\n[arms.half]', "third.toml cannot be read"),
        ('like = "second/half"', 'like = "second/again"', "arm again: second/again is like itself"),
        ("times = 0.5", "times = -1", "arm half: times must be a number of at least 0; got -1"),
        ('like = "second/half"', "", "arm again: times goes with like"),
        ('like = "second/half"', 'like = "first/none"', "arm again: times multiplies a weight or a share"),
        ('["last=2", "root=true"]', '"last=2"', "arm half: options are a list of name=value"),
        ('control = "first/none"', 'control = "first/"', "the control of another plan is written PLAN/ARM"),
    ],
)
def test_what_cannot_be_like_anything_is_refused(old: str, new: str, sentence: str, tmp_path: Path) -> None:
    assert old in SECOND
    with pytest.raises(InputError) as refusal:
        plans(tmp_path, SECOND.replace(old, new))
    assert sentence in str(refusal.value)


def test_the_control_may_be_an_arm_of_another_plan(tmp_path: Path) -> None:
    second = SECOND.replace("batch = 200", "batch = 300\nepochs = 1").split("[arms.half]")[0]
    plan = plans(tmp_path, second)
    first = read_plan(tmp_path / "first.toml")
    for one in (first, plan):
        run_plan(one, tmp_path / "runs" / one.name, tmp_path / "kept" / one.name, Options(device="cpu"), 4)

    def valid(place: str) -> float:
        return json.loads((tmp_path / "kept" / f"{place}.json").read_text())["figures"]["last"]["valid"]

    mean = sum(valid(f"second/same/seed-{s}") - valid(f"first/none/seed-{s}") for s in (0, 1)) / 2
    shown = table(plan, tmp_path / "kept" / "second").splitlines()
    assert "difference to first/none" in shown[0]
    assert f"{mean:+.2f} [" in shown[1]
    assert valid("second/same/seed-0") == valid("first/default/seed-0")  # it is the same run


NAMED = """# Two steps, as ReActNet's
recipe = "digits"
seeds = [1, 4]
control = "none"
[settings]
epochs = 1
batch = 300
start = "study:first/none"
teacher = "study:first/none/seed-1"
distill = 0.5
[arms.none]
"""


def test_an_arm_starts_from_the_run_of_its_seed_and_has_one_teacher(tmp_path: Path) -> None:
    plan = plans(tmp_path, NAMED, FIRST.replace("[0, 1]", "[1, 4]"))
    assert [(job.spec.start, job.spec.teacher) for job in plan.jobs()] == [
        ("study:first/none/seed-1", "study:first/none/seed-1"),
        ("study:first/none/seed-4", "study:first/none/seed-1"),
    ]
    options = Options(device="cpu", runs=tmp_path / "runs")  # wherever that is: the records are the same
    with pytest.raises(InputError, match=r"a run starts from a finished one, and .*first/none/seed-1 has no record"):
        run_plan(plan, tmp_path / "runs/second", tmp_path / "results/second", options, 1)
    first = read_plan(tmp_path / "first.toml")
    run_plan(first, tmp_path / "runs/first", tmp_path / "results/first", options, 2)
    words = ["study", str(plan.path), "--run", str(tmp_path / "runs/second"), "--device", "cpu"]
    assert main([*words, "--records", str(tmp_path / "results/second")]) == 0
    for seed in (1, 4):
        record = json.loads((tmp_path / f"results/second/none/seed-{seed}.json").read_text())
        assert record["settings"]["start"] == f"study:first/none/seed-{seed}"


@pytest.mark.parametrize("name", ["study:first", "study:first/none/4", "study:/none", "study:a/b/seed-0/c"])
def test_a_run_of_another_study_has_a_name_of_three_parts_at_most(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"arm none: start is written study:PLAN/ARM"):
        plans(tmp_path, NAMED.replace('study:first/none"', name + '"'))


def test_a_teacher_that_is_not_there_is_missed_before_anything_is_trained(tmp_path: Path) -> None:
    text = FIRST.replace("ramp = 1", f'teacher = "{tmp_path / "teacher"}"\ndistill = 0.5')
    (tmp_path / "first.toml").write_text(text.replace('form_options = ["beta=1", "last=3"]', ""))
    plan = read_plan(tmp_path / "first.toml")
    with pytest.raises(InputError, match=r"a teacher is a finished run, and .*teacher has no record"):
        run_plan(plan, tmp_path / "runs/first", tmp_path / "results/first", Options(device="cpu"), 2)
    assert not (tmp_path / "runs").exists()


def test_a_run_may_start_from_one_that_the_same_study_makes_before_it(tmp_path: Path) -> None:
    text = FIRST.split("[arms.default]")[0] + '[arms.second]\nstart = "study:first/none"\n'
    (tmp_path / "first.toml").write_text(text)
    options = Options(device="cpu", runs=tmp_path / "runs")
    run_plan(read_plan(tmp_path / "first.toml"), tmp_path / "runs/first", tmp_path / "results/first", options, 2)
    assert len(list((tmp_path / "results").rglob("*.json"))) == 4
