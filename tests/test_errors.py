from __future__ import annotations

import numpy as np
import pytest

from lcrbnn.errors import InputError, check_known_names, check_name_list, check_number, lookup

NAMES = [f"name{i}" for i in range(100)]


def test_lookup_error_lists_the_known_names_if_they_are_few() -> None:
    with pytest.raises(InputError, match=r"^no fruit is called 'aple'; there are apple, pear$"):
        lookup({"apple": 1, "pear": 2}, "aple", "fruit")


def test_lookup_rejects_a_name_that_is_no_string() -> None:
    with pytest.raises(InputError, match="no fruit is called 3; there are apple"):
        lookup({"apple": 1}, 3, "fruit")


def test_check_known_names_rejects_unknown_names() -> None:
    check_known_names(["a"], ["a", "b"], "letter")
    with pytest.raises(InputError, match="no letter is called 'c'; there are a, b"):
        check_known_names(["a", "c"], ["a", "b"], "letter")


@pytest.mark.parametrize("name", ["name10x", "", "unlike all of them", 3, None])
@pytest.mark.parametrize("listing", ["", "a command"])
def test_messages_name_at_most_three_of_many_names_and_where_all_are_listed(name: object, listing: str) -> None:
    with pytest.raises(InputError) as error:
        lookup(dict.fromkeys(NAMES, 0), name, "thing", listing)
    message = str(error.value).replace(repr(name), "", 1)
    assert sum(word.strip(",") in NAMES for word in message.split()) <= 3
    assert "100" in message or not listing
    assert listing in message


def test_the_closest_names_are_suggested() -> None:
    with pytest.raises(InputError, match="'pera'; the closest is pear"):
        check_known_names(["pera"], ["apple", "pear", "plum", "fig"], "fruit")


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


@pytest.mark.parametrize("value", ["abc", 5, [5], None])
def test_check_name_list_rejects_other_values(value: object) -> None:
    with pytest.raises(InputError, match="blocks must be a list of names; got"):
        check_name_list(value, "blocks")
    assert check_name_list(("a", "b"), "blocks") == ["a", "b"]
