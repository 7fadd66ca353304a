"""Invalid table specs are rejected."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcrbnn.errors import InputError
from paper.tables.table_spec import read_table_spec
from paper.tests.test_reproduce import PLAN


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('plans_folder = "studies"', "", "plans_folder must be the folder of the plans"),
        ('source = "Table 0"', "", "source is missing"),
        ("rows = [", "plans = []\nrows = [", "table small must have either rows or plans"),
        ("per_layer = true", "per_layer = 1", "per_layer must be of type bool; got 1"),
        ("per_layer = true", "layer = true", "no part of a table is called 'layer'"),
        (
            "num_seeds = 2, paper_value = 60.0",
            "num_seeds = 0, paper_value = 60.0",
            "row 1 of table small: num_seeds must be a whole number",
        ),
        (
            "paper_value = 61.5",
            'paper_value = "61.5"',
            "row 2 of table small: paper_value must be of type float; got '61.5'",
        ),
        (
            "keep_weights_of_seeds = [1]",
            "keep_weights_of_seeds = [2]",
            "row 1 of table small: keep_weights_of_seeds must list some of the seeds; got [2]",
        ),
        ('variant = "digits/later"', 'variant = "digits"', "row 3 of table small: variant must be PLAN/VARIANT"),
        ("rows = [", "rows = [ 3,", "row 1 of table small: a row must be a table; got 3"),
    ],
)
def test_an_invalid_table_spec_is_rejected(old: str, new: str, sentence: str, tmp_path: Path) -> None:
    assert old in PLAN
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace(old, new))
    with pytest.raises(InputError) as refusal:
        read_table_spec(path)
    assert str(refusal.value).startswith(f"the table spec {path}: ")
    assert sentence in str(refusal.value)
