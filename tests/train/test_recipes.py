from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from importlib.resources import files
from pathlib import Path

import pytest
from torch import nn

from lcrbnn.cli import main
from lcrbnn.data import DATASETS
from lcrbnn.errors import InputError
from lcrbnn.layers import BinaryLayer
from lcrbnn.train.build import REAL, build_network
from lcrbnn.train.recipes import find_recipe, package_recipes
from lcrbnn.train.spec import Spec

ROOT = Path(__file__).parents[2]
NAMES = package_recipes()


def settings(name: str) -> dict[str, object]:
    return tomllib.loads((ROOT / "lcrbnn" / "recipes" / f"{name}.toml").read_text())


def sentence_of(name: str) -> str:
    with pytest.raises(InputError) as caught:
        find_recipe(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- those of the package --------------------------------------------------------------------------------------------


def test_the_recipes_of_the_package_are_its_toml_files() -> None:
    assert sorted(path.stem for path in (ROOT / "lcrbnn" / "recipes").glob("*.toml")) == NAMES
    assert "digits" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_says_what_it_is_and_what_it_reaches(name: str) -> None:
    recipe = find_recipe(name)
    assert recipe.name == name
    assert len(recipe.header) >= 2
    assert recipe.summary == recipe.header[0]
    assert len(recipe.summary.split()) >= 3
    assert re.search(r"\b(Published|Reaches|Here)\b.*\d %", " ".join(recipe.header[1:]))


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_makes_the_spec_and_the_network_that_it_names(name: str) -> None:
    spec = find_recipe(name).spec
    named = settings(name)
    assert named
    for field, value in named.items():
        held = getattr(spec, field)
        assert (list(held) if isinstance(held, tuple) else held) == value, field
    assert {one.name for one in fields(Spec) if getattr(spec, one.name) != one.default} <= set(named)
    layers = list(build_network(spec).modules())
    assert [m.out_features for m in layers if isinstance(m, nn.Linear)][-1] == DATASETS[spec.data].classes
    assert any(isinstance(m, BinaryLayer) for m in layers) == (spec.method != REAL)


# The rows of the paper's tables of ImageNet that belong to a method of the package, top-1 or mCE, typed from the paper.
ROWS = {
    "Table 1": "69.6 51.2 53.4 56.4 57.1 58.1 59.6 60.8 66.5 66.9 73.3 62.2 62.9 63.5 69.4 69.8 "
    "42.7 52.4 53.0 58.7 62.7 61.3 58.4 63.8 64.3",
    "Table 4": "56.9 58.4",
    "Tables 1 and 4": "58.1 59.6 69.4 69.8",
    "Table 6": "89.2 84.9 87.5 84.8 87.0",
}


def test_each_row_of_the_papers_tables_of_imagenet_is_a_recipe_that_says_whether_it_was_run() -> None:
    said = {name: find_recipe(name).summary for name in NAMES if name.startswith("imagenet-")}
    assert len(said) == 35
    for table, figures in ROWS.items():
        for figure in figures.split():
            word = "1 and 4|1" if table == "Table 1" else table.split(maxsplit=1)[1]
            assert any(
                re.search(rf"Tables? ({word}) (has|have)? ?(an mCE of )?{figure} %", s) for s in said.values()
            ), figure
    for name, summary in said.items():
        run = (ROOT / "results" / name).exists()
        assert summary.endswith("; not run here") != run, name
    for name in said:  # what a recipe needs first is a recipe too
        spec = find_recipe(name).spec
        for needed in (spec.start, spec.teacher):
            assert needed == "" or needed.removeprefix("runs/") in said
            if needed == spec.start != "":
                assert find_recipe(needed.removeprefix("runs/")).spec.model == spec.model


# Settings that were published with code: epochs, batch, optimiser, learning rate, weight decay, schedule, and more.
SGD = {"momentum": 0.9}
IRNET = {
    **SGD,
    "nesterov": True,
    "batch_norm": "sync",
    "warmup": 4.0,  # 2,500 of 62,500 steps
    "milestones": (30.0, 60.0, 90.0),  # 18,750, 37,500 and 56,250
}
RBNN = {**SGD, "norm_start": 1e-8, "warmup": 0.0}
ADAM = {"momentum": 0.9, "label_smoothing": 0.1}  # beta
FIRST = {"bits": "32/1", "decay": "reactnet", "distill": 1.0, "temperature": 1.0, "label_smoothing": 0.0}
SECOND = {**FIRST, "bits": "1/1", "decay": "all", "start_with": "all"}
PUBLISHED = {
    "resnet18-double-irnet-own": (100, 2048, "sgd", 0.8, 1e-5, "step", IRNET),
    "resnet34-double-irnet-own": (100, 2048, "sgd", 0.8, 1e-4, "step", IRNET),
    "resnet18-double-rbnn": (150, 512, "sgd", 0.1, 1e-4, "cosine", RBNN),
    "resnet34-double-rbnn": (150, 512, "sgd", 0.1, 1e-4, "cosine", RBNN),
    "bireal18": (256, 512, "adam", 1e-3, 0.0, "linear", ADAM),
    "bireal34": (256, 512, "adam", 1e-3, 0.0, "linear", ADAM),
    "react18-step1": (128, 512, "adam", 2.5e-3, 1e-5, "linear-ahead", FIRST),
    "react18-step2": (128, 512, "adam", 2.5e-3, 0.0, "linear-ahead", SECOND),
    "react-a-step1": (128, 256, "adam", 1.25e-3, 1e-5, "linear-ahead", FIRST),
    "react-a-step2": (128, 256, "adam", 1.25e-3, 0.0, "linear-ahead", {**SECOND, "start_with": "real"}),
    "resnet18-double-irnet": (120, 256, "sgd", 0.1, 1e-4, "cosine", SGD),  # this one is the paper's
    "resnet34-double-irnet": (120, 256, "sgd", 0.1, 1e-4, "cosine", SGD),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_of_imagenet_has_the_settings_that_were_published(name: str) -> None:
    spec = find_recipe(f"imagenet-{name}").spec
    *usual, more = PUBLISHED[name]
    fields_of = ("epochs", "batch", "optimizer", "lr", "weight_decay", "schedule")
    wanted = dict(zip(fields_of, usual, strict=True)) | dict(more)
    assert {field: getattr(spec, field) for field in wanted} == wanted
    assert (spec.data, spec.images, spec.augment) == ("imagenet", "all", "usual")


def test_the_recipes_go_into_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["scikit-build"]["wheel"]["packages"] == ["lcrbnn"]  # a folder goes in with all that is in it
    assert all((ROOT / "lcrbnn" / "recipes" / f"{name}.toml").is_file() for name in NAMES)
    assert files("lcrbnn").joinpath("recipes", "digits.toml").is_file()


# -- one's own -------------------------------------------------------------------------------------------------------


def test_a_recipe_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '# Mine, größer\n#  Reaches 3 %\n\n# no header\nepochs = 3\nlr = 1\nmethod_options = ["t_min=0.1"]\n'
    )
    recipe = find_recipe(str(path))
    assert recipe.name == str(path)
    assert recipe.header == ["Mine, größer", "Reaches 3 %"]
    assert recipe.spec == Spec(epochs=3, lr=1.0, method_options=("t_min=0.1",))


def test_an_empty_recipe_is_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text("")
    recipe = find_recipe(str(path))
    assert (recipe.header, recipe.summary, recipe.spec) == ([], "", Spec())


def test_an_unknown_recipe_is_answered_with_those_there_are_and_the_nearest() -> None:
    assert sentence_of("digit") == (
        f"no recipe is called 'digit'; there are {', '.join(NAMES[:24])} and {len(NAMES) - 24} more "
        "(did you mean 'digits'?)"
    )


def test_a_recipe_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    missing, folder, binary = tmp_path / "missing.toml", tmp_path / "folder.toml", tmp_path / "binary.toml"
    folder.mkdir()
    binary.write_bytes(b'data = "\xff"\n')
    assert sentence_of(str(missing)) == f"the recipe {missing} cannot be read: No such file or directory"
    assert sentence_of(str(folder)) == f"the recipe {folder} cannot be read: Is a directory"
    assert sentence_of(str(binary)) == f"the recipe {binary} is not a text file"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("epochs: 3\n", " is no TOML: .*line 1"),
        ("epochs = 3\nepochs = 4\n", " is no TOML: .*line 2"),
        ('data = "digits\n', " is no TOML: .*line 1"),
        ("epoch = 3\n", r": no setting of a run is called 'epoch'; .*\(did you mean 'epochs'\?\)$"),
        ("[train]\nepochs = 3\n", ": no setting of a run is called 'train'; there are "),
        ('epochs = "3"\n', ": epochs must be a whole number from 1 to 1000000000; got '3'$"),
        ("epochs = 1.5\n", r": epochs must be a whole number from 1 to 1000000000; got 1\.5$"),
        ("lr = nan\n", r": lr must be a number of at least 0\.0; got nan$"),
        ("lr = 2020-01-01\n", r": lr must be a number of at least 0\.0; got datetime"),
        ("nesterov = 1\n", ": nesterov is true or false; got 1$"),
        ('method_options = "t_min=0.1"\n', ": method_options is a list; got 't_min=0.1'$"),
        ('schedule = "step"\n', ": schedule 'step' needs milestones, "),
    ],
)
def test_a_recipe_that_is_wrong_is_refused_by_name(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    assert re.match(f"the recipe {re.escape(str(path))}{sentence}", sentence_of(str(path)))


@pytest.mark.parametrize(
    "text", ["self = 1\n", f"epochs = 1{'0' * 400}\n", f"epochs = {'[' * 5000}\n"], ids=["self", "huge", "deep"]
)
def test_a_recipe_that_is_wrong_on_purpose_is_refused_all_the_same(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    assert sentence_of(str(path)).startswith(f"the recipe {path}")


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_recipes_are_listed_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.split(r"  +", line, maxsplit=1) for line in lines] == [[n, find_recipe(n).summary] for n in NAMES]
    assert len({len(line) - len(find_recipe(n).summary) for n, line in zip(NAMES, lines, strict=True)}) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_shown_with_its_header_and_what_it_changes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", name]) == 0
    recipe = find_recipe(name)
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(recipe.header)] == recipe.header
    shown = dict(line.split(" = ", 1) for line in lines[len(recipe.header) :])
    changed = [one.name for one in fields(Spec) if getattr(recipe.spec, one.name) != one.default]
    assert list(shown) == changed
    for field in changed:
        value = getattr(recipe.spec, field)
        assert shown[field] == (" ".join(map(str, value)) if isinstance(value, tuple) else str(value))


def test_an_unknown_recipe_is_a_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "digit"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("lcrbnn: no recipe is called 'digit'; ")
