from __future__ import annotations

import json
import re
from dataclasses import Field, FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrbnn.data.loading import augment
from lcrbnn.errors import InputError
from lcrbnn.runs.old_names import SCHEMA
from lcrbnn.train import schedule
from lcrbnn.train.setup import optimizers
from lcrbnn.train.setup.spec import (
    AUGMENTATION_CHOICES,
    LR_SCHEDULE_CHOICES,
    OPTIMIZER_CHOICES,
    WEIGHT_DECAY_CHOICES,
    TrainSpec,
    parse_options,
)

FIELDS = {f.name: f for f in fields(TrainSpec)}
NUMBERS = [name for name, f in FIELDS.items() if type(f.default) in (int, float)]
COUNTS = [name for name in NUMBERS if isinstance(FIELDS[name].default, int)]
FLAGS = [name for name, f in FIELDS.items() if isinstance(f.default, bool)]
TEXTS = [name for name, f in FIELDS.items() if isinstance(f.default, str)]
LISTS = [name for name, f in FIELDS.items() if isinstance(f.default, tuple)]

# A spec in which every field can be changed separately, and another value for each field.
BASE = TrainSpec(teacher="runs/real", lr_milestones=(5.0, 9.0), augmentation="augmix-views")
CHANGES: dict[str, Any] = {
    "dataset": "cifar10",
    "train_split": "train+valid",
    "augmentation": "none",
    "image_size": 64,
    "num_classes": 3,
    "split_seed": 7,
    "skip_broken_images": True,
    "model": "resnet20",
    "model_sha256": "0" * 64,
    "method": "bnn",
    "bits": "1/32",
    "method_options": ("t_min=0.1",),
    "init_from": "elsewhere",
    "init_parameters": "non-latent",
    "bn_gamma_init": 1e-8,
    "lcr_weight": 1e-3,
    "lcr_gradient_ratio": 0.25,
    "lcr_variant": "paper",
    "lcr_options": ("beta=1",),
    "lcr_blocks": ("layer1.0", "layer2.0"),
    "lcr_warmup_epochs": 2.0,
    "regularizer": "defensive-quantization",
    "regularizer_weight": 1e-3,
    "teacher": "runs/other",
    "distillation_alpha": 0.5,
    "distillation_temperature": 4.0,
    "epochs": 16,
    "batch_size": 65,
    "gradient_accumulation_steps": 2,
    "batch_norm": "sync",
    "drop_last": True,
    "optimizer": "adam",
    "lr": 0.05000000000000001,
    "momentum": 0.8,
    "nesterov": True,
    "weight_decay": 0.0,
    "max_gradient_norm": 1.0,
    "weight_decay_parameters": "non-latent",
    "lr_schedule": "multistep",
    "lr_update_interval": "step",
    "lr_milestones": (5.0,),
    "lr_gamma": 0.2,
    "lr_warmup_epochs": 0.5,
    "label_smoothing": 0.1,
    "consistency_weight": 12.0,
    "precision": "tf32",
    "deterministic": False,
    "seed": 1,
}


