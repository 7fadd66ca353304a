"""The command line of the trainer: every field is there, and whatever is wrong is said before any work."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from lcrbnn.cli import main
from lcrbnn.cli.train import parse_seeds
from lcrbnn.errors import InputError
from lcrbnn.study.plan import read_plan
from lcrbnn.train import Spec
from lcrbnn.train.strengths import retaining

QUICK = ["--epochs", "1", "--batch", "300", "--device", "cpu"]


def test_every_field_of_the_spec_is_an_option_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for one in fields(Spec):
        assert f"--{one.name.replace('_', '-')} " in shown, one.name
        assert one.metadata["about"][:30] in shown, one.name


def test_recipe_then_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('# Mine\n# Reaches nothing.\nlr = 0.2\nweight = 1\nform_options = ["beta=1"]\n')
    words = ["--weight", "2.5", "--method-options", "t_min=0.1", "t_max=5", "--no-deterministic", "--drop-last"]
    assert main(["train", str(recipe), "--run", str(tmp_path / "run"), *QUICK, *words]) == 0
    spec = Spec.of(json.loads((tmp_path / "run" / "spec.json").read_text()))
    assert (spec.lr, spec.weight, spec.epochs, spec.batch) == (0.2, 2.5, 1, 300)
    assert spec.method_options == ("t_min=0.1", "t_max=5")
    assert spec.form_options == ("beta=1",)
    assert (spec.deterministic, spec.drop_last) == (False, True)
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{tmp_path / 'run'}: epoch 1, ")
    assert shown.err.startswith("epoch 1/1  loss ")
    assert "L_Lip" in shown.err
    assert "left" in shown.err


def test_retention_at_the_strength_that_goes_with_its_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--lcr", "default", "--run", str(tmp_path / "run"), *QUICK]) == 0
    spec = Spec.of(json.loads((tmp_path / "run" / "spec.json").read_text()))
    assert (spec.form, spec.share, spec.weight, spec.ramp) == ("default", 0.03, 0.0, 1.0)
    assert "retention's share of the gradient is" in capsys.readouterr().out
    assert main(["train", "digits", "--lcr", "mine", "--run", str(tmp_path / "other"), *QUICK]) == 2
    assert "no retention is called 'mine'; there are default, paper, official" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_the_default_strength_is_that_of_the_study() -> None:
    plan = read_plan(Path(__file__).parents[2] / "studies" / "cifar10-double.toml")
    assert retaining(plan.arms["none"], "default") == plan.arms["default"]
    assert retaining(plan.arms["default"], "paper").share == 0


def test_resume_needs_nothing_but_the_folder(tmp_path: Path) -> None:
    assert main(["train", "digits", "--run", str(tmp_path / "run"), *QUICK]) == 0
    before = (tmp_path / "run" / "record.json").read_bytes()
    assert main(["train", "--run", str(tmp_path / "run"), "--resume"]) == 0
    assert (tmp_path / "run" / "record.json").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "the following arguments are required: --run/--folder; see lcrbnn train --help"),
        (["--run", "r", "--epochs", "0"], "epochs must be a whole number from 1 to 1000000000; got 0"),
        (["--run", "r", "--epochs", "ten"], "argument --epochs: invalid int value: 'ten'; see lcrbnn train --help"),
        (["--run", "r", "--lr", "nan"], "lr must be a number of at least 0.0; got nan"),
        (["--run", "r", "--weight", "-1"], "weight must be a number of at least 0.0; got -1.0"),
        (
            ["--run", "r", "--schedule", "cosin"],
            "no choice for schedule is called 'cosin'; there are cosine, linear, linear-ahead, step, constant (did",
        ),
        (["--run", "r", "--nope"], "unrecognized arguments: --nope; see lcrbnn train --help"),
        (["nope", "--run", "r"], "no recipe is called 'nope'; there are "),
        (["nope.toml", "--run", "r"], "the recipe nope.toml cannot be read: No such file or directory"),
        (["--run", "r", "--seeds", "3-1"], "--seeds is a list such as 0-2 or 0,5; got '3-1'"),
        (["--run", "r", "--seeds", "0", "--seed", "1"], "say --seed or --seeds, not both"),
        (["--run", "r", "--device", "tpu"], "no device is called 'tpu'; there are auto, cpu, cuda"),
        (["--run", "r", "--resume"], "there is no run in r to go on with, and no recipe or setting to start one"),
        (["--run", "r", "--save-seconds", "-1"], "save_seconds must be a number of at least 0; got -1.0"),
        (["--run", "r", "--seeds", "0-100000000"], "--seeds is a list such as 0-2 or 0,5; got '0-100000000'"),
        (["--run", "r", "--lr", "1e39"], "lr must be a number of at most 3.4e+38; got 1e+39"),
        (["--run", "r", "--epochs", "9" * 400], "epochs must be a whole number from 1 to 1000000000; got 999"),
        (["--run", "r", "--seed", str(2**64)], "seed must be a whole number from 0 to 9223372036854775807; got "),
        (["--run", "a" * 300], f"{'a' * 300} cannot be looked into: File name too long"),
        (["--run", "r", "--method-options", "t_min"], "method_options are written name=value; got 't_min'"),
        (["--run", "file"], "a run cannot be written to file: it is not a folder"),
        (["--run", "full"], "full is not empty and holds no run; choose another folder"),
        (["--run", "file/run"], "a run cannot be written to file/run: "),
        (["--run", "r", "--data", "cifar10"], "CIFAR-10 is not in data: neither its files nor a folder "),
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
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"lcrbnn: {sentence}")
    assert shown.err.count("\n") == 1
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == ["file", "full", "full/thesis.txt"]


@pytest.mark.parametrize(("text", "seeds"), [("0", [0]), ("0-2", [0, 1, 2]), ("5,0-1", [5, 0, 1])])
def test_lists_of_seeds(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1,1", "0-2,1", "1.5"])
def test_what_is_no_list_of_seeds(text: str) -> None:
    with pytest.raises(InputError, match="--seeds"):
        parse_seeds(text)


def test_no_seed_is_trained_if_the_folder_of_another_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "seed-1").write_text("")
    assert main(["train", "digits", "--run", str(tmp_path / "runs"), "--seeds", "0-1", *QUICK]) == 2
    assert not (tmp_path / "runs" / "seed-0").exists()


def test_a_seed_that_had_not_started_begins_as_the_others_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = str(tmp_path / "runs")
    assert main(["train", "digits", "--run", runs, "--seeds", "0", "--weight", "1", *QUICK]) == 0
    assert main(["train", "--run", runs, "--resume"]) == 2
    assert capsys.readouterr().err.endswith(
        f"lcrbnn: {runs} holds seed-0: say which with --seeds, or choose another folder\n"
    )
    assert main(["train", "--run", runs, "--seeds", "0-1", "--resume", "--device", "cpu"]) == 0
    specs = [json.loads((tmp_path / "runs" / f"seed-{n}" / "spec.json").read_text()) for n in (0, 1)]
    assert specs[1] == {**specs[0], "seed": 1}
    shown = capsys.readouterr()
    assert f"no run in {runs}/seed-1 yet: starting it" in shown.err
    assert "retention's share of the gradient is " in shown.out
