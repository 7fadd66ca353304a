from __future__ import annotations

import numpy as np
import pytest

from lcrbnn.errors import InputError, check_known_names, check_name_list, check_number, lookup


def test_lookup_error_lists_known_names_and_the_nearest() -> None:
    with pytest.raises(
        InputError, match=r"no fruit is called 'aple'; there are apple, pear \(did you mean 'apple'\?\)"
    ):
        lookup({"apple": 1, "pear": 2}, "aple", "fruit")


def test_lookup_rejects_a_name_that_is_no_string() -> None:
    with pytest.raises(InputError, match="no fruit is called 3; there are apple"):
        lookup({"apple": 1}, 3, "fruit")


def test_check_known_names_rejects_unknown_names() -> None:
    check_known_names(["a"], ["a", "b"], "letter")
    with pytest.raises(InputError, match="no letter is called 'c'; there are a, b"):
        check_known_names(["a", "c"], ["a", "b"], "letter")


@pytest.mark.parametrize(
    ("value", "settings", "sentence"),
    [
        (-1, {"low": 0}, "x must be a number of at least 0; got -1"),
        (3, {"low": 0, "high": 2}, "x must be a number from 0 to 2; got 3"),
        (0.5, {"low": 0, "integer": True}, "x must be a whole number of at least 0; got 0.5"),
        (True, {"low": 0}, "x must be a number of at least 0; got True"),
        ("1", {"low": 0}, "x must be a number of at least 0; got '1'"),
        (float("inf"), {"low": 0}, "x must be a number of at least 0; got inf"),
        (float("nan"), {"low": 0}, "x must be a number of at least 0; got nan"),
    ],
)
def test_check_number_rejects_invalid_numbers(value: object, settings: dict[str, float], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        check_number(value, "x", **settings)


def test_check_number_accepts_numpy_numbers() -> None:
    check_number(np.int64(3), "x", low=0, integer=True)
    check_number(2**63 - 512, "x", low=0, high=2**63 - 1, integer=True)  # as a float it would be 2**63
    check_number(np.float32(0.5), "x", low=0)


def test_long_lists_of_names_are_shortened() -> None:
    names = [f"name{i}" for i in range(100)]
    with pytest.raises(InputError, match="name23 and 76 more"):
        check_known_names(["x"], names, "thing")


@pytest.mark.parametrize("value", ["abc", 5, [5], None])
def test_check_name_list_rejects_other_values(value: object) -> None:
    with pytest.raises(InputError, match="blocks must be a list of names; got"):
        check_name_list(value, "blocks")
    assert check_name_list(("a", "b"), "blocks") == ["a", "b"]
