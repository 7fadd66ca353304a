from __future__ import annotations

import json
import re
from dataclasses import Field, FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrbnn.errors import InputError
from lcrbnn.train import Spec, augment, build, schedule
from lcrbnn.train.spec import AUGMENTATIONS, DECAYS, OPTIMIZERS, SCHEDULES, SCHEMA, option_values

FIELDS = {one.name: one for one in fields(Spec)}
NUMBERS = [name for name, one in FIELDS.items() if type(one.default) in (int, float)]
COUNTS = [name for name in NUMBERS if isinstance(FIELDS[name].default, int)]
FLAGS = [name for name, one in FIELDS.items() if isinstance(one.default, bool)]
TEXTS = [name for name, one in FIELDS.items() if isinstance(one.default, str)]
LISTS = [name for name, one in FIELDS.items() if isinstance(one.default, tuple)]

# A spec in which every field can be changed alone, and another value for each.
BASE = Spec(teacher="runs/real", milestones=(5.0, 9.0), augment="augmix-views")
CHANGES: dict[str, Any] = {
    "data": "cifar10",
    "images": "all",
    "augment": "none",
    "side": 64,
    "classes": 3,
    "skip_broken": True,
    "model": "resnet20",
    "method": "bnn",
    "bits": "1/32",
    "method_options": ("t_min=0.1",),
    "start": "elsewhere",
    "start_with": "real",
    "norm_start": 1e-8,
    "weight": 1e-3,
    "share": 0.25,
    "form": "paper",
    "form_options": ("beta=1",),
    "ramp": 2.0,
    "regularizer": "defensive",
    "strength": 1e-3,
    "teacher": "runs/other",
    "distill": 0.5,
    "temperature": 4.0,
    "epochs": 16,
    "batch": 65,
    "accumulate": 2,
    "batch_norm": "sync",
    "drop_last": True,
    "optimizer": "adam",
    "lr": 0.05000000000000001,
    "momentum": 0.8,
    "nesterov": True,
    "weight_decay": 0.0,
    "max_gradient_norm": 1.0,
    "decay": "real",
    "schedule": "step",
    "pace": "step",
    "milestones": (5.0,),
    "gamma": 0.2,
    "warmup": 0.5,
    "label_smoothing": 0.1,
    "consistency": 12.0,
    "precision": "tf32",
    "deterministic": False,
    "seed": 1,
}


def sentence_of(changes: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        Spec().but(**changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_field_is_of_a_kind_that_is_checked_and_is_explained() -> None:
    assert sorted([*NUMBERS, *FLAGS, *TEXTS, *LISTS]) == sorted(FIELDS)
    for one in FIELDS.values():
        assert one.metadata["about"].strip(), one.name
        for choice, words in (one.metadata.get("choices") or {}).items():
            assert choice.strip(), one.name
            assert words.strip(), one.name


def test_the_defaults_are_valid_and_among_their_choices() -> None:
    spec = Spec()
    assert spec.but() == spec
    assert all(
        getattr(spec, name) in one.metadata["choices"]
        for name, one in FIELDS.items()
        if one.metadata.get("choices") is not None
    )


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Spec().lr = 1.0


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -1, True, "1", None, [1]], ids=repr)
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_is_none_or_out_of_range_is_refused(name: str, value: Any) -> None:
    assert re.match(rf"{name} must be a (whole )?number (of at least|from) .+; got ", sentence_of({name: value}))


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_is_whole(name: str) -> None:
    assert sentence_of({name: 3.0}).startswith(f"{name} must be a whole number from ")


@pytest.mark.parametrize("name", ["distill", "momentum", "gamma", "label_smoothing"])
def test_a_share_is_at_most_1(name: str) -> None:
    assert getattr(BASE.but(**{name: 1}), name) == 1
    assert sentence_of({name: 1.01}) == f"{name} must be a number from 0.0 to 1.0; got 1.01"


@pytest.mark.parametrize("value", [0, 1, "true", None], ids=repr)
@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_true_or_false(name: str, value: Any) -> None:
    assert sentence_of({name: value}) == f"{name} is true or false; got {value!r}"


@pytest.mark.parametrize("value", [0, True, None, ["sgd"]], ids=repr)
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_a_text(name: str, value: Any) -> None:
    assert sentence_of({name: value}) == f"{name} is a text; got {value!r}"


