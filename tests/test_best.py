"""The arms that look for the best 1-bit networks keep to the rules: block convolutions 1/1, no dearer than usual."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from lcrbnn.analyze.cost import Cost, count
from lcrbnn.study.plan import read_plan
from lcrbnn.train.build import build_network
from lcrbnn.train.spec import Spec

PLANS = sorted((Path(__file__).parents[1] / "studies").glob("cifar10-best*.toml"))
TABLE = {"resnet20": "resnet20-double", "resnet18": "resnet18"}  # the networks of the paper's Table 2


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
