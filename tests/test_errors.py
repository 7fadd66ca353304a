from __future__ import annotations

import numpy as np
import pytest

from lcrbnn.errors import InputError, choose, names_of, number, refuse_unknown


def test_a_wrong_name_is_answered_with_the_names_there_are_and_the_nearest() -> None:
    with pytest.raises(
        InputError, match=r"no fruit is called 'aple'; there are apple, pear \(did you mean 'apple'\?\)"
    ):
        choose({"apple": 1, "pear": 2}, "aple", "fruit")


def test_a_name_of_another_type_is_refused_the_same_way() -> None:
    with pytest.raises(InputError, match="no fruit is called 3; there are apple"):
        choose({"apple": 1}, 3, "fruit")


def test_unknown_names_are_refused_and_known_ones_pass() -> None:
    refuse_unknown(["a"], ["a", "b"], "letter")
    with pytest.raises(InputError, match="no letter is called 'c'; there are a, b"):
        refuse_unknown(["a", "c"], ["a", "b"], "letter")


@pytest.mark.parametrize(
    ("value", "settings", "sentence"),
    [
        (-1, {"low": 0}, "x must be a number of at least 0; got -1"),
        (3, {"low": 0, "high": 2}, "x must be a number from 0 to 2; got 3"),
        (0.5, {"low": 0, "whole": True}, "x must be a whole number of at least 0; got 0.5"),
        (True, {"low": 0}, "x must be a number of at least 0; got True"),
        ("1", {"low": 0}, "x must be a number of at least 0; got '1'"),
        (float("inf"), {"low": 0}, "x must be a number of at least 0; got inf"),
        (float("nan"), {"low": 0}, "x must be a number of at least 0; got nan"),
    ],
)
def test_a_number_out_of_place_is_named(value: object, settings: dict[str, float], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        number(value, "x", **settings)


def test_numbers_of_numpy_are_numbers() -> None:
    number(np.int64(3), "x", low=0, whole=True)
    number(2**63 - 512, "x", low=0, high=2**63 - 1, whole=True)  # as a float it would be 2**63
    number(np.float32(0.5), "x", low=0)


def test_a_long_list_of_names_is_cut() -> None:
    names = [f"name{i}" for i in range(100)]
    with pytest.raises(InputError, match="name23 and 76 more"):
        refuse_unknown(["x"], names, "thing")


@pytest.mark.parametrize("given", ["abc", 5, [5], None])
def test_what_is_no_list_of_names_is_refused(given: object) -> None:
    with pytest.raises(InputError, match="blocks is a list of names; got"):
        names_of(given, "blocks")
    assert names_of(("a", "b"), "blocks") == ["a", "b"]
