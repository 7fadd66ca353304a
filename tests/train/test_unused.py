"""Settings that nothing would use: refused where they are said for a new run, left alone where they are left over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lcrbnn.cli import main
from lcrbnn.errors import InputError
from lcrbnn.methods import method
from lcrbnn.runs.record import read_record
from lcrbnn.study.plan import read_plan, run_plan, table
from lcrbnn.train import Spec
from lcrbnn.train.build import GOES_WITH, refuse_unused
from lcrbnn.train.options import Options
from lcrbnn.train.recipes import find_recipe, package_recipes
from tests.train.helpers import ROOT, SMALL, Crash, crash_after, small_run

QUICK = ["--epochs", "1", "--batch", "300", "--device", "cpu"]
IDLE: list[tuple[dict[str, Any], str]] = [
    ({"strength": 0.1}, "strength 0.1 is given and nothing uses it: it goes with regularizer defensive"),
    ({"strength": 0.1, "regularizer": "spectral"}, "strength 0.1 is given and nothing uses it: it goes with regular"),
    ({"ramp": 1.0}, "ramp 1 is given and nothing uses it: it goes with a weight or share of more than 0"),
    ({"gamma": 0.5}, "gamma 0.5 is given and nothing uses it: it goes with schedule step"),
    ({"milestones": (1.0,)}, "milestones 1 is given and nothing uses it: it goes with schedule step"),
    ({"milestones": (0.5, 1.0)}, "milestones 0.5, 1 is given and nothing uses it: it goes with schedule step"),
    ({"temperature": 4.0}, "temperature 4 is given and nothing uses it: it goes with distill of more than 0"),
    ({"start_with": "real"}, "start_with real is given and nothing uses it: it goes with start"),
    ({"batch_norm": "sync"}, "batch_norm sync is given and nothing uses it: it goes with several processes"),
]
USED: list[dict[str, Any]] = [
    {"strength": 0.1, "regularizer": "defensive"},
    {"ramp": 1.0, "weight": 1.0},
    {"ramp": 1.0, "share": 0.1},
    {"schedule": "step", "milestones": (1.0,), "gamma": 0.5},
    {"temperature": 4.0, "distill": 0.5, "teacher": "t"},
    {"start_with": "real", "start": "s"},
    {"strength": 1e-4, "ramp": 0.0, "gamma": 0.1, "milestones": (), "temperature": 1.0, "start_with": "all"},
    {"form_options": ("beta=1",)},  # ratios are measured at lambda 0 too
]


@pytest.mark.parametrize(("changes", "sentence"), IDLE, ids=lambda value: str(value)[:40])
def test_a_setting_that_is_said_and_that_nothing_uses_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as refusal:
        refuse_unused(Spec(**changes), changes)
    assert str(refusal.value).startswith(sentence)
    refuse_unused(Spec(**changes), ())  # it came from elsewhere


@pytest.mark.parametrize("changes", USED, ids=str)
def test_what_is_used_or_as_it_would_be_anyway_is_taken(changes: dict[str, Any]) -> None:
    refuse_unused(Spec(**changes), changes)


def test_several_processes_use_shared_batch_norms() -> None:
    refuse_unused(Spec(batch_norm="sync"), ["batch_norm"], processes=2)


def words_of(changes: dict[str, Any]) -> list[str]:
    flags = {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    return [
        word
        for flag, value in flags.items()
        for word in (flag, *map(str, value if isinstance(value, tuple) else [value]))
    ]


@pytest.mark.parametrize(("changes", "sentence"), IDLE, ids=lambda value: str(value)[:40])
def test_the_command_line_refuses_it_and_writes_nothing(
    changes: dict[str, Any], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "digits", "--run", str(tmp_path / "run"), *QUICK, *words_of(changes)]) == 2
    assert capsys.readouterr().err.startswith(f"lcrbnn: {sentence}")
    assert not (tmp_path / "run").exists()


def test_what_a_recipe_says_may_be_left_over(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('weight = 1\nramp = 1\nschedule = "step"\nmilestones = [1]\ngamma = 0.5\n')
    words = ["train", str(recipe), "--run", str(tmp_path / "run"), *QUICK, "--weight", "0", "--schedule", "cosine"]
    assert main(words) == 0
    again = ["train", str(recipe), "--run", str(tmp_path / "other"), *QUICK, "--weight", "0", "--ramp", "0.5"]
    assert main(again) == 2


def test_a_run_that_began_with_such_a_setting_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        crash_after(broken, 2)
        with pytest.raises(Crash):
            small_run(tmp_path / "run", SMALL.but(epochs=1, ramp=1.0))
    assert main(["train", "--run", str(tmp_path / "run"), "--resume", "--ramp", "1", "--device", "cpu"]) == 0
    assert json.loads((tmp_path / "run" / "record.json").read_text())["settings"]["ramp"] == 1


PLAN = """recipe = "digits"
seeds = [0]
control = "none"
[settings]
epochs = 1
batch = 300
ramp = 1
[arms.none]
[arms.kept]
weight = 1
"""


def test_settings_for_all_arms_need_not_be_used_by_each(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(PLAN)
    run_plan(read_plan(tmp_path / "small.toml"), tmp_path / "runs", tmp_path / "records", Options(device="cpu"), 2)
    assert len(list((tmp_path / "records").rglob("*.json"))) == 2


def test_an_arm_like_another_need_not_use_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(PLAN)
    arms = '[arms.none]\nlike = "small/kept"\nweight = 0\n[arms.more]\nlike = "small/kept"\nramp = 0.5\n'
    (tmp_path / "like.toml").write_text(PLAN.split("[arms.none]")[0] + arms)
    plan = read_plan(tmp_path / "like.toml")
    assert (plan.arms["none"].ramp, plan.unused) == (1.0, {})


def test_an_arm_that_says_what_nothing_uses_is_refused_when_it_is_run_and_its_old_records_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "small.toml"
    path.write_text(PLAN + '[arms.odd]\nregularizer = "spectral"\nstrength = 0.5\n')
    words = ["study", str(path), "--records", str(tmp_path / "records"), "--device", "cpu"]
    assert main([*words, "--run", str(tmp_path / "runs")]) == 2
    said = f"lcrbnn: the plan {path}: arm odd: strength 0.5 is given and nothing uses it: it goes with regularizer "
    assert capsys.readouterr().err.startswith(said)
    assert not (tmp_path / "runs").exists()
    plan = read_plan(path)
    place = "odd/seed-0"
    small_run(tmp_path / "runs" / place, plan.jobs()[-1].spec, Options(device="cpu"))  # as an older version made it
    assert main([*words, "--run", str(tmp_path / "runs")]) == 0
    assert read_record(tmp_path / "records" / f"{place}.json")["settings"]["strength"] == 0.5
    assert table(plan, tmp_path / "records").splitlines()[-1].split()[:2] == ["odd", "1"]


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.toml")), ids=lambda p: p.stem)
def test_the_committed_plans_say_nothing_that_nothing_uses(path: Path) -> None:
    assert read_plan(path).unused == {}


@pytest.mark.parametrize("name", package_recipes())
def test_the_recipes_say_nothing_that_nothing_uses(name: str) -> None:
    refuse_unused(find_recipe(name).spec, GOES_WITH)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: method("rad", limit=0).weight_binarizer(torch.ones(1, 2)),
            "the limit of latent weights must be more than 0, or all of them are 0; got 0",
        ),
        (
            lambda: method("rad", limit=-1).weight_binarizer(torch.ones(1, 2)),
            "the limit of latent weights must be a number of at least 0; got -1",
        ),
        (
            lambda: method("adabin", t_min=5, t_max=3).weight_binarizer(torch.ones(1, 2)),
            "t_max must be a number of at least 5; got 3",
        ),
    ],
)
def test_options_of_methods_that_make_no_sense(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError) as refusal:
        make()
    assert str(refusal.value) == sentence
    method("rad", limit=0.5).weight_binarizer(torch.ones(1, 2))
