"""The committed plans, weights and recipes agree with the committed records."""

from __future__ import annotations

import os
import statistics
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from lcrbnn.nn.methods.method_registry import get_method
from lcrbnn.runs.record import read_record
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec, parse_options
from lcrbnn.train.setup.weights_file import compute_file_sha256, read_weights
from paper.tables.recompute_accuracy import recompute_test_accuracy
from paper.tables.render_tables import render_document
from paper.tables.table_spec import read_table_spec
from paper.tests.test_results import ROOT

MAX_WEIGHTS_BYTES = 4_000_000  # of all committed weights


# Percentage points by which an accuracy measured on this kind of device may differ on another processor: bfloat16 sums
# are rounded differently, signs of values near 0 flip, and images near a decision boundary change their class.
ACCURACY_TOLERANCES = {"cpu": 0.1, "cuda": 0.5}


LCR_SETTINGS = {
    "lcr_weight",
    "lcr_gradient_ratio",
    "lcr_variant",
    "lcr_options",
    "lcr_warmup_epochs",
    "teacher",
    "distillation_alpha",
    "distillation_temperature",
}  # settings of LCR


REGULARIZER_SETTINGS = {"regularizer", "regularizer_weight"}  # settings of the regularizers it is compared with


COMMITTED = read_table_spec(ROOT / "paper" / "tables.toml")


WEIGHTS_FILES = sorted((ROOT / "paper" / "results" / "weights").glob("*"))


def test_results_page_equals_the_records() -> None:
    assert (ROOT / "paper" / "docs" / "results.md").read_text() == render_document(COMMITTED)


def test_every_variant_has_a_plan_and_every_table_a_baseline() -> None:
    for table in COMMITTED.tables.values():
        for variant in COMMITTED.count_seeds(table):
            plan = COMMITTED.get_plan(variant.study)
            names = (*plan.variants, *plan.undecided, "default", "paper")  # the last two come once they are decided
            assert variant.name in names, variant
            is_baseline = COMMITTED.get_baseline(variant) == variant
            assert (
                is_baseline or table.pairs or COMMITTED.get_baseline(variant).name == "none"
            )  # in pairs it is the first


def test_all_networks_use_the_same_lcr_settings() -> None:
    plans = [COMMITTED.get_plan(f"cifar10-{name}") for name in ("double", "plain", "weights")]
    for variant in ("default", "paper"):
        specs = [plan.variants[variant] for plan in plans if variant in plan.variants]
        assert len(specs) in (0, 3)
        assert (
            len(
                {
                    (spec.lcr_weight, spec.lcr_gradient_ratio, spec.lcr_warmup_epochs, spec.lcr_variant, spec.teacher)
                    for spec in specs
                }
            )
            <= 1
        )


def test_a_variant_and_its_baseline_differ_only_in_lcr_settings() -> None:
    for variant in (
        variant for table in COMMITTED.tables.values() if not table.pairs for variant in COMMITTED.count_seeds(table)
    ):
        free = LCR_SETTINGS | (REGULARIZER_SETTINGS if variant.study == "cifar10-regularizers" else set())
        free |= (
            {"weight_decay"} if variant.name == "decay-3e-4" else set()
        )  # has the weight decay that defensive quantisation adds
        spec, baseline = COMMITTED.get_plan(variant.study).variants.get(variant.name), COMMITTED.get_baseline(variant)
        if spec is not None:
            plain = COMMITTED.get_plan(baseline.study).variants[baseline.name]
            assert {f.name for f in fields(TrainSpec) if getattr(spec, f.name) != getattr(plain, f.name)} <= free, (
                variant
            )


def read_record_of_weights(path: Path) -> dict[str, Any]:
    """Return the record that belongs to a committed weights file."""
    name = path.name.removesuffix(".safetensors")
    variant, seed = next(
        (variant, seed)
        for variant, seeds in COMMITTED.list_seeds_with_weights().items()
        for seed in seeds
        if name == f"{variant.study}-{variant.name}-seed-{seed}"
    )
    return read_record(COMMITTED.records / variant.study / variant.name / f"seed-{seed}.json")


@pytest.mark.parametrize("path", WEIGHTS_FILES, ids=lambda p: p.stem)
def test_committed_weights_belong_to_their_record(path: Path) -> None:
    record = read_record_of_weights(path)
    assert record["weights"] == {"file": path.name, "sha256": compute_file_sha256(path)}
    weights = read_weights(path)
    assert (
        weights.checkpoint_sha256
        == record["figures"]["checkpoint_sha256"]
        == record["test_results"][0]["checkpoint_sha256"]
    )
    assert weights.spec == TrainSpec.from_dict(record["settings"])


def test_committed_weights_are_small() -> None:
    assert sum(path.stat().st_size for path in WEIGHTS_FILES) < MAX_WEIGHTS_BYTES


@pytest.mark.slow  # reads 10,000 images a network, half a minute on one core
@pytest.mark.skipif("LCRBNN_DATA" not in os.environ, reason="CIFAR-10 is not at hand")  # its images are not committed
@pytest.mark.parametrize("path", WEIGHTS_FILES, ids=lambda p: p.stem)
def test_committed_weights_reproduce_their_test_accuracy(path: Path) -> None:
    test_result = read_record_of_weights(path)["test_results"][0]
    again = recompute_test_accuracy(path, RunOptions(device="cpu"))
    assert again.images == test_result["images"]
    assert again.top1 == pytest.approx(test_result["top1"], abs=ACCURACY_TOLERANCES[test_result["device"]])


def test_sigma_ratios_can_be_measured_in_every_run() -> None:
    """Also without LCR: real activations have no tensors before binarization, the default reference."""
    for variant in {variant for table in COMMITTED.tables.values() for variant in COMMITTED.count_seeds(table)}:
        spec = COMMITTED.get_plan(variant.study).variants.get(variant.name)
        if spec is not None and spec.method != "real":
            real = get_method(spec.method, spec.bits or None).activation_bits == 32
            assert (parse_options(spec.lcr_options, "").get("reference") == "latent-weights") == real, variant


def test_recipes_say_what_their_runs_came_to() -> None:
    recipes = []
    for path in sorted((ROOT / "paper" / "studies").glob("*.toml")):
        plan = tomllib.loads(path.read_text())
        records = [read_record(file) for file in (ROOT / "paper" / "results" / path.stem / "none").glob("seed-*.json")]
        tests = [record["test_results"][0]["top1"] for record in records if record.get("test_results")]
        elsewhere = "dataset" in plan.get("settings", {})  # other images than the recipe's
        if tests and len(tests) == len(plan["seeds"]) and not elsewhere:
            recipe = (ROOT / "lcrbnn" / "recipes" / f"{plan['recipe']}.toml").read_text()
            recipes.append(plan["recipe"])
            assert f"Here: {statistics.fmean(tests):.2f} %" in recipe, plan["recipe"]
    assert len(recipes) >= 5
