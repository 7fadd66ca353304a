"""Settings without effect: rejected if they are given for a new run, accepted if they come from a recipe or plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lcrbnn.cli.main import main
from lcrbnn.errors import InputError
from lcrbnn.nn.methods.method_registry import get_method
from lcrbnn.recipes.recipe import find_recipe, list_recipes
from lcrbnn.runs.record import read_record
from lcrbnn.study.plan import read_plan, render_study_table, run_plan
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.setup.validate import REQUIRED_SETTINGS, reject_unused_settings
from tests.train.helpers import ROOT, SMALL, Crash, crash_after, train_small_run

QUICK = ["--epochs", "1", "--batch-size", "300", "--device", "cpu"]
IDLE: list[tuple[dict[str, Any], str]] = [
    (
        {"regularizer_weight": 0.1},
        "regularizer_weight 0.1 is given and nothing uses it: it needs regularizer defensive-quantization",
    ),
    (
        {"regularizer_weight": 0.1, "regularizer": "spectral-norm-latent"},
        "regularizer_weight 0.1 is given and nothing uses it: it needs regular",
    ),
    (
        {"lcr_warmup_epochs": 1.0},
        "lcr_warmup_epochs 1 is given and nothing uses it: it needs an lcr_weight or lcr_gradient_ratio",
    ),
    ({"lr_gamma": 0.5}, "lr_gamma 0.5 is given and nothing uses it: it needs lr_schedule multistep"),
    ({"lr_milestones": (1.0,)}, "lr_milestones 1 is given and nothing uses it: it needs lr_schedule multistep"),
    (
        {"lr_milestones": (0.5, 1.0)},
        "lr_milestones 0.5, 1 is given and nothing uses it: it needs lr_schedule multistep",
    ),
    (
        {"distillation_temperature": 4.0},
        "distillation_temperature 4 is given and nothing uses it: it needs a distillation_alpha of",
    ),
    ({"init_parameters": "non-latent"}, "init_parameters non-latent is given and nothing uses it: it needs init_from"),
    ({"batch_norm": "sync"}, "batch_norm sync is given and nothing uses it: it needs several processes"),
]
USED: list[dict[str, Any]] = [
    {"regularizer_weight": 0.1, "regularizer": "defensive-quantization"},
    {"lcr_warmup_epochs": 1.0, "lcr_weight": 1.0},
    {"lcr_warmup_epochs": 1.0, "lcr_gradient_ratio": 0.1},
    {"lr_schedule": "multistep", "lr_milestones": (1.0,), "lr_gamma": 0.5},
    {"distillation_temperature": 4.0, "distillation_alpha": 0.5, "teacher": "t"},
    {"init_parameters": "non-latent", "init_from": "s"},
    {
        "regularizer_weight": 1e-4,
        "lcr_warmup_epochs": 0.0,
        "lr_gamma": 0.1,
        "lr_milestones": (),
        "distillation_temperature": 1.0,
        "init_parameters": "all",
    },
    {"lcr_options": ("beta=1",)},  # sigma ratios are also measured at lambda 0
]


@pytest.mark.parametrize(("changes", "sentence"), IDLE, ids=lambda value: str(value)[:40])
def test_a_given_setting_that_nothing_uses_is_rejected(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as refusal:
        reject_unused_settings(TrainSpec(**changes), changes)
    assert str(refusal.value).startswith(sentence)
    reject_unused_settings(TrainSpec(**changes), ())  # not given by the user


@pytest.mark.parametrize("changes", USED, ids=str)
def test_used_settings_and_default_values_are_accepted(changes: dict[str, Any]) -> None:
    reject_unused_settings(TrainSpec(**changes), changes)


def test_synchronized_batch_norm_needs_several_processes() -> None:
    reject_unused_settings(TrainSpec(batch_norm="sync"), ["batch_norm"], num_processes=2)


def make_words(changes: dict[str, Any]) -> list[str]:
    flags = {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    return [
        word
        for flag, value in flags.items()
        for word in (flag, *map(str, value if isinstance(value, tuple) else [value]))
    ]


@pytest.mark.parametrize(("changes", "sentence"), IDLE, ids=lambda value: str(value)[:40])
def test_the_command_line_rejects_an_unused_setting_and_writes_nothing(
    changes: dict[str, Any], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "digits", "--run-folder", str(tmp_path / "run"), *QUICK, *make_words(changes)]) == 2
    assert capsys.readouterr().err.startswith(f"lcrbnn: {sentence}")
    assert not (tmp_path / "run").exists()


def test_a_recipe_may_contain_an_unused_setting(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'lcr_weight = 1\nlcr_warmup_epochs = 1\nlr_schedule = "multistep"\nlr_milestones = [1]\nlr_gamma = 0.5\n'
    )
    words = [
        "train",
        str(recipe),
        "--run-folder",
        str(tmp_path / "run"),
        *QUICK,
        "--lcr-weight",
        "0",
        "--lr-schedule",
        "cosine",
    ]
    assert main(words) == 0
    again = [
        "train",
        str(recipe),
        "--run-folder",
        str(tmp_path / "other"),
        *QUICK,
        "--lcr-weight",
        "0",
        "--lcr-warmup-epochs",
        "0.5",
    ]
    assert main(again) == 2


def test_a_run_started_with_an_unused_setting_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        crash_after(broken, 2)
        with pytest.raises(Crash):
            train_small_run(tmp_path / "run", SMALL.replace(epochs=1, lcr_warmup_epochs=1.0))
    assert (
        main(
            ["train", "--run-folder", str(tmp_path / "run"), "--resume", "--lcr-warmup-epochs", "1", "--device", "cpu"]
        )
        == 0
    )
    assert json.loads((tmp_path / "run" / "record.json").read_text())["settings"]["lcr_warmup_epochs"] == 1


PLAN = """recipe = "digits"
seeds = [0]
baseline = "none"
[settings]
epochs = 1
batch_size = 300
lcr_warmup_epochs = 1
[variants.none]
[variants.kept]
lcr_weight = 1
"""


def test_common_settings_of_a_plan_need_not_be_used_by_each_variant(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(PLAN)
    run_plan(read_plan(tmp_path / "small.toml"), tmp_path / "runs", tmp_path / "records", RunOptions(device="cpu"), 2)
    assert len(list((tmp_path / "records").rglob("*.json"))) == 2


def test_an_extended_variant_need_not_use_all_inherited_settings(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(PLAN)
    variants = '[variants.none]\nextends = "small/kept"\nlcr_weight = 0\n'
    variants += '[variants.more]\nextends = "small/kept"\nlcr_warmup_epochs = 0.5\n'
    (tmp_path / "like.toml").write_text(PLAN.split("[variants.none]")[0] + variants)
    plan = read_plan(tmp_path / "like.toml")
    assert (plan.variants["none"].lcr_warmup_epochs, plan.unused_settings) == (1.0, {})


def test_a_variant_with_an_unused_setting_is_rejected_when_it_is_run_but_its_records_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "small.toml"
    path.write_text(PLAN + '[variants.odd]\nregularizer = "spectral-norm-latent"\nregularizer_weight = 0.5\n')
    words = ["study", str(path), "--records", str(tmp_path / "records"), "--device", "cpu"]
    assert main([*words, "--runs-folder", str(tmp_path / "runs")]) == 2
    expected_error = f"lcrbnn: the plan {path}: variant odd: regularizer_weight 0.5 is given and nothing uses it: "
    assert capsys.readouterr().err.startswith(f"{expected_error}it needs regularizer ")
    assert not (tmp_path / "runs").exists()
    plan = read_plan(path)
    place = "odd/seed-0"
    train_small_run(
        tmp_path / "runs" / place, plan.list_runs()[-1].spec, RunOptions(device="cpu")
    )  # like a record of an older version
    assert main([*words, "--runs-folder", str(tmp_path / "runs")]) == 0
    assert read_record(tmp_path / "records" / f"{place}.json")["settings"]["regularizer_weight"] == 0.5
    assert render_study_table(plan, tmp_path / "records").splitlines()[-1].split()[:2] == ["odd", "1"]


@pytest.mark.parametrize("path", sorted((ROOT / "paper" / "studies").glob("*.toml")), ids=lambda p: p.stem)
def test_the_committed_plans_have_no_unused_settings(path: Path) -> None:
    retired = {"small-below": ["below"]}  # its records exist
    assert list(read_plan(path).unused_settings) == retired.get(path.stem, [])


@pytest.mark.parametrize("name", list_recipes())
def test_the_recipes_have_no_unused_settings(name: str) -> None:
    reject_unused_settings(find_recipe(name).spec, REQUIRED_SETTINGS)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: get_method("rad", limit=0).create_weight_binarizer(torch.ones(1, 2)),
            "the limit of latent weights must be more than 0, otherwise all weights become 0; got 0",
        ),
        (
            lambda: get_method("rad", limit=-1).create_weight_binarizer(torch.ones(1, 2)),
            "the limit of latent weights must be a number of at least 0; got -1",
        ),
        (
            lambda: get_method("adabin", t_min=5, t_max=3).create_weight_binarizer(torch.ones(1, 2)),
            "t_max must be a number of at least 5; got 3",
        ),
    ],
)
def test_invalid_method_options_are_rejected(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError) as refusal:
        make()
    assert str(refusal.value) == sentence
    get_method("rad", limit=0.5).create_weight_binarizer(torch.ones(1, 2))
