"""The plans of Tiny-ImageNet: the runs that they name are there, and arms differ in what they should differ in."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from lcrbnn.models import MODELS
from lcrbnn.study.arms import OTHERS
from lcrbnn.study.plan import Job, Plan, read_plan
from lcrbnn.study.promise import read_promise
from lcrbnn.train import Spec
from lcrbnn.train.build import STUDY

ROOT = Path(__file__).parents[1]
PLANS = {path.stem: read_plan(path) for path in sorted((ROOT / "studies").glob("*.toml"))}
TINY = {name: plan for name, plan in PLANS.items() if name.startswith("tiny-")}
EPOCHS = {"tiny-real": 60, "tiny-irnet": 60, "tiny-react18-first": 30, "tiny-react18": 30}


def job_of(name: str) -> Job:
    """The run of a study that a spec names."""
    study, arm, seed = name.removeprefix(STUDY).split("/")
    (job,) = (one for one in PLANS[study].jobs_of(arm, PLANS[study].seeds) if one.place == f"{arm}/{seed}")
    return job


@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
def test_the_runs_that_a_plan_names_are_those_of_another(plan: Plan) -> None:
    for job in plan.jobs():
        for field in OTHERS:
            name = getattr(job.spec, field)
            if name.startswith(STUDY):
                other = job_of(name).spec
                assert other.data == job.spec.data
                assert field != "start" or (other.model, other.seed) == (job.spec.model, job.spec.seed)


def test_they_are_what_was_asked_for() -> None:
    assert {name: spec.epochs for name, plan in TINY.items() for spec in plan.arms.values()} == EPOCHS
    for name, plan in TINY.items():
        assert plan.seeds == tuple(range(5 if name == "tiny-irnet" else 3))
        for spec in plan.arms.values():
            assert (spec.data, spec.images, spec.augment) == ("tiny-imagenet", "all", "zoom-flip")
            assert (MODELS[spec.model].image, MODELS[spec.model].classes) == (64, 200)
    first, second = (TINY[name].arms["none"] for name in ("tiny-react18-first", "tiny-react18"))
    assert (first.bits, second.bits) == ("32/1", "1/1")
    assert first.distill == second.distill == 1
    assert first.teacher == second.teacher == "study:tiny-real/none/seed-0"
    assert TINY["tiny-real"].arms["none"].method == "real"


@pytest.mark.parametrize("name", ["tiny-irnet", "tiny-react18"])
def test_arms_differ_in_retention_alone(name: str) -> None:
    none, default = TINY[name].arms["none"], TINY[name].arms["default"]
    assert {f.name for f in fields(Spec) if getattr(none, f.name) != getattr(default, f.name)} == {"share", "ramp"}
    assert (default.share, default.ramp) == (0.03, float(none.epochs))  # rising over the whole run, as on CIFAR-10


def test_every_arm_is_promised_in_the_order_in_which_runs_need_each_other() -> None:
    promise = read_promise(ROOT / "results" / "plan.toml")
    arms = [arm for table in promise.tables.values() for arm in promise.arms(table) if arm.study in TINY]
    assert {str(arm) for arm in arms} == {f"{name}/{arm}" for name, plan in TINY.items() for arm in plan.arms}
    places = {str(arm): place for place, arm in enumerate(arms)}
    for arm in arms:
        for field in OTHERS:
            needed = getattr(TINY[arm.study].arms[arm.name], field).removeprefix(STUDY)
            assert not needed or places["/".join(needed.split("/")[:2])] < places[str(arm)]
