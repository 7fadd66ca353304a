from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from importlib.resources import files
from pathlib import Path

import pytest
from torch import nn

from lcrbnn.cli.main import main
from lcrbnn.data.datasets import DATASETS
from lcrbnn.errors import InputError
from lcrbnn.nn.layers import BinaryLayer
from lcrbnn.nn.models.model_registry import FULL_PRECISION
from lcrbnn.recipes.recipe import find_recipe, list_recipes
from lcrbnn.train.setup.build_network import build_network
from lcrbnn.train.setup.spec import TrainSpec

ROOT = Path(__file__).parents[2]
NAMES = list_recipes()


def read_settings(name: str) -> dict[str, object]:
    """Return the settings of a recipe as its file has them, with the settings that it shares with others."""
    path = ROOT / "lcrbnn" / "recipes" / f"{name}.toml"
    if path.exists():
        return tomllib.loads(path.read_text())
    content = tomllib.loads((ROOT / "lcrbnn" / "recipes" / "imagenet.toml").read_text())
    table = content["recipes"][name]
    protocol = content["protocols"][table["protocol"]] if "protocol" in table else {}
    own_settings = {field: value for field, value in table.items() if field not in ("about", "protocol")}
    return content["settings"] | protocol | own_settings


def read_error_message(name: str) -> str:
    with pytest.raises(InputError) as caught:
        find_recipe(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- recipes of the package ------------------------------------------------------------------------------------------


def test_the_recipes_of_the_package_are_those_of_its_toml_files() -> None:
    files_of_one_recipe = {path.stem for path in (ROOT / "lcrbnn" / "recipes").glob("*.toml")} - {"imagenet"}
    content = tomllib.loads((ROOT / "lcrbnn" / "recipes" / "imagenet.toml").read_text())
    assert sorted(files_of_one_recipe | set(content["recipes"])) == NAMES
    assert all(name.startswith("imagenet-") for name in content["recipes"])
    used_protocols = [table["protocol"] for table in content["recipes"].values() if "protocol" in table]
    assert {used_protocols.count(name) > 1 for name in content["protocols"]} == {True}
    assert "digits" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_has_a_summary_and_its_accuracy(name: str) -> None:
    recipe = find_recipe(name)
    assert recipe.name == name
    assert len(recipe.header) >= 2
    assert recipe.summary == recipe.header[0]
    assert len(recipe.summary.split()) >= 3
    assert re.search(r"\b(Published|Reaches|Here)\b.*\d %", " ".join(recipe.header[1:]))


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_builds_its_spec_and_network(name: str) -> None:
    spec = find_recipe(name).spec
    recipe_settings = read_settings(name)
    assert recipe_settings
    for field, value in recipe_settings.items():
        spec_value = getattr(spec, field)
        assert (list(spec_value) if isinstance(spec_value, tuple) else spec_value) == value, field
    assert {f.name for f in fields(TrainSpec) if getattr(spec, f.name) != f.default} <= set(recipe_settings)
    layers = list(build_network(spec).modules())
    assert [m.out_features for m in layers if isinstance(m, nn.Linear)][-1] == DATASETS[spec.dataset].num_classes
    assert any(isinstance(m, BinaryLayer) for m in layers) == (spec.method != FULL_PRECISION)


# The ImageNet rows of the paper for methods of the package: top-1 or mCE, typed from the paper.
ROWS = {
    "Table 1": "69.6 51.2 53.4 56.4 57.1 58.1 59.6 60.8 66.5 66.9 73.3 62.2 62.9 63.5 69.4 69.8 "
    "42.7 52.4 53.0 58.7 62.7 61.3 58.4 63.8 64.3",
    "Table 4": "56.9 58.4",
    "Tables 1 and 4": "58.1 59.6 69.4 69.8",
    "Table 6": "89.2 84.9 87.5 84.8 87.0",
}


def test_each_imagenet_row_of_the_paper_has_a_recipe_that_states_whether_it_was_run() -> None:
    summaries = {name: find_recipe(name).summary for name in NAMES if name.startswith("imagenet-")}
    assert len(summaries) == 35
    for table, figures in ROWS.items():
        for figure in figures.split():
            word = "1 and 4|1" if table == "Table 1" else table.split(maxsplit=1)[1]
            assert any(
                re.search(rf"Tables? ({word}) (has|have)? ?(an mCE of )?{figure} %", s) for s in summaries.values()
            ), figure
    for name, summary in summaries.items():
        run = (ROOT / "paper" / "results" / name).exists()
        assert summary.endswith("; not run here") != run, name
    for name in summaries:  # a run that a recipe needs has a recipe too
        spec = find_recipe(name).spec
        for needed in (spec.init_from, spec.teacher):
            assert needed == "" or needed.removeprefix("runs/") in summaries
            if needed == spec.init_from != "":
                assert find_recipe(needed.removeprefix("runs/")).spec.model == spec.model


# Published settings: epochs, batch size, optimizer, learning rate, weight decay, schedule, and others.
SGD = {"momentum": 0.9}
IRNET = {
    **SGD,
    "nesterov": True,
    "batch_norm": "sync",
    "lr_warmup_epochs": 4.0,  # 2,500 of 62,500 steps
    "lr_milestones": (30.0, 60.0, 90.0),  # 18,750, 37,500 and 56,250
}
RBNN = {**SGD, "bn_gamma_init": 1e-8, "lr_warmup_epochs": 0.0}
ADAM = {"momentum": 0.9, "label_smoothing": 0.1}  # beta
FIRST = {
    "bits": "32/1",
    "weight_decay_parameters": "reactnet",
    "distillation_alpha": 1.0,
    "distillation_temperature": 1.0,
    "label_smoothing": 0.0,
}
SECOND = {**FIRST, "bits": "1/1", "weight_decay_parameters": "all", "init_parameters": "all"}
PUBLISHED = {
    "resnet18-double-irnet-own": (100, 2048, "sgd", 0.8, 1e-5, "multistep", IRNET),
    "resnet34-double-irnet-own": (100, 2048, "sgd", 0.8, 1e-4, "multistep", IRNET),
    "resnet18-double-rbnn": (150, 512, "sgd", 0.1, 1e-4, "cosine", RBNN),
    "resnet34-double-rbnn": (150, 512, "sgd", 0.1, 1e-4, "cosine", RBNN),
    "bireal18": (256, 512, "adam", 1e-3, 0.0, "linear", ADAM),
    "bireal34": (256, 512, "adam", 1e-3, 0.0, "linear", ADAM),
    "react18-step1": (128, 512, "adam", 2.5e-3, 1e-5, "linear-last-epoch-zero", FIRST),
    "react18-step2": (128, 512, "adam", 2.5e-3, 0.0, "linear-last-epoch-zero", SECOND),
    "react-a-step1": (128, 256, "adam", 1.25e-3, 1e-5, "linear-last-epoch-zero", FIRST),
    "react-a-step2": (
        128,
        256,
        "adam",
        1.25e-3,
        0.0,
        "linear-last-epoch-zero",
        {**SECOND, "init_parameters": "non-latent"},
    ),
    "resnet18-double-irnet": (120, 256, "sgd", 0.1, 1e-4, "cosine", SGD),  # from the paper
    "resnet34-double-irnet": (120, 256, "sgd", 0.1, 1e-4, "cosine", SGD),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_imagenet_recipes_have_the_published_settings(name: str) -> None:
    spec = find_recipe(f"imagenet-{name}").spec
    *usual, other_settings = PUBLISHED[name]
    fields_of = ("epochs", "batch_size", "optimizer", "lr", "weight_decay", "lr_schedule")
    expected = dict(zip(fields_of, usual, strict=True)) | dict(other_settings)
    assert {field: getattr(spec, field) for field in expected} == expected
    assert (spec.dataset, spec.train_split, spec.augmentation) == ("imagenet", "train+valid", "standard")


def test_the_recipes_go_into_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["scikit-build"]["wheel"]["packages"] == ["lcrbnn"]  # with all files in the folder
    assert (ROOT / "lcrbnn" / "recipes" / "imagenet.toml").is_file()
    assert files("lcrbnn").joinpath("recipes", "digits.toml").is_file()


# -- recipes in files ------------------------------------------------------------------------------------------------


def test_a_recipe_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '# Mine, größer\n#  Reaches 3 %\n\n# no header\nepochs = 3\nlr = 1\nmethod_options = ["t_min=0.1"]\n'
    )
    recipe = find_recipe(str(path))
    assert recipe.name == str(path)
    assert recipe.header == ["Mine, größer", "Reaches 3 %"]
    assert recipe.spec == TrainSpec(epochs=3, lr=1.0, method_options=("t_min=0.1",))


def test_an_empty_recipe_has_the_default_settings(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text("")
    recipe = find_recipe(str(path))
    assert (recipe.header, recipe.summary, recipe.spec) == ([], "", TrainSpec())


def test_an_unknown_recipe_is_rejected_with_the_nearest() -> None:
    message = read_error_message("digit")
    assert message.startswith("no recipe is called 'digit'; the closest is digits")
    assert f"lcrbnn recipes lists all {len(NAMES)}" in message


def test_an_unreadable_recipe_is_rejected(tmp_path: Path) -> None:
    missing, folder, binary = tmp_path / "missing.toml", tmp_path / "folder.toml", tmp_path / "binary.toml"
    folder.mkdir()
    binary.write_bytes(b'dataset = "\xff"\n')
    assert read_error_message(str(missing)) == f"the recipe {missing} cannot be read: No such file or directory"
    assert read_error_message(str(folder)) == f"the recipe {folder} cannot be read: Is a directory"
    assert read_error_message(str(binary)) == f"the recipe {binary} is not a text file"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("epochs: 3\n", " is not valid TOML: .*line 1"),
        ("epochs = 3\nepochs = 4\n", " is not valid TOML: .*line 2"),
        ('dataset = "digits\n', " is not valid TOML: .*line 1"),
        ("epoch = 3\n", r": no setting of a run is called 'epoch'; the closest .*epochs"),
        ("[train]\nepochs = 3\n", ": no setting of a run is called 'train'"),
        ('epochs = "3"\n', ": epochs must be a whole number from 1 to 1000000000; got '3'$"),
        ("epochs = 1.5\n", r": epochs must be a whole number from 1 to 1000000000; got 1\.5$"),
        ("lr = nan\n", r": lr must be a number of at least 0\.0; got nan$"),
        ("lr = 2020-01-01\n", r": lr must be a number of at least 0\.0; got datetime"),
        ("nesterov = 1\n", ": nesterov must be true or false; got 1$"),
        ('method_options = "t_min=0.1"\n', ": method_options must be a list; got 't_min=0.1'$"),
        ('lr_schedule = "multistep"\n', ": lr_schedule 'multistep' needs lr_milestones, "),
    ],
)
def test_an_invalid_recipe_is_rejected_by_name(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    assert re.match(f"the recipe {re.escape(str(path))}{sentence}", read_error_message(str(path)))


@pytest.mark.parametrize(
    "text", ["self = 1\n", f"epochs = 1{'0' * 400}\n", f"epochs = {'[' * 5000}\n"], ids=["self", "huge", "deep"]
)
def test_malicious_recipes_are_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    assert read_error_message(str(path)).startswith(f"the recipe {path}")


# -- the command -----------------------------------------------------------------------------------------------------


def test_recipes_are_listed_one_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.split(r"  +", line, maxsplit=1) for line in lines] == [[n, find_recipe(n).summary] for n in NAMES]
    assert len({len(line) - len(find_recipe(n).summary) for n, line in zip(NAMES, lines, strict=True)}) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_printed_with_its_header_and_changed_settings(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recipes", name]) == 0
    recipe = find_recipe(name)
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(recipe.header)] == recipe.header
    printed_settings = dict(line.split(" = ", 1) for line in lines[len(recipe.header) :])
    changed = [f.name for f in fields(TrainSpec) if getattr(recipe.spec, f.name) != f.default]
    assert list(printed_settings) == changed
    for field in changed:
        value = getattr(recipe.spec, field)
        assert printed_settings[field] == (" ".join(map(str, value)) if isinstance(value, tuple) else str(value))


def test_an_unknown_recipe_exits_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "digit"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("lcrbnn: no recipe is called 'digit'; ")