def read_error_message(changes: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        TrainSpec().replace(**changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_field_has_a_checked_type_and_a_description() -> None:
    assert sorted([*NUMBERS, *FLAGS, *TEXTS, *LISTS]) == sorted(FIELDS)
    for spec_field in FIELDS.values():
        assert spec_field.metadata["about"].strip(), spec_field.name
        for choice, words in (spec_field.metadata.get("choices") or {}).items():
            assert choice.strip(), spec_field.name
            assert words.strip(), spec_field.name


def test_the_defaults_are_valid_and_among_their_choices() -> None:
    spec = TrainSpec()
    assert spec.replace() == spec
    assert all(
        getattr(spec, name) in f.metadata["choices"]
        for name, f in FIELDS.items()
        if f.metadata.get("choices") is not None
    )


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        TrainSpec().lr = 1.0


# -- rejected values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -1, True, "1", None, [1]], ids=repr)
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_is_not_finite_or_out_of_range_is_rejected(name: str, value: Any) -> None:
    assert re.match(rf"{name} must be a (whole )?number (of at least|from) .+; got ", read_error_message({name: value}))


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_must_be_an_integer(name: str) -> None:
    assert read_error_message({name: 3.0}).startswith(f"{name} must be a whole number from ")


@pytest.mark.parametrize("name", ["distillation_alpha", "momentum", "lr_gamma", "label_smoothing"])
def test_a_share_is_at_most_1(name: str) -> None:
    assert getattr(BASE.replace(**{name: 1}), name) == 1
    assert read_error_message({name: 1.01}) == f"{name} must be a number from 0.0 to 1.0; got 1.01"


@pytest.mark.parametrize("value", [0, 1, "true", None], ids=repr)
@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_must_be_true_or_false(name: str, value: Any) -> None:
    assert read_error_message({name: value}) == f"{name} must be true or false; got {value!r}"


@pytest.mark.parametrize("value", [0, True, None, ["sgd"]], ids=repr)
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_must_be_a_string(name: str, value: Any) -> None:
    assert read_error_message({name: value}) == f"{name} must be a text; got {value!r}"


@pytest.mark.parametrize("value", ["t_min=0.1", 3, None, {"a": 1}], ids=repr)
@pytest.mark.parametrize("name", LISTS)
def test_a_list_must_be_a_list(name: str, value: Any) -> None:
    assert read_error_message({name: value}) == f"{name} must be a list; got {value!r}"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"epochs": 0}, "epochs must be a whole number from 1 to 1000000000; got 0"),
        ({"batch_size": 1}, "batch_size must be a whole number from 2 to 1000000000; got 1"),
        ({"distillation_temperature": 0}, "distillation_temperature must be a number of at least 0.001; got 0"),
        ({"method_options": [1]}, "method_options must be a list of texts such as 'name=value'; got 1"),
        ({"lcr_options": ["a=1", None]}, "lcr_options must be a list of texts such as 'name=value'; got None"),
        ({"lr_milestones": ["5"]}, "each of lr_milestones must be a number of at least 0; got '5'"),
        ({"lr_milestones": [5, True]}, "each of lr_milestones must be a number of at least 0; got True"),
        ({"lr_milestones": [-5]}, "each of lr_milestones must be a number of at least 0; got -5"),
        ({"lr_milestones": [float("nan")]}, "each of lr_milestones must be a number of at least 0; got nan"),
        ({"lr_milestones": [9, 5.5]}, "lr_milestones must increase; got 9, 5.5"),
        ({"lr_milestones": [5, 5]}, "lr_milestones must increase; got 5, 5"),
        ({"optimizer": "adam", "momentum": 1}, "momentum must be less than 1 with adam"),
        (
            {"lr_schedule": "multistep"},
            "lr_schedule 'multistep' needs lr_milestones, the epochs at which the learning rate falls",
        ),
        ({"distillation_alpha": 0.5}, "distillation_alpha needs a teacher, the folder of a finished run"),
        ({"nesterov": True, "optimizer": "adam"}, "nesterov needs optimizer sgd and a momentum of more than 0"),
        ({"nesterov": True, "momentum": 0}, "nesterov needs optimizer sgd and a momentum of more than 0"),
        ({"image_size": 7}, "image_size must be 0 (the size of the data set) or at least 8; got 7"),
        ({"lr_warmup_epochs": 15.5}, "lr_warmup_epochs (15.5) and lcr_warmup_epochs (0) must be at most epochs (15)"),
        (
            {"lcr_warmup_epochs": 3, "epochs": 2},
            "lr_warmup_epochs (0) and lcr_warmup_epochs (3) must be at most epochs (2)",
        ),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)
def test_contradictory_settings_are_rejected(changes: dict[str, Any], sentence: str) -> None:
    assert read_error_message(changes) == sentence


@pytest.mark.parametrize("name", [name for name in TEXTS if FIELDS[name].metadata["choices"] is not None])
def test_an_unknown_choice_is_rejected_with_the_nearest(name: str) -> None:
    for choice in FIELDS[name].metadata["choices"]:
        wrong = choice + "q"
        message = read_error_message({name: wrong})
        assert message.startswith(f"no choice for {name} is called '{wrong}'")
        assert choice in message.removeprefix(f"no choice for {name} is called '{wrong}'")