@pytest.mark.parametrize("value", ["t_min=0.1", 3, None, {"a": 1}], ids=repr)
@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_a_list(name: str, value: Any) -> None:
    assert sentence_of({name: value}) == f"{name} is a list; got {value!r}"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"epochs": 0}, "epochs must be a whole number from 1 to 1000000000; got 0"),
        ({"batch": 1}, "batch must be a whole number from 2 to 1000000000; got 1"),
        ({"temperature": 0}, "temperature must be a number of at least 0.001; got 0"),
        ({"method_options": [1]}, "method_options is a list of texts such as 'name=value'; got 1"),
        ({"form_options": ["a=1", None]}, "form_options is a list of texts such as 'name=value'; got None"),
        ({"milestones": ["5"]}, "each of milestones must be a number of at least 0; got '5'"),
        ({"milestones": [5, True]}, "each of milestones must be a number of at least 0; got True"),
        ({"milestones": [-5]}, "each of milestones must be a number of at least 0; got -5"),
        ({"milestones": [float("nan")]}, "each of milestones must be a number of at least 0; got nan"),
        ({"milestones": [9, 5.5]}, "milestones must rise; got 9, 5.5"),
        ({"milestones": [5, 5]}, "milestones must rise; got 5, 5"),
        ({"optimizer": "adam", "momentum": 1}, "momentum must be less than 1 with adam"),
        ({"schedule": "step"}, "schedule 'step' needs milestones, the epochs at which the learning rate falls"),
        ({"distill": 0.5}, "distill needs a teacher, the folder of a finished run"),
        ({"nesterov": True, "optimizer": "adam"}, "nesterov goes with sgd and a momentum of more than 0"),
        ({"nesterov": True, "momentum": 0}, "nesterov goes with sgd and a momentum of more than 0"),
        ({"side": 7}, "side must be 0, the data set's own, or at least 8; got 7"),
        ({"warmup": 15.5}, "warmup (15.5) and ramp (0) must end within the epochs, of which there are 15"),
        ({"ramp": 3, "epochs": 2}, "warmup (0) and ramp (3) must end within the epochs, of which there are 2"),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)
def test_settings_that_no_run_could_have_are_refused(changes: dict[str, Any], sentence: str) -> None:
    assert sentence_of(changes) == sentence


@pytest.mark.parametrize("name", [name for name in TEXTS if FIELDS[name].metadata["choices"] is not None])
def test_an_unknown_choice_is_answered_with_the_choices_and_the_nearest(name: str) -> None:
    for choice in FIELDS[name].metadata["choices"]:
        wrong = choice + "q"
        said = sentence_of({name: wrong})
        assert said.startswith(f"no choice for {name} is called '{wrong}'; there are ")
        assert said.endswith(f"(did you mean {choice!r}?)")
        assert all(other in said for other in FIELDS[name].metadata["choices"])


def test_an_unknown_setting_is_answered_with_the_nearest() -> None:
    said = sentence_of({"epoch": 3})
    assert said.startswith("no setting of a run is called 'epoch'; there are data, images, ")
    assert said.endswith("(did you mean 'epochs'?)")


@pytest.mark.parametrize("name", ["epochs", "lr", "seed"])
def test_a_number_beyond_all_bounds_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"^{name} must be "):
        Spec().but(**{name: 10**400})


def test_a_setting_called_self_is_as_unknown_as_any() -> None:
    with pytest.raises(InputError, match="no setting of a run is called 'self'"):
        Spec.of({"schema": SCHEMA, "self": 1})


# -- what is taken ---------------------------------------------------------------------------------------------------


def test_whole_numbers_may_stand_for_floats_and_lists_for_tuples() -> None:
    spec = Spec().but(lr=1, warmup=5, milestones=[3.5, 4.5], method_options=["a=1"])
    assert (spec.lr, spec.warmup, spec.milestones, spec.method_options) == (1.0, 5.0, (3.5, 4.5), ("a=1",))
    assert (type(spec.lr), type(spec.warmup)) == (float, float)
    assert spec.but(lr=0.05, warmup=0, milestones=[], method_options=[]) == Spec()


def test_a_change_changes_nothing_else() -> None:
    for name, value in CHANGES.items():
        changed = BASE.but(**{name: value})
        assert getattr(changed, name) == value
        assert changed.but(**{name: getattr(BASE, name)}) == BASE
    assert Spec(teacher="runs/real", milestones=(5.0, 9.0), augment="augmix-views") == BASE


def any_value(one: Field) -> st.SearchStrategy[Any]:
    about = one.metadata
    if isinstance(one.default, bool):
        return st.booleans()
    if isinstance(one.default, str):
        return st.text() if about["choices"] is None else st.sampled_from(list(about["choices"]))
    if isinstance(one.default, tuple):
        item = st.floats(0, 1e9, allow_nan=False) if about["numbers"] else st.text()
        return st.lists(item, max_size=3).map(lambda items: tuple(sorted(set(items)) if about["numbers"] else items))
    if about.get("whole"):
        return st.integers(about["low"], about["high"])
    return st.floats(about["low"], min(about["high"], 3e38), allow_nan=False)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    values = {name: draw(any_value(one)) for name, one in FIELDS.items()}
    values["milestones"] = values["milestones"] or ((1.0,) if values["schedule"] == "step" else ())
    values["teacher"] = values["teacher"] or ("t" if values["distill"] else "")
    values["nesterov"] &= values["optimizer"] == "sgd" and values["momentum"] > 0
    values["momentum"] = min(values["momentum"], 0.999) if values["optimizer"] == "adam" else values["momentum"]
    values["augment"] = "augmix-views" if values["consistency"] else values["augment"]
    values["share"] = 0.0 if values["weight"] else values["share"]
    for name in ("warmup", "ramp"):
        values[name] = min(values[name], float(values["epochs"]))
    return Spec(**values)


