"""The variants of the search for the best 1-bit networks: block convolutions are 1/1 and cost no more than usual."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lcrbnn.evaluation.analysis.cost import Cost, count_cost
from lcrbnn.study.plan import read_plan
from lcrbnn.train.setup.build_network import build_network
from lcrbnn.train.setup.load import STUDY_PREFIX
from lcrbnn.train.setup.spec import TrainSpec, parse_options

STUDIES = Path(__file__).parents[2] / "paper" / "studies"
PLANS = sorted(STUDIES.glob("cifar10-best*.toml"))
TABLE_NETWORKS = {"resnet20": "resnet20-double", "resnet18": "resnet18", "react18": "resnet18"}  # the paper's Table 2


@cache
def count_network_cost(model: str, method: str, bits: str, options: tuple[str, ...]) -> Cost:
    spec = TrainSpec(dataset="cifar10", model=model, method=method, bits=bits, method_options=options)
    return count_cost(build_network(spec), (3, 32, 32))


def find_broken_rules(cost: Cost, table_cost: Cost) -> list[str]:
    """Return the cost rules that a network breaks, compared with the network of the paper's table."""
    blocks = [layer for layer in cost.layers if layer.name.startswith("layer") and "shortcut" not in layer.name]
    rules = {
        "all block convolutions 1/1": all((layer.kind, layer.bits) == ("binary", 1) for layer in blocks),
        "as many binary products": cost.binary_macs == table_cost.binary_macs,
        "real products": cost.real_macs + cost.mixed_macs <= 1.05 * table_cost.real_macs,
        "parameters": cost.parameters <= 1.05 * table_cost.parameters,
    }
    return [rule for rule, is_kept in rules.items() if not is_kept]


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_every_variant_keeps_the_cost_rules(path: Path) -> None:
    for variant, spec in read_plan(path).variants.items():
        table_cost = count_network_cost(TABLE_NETWORKS[spec.model.split("-")[0]], "irnet", "", ())
        assert (
            find_broken_rules(count_network_cost(spec.model, spec.method, spec.bits, spec.method_options), table_cost)
            == []
        ), variant


@pytest.mark.parametrize(
    ("method", "bits", "rule"),
    [
        ("adabin", "", "as many binary products"),
        ("ie-net", "", "all block convolutions 1/1"),
        ("irnet", "1/32", "all block convolutions 1/1"),
        ("proxybnn", "", "parameters"),
    ],
)
def test_a_broken_cost_rule_is_found(method: str, bits: str, rule: str) -> None:
    assert rule in find_broken_rules(
        count_network_cost("resnet20-double", method, bits, ()), count_network_cost("resnet20-double", "irnet", "", ())
    )


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.toml")), ids=lambda path: path.stem)
def test_teachers_are_planned_and_not_trained_on_validation_images(path: Path) -> None:
    for variant, spec in read_plan(path).variants.items():
        for run in filter(lambda name: name.startswith(STUDY_PREFIX), (spec.teacher, spec.init_from)):
            study, name = run.removeprefix(STUDY_PREFIX).split("/")[:2]
            run_spec = read_plan(STUDIES / f"{study}.toml").variants[name]
            assert run_spec.train_split == spec.train_split or spec.train_split == "train+valid", variant


FINALS = [("best-final", "best-long"), ("best-wide-final", "best-wide"), ("best-robust-final", "best-robust")]


@pytest.mark.parametrize(("final", "study"), FINALS)
def test_final_runs_differ_from_the_chosen_ones_only_in_their_images(final: str, study: str, tmp_path: Path) -> None:
    """`extends` inherits the changes of a variant; the final plan repeats the settings of its plan."""
    shutil.copytree(STUDIES, tmp_path / "studies")
    path = tmp_path / "studies" / f"cifar10-{final}.toml"
    text = path.read_text()
    free: dict[str, Any] = {
        "train_split": "train+valid",
        "teacher": "",
        "init_from": "",
        "distillation_alpha": 0.0,
        "distillation_temperature": 1.0,
    }
    free |= {"epochs": 1, "lr_warmup_epochs": 0.0, "lcr_warmup_epochs": 0.0}
    for variant, spec in read_plan(STUDIES / f"cifar10-{study}.toml").variants.items():
        taught = text if spec.teacher else re.sub(r"\nteacher = .*", "", text)  # as its comment says
        path.write_text(taught.replace("to-be-decided", variant))
        best = read_plan(path).variants["best"]
        assert best.replace(**free) == spec.replace(**free), variant
        assert (best.distillation_alpha, best.distillation_temperature, best.lr_warmup_epochs) == (
            spec.distillation_alpha,
            spec.distillation_temperature,
            spec.lr_warmup_epochs,
        ), variant
        assert best.train_split == "train+valid"
        assert best.epochs in (200, 400, 600)


@pytest.mark.parametrize("kind", ["teachers", "first"])
def test_final_teachers_and_first_steps_differ_only_in_their_images(kind: str) -> None:
    first, final = (read_plan(STUDIES / f"cifar10-{kind}{end}.toml").variants for end in ("", "-final"))
    assert list(first) == list(final)
    for name, spec in first.items():
        teacher = spec.teacher.replace("cifar10-teachers/", "cifar10-teachers-final/")
        assert final[name] == spec.replace(train_split="train+valid", teacher=teacher), name


def test_a_decided_final_run_has_the_teacher_and_first_step_of_its_variant() -> None:
    for final, study in FINALS:
        text = (STUDIES / f"cifar10-{final}.toml").read_text()
        chosen = re.search(r'extends = "cifar10-[a-z-]+/([a-z0-9-]+)"', text)
        assert chosen is not None
        if chosen[1] != "to-be-decided":
            best = read_plan(STUDIES / f"cifar10-{final}.toml").variants["best"]
            variant = read_plan(STUDIES / f"cifar10-{study}.toml").variants[chosen[1]]
            for final_run, run in ((best.teacher, variant.teacher), (best.init_from, variant.init_from)):
                assert final_run == re.sub(r"^(study:cifar10-[a-z]+)/", r"\1-final/", run)


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.toml")), ids=lambda path: path.stem)
def test_learned_slopes_are_not_combined_with_an_unbounded_gradient(path: Path) -> None:
    """IR-Net's gradient is 1 for every activation early in training, so activations with PReLU or Maxout overflow."""
    for variant, spec in read_plan(path).variants.items():
        if spec.method == "irnet" and spec.model.endswith(("prelu", "maxout")):
            assert parse_options(spec.method_options, "").get("t_min", 0.0) >= 1, variant
