"""What docs/LOG.md says of the search for ResNet-18's settings is what the records hold."""

from __future__ import annotations

import re

from torch import nn

from lcrbnn.study.plan import read_plan
from lcrbnn.zoo.file import read_member
from lcrbnn.zoo.index import members
from tests.test_log_figures import LOG, ROOT, listed, runs


def end(arm: str) -> dict[str, float]:
    (run,) = runs(arm, 1)
    found: dict[str, float] = run["figures"]["last"]
    return found


def test_resnet18_in_full_precision_and_its_diagnosis() -> None:
    real20 = [run["readings"][0]["top1"] for run in runs("cifar10-real/none")]
    assert f"are within {max(real20) - min(real20):.2f} of each other" in (ROOT / "docs" / "claims.md").read_text()
    (real,) = runs("cifar10-resnet18-real/none", 1)
    assert f"In full precision: {real['readings'][0]['top1']:.2f} %" in LOG
    plan = read_plan(ROOT / "studies" / "cifar10-resnet18-diagnosis.toml")
    ends = {arm: runs(f"cifar10-resnet18-diagnosis/{arm}", 1)[0]["figures"]["last"] for arm in plan.arms}
    for arm, end in ends.items():
        shown = "`none`, the recipe" if arm == "none" else f"`{arm}`"
        assert f"| {shown} | {end['valid']:.2f} | {end['train']:.2f} |" in LOG
    assert max(ends, key=lambda arm: ends[arm]["valid"]) == "recu"
    again = read_plan(ROOT / "studies" / "cifar10-resnet18-second.toml").arms
    rows = {arm: runs(f"cifar10-resnet18-second/{arm}", 1)[0]["figures"]["last"] for arm in again}
    for arm, end in rows.items():
        shown = [line for line in LOG.splitlines() if line.startswith(f"| `{arm}`")]
        assert any(line.endswith(f" | {end['valid']:.2f} | {end['train']:.2f} |") for line in shown)


def test_scales_of_batch_norms_in_the_zoo() -> None:
    net = read_member(members()["resnet20-double-irnet"]).model
    norms = [m for name, m in net.named_modules() if isinstance(m, nn.BatchNorm2d) and "layer" in name]
    sizes = [float(norm.weight.detach().abs().mean()) for norm in norms]
    shown = f"scales is {min(sizes):.2f} to {max(sizes):.2f}.".replace("0.", ".")
    assert shown in LOG


def test_two_rounds_about_what_decays() -> None:
    for plan, epochs in (("cifar10-resnet18-third", 50), ("cifar10-resnet18-fourth", 200)):
        for arm in read_plan(ROOT / "studies" / f"{plan}.toml").arms:
            if not (ROOT / "results" / plan / arm).exists():
                assert arm == "matrices-small"  # the third round did not prefer it
                continue
            found = end(f"{plan}/{arm}")
            row = rf"\| `{arm}`[^|]* \| {epochs} \| {found['valid']:.2f} \| {found['train']:.2f} \|"
            assert re.search(row, LOG)
    third, fourth = (
        {arm: end(f"cifar10-resnet18-{which}/{arm}")["valid"] for arm in arms}
        for which, arms in (("third", ("matrices", "matrices-small")), ("fourth", ("own", "matrices", "weights-irnet")))
    )
    assert f"starting scales at .4 costs {third['matrices'] - third['matrices-small']:.2f} points" in LOG
    assert f"{fourth['weights-irnet'] - fourth['matrices']:.2f} points better than `matrices`" in LOG
    assert f"worth {fourth['matrices'] - fourth['own']:.1f} points after 200 epochs" in LOG
    none = end("cifar10-resnet18-diagnosis/none")["valid"]
    assert f"{third['matrices']:.2f} % after 50 epochs if its batch norms do not decay and {none:.2f} if they do" in LOG


def test_what_decays_in_resnet20() -> None:
    for arm in read_plan(ROOT / "studies" / "cifar10-norms.toml").arms:
        both = [run["figures"]["last"] for run in runs(f"cifar10-norms/{arm}", 2)]
        known = (listed([one[what] for one in both]) for what in ("valid", "train"))
        assert re.search(rf"\| `{arm}`[^|]* \| {' . '.join(known)} \|".replace(" . ", r" \| "), LOG)
