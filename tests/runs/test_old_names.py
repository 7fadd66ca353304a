"""Files of schema 1 stay readable: every old name is translated in one place, and digests of old names are accepted."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from lcrbnn.cli.main import main
from lcrbnn.device import derive_seed
from lcrbnn.errors import InputError
from lcrbnn.recipes.recipe import find_recipe, list_recipes
from lcrbnn.runs import old_names
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from lcrbnn.runs.record import read_record
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.study.plan import read_plan
from lcrbnn.train.setup.load import read_spec
from lcrbnn.train.setup.spec import TrainSpec
from tests.train.helpers import SMALL, assert_same_runs, train_small_run

ROOT = Path(__file__).parents[2]
OLD_RUN = ROOT / "tests" / "golden" / "run-schema-1"  # spec, log and record of a finished run, as schema 1 wrote them
DIGESTS: dict[str, str] = json.loads((ROOT / "tests" / "golden" / "spec-digests.json").read_text())
PLANS = sorted((ROOT / "paper" / "studies").glob("*.toml"))
NAME_TABLES = {
    "settings": old_names.SETTINGS,
    "LCR options": old_names.LCR_OPTIONS,
    "log": old_names.LOG_COLUMNS,
    "train figures": old_names.TRAIN_FIGURES,
    "data loading": old_names.DATA_LOADING,
    "plan": old_names.PLAN,
    "variant": {**old_names.PLAN_VARIANT, **old_names.SETTINGS},
    "table spec": old_names.TABLE_SPEC,
    "table": old_names.TABLE,
    "row": old_names.TABLE_ROW,
    **{f"values of {name}": values for name, values in old_names.SETTING_VALUES.items()},
    **{f"values of {name}": values for name, values in old_names.LCR_VALUES.items()},
}


def invert(table: Mapping[str, str]) -> dict[str, str]:
    return {new: old for old, new in table.items()}


def rename_keys(content: Mapping[str, Any], table: Mapping[str, str]) -> dict[str, Any]:
    return {table.get(name, name): value for name, value in content.items()}


@pytest.mark.parametrize("table", NAME_TABLES.values(), ids=NAME_TABLES)
def test_no_new_name_is_an_old_name_and_every_table_can_be_inverted(table: dict[str, str]) -> None:
    assert not set(table) & set(table.values())
    assert len(set(table.values())) == len(table)


# -- committed files -------------------------------------------------------------------------------------------------


def read_committed_settings() -> dict[str, dict[str, Any]]:
    """Return the settings of schema 1 in committed records, by the keys of the golden file."""
    settings = {}
    for key in DIGESTS:
        path, _, part = key.partition("#")
        if path.endswith(".json"):
            stored = json.loads((ROOT / path).read_text())["settings"]
            settings[key] = stored[part] if part else stored
    return settings


def test_settings_of_committed_records_are_upgraded_once_and_downgraded_to_themselves() -> None:
    committed = read_committed_settings()
    assert len(committed) > 350
    for key, settings in committed.items():
        assert settings["schema"] == 1, key
        upgraded = old_names.upgrade_settings(settings)
        assert not set(upgraded) & set(old_names.SETTINGS), key
        assert old_names.upgrade_settings(upgraded) == upgraded, key
        assert old_names.downgrade_settings(upgraded) == settings, key


def test_the_digest_of_the_old_names_is_accepted_for_every_committed_spec() -> None:
    for key, settings in read_committed_settings().items():
        if isinstance(settings["seed"], list):  # a benchmark of several seeds
            settings = {**settings, "seed": settings["seed"][0]}
        known = {name: value for name, value in old_names.upgrade_settings(settings).items() if name in SPEC_NAMES}
        spec = TrainSpec.from_dict({**known, "schema": 2})
        assert spec.matches_digest(DIGESTS[key]), key
        assert spec.matches_digest(spec.digest()), key
        assert not spec.replace(epochs=spec.epochs + 1).matches_digest(DIGESTS[key]), key


SPEC_NAMES = set(TrainSpec().to_dict())


@pytest.mark.parametrize("name", list_recipes())
def test_recipes_have_the_settings_that_they_had_under_the_old_names(name: str) -> None:
    assert find_recipe(name).spec.matches_digest(DIGESTS[f"recipe:{name}"])


@pytest.mark.parametrize("key", [key for key in DIGESTS if key.endswith(".safetensors")])
def test_committed_files_of_weights_belong_to_their_settings(key: str) -> None:
    spec = TrainSpec.from_dict(read_checkpoint(ROOT / key).facts["spec"])
    assert spec.matches_digest(DIGESTS[key])


def test_every_committed_record_is_read_and_has_no_old_name() -> None:
    folders = (ROOT / "paper" / "results", ROOT / "bench" / "records")
    paths = [path for folder in folders for path in sorted(folder.rglob("*.json"))]
    assert len(paths) > 400
    for path in paths:
        record = read_record(path)
        assert record["schema"] == 2, path
        assert "readings" not in record, path
        if record["kind"] == "train":
            assert TrainSpec.from_dict(record["settings"]).to_dict().keys() >= record["settings"].keys(), path
            assert not set(record["figures"]) & (set(old_names.TRAIN_FIGURES) - {"step"}), path
            lines = [record["figures"]["last_epoch"], *record["figures"].get("history", [])]
            assert not any(set(line) & set(old_names.LOG_COLUMNS) for line in lines), path
        assert old_names.upgrade_record(record) == record, path


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_plan_with_old_names_is_the_plan_with_new_names(path: Path, tmp_path: Path) -> None:
    plan = tomllib.loads(path.read_text())
    assert old_names.upgrade_plan(plan) == plan  # the committed plans have the new names
    old_plan = rename_keys(plan, invert(old_names.PLAN))
    if "settings" in old_plan:
        old_plan["settings"] = old_names.downgrade_settings(old_plan["settings"])
    old_plan["arms"] = {
        name: rename_keys(old_names.downgrade_settings(table), invert(old_names.PLAN_VARIANT))
        for name, table in old_plan["arms"].items()
    }
    assert not set(old_plan["arms"]) - set(plan["variants"])
    assert old_names.upgrade_plan(old_plan) == plan


def test_a_plan_of_schema_1_can_be_extended_by_a_plan_of_schema_2(tmp_path: Path) -> None:
    start = 'recipe = "digits"\nseeds = [0]\n'
    old_arm = '[arms.kept]\nshare = 0.5\nform_options = ["last=3", "matrix=batch"]\n'
    (tmp_path / "old.toml").write_text(f'{start}control = "none"\n[arms.none]\n{old_arm}')
    new_variant = 'extends = "old/kept"\nlcr_multiplier = 0.5\nlcr_options = ["num_last_matrices=2"]\n'
    (tmp_path / "new.toml").write_text(f'{start}baseline = "old/none"\n[variants.half]\n{new_variant}')
    assert read_plan(tmp_path / "old.toml").baseline == "none"
    spec = read_plan(tmp_path / "new.toml").variants["half"]
    assert (spec.lcr_gradient_ratio, spec.lcr_options) == (0.25, ("num_last_matrices=2", "matrix=cross-gram"))


def test_the_table_spec_can_be_read_with_old_names() -> None:
    spec = tomllib.loads((ROOT / "paper" / "tables.toml").read_text())
    assert old_names.upgrade_table_spec(spec) == spec
    old_spec = rename_keys(spec, invert(old_names.TABLE_SPEC))
    old_spec["tables"] = {
        name: rename_keys(
            {
                k: [rename_keys(row, invert(old_names.TABLE_ROW)) for row in v] if k == "rows" else v
                for k, v in t.items()
            },
            invert(old_names.TABLE),
        )
        for name, t in old_spec["tables"].items()
    }
    assert old_names.upgrade_table_spec({**old_spec, "schema": 1}) == spec


def test_a_recipe_with_old_names_has_the_same_settings(tmp_path: Path) -> None:
    path = tmp_path / "old.toml"
    path.write_text('images = "all"\nschedule = "step"\nmilestones = [3]\nform_options = ["root=true"]\nschema = 1\n')
    assert find_recipe(str(path)).spec == TrainSpec(
        train_split="train+valid", lr_schedule="multistep", lr_milestones=(3.0,), lcr_options=("sqrt_eigenvalue=true",)
    )


# -- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"weight": 1.0, "lcr_weight": 1.0}, "weight and lcr_weight are the same setting; keep lcr_weight"),
        ({"schema": 2, "weight": 1.0}, "weight is called lcr_weight now"),
        ({"schema": 3}, "schema 3 was written by another version"),
        ({"schema": True}, "schema True was written by another version"),
    ],
    ids=str,
)
def test_settings_that_mix_names_or_have_another_schema_are_rejected(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        old_names.upgrade_settings(settings)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"share": 0.1}, "share is called lcr_gradient_ratio now"),
        ({"regularizer": "spectral"}, "regularizer 'spectral' is called 'spectral-norm-latent' now"),
        ({"lcr_options": ["last=2"]}, "the LCR option 'last=2' is called 'num_last_matrices=2' now"),
        ({"lcr_options": ["matrix=batch"]}, "the LCR option 'matrix=batch' is called 'matrix=cross-gram' now"),
    ],
    ids=str,
)
def test_old_names_in_python_raise_an_error_with_the_new_name(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        TrainSpec().replace(**changes)


OPTIONS = [(command, old, new) for command, table in old_names.OPTIONS.items() for old, new in table.items()]


@pytest.mark.parametrize(("command", "old", "new"), OPTIONS, ids=lambda value: str(value))
def test_an_old_option_is_one_sentence_with_the_new_one(
    command: str, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for word in (old, f"{old}=1"):
        assert main([command, word]) == 2
        assert capsys.readouterr().err == f"lcrbnn: {old} is called {new} now; see lcrbnn {command} --help\n"
    known = find_options(command)
    assert new in known
    assert old not in known


def find_options(command: str) -> set[str]:
    parser = argparse.ArgumentParser()
    import_module(f"lcrbnn.cli.{command}").add_arguments(parser)
    return {option for action in parser._actions for option in action.option_strings}


def test_words_behind_two_dashes_are_no_options(capsys: pytest.CaptureFixture[str]) -> None:
    old_names.reject_old_options("train", ["--", "--weight"])
    assert main(["cost", "--paper"]) == 2
    assert capsys.readouterr().err == "lcrbnn: lcrbnn cost --paper was removed; use python -m paper costs\n"


TORCHRUN_OPTIONS = [
    "--duplicate-stderr-filters", "--duplicate-stdout-filters", "--event-log-handler", "--help", "--local-addr",
    "--local-ranks-filter", "--log-dir", "--logs-specs", "--master-addr", "--master-port", "--max-restarts",
    "--module", "--monitor-interval", "--nnodes", "--no-python", "--node-rank", "--nproc-per-node",
    "--numa-binding", "--rdzv-backend", "--rdzv-conf", "--rdzv-endpoint", "--rdzv-id", "--redirects", "--role",
    "--run-path", "--shutdown-timeout", "--signals-to-handle", "--standalone", "--start-method", "--tee",
    "--virtual-local-rank",
]  # fmt: skip


def test_no_option_of_train_is_the_beginning_of_an_option_of_torchrun() -> None:
    """torchrun accepts abbreviations of its own options, also behind the name of the program."""
    own = find_options("train") - {"-h", "--help"}
    assert [option for option in own if any(other.startswith(option) for other in TORCHRUN_OPTIONS)] == []


# -- a run of schema 1 -----------------------------------------------------------------------------------------------


def test_the_record_of_an_old_run_is_verified_before_its_names_are_translated(tmp_path: Path) -> None:
    record = read_record(OLD_RUN / "record.json")
    assert TrainSpec.from_dict(record["settings"]).lcr_options == ("num_last_matrices=2", "matrix=cross-gram")
    assert record["figures"]["last_epoch"]["lcr_gradient_ratio"] == pytest.approx(0.0304, abs=1e-4)
    text = (OLD_RUN / "record.json").read_text()
    (tmp_path / "record.json").write_text(text.replace('"share": 0.03,', '"share": 0.04,'))
    with pytest.raises(InputError, match="damaged"):
        read_record(tmp_path / "record.json")


def test_the_folder_of_an_old_run_has_its_log_and_its_record(tmp_path: Path) -> None:
    shutil.copytree(OLD_RUN, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.check_record_and_log()
    lines = folder.read_log()
    assert [line["valid_top1"] for line in lines] == sorted(line["valid_top1"] for line in lines)
    assert main(["report", str(folder.path), "-o", str(tmp_path / "a.html")]) == 0
    assert main(["plot", str(folder.path), "-o", str(tmp_path / "a.svg")]) == 0


def write_as_schema_1(path: Path) -> None:
    """Rewrite a run without a record as schema 1 wrote it: old names, and the digest of the old names."""
    folder = RunFolder(path)
    spec = read_spec(folder)
    old_settings = old_names.downgrade_settings(spec.to_dict())
    folder.spec_file.write_text(json.dumps(old_settings))
    lines = [
        rename_keys(json.loads(line), invert(old_names.LOG_COLUMNS))
        for line in folder.log_file.read_text().splitlines()
    ]
    folder.log_file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for file in folder.list_checkpoints():
        checkpoint = read_checkpoint(file)
        assert checkpoint.facts["spec"] == spec.digest()
        write_checkpoint(file, Checkpoint(checkpoint.arrays, {**checkpoint.facts, "spec": hash_as_schema_1(spec)}))


def hash_as_schema_1(spec: TrainSpec) -> str:
    """Return the digest that schema 1 gave: of the settings that differ from the defaults, under their old names."""
    defaults = TrainSpec().to_dict()
    changed = {name: value for name, value in spec.to_dict().items() if value != defaults[name]}
    text = json.dumps([1, old_names.downgrade_settings(changed)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_an_old_run_is_resumed_evaluated_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = SMALL.replace(lcr_gradient_ratio=0.03, lcr_options=("num_last_matrices=2",), augmentation="crop-flip")
    straight = train_small_run(tmp_path / "straight", spec)
    shutil.copytree(straight, tmp_path / "old")
    folder = RunFolder(tmp_path / "old")
    folder.record_file.unlink()
    folder.find_newest_checkpoint().unlink()  # type: ignore[union-attr]  # a finished run has a checkpoint
    write_as_schema_1(folder.path)
    before = folder.spec_file.read_bytes()
    train_small_run(folder.path, spec, resume=True)
    assert folder.spec_file.read_bytes() == before  # the settings of a run are not rewritten
    assert_same_runs(straight, folder.path)
    assert [
        ("lip" in line, "lcr_loss" in line) for line in map(json.loads, folder.log_file.read_text().splitlines())
    ] == [
        (True, False),
        (False, True),
    ]
    for words in (["eval"], ["eval", "--test"]):
        assert main([*words, str(folder.path), "--device", "cpu"]) == 0
    assert main(["export", str(folder.path), "-o", str(tmp_path / "a.bnn")]) == 0
    record = json.loads(folder.record_file.read_text())
    assert (record["schema"], record["settings"]["schema"], len(record["test_results"])) == (2, 2, 1)
    folder.record_file.unlink()
    folder.spec_file.write_text(folder.spec_file.read_text().replace('"epochs": 2', '"epochs": 3'))
    with pytest.raises(InputError, match="other settings"):
        train_small_run(folder.path, spec.replace(epochs=3), resume=True)


def test_the_words_of_random_seeds_did_not_change_with_the_names() -> None:
    expected = {
        "start": 2744060453133449590,
        "augment": 1919946307766104266,
        "noise": 7144620757702950253,
        "order": 4604287442086848438,
        "step": 6096788453022835958,
    }
    assert {word: derive_seed(5, word, 3) for word in expected} == expected
