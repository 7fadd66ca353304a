"""Methods side by side: made-up figures are in their cells; the committed rows are those of the plans and METHODS."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from lcrbnn.methods import METHODS, method
from lcrbnn.study.comparison import LCR
from lcrbnn.study.promise import Promise, read_promise
from lcrbnn.study.published import PUBLISHED, published
from lcrbnn.study.results import progress, render_table
from lcrbnn.train.spec import Spec
from tests.test_results import COMMITTED, RETENTION, ROOT, cells, put

STUDY = """# Pairs
recipe = "digits"
seeds = [0]
control = "irnet"
[settings]
epochs = 1
[arms.irnet]
model = "resnet20-double"
[arms.irnet-lcr]
model = "resnet20-double"
share = 0.03
[arms.abc]
method = "abc-net"
method_options = ["weight_bases=3"]
[arms.abc-lcr]
method = "abc-net"
method_options = ["weight_bases=3"]
share = 0.03
[arms.horq]
method = "horq"
[arms.horq-lcr]
method = "horq"
share = 0.03
"""
LATER = """# More seeds, one of them decided
recipe = "digits"
seeds = [0, 1, 2]
control = "first"
[settings]
[arms.first]
like = "short/irnet"
[arms.first-lcr]
like = "short/irnet-lcr"
[arms.second]
like = "short/nobody"
[arms.second-lcr]
like = "short/nobody-lcr"
"""
PLAN = """studies = "."
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
def promise(tmp_path: Path) -> Promise:
    for name, text in (("short", STUDY), ("long", LATER), ("plan", PLAN)):
        (tmp_path / f"{name}.toml").write_text(text)
    return read_promise(tmp_path / "plan.toml")


def test_every_figure_is_in_its_cell(promise: Promise) -> None:
    put(promise, "short/irnet", 0, 80.25)
    put(promise, "short/irnet-lcr", 0, 79.0, share=0.02)
    put(promise, "short/abc", 0, 71.5)
    put(promise, "short/horq-lcr", 0, 61.0, share=0.004)
    assert cells(promise, "short") == [
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
    assert progress(promise, promise.tables["short"]) == (4, 6, 4, 6)


def test_several_seeds_have_a_deviation_and_an_interval_and_what_is_not_decided_says_so(promise: Promise) -> None:
    for seed, (a, b) in enumerate([(80.0, 80.5), (81.0, 81.1), (82.0, 82.6)]):
        put(promise, "long/first", seed, a)
        put(promise, "long/first-lcr", seed, b)
    first, second = cells(promise, "long")
    assert first[4:] == ["81.00 (1.00)", "81.40 (1.08)", "+0.40 [−0.26, +1.06]", ""]
    assert second == ["second", "", "", "", "not decided", "not decided", "", ""]
    (promise.records / "long" / "first" / "seed-1.json").unlink()
    assert cells(promise, "long")[0][4:7] == ["81.00 (1.41), 2 of 3", "81.40 (1.08)", "+0.55 [−0.09, +1.19]"]


def test_the_figure_of_a_network_comes_before_that_of_another() -> None:
    assert published("irnet", "1/1", "resnet18") == "91.5"
    assert published("rad", "1/1", "resnet20-double") == "90.5 (resnet18, in Table 2)"
    assert published("hwgq", "1/32", "resnet20-relu") == "61.3 (ImageNet, ResNet-18, in Table 1)"
    assert published("rbnn", "1/32", "resnet20-relu") == "–"


SPECS = {
    row.of: COMMITTED.plan(row.of.study).arms[row.of.name]
    for row in COMMITTED.tables["screening"].rows  # all decided
}


def test_every_method_is_screened_at_the_bits_that_were_promised() -> None:
    found = {(spec.method, method(spec.method, spec.bits or None).chosen_widths) for spec in SPECS.values()}
    assert {name for name, _ in found} == set(METHODS)
    assert {(name, "1/32") for name in ("dorefa", "dsq", "lns", "slb")} <= found
    assert {spec.model for spec in SPECS.values() if spec.method == "rad"} == {"resnet20-double-bare", "resnet18-bare"}
    assert {(spec.epochs, spec.images, spec.data) for spec in SPECS.values()} == {(200, "all", "cifar10")}


def test_an_arm_and_its_twin_differ_in_retention_alone() -> None:
    plain = [arm for arm in SPECS if not arm.name.endswith(LCR)]
    assert 2 * len(plain) == len(SPECS)
    for arm in plain:
        spec, twin = SPECS[arm], SPECS[arm._replace(name=arm.name + LCR)]
        fixed = {"bwnh": 3.0, "slb": 20.0}.get(spec.method) if arm.study.endswith("-weights") else None
        strength = (0.03, 0.0) if fixed is None else (0.0, fixed)  # the plan says why
        assert (spec.retains, twin.share, twin.weight, twin.ramp) == (False, *strength, 200.0), arm
        assert {f.name for f in fields(Spec) if getattr(spec, f.name) != getattr(twin, f.name)} <= RETENTION, arm


def test_every_published_figure_is_beside_a_row() -> None:
    assert set(METHODS) - set(PUBLISHED) == {"horq"}  # of which no figure is at hand
    shown = render_table(COMMITTED, COMMITTED.tables["screening"])
    for rows in PUBLISHED.values():
        assert all(f"| {row.top1} " in shown for row in rows)


def test_the_best_three_are_pairs_of_one_method_each() -> None:
    given = tomllib.loads((ROOT / "studies" / "cifar10-screening-best.toml").read_text())["arms"]
    assert list(given) == [name + end for name in ("first", "second", "third") for end in ("", LCR)]
    for name in ("first", "second", "third"):
        assert given[name + LCR]["like"] == given[name]["like"] + LCR
        assert given[name + LCR]["ramp"] == 400
