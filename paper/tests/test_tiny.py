"""The plans of Tiny-ImageNet: referenced runs exist, and variants differ only in the intended settings."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from lcrbnn.nn.models.model_registry import MODELS
from lcrbnn.study.plan import StudyPlan, StudyRun, read_plan
from lcrbnn.study.study_variants import REFERENCED_RUNS
from lcrbnn.train.setup.load import STUDY_PREFIX
from lcrbnn.train.setup.spec import TrainSpec
from paper.tables.table_spec import read_table_spec

ROOT = Path(__file__).parents[2]
PLANS = {path.stem: read_plan(path) for path in sorted((ROOT / "paper" / "studies").glob("*.toml"))}
TINY = {name: plan for name, plan in PLANS.items() if name.startswith("tiny-")}
EPOCHS = {"tiny-real": 60, "tiny-irnet": 60, "tiny-react18-first": 30, "tiny-react18": 30}


def find_study_run(name: str) -> StudyRun:
    """Return the run of a study that a spec references."""
    study, variant, seed = name.removeprefix(STUDY_PREFIX).split("/")
    (run,) = (
        r for r in PLANS[study].list_variant_runs(variant, PLANS[study].seeds) if r.relative_path == f"{variant}/{seed}"
    )
    return run


@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
def test_referenced_runs_exist_in_another_plan(plan: StudyPlan) -> None:
    for run in plan.list_runs():
        for field in REFERENCED_RUNS:
            name = getattr(run.spec, field)
            if name.startswith(STUDY_PREFIX):
                referenced = find_study_run(name).spec
                assert referenced.dataset == run.spec.dataset
                assert field != "init_from" or (referenced.model, referenced.seed) == (run.spec.model, run.spec.seed)


def test_tiny_imagenet_plans_have_the_documented_settings() -> None:
    assert {name: spec.epochs for name, plan in TINY.items() for spec in plan.variants.values()} == EPOCHS
    for name, plan in TINY.items():
        assert plan.seeds == tuple(range(5 if name == "tiny-irnet" else 3))
        for spec in plan.variants.values():
            assert (spec.dataset, spec.train_split, spec.augmentation) == (
                "tiny-imagenet",
                "train+valid",
                "random-resized-crop-on-device",
            )
            assert (MODELS[spec.model].image_size, MODELS[spec.model].num_classes) == (64, 200)
    first, second = (TINY[name].variants["none"] for name in ("tiny-react18-first", "tiny-react18"))
    assert (first.bits, second.bits) == ("32/1", "1/1")
    assert first.distillation_alpha == second.distillation_alpha == 1
    assert first.teacher == second.teacher == "study:tiny-real/none/seed-0"
    assert TINY["tiny-real"].variants["none"].method == "real"


@pytest.mark.parametrize("name", ["tiny-irnet", "tiny-react18"])
def test_tiny_imagenet_variants_differ_only_in_lcr_settings(name: str) -> None:
    none, default = TINY[name].variants["none"], TINY[name].variants["default"]
    assert {f.name for f in fields(TrainSpec) if getattr(none, f.name) != getattr(default, f.name)} == {
        "lcr_gradient_ratio",
        "lcr_warmup_epochs",
    }
    assert (default.lcr_gradient_ratio, default.lcr_warmup_epochs) == (
        0.03,
        float(none.epochs),
    )  # rising over the whole run, as on CIFAR-10


def test_tables_list_variants_in_the_order_of_their_dependencies() -> None:
    paper_tables = read_table_spec(ROOT / "paper" / "tables.toml")
    variants = [
        variant
        for table in paper_tables.tables.values()
        for variant in paper_tables.count_seeds(table)
        if variant.study in TINY
    ]
    assert {str(variant) for variant in variants} == {
        f"{name}/{variant}" for name, plan in TINY.items() for variant in plan.variants
    }
    positions = {str(variant): position for position, variant in enumerate(variants)}
    for variant in variants:
        for field in REFERENCED_RUNS:
            needed = getattr(TINY[variant.study].variants[variant.name], field).removeprefix(STUDY_PREFIX)
            assert not needed or positions["/".join(needed.split("/")[:2])] < positions[str(variant)]
