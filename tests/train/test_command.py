"""The command line of the trainer: every setting has an option, and every mistake is reported before any work."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from lcrbnn.cli.export_notice import describe_export_problems
from lcrbnn.cli.main import main
from lcrbnn.cli.run_options import parse_seeds
from lcrbnn.errors import InputError
from lcrbnn.recipes.recipe import apply_lcr_default, find_recipe
from lcrbnn.study.plan import read_plan
from lcrbnn.train.setup.spec import TrainSpec

QUICK = ["--epochs", "1", "--batch-size", "300", "--device", "cpu"]


def test_every_field_of_the_spec_is_an_option_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    for f in fields(TrainSpec):
        assert f"--{f.name.replace('_', '-')} " in help_text, f.name
        assert f.metadata["about"][:30] in help_text, f.name


def test_recipe_then_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('# Mine\n# Reaches nothing.\nlr = 0.2\nlcr_weight = 1\nlcr_options = ["beta=1"]\n')
    words = ["--lcr-weight", "2.5", "--method-options", "t_min=0.1", "t_max=5", "--no-deterministic", "--drop-last"]
    assert main(["train", str(recipe), "--run-folder", str(tmp_path / "run"), *QUICK, *words]) == 0
    spec = TrainSpec.from_dict(json.loads((tmp_path / "run" / "spec.json").read_text()))
    assert (spec.lr, spec.lcr_weight, spec.epochs, spec.batch_size) == (0.2, 2.5, 1, 300)
    assert spec.method_options == ("t_min=0.1", "t_max=5")
    assert spec.lcr_options == ("beta=1",)
    assert (spec.deterministic, spec.drop_last) == (False, True)
    output = capsys.readouterr()
    assert output.out.startswith(f"{tmp_path / 'run'}: epoch 1, ")
    assert output.err.startswith("epoch 1/1  loss ")
    assert "L_Lip" in output.err
    assert "left" in output.err


def test_the_lcr_option_sets_the_recommended_weight_of_its_variant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "digits", "--lcr", "default", "--run-folder", str(tmp_path / "run"), *QUICK]) == 0
    spec = TrainSpec.from_dict(json.loads((tmp_path / "run" / "spec.json").read_text()))
    assert (spec.lcr_variant, spec.lcr_gradient_ratio, spec.lcr_weight, spec.lcr_warmup_epochs) == (
        "default",
        0.03,
        0.0,
        1.0,
    )
    assert "the gradient ratio of LCR is" in capsys.readouterr().out
    assert main(["train", "digits", "--lcr", "mine", "--run-folder", str(tmp_path / "other"), *QUICK]) == 2
    assert "no LCR variant is called 'mine'" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_export_problems_are_printed_before_the_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real_weights = ["digits", "--method", "reactnet", "--bits", "32/1", "--seeds", "0,1"]
    assert main(["train", *real_weights, "--run-folder", str(tmp_path / "runs"), *QUICK]) == 0
    errors = capsys.readouterr().err
    assert errors.count("lcrbnn export cannot export it") == 1  # for both seeds
    assert errors.index("its weights are real") < errors.index("epoch 1/1")


@pytest.mark.parametrize(
    ("recipe", "has_problems"),
    [("digits", False), ("cifar10-resnet20-double-rbnn", False), ("imagenet-react18-step1", True)],
)
def test_export_problems_of_recipes_are_found_without_their_data(recipe: str, has_problems: bool) -> None:
    assert bool(describe_export_problems([find_recipe(recipe).spec])) == has_problems


def test_the_recommended_weight_is_that_of_the_study() -> None:
    plan = read_plan(Path(__file__).parents[2] / "paper" / "studies" / "cifar10-double.toml")
    assert apply_lcr_default(plan.variants["none"], "default") == plan.variants["default"]
    assert apply_lcr_default(plan.variants["default"], "paper").lcr_gradient_ratio == 0


def test_resume_needs_only_the_folder(tmp_path: Path) -> None:
    assert main(["train", "digits", "--run-folder", str(tmp_path / "run"), *QUICK]) == 0
    before = (tmp_path / "run" / "record.json").read_bytes()
    assert main(["train", "--run-folder", str(tmp_path / "run"), "--resume"]) == 0
    assert (tmp_path / "run" / "record.json").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "the following arguments are required: --run-folder; see lcrbnn train --help"),
        (["--run-folder", "r", "--epochs", "0"], "epochs must be a whole number from 1 to 1000000000; got 0"),
        (
            ["--run-folder", "r", "--epochs", "ten"],
            "argument --epochs: invalid int value: 'ten'; see lcrbnn train --help",
        ),
        (["--run-folder", "r", "--lr", "nan"], "lr must be a number of at least 0.0; got nan"),
        (["--run-folder", "r", "--lcr-weight", "-1"], "lcr_weight must be a number of at least 0.0; got -1.0"),
        (
            ["--run-folder", "r", "--lr-schedule", "cosin"],
            "no choice for lr_schedule is called 'cosin'; the closest is cosine",
        ),
        (["--run-folder", "r", "--nope"], "unrecognized arguments: --nope; see lcrbnn train --help"),
        (["nope", "--run-folder", "r"], "no recipe is called 'nope'"),
        (["nope.toml", "--run-folder", "r"], "the recipe nope.toml cannot be read: No such file or directory"),
        (["--run-folder", "r", "--seeds", "3-1"], "--seeds must be a list such as 0-2 or 0,5; got '3-1'"),
        (["--run-folder", "r", "--seeds", "0", "--seed", "1"], "give --seed or --seeds, not both"),
        (["--run-folder", "r", "--device", "tpu"], "no device is called 'tpu'"),
        (["--run-folder", "r", "--resume"], "there is no run in r to resume, and no recipe or setting to start one"),
        (
            ["--run-folder", "r", "--checkpoint-interval", "-1"],
            "checkpoint_interval_s must be a number of at least 0; got -1.0",
        ),
        (
            ["--run-folder", "r", "--seeds", "0-100000000"],
            "--seeds must be a list such as 0-2 or 0,5; got '0-100000000'",
        ),
        (["--run-folder", "r", "--lr", "1e39"], "lr must be a number of at most 3.4e+38; got 1e+39"),
        (["--run-folder", "r", "--epochs", "9" * 400], "epochs must be a whole number from 1 to 1000000000; got 999"),
        (
            ["--run-folder", "r", "--seed", str(2**64)],
            "seed must be a whole number from 0 to 9223372036854775807; got ",
        ),
        (["--run-folder", "a" * 300], f"{'a' * 300} cannot be read: File name too long"),
        (["--run-folder", "r", "--method-options", "t_min"], "method_options are written name=value; got 't_min'"),
        (["--run-folder", "file"], "a run cannot be written to file: it is not a folder"),
        (["--run-folder", "full"], "full is not empty and contains no run; choose another folder"),
        (["--run-folder", "file/run"], "a run cannot be written to file/run: "),
        (
            ["--run-folder", "r", "--dataset", "cifar10"],
            "CIFAR-10 was not found in data, which has neither its files nor a folder ",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2_and_nothing_is_written(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LCRBNN_DATA", raising=False)
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("")
    assert main(["train", *words]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"lcrbnn: {sentence}")
    assert output.err.count("\n") == 1
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == ["file", "full", "full/thesis.txt"]


@pytest.mark.parametrize(("text", "seeds"), [("0", [0]), ("0-2", [0, 1, 2]), ("5,0-1", [5, 0, 1])])
def test_seed_lists_are_parsed(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1,1", "0-2,1", "1.5"])
def test_invalid_seed_lists_are_rejected(text: str) -> None:
    with pytest.raises(InputError, match="--seeds"):
        parse_seeds(text)


def test_no_seed_is_trained_if_the_folder_of_another_is_invalid(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "seed-1").write_text("")
    assert main(["train", "digits", "--run-folder", str(tmp_path / "runs"), "--seeds", "0-1", *QUICK]) == 2
    assert not (tmp_path / "runs" / "seed-0").exists()


def test_a_new_seed_takes_the_settings_of_the_other_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = str(tmp_path / "runs")
    assert main(["train", "digits", "--run-folder", runs, "--seeds", "0", "--lcr-weight", "1", *QUICK]) == 0
    assert main(["train", "--run-folder", runs, "--resume"]) == 2
    assert capsys.readouterr().err.endswith(
        f"lcrbnn: {runs} contains seed-0: choose some of them with --seeds, or another folder\n"
    )
    assert main(["train", "--run-folder", runs, "--seeds", "0-1", "--resume", "--device", "cpu"]) == 0
    specs = [json.loads((tmp_path / "runs" / f"seed-{n}" / "spec.json").read_text()) for n in (0, 1)]
    assert specs[1] == {**specs[0], "seed": 1}
    output = capsys.readouterr()
    assert f"no run in {runs}/seed-1 yet: starting it" in output.err
    assert "the gradient ratio of LCR is " in output.out