def test_an_unknown_setting_is_rejected_with_the_nearest() -> None:
    message = read_error_message({"epoch": 3})
    assert message.startswith("no setting of a run is called 'epoch'")
    assert "epochs" in message


@pytest.mark.parametrize("name", ["epochs", "lr", "seed"])
def test_a_huge_integer_is_rejected(name: str) -> None:
    with pytest.raises(InputError, match=f"^{name} must be "):
        TrainSpec().replace(**{name: 10**400})


def test_a_setting_called_self_is_rejected_as_unknown() -> None:
    with pytest.raises(InputError, match="no setting of a run is called 'self'"):
        TrainSpec.from_dict({"schema": SCHEMA, "self": 1})


# -- accepted values -------------------------------------------------------------------------------------------------


def test_integers_are_accepted_as_floats_and_lists_as_tuples() -> None:
    spec = TrainSpec().replace(lr=1, lr_warmup_epochs=5, lr_milestones=[3.5, 4.5], method_options=["a=1"])
    assert (spec.lr, spec.lr_warmup_epochs, spec.lr_milestones, spec.method_options) == (1.0, 5.0, (3.5, 4.5), ("a=1",))
    assert (type(spec.lr), type(spec.lr_warmup_epochs)) == (float, float)
    assert spec.replace(lr=0.05, lr_warmup_epochs=0, lr_milestones=[], method_options=[]) == TrainSpec()


def test_replace_changes_only_the_given_settings() -> None:
    for name, value in CHANGES.items():
        changed = BASE.replace(**{name: value})
        assert getattr(changed, name) == value
        assert changed.replace(**{name: getattr(BASE, name)}) == BASE
    assert TrainSpec(teacher="runs/real", lr_milestones=(5.0, 9.0), augmentation="augmix-views") == BASE


def any_value(spec_field: Field) -> st.SearchStrategy[Any]:
    about = spec_field.metadata
    if isinstance(spec_field.default, bool):
        return st.booleans()
    if isinstance(spec_field.default, str):
        return st.text() if about["choices"] is None else st.sampled_from(list(about["choices"]))
    if isinstance(spec_field.default, tuple):
        item = st.floats(0, 1e9, allow_nan=False) if about["numbers"] else st.text()
        return st.lists(item, max_size=3).map(lambda items: tuple(sorted(set(items)) if about["numbers"] else items))
    if about.get("integer"):
        return st.integers(about["low"], about["high"])
    return st.floats(about["low"], min(about["high"], 3e38), allow_nan=False)


@st.composite
def specs(draw: st.DrawFn) -> TrainSpec:
    values = {name: draw(any_value(f)) for name, f in FIELDS.items()}
    needs_milestones = values["lr_schedule"] == "multistep"
    values["lr_milestones"] = values["lr_milestones"] or ((1.0,) if needs_milestones else ())
    values["teacher"] = values["teacher"] or ("t" if values["distillation_alpha"] else "")
    values["nesterov"] &= values["optimizer"] == "sgd" and values["momentum"] > 0
    values["momentum"] = min(values["momentum"], 0.999) if values["optimizer"] == "adam" else values["momentum"]
    values["augmentation"] = "augmix-views" if values["consistency_weight"] else values["augmentation"]
    values["lcr_gradient_ratio"] = 0.0 if values["lcr_weight"] else values["lcr_gradient_ratio"]
    for name in ("lr_warmup_epochs", "lcr_warmup_epochs"):
        values[name] = min(values[name], float(values["epochs"]))
    return TrainSpec(**values)


@given(specs())
def test_a_spec_survives_a_json_file(spec: TrainSpec) -> None:
    back = TrainSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert back == spec
    assert back.digest() == spec.digest()
    assert [type(getattr(back, name)) for name in FIELDS] == [type(f.default) for f in FIELDS.values()]


def test_the_largest_seeds_are_not_rounded_beyond_the_bound() -> None:
    assert TrainSpec(seed=2**63 - 512).seed == 2**63 - 512
    with pytest.raises(InputError, match="seed must be a whole number from 0 to 9223372036854775807"):
        TrainSpec(seed=2**63)


