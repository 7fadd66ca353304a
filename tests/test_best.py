"""The arms that look for the best 1-bit networks keep to the rules: block convolutions 1/1, no dearer than usual."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lcrbnn.analyze.cost import Cost, count
from lcrbnn.study.plan import read_plan
from lcrbnn.train.build import STUDY, build_network
from lcrbnn.train.spec import Spec, option_values

STUDIES = Path(__file__).parents[1] / "studies"
PLANS = sorted(STUDIES.glob("cifar10-best*.toml"))
TABLE = {"resnet20": "resnet20-double", "resnet18": "resnet18", "react18": "resnet18"}  # the paper's Table 2


@cache
def cost(model: str, method: str, bits: str, options: tuple[str, ...]) -> Cost:
    spec = Spec(data="cifar10", model=model, method=method, bits=bits, method_options=options)
    return count(build_network(spec), (3, 32, 32))


def broken(ours: Cost, theirs: Cost) -> list[str]:
    """The rules that a network breaks beside the table's."""
    blocks = [layer for layer in ours.layers if layer.name.startswith("layer") and "shortcut" not in layer.name]
    rules = {
        "all block convolutions 1/1": all((layer.kind, layer.bits) == ("binary", 1) for layer in blocks),
        "as many binary products": ours.binary_macs == theirs.binary_macs,
        "real products": ours.real_macs + ours.mixed_macs <= 1.05 * theirs.real_macs,
        "parameters": ours.parameters <= 1.05 * theirs.parameters,
    }
    return [rule for rule, kept in rules.items() if not kept]


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_every_arm_keeps_to_the_rules_of_cost(path: Path) -> None:
    for arm, spec in read_plan(path).arms.items():
        theirs = cost(TABLE[spec.model.split("-")[0]], "irnet", "", ())
        assert broken(cost(spec.model, spec.method, spec.bits, spec.method_options), theirs) == [], arm


@pytest.mark.parametrize(
    ("method", "bits", "rule"),
    [
        ("adabin", "", "as many binary products"),
        ("ie-net", "", "all block convolutions 1/1"),
        ("irnet", "1/32", "all block convolutions 1/1"),
        ("proxybnn", "", "parameters"),
    ],
)
def test_what_is_dearer_is_found(method: str, bits: str, rule: str) -> None:
    assert rule in broken(cost("resnet20-double", method, bits, ()), cost("resnet20-double", "irnet", "", ()))


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_teachers_of_a_plan_are_planned_and_know_no_image_that_judges_it(path: Path) -> None:
    for arm, spec in read_plan(path).arms.items():
        for named in filter(lambda name: name.startswith(STUDY), (spec.teacher, spec.start)):
            study, other = named.removeprefix(STUDY).split("/")[:2]
            theirs = read_plan(STUDIES / f"{study}.toml").arms[other]
            assert theirs.images == spec.images or spec.images == "all", arm


FINALS = [("best-final", "best-long"), ("best-wide-final", "best-wide"), ("best-robust-final", "best-robust")]


@pytest.mark.parametrize(("final", "study"), FINALS)
def test_the_final_runs_are_those_that_were_chosen_but_for_their_images(final: str, study: str, tmp_path: Path) -> None:
    """Whichever arm is chosen: `like` takes what an arm changes, and the rest stands in the final plan too."""
    shutil.copytree(STUDIES, tmp_path / "studies")
    path = tmp_path / "studies" / f"cifar10-{final}.toml"
    text = path.read_text()
    free: dict[str, Any] = {"images": "all", "teacher": "", "start": "", "distill": 0.0, "temperature": 1.0}
    free |= {"epochs": 1, "warmup": 0.0, "ramp": 0.0}
    for arm, spec in read_plan(STUDIES / f"cifar10-{study}.toml").arms.items():
        taught = text if spec.teacher else re.sub(r"\nteacher = .*", "", text)  # as its comment says
        path.write_text(taught.replace("to-be-decided", arm))
        best = read_plan(path).arms["best"]
        assert best.but(**free) == spec.but(**free), arm
        assert (best.distill, best.temperature, best.warmup) == (spec.distill, spec.temperature, spec.warmup), arm
        assert best.images == "all"
        assert best.epochs in (200, 400, 600)


@pytest.mark.parametrize("kind", ["teachers", "first"])
def test_what_final_runs_begin_with_is_the_same_but_for_its_images(kind: str) -> None:
    one, final = (read_plan(STUDIES / f"cifar10-{kind}{end}.toml").arms for end in ("", "-final"))
    assert list(one) == list(final)
    for name, spec in one.items():
        named = spec.teacher.replace("cifar10-teachers/", "cifar10-teachers-final/")
        assert final[name] == spec.but(images="all", teacher=named), name


def test_a_decided_final_run_has_the_teacher_and_the_first_step_of_its_arm() -> None:
    for final, study in FINALS:
        text = (STUDIES / f"cifar10-{final}.toml").read_text()
        chosen = re.search(r'like = "cifar10-[a-z-]+/([a-z0-9-]+)"', text)
        assert chosen is not None
        if chosen[1] != "to-be-decided":
            best = read_plan(STUDIES / f"cifar10-{final}.toml").arms["best"]
            arm = read_plan(STUDIES / f"cifar10-{study}.toml").arms[chosen[1]]
            for ours, theirs in ((best.teacher, arm.teacher), (best.start, arm.start)):
                assert ours == re.sub(r"^(study:cifar10-[a-z]+)/", r"\1-final/", theirs)


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.toml")), ids=lambda path: path.stem)
def test_learned_slopes_do_not_meet_a_gradient_without_bound(path: Path) -> None:
    """IR-Net's gradient is 1 for every activation early in training: with PReLU and its like the maps overflow."""
    for arm, spec in read_plan(path).arms.items():
        if spec.method == "irnet" and spec.model.endswith(("prelu", "maxout")):
            assert option_values(spec.method_options, "").get("t_min", 0.0) >= 1, arm
