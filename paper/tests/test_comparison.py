"""Tables that compare methods: cells of made-up records, and the committed rows compared with plans and METHODS."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from lcrbnn.nn.methods.method_registry import METHODS, get_method
from lcrbnn.train.setup.spec import TrainSpec
from paper.tables.method_comparison import LCR_SUFFIX
from paper.tables.published import PUBLISHED, find_published
from paper.tables.render_tables import count_finished, render_table
from paper.tables.table_spec import PaperTables, read_table_spec
from paper.tests.test_committed_results import COMMITTED, LCR_SETTINGS
from paper.tests.test_results import ROOT, split_cells, write_run_record

STUDY = """# Pairs
recipe = "digits"
seeds = [0]
baseline = "irnet"
[settings]
epochs = 1
[variants.irnet]
model = "resnet20-double"
[variants.irnet-lcr]
model = "resnet20-double"
lcr_gradient_ratio = 0.03
[variants.abc]
method = "abc-net"
method_options = ["weight_bases=3"]
[variants.abc-lcr]
method = "abc-net"
method_options = ["weight_bases=3"]
lcr_gradient_ratio = 0.03
[variants.horq]
method = "horq"
[variants.horq-lcr]
method = "horq"
lcr_gradient_ratio = 0.03
"""
LATER = """# More seeds, one of them decided
recipe = "digits"
seeds = [0, 1, 2]
baseline = "first"
[settings]
[variants.first]
extends = "short/irnet"
[variants.first-lcr]
extends = "short/irnet-lcr"
[variants.second]
extends = "short/nobody"
[variants.second-lcr]
extends = "short/nobody-lcr"
"""
PLAN = """plans_folder = "."
[tables.short]
title = "A"
source = "none"
plans = ["short"]
[tables.long]
title = "B"
source = "none"
plans = ["long"]
"""


@pytest.fixture
def paper_tables(tmp_path: Path) -> PaperTables:
    for name, text in (("short", STUDY), ("long", LATER), ("plan", PLAN)):
        (tmp_path / f"{name}.toml").write_text(text)
    return read_table_spec(tmp_path / "plan.toml")


def test_every_value_is_in_its_cell(paper_tables: PaperTables) -> None:
    write_run_record(paper_tables, "short/irnet", 0, 80.25)
    write_run_record(paper_tables, "short/irnet-lcr", 0, 79.0, gradient_ratio=0.02)
    write_run_record(paper_tables, "short/abc", 0, 71.5)
    write_run_record(paper_tables, "short/horq-lcr", 0, 61.0, gradient_ratio=0.004)
    assert split_cells(paper_tables, "short") == [
        ["irnet", "1/1", "resnet20-double", "86.5", "80.25", "79.00", "−1.25", ".0200"],
        [
            "abc-net, weight_bases=3",
            "1/1",
            "resnet8-double",
            "42.7 (ImageNet, ResNet-18, one base each, in Table 1)",
            "71.50",
            "not run",
            "",
            "",
        ],
        ["horq", "1/2", "resnet8-double", "–", "not run", "61.00", "", ".0040"],
    ]
    assert count_finished(paper_tables, paper_tables.tables["short"]) == (4, 6, 4, 6)


def test_several_seeds_have_a_std_and_an_interval(
    paper_tables: PaperTables,
) -> None:
    for seed, (a, b) in enumerate([(80.0, 80.5), (81.0, 81.1), (82.0, 82.6)]):
        write_run_record(paper_tables, "long/first", seed, a)
        write_run_record(paper_tables, "long/first-lcr", seed, b)
    first, second = split_cells(paper_tables, "long")
    assert first[4:] == ["81.00 (1.00)", "81.40 (1.08)", "+0.40 [−0.26, +1.06]", ""]
    assert second == ["second", "", "", "", "not decided", "not decided", "", ""]
    (paper_tables.records / "long" / "first" / "seed-1.json").unlink()
    assert split_cells(paper_tables, "long")[0][4:7] == ["81.00 (1.41), 2 of 3", "81.40 (1.08)", "+0.55 [−0.09, +1.19]"]


def test_find_published_prefers_the_same_network() -> None:
    assert find_published("irnet", "1/1", "resnet18") == "91.5"
    assert find_published("rad", "1/1", "resnet20-double") == "90.5 (resnet18, in Table 2)"
    assert find_published("hwgq", "1/32", "resnet20-relu") == "61.3 (ImageNet, ResNet-18, in Table 1)"
    assert find_published("rbnn", "1/32", "resnet20-relu") == "–"


SPECS = {
    row.variant: COMMITTED.get_plan(row.variant.study).variants[row.variant.name]
    for row in COMMITTED.tables["screening"].rows  # all decided
}


def test_every_method_is_screened_with_its_bit_widths() -> None:
    methods = {(spec.method, get_method(spec.method, spec.bits or None).bit_widths) for spec in SPECS.values()}
    assert {name for name, _ in methods} == set(METHODS)
    assert {(name, "1/32") for name in ("dorefa", "dsq", "lns", "slb")} <= methods
    assert {spec.model for spec in SPECS.values() if spec.method == "rad"} == {"resnet20-double-bare", "resnet18-bare"}
    assert {(spec.epochs, spec.train_split, spec.dataset) for spec in SPECS.values()} == {
        (200, "train+valid", "cifar10")
    }


def test_variants_with_and_without_lcr_differ_only_in_lcr_settings() -> None:
    plain = [variant for variant in SPECS if not variant.name.endswith(LCR_SUFFIX)]
    assert 2 * len(plain) == len(SPECS)
    for variant in plain:
        spec, lcr_spec = SPECS[variant], SPECS[variant._replace(name=variant.name + LCR_SUFFIX)]
        fixed = {"bwnh": 3.0, "slb": 20.0}.get(spec.method) if variant.study.endswith("-weights") else None
        strength = (0.03, 0.0) if fixed is None else (0.0, fixed)  # the plan says why
        assert (spec.uses_lcr, lcr_spec.lcr_gradient_ratio, lcr_spec.lcr_weight, lcr_spec.lcr_warmup_epochs) == (
            False,
            *strength,
            200.0,
        ), variant
        assert {
            f.name for f in fields(TrainSpec) if getattr(spec, f.name) != getattr(lcr_spec, f.name)
        } <= LCR_SETTINGS, variant


def test_every_published_accuracy_is_in_the_table() -> None:
    assert set(METHODS) - set(PUBLISHED) == {"horq"}  # no published accuracy was found
    table = render_table(COMMITTED, COMMITTED.tables["screening"])
    for rows in PUBLISHED.values():
        assert all(f"| {row.top1} " in table for row in rows)


def test_the_best_three_are_pairs_of_one_method_each() -> None:
    variants = tomllib.loads((ROOT / "paper" / "studies" / "cifar10-screening-best.toml").read_text())["variants"]
    assert list(variants) == [name + end for name in ("first", "second", "third") for end in ("", LCR_SUFFIX)]
    for name in ("first", "second", "third"):
        assert variants[name + LCR_SUFFIX]["extends"] == variants[name]["extends"] + LCR_SUFFIX
        assert variants[name + LCR_SUFFIX]["lcr_warmup_epochs"] == 400