@pytest.mark.parametrize("schema", [None, 0, SCHEMA + 1, "1", True])
def test_a_spec_of_an_unknown_schema_is_rejected(schema: object) -> None:
    stored = {**TrainSpec().to_dict(), "schema": schema}
    with pytest.raises(
        InputError,
        match=re.escape(
            f"schema {schema!r} was written by another version of lcrbnn; this version reads schemas 1 and 2"
        ),
    ):
        TrainSpec.from_dict(stored)


def test_a_stored_spec_contains_its_schema_and_every_field() -> None:
    stored = BASE.to_dict()
    assert stored.pop("schema") == SCHEMA
    assert list(stored) == list(FIELDS)
    with pytest.raises(InputError, match="a spec without a schema number"):
        TrainSpec.from_dict(stored)


# -- the digest ------------------------------------------------------------------------------------------------------


def test_the_digest_changes_with_every_field() -> None:
    assert list(CHANGES) == list(FIELDS)
    digests = {BASE.digest(), *(BASE.replace(**{name: value}).digest() for name, value in CHANGES.items())}
    assert len(digests) == len(FIELDS) + 1
    assert all(re.fullmatch("[0-9a-f]{16}", digest) for digest in digests)


def test_the_digest_is_the_same_for_the_same_settings() -> None:
    for name, value in CHANGES.items():
        changed = BASE.replace(**{name: value})
        again = TrainSpec(
            **{
                field_name: CHANGES[field_name] if field_name == name else getattr(BASE, field_name)
                for field_name in FIELDS
            }
        )
        assert again.digest() == changed.digest()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            TrainSpec().replace(lr_milestones=[5, 9]),
            TrainSpec().replace(lr_milestones=[5.0, 9.0]),
        ),  # from a recipe, from the command line
        (TrainSpec().replace(lcr_weight=0.0), TrainSpec().replace(lcr_weight=-0.0)),
        (TrainSpec(lr=1), TrainSpec(lr=1.0)),
    ],
)
def test_equal_specs_have_equal_digests(first: TrainSpec, second: TrainSpec) -> None:
    assert first == second
    assert first.digest() == second.digest()


# -- options ---------------------------------------------------------------------------------------------------------


def test_options_are_parsed_as_numbers_booleans_or_texts() -> None:
    pairs = ["a=1", "b=-0.5", "c=1e-3", "d=true", "e=False", "f=batch", "g=", "h=x=y", "i=1/32"]
    values = parse_options(pairs, "options")
    expected = {"a": 1, "b": -0.5, "c": 1e-3, "d": True, "e": False, "f": "batch", "g": "", "h": "x=y", "i": "1/32"}
    assert values == expected
    assert {name: type(value) for name, value in values.items()} == {name: type(v) for name, v in expected.items()}
    assert parse_options([], "options") == {}


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        (["a"], "options are written name=value; got 'a'"),
        (["=1"], "options are written name=value; got '=1'"),
        ([""], "options are written name=value; got ''"),
        (["a=1", "b=2", "a=1"], "options name 'a' twice"),
    ],
)
def test_options_without_name_and_value_are_rejected(pairs: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(sentence)}$"):
        parse_options(pairs, "options")


def test_the_choices_of_the_spec_match_the_registries() -> None:
    assert list(optimizers.OPTIMIZERS) == list(OPTIMIZER_CHOICES)
    assert list(optimizers.WEIGHT_DECAY_GROUPS) == list(WEIGHT_DECAY_CHOICES)
    assert list(schedule.LR_SCHEDULES) == list(LR_SCHEDULE_CHOICES)
    assert {"standard", *augment.AUGMENTATIONS} == set(AUGMENTATION_CHOICES)


def test_a_list_may_be_given_as_one() -> None:
    assert TrainSpec(lr_milestones=[1, 2], method_options=["t_min=0.1"]) == TrainSpec(
        lr_milestones=(1, 2), method_options=("t_min=0.1",)
    )
    assert TrainSpec(lcr_options=[]) == TrainSpec()