@given(specs())
def test_a_spec_comes_back_from_a_file_as_it_was(spec: Spec) -> None:
    back = Spec.of(json.loads(json.dumps(spec.stored())))
    assert back == spec
    assert back.digest() == spec.digest()
    assert [type(getattr(back, name)) for name in FIELDS] == [type(one.default) for one in FIELDS.values()]


def test_the_largest_seeds_are_not_rounded_beyond_the_bound() -> None:
    assert Spec(seed=2**63 - 512).seed == 2**63 - 512
    with pytest.raises(InputError, match="seed must be a whole number from 0 to 9223372036854775807"):
        Spec(seed=2**63)


@pytest.mark.parametrize("schema", [None, 0, SCHEMA + 1, "1"])
def test_a_spec_of_another_schema_is_refused(schema: object) -> None:
    stored = {**Spec().stored(), "schema": schema}
    with pytest.raises(
        InputError,
        match=re.escape(f"a spec of schema {schema!r} was written by another version of lcrbnn; this one has {SCHEMA}"),
    ):
        Spec.of(stored)


def test_a_stored_spec_says_its_schema_and_holds_every_field() -> None:
    stored = BASE.stored()
    assert stored.pop("schema") == SCHEMA
    assert list(stored) == list(FIELDS)
    with pytest.raises(InputError, match="a spec of schema None"):
        Spec.of(stored)


# -- its short name --------------------------------------------------------------------------------------------------


def test_the_digest_changes_with_every_field() -> None:
    assert list(CHANGES) == list(FIELDS)
    digests = {BASE.digest(), *(BASE.but(**{name: value}).digest() for name, value in CHANGES.items())}
    assert len(digests) == len(FIELDS) + 1
    assert all(re.fullmatch("[0-9a-f]{16}", digest) for digest in digests)


def test_the_digest_is_the_same_for_the_same_settings() -> None:
    for name, value in CHANGES.items():
        changed = BASE.but(**{name: value})
        again = Spec(**{one: CHANGES[one] if one == name else getattr(BASE, one) for one in FIELDS})
        assert again.digest() == changed.digest()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Spec().but(milestones=[5, 9]), Spec().but(milestones=[5.0, 9.0])),  # a recipe's, the command line's
        (Spec().but(weight=0.0), Spec().but(weight=-0.0)),
        (Spec(lr=1), Spec(lr=1.0)),
    ],
)
def test_equal_specs_have_equal_digests(one: Spec, other: Spec) -> None:
    assert one == other
    assert one.digest() == other.digest()


# -- options ---------------------------------------------------------------------------------------------------------


def test_options_are_read_as_numbers_truths_or_texts() -> None:
    pairs = ["a=1", "b=-0.5", "c=1e-3", "d=true", "e=False", "f=batch", "g=", "h=x=y", "i=1/32"]
    values = option_values(pairs, "options")
    wanted = {"a": 1, "b": -0.5, "c": 1e-3, "d": True, "e": False, "f": "batch", "g": "", "h": "x=y", "i": "1/32"}
    assert values == wanted
    assert {name: type(value) for name, value in values.items()} == {name: type(v) for name, v in wanted.items()}
    assert option_values([], "options") == {}


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        (["a"], "options are written name=value; got 'a'"),
        (["=1"], "options are written name=value; got '=1'"),
        ([""], "options are written name=value; got ''"),
        (["a=1", "b=2", "a=1"], "options name 'a' twice"),
    ],
)
def test_options_that_are_not_written_as_such_are_refused(pairs: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(sentence)}$"):
        option_values(pairs, "options")


def test_the_choices_are_those_that_the_trainer_knows() -> None:
    assert list(build.MAKERS) == list(OPTIMIZERS)
    assert list(build.DECAYING) == list(DECAYS)
    assert list(schedule.FALLS) == list(SCHEDULES)
    assert {"usual", *augment.AUGMENT} == set(AUGMENTATIONS)


def test_a_list_may_be_given_as_one() -> None:
    assert Spec(milestones=[1, 2], method_options=["t_min=0.1"]) == Spec(
        milestones=(1, 2), method_options=("t_min=0.1",)
    )
    assert Spec(form_options=[]) == Spec()
