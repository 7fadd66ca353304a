"""Figures quoted in the documents are those of the committed records, rendered here and looked for there."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def figures(name: str) -> dict:
    return json.loads((ROOT / "results" / "bench" / f"{name}.json").read_text())["figures"]


def power_iteration_rows() -> list[str]:
    subjects = {
        "ResNet-20, fresh, CIFAR-10": "resnet20-double, CIFAR-10, fresh",
        "the same after 150 steps": "resnet20-double, CIFAR-10, 150 steps",
        "ResNet-8, digits, trained": "resnet8-double, digits, 5 epochs",
    }
    rows = []
    for shown, subject in subjects.items():
        for form, key in (("Eq. 9, unit", "square unit"), ("Eq. 8, unit", "batch unit")):
            cells = []
            for start in ("random", "heaviest"):
                found = figures("power-iteration")[subject][f"{key}, {start} start, 5 steps"]
                cells += [f"{found[side]['median']:.1%} / {found[side]['largest']:.0%}" for side in ("binary", "ratio")]
            rows.append(f"| {shown} | {form} | {' | '.join(cells)} |".replace("%", " %"))
    return rows


def digits_rows() -> list[str]:
    found = figures("digits-forms")
    rows = []
    for form in dict.fromkeys(name.rsplit(", lambda", 1)[0] for name in found):
        cells = []
        for weight in ("0", "1", "8"):
            run = found[f"{form}, lambda {weight}"]
            ratios = " ".join(f"{r:.2f}".removeprefix("0") for r in run["ratios"])
            accuracy = f"{statistics.fmean(run['accuracy']):.1f} ({statistics.stdev(run['accuracy']):.1f}) "
            cells.append(ratios if weight == "0" else accuracy + ratios)
        rows.append(f"| {form} | {' | '.join(cells)} |")
    return rows


def more(variant: str) -> str:
    return f"{figures('retention-step-cpu')['ratio_to_without'][variant] - 1:.0%}".replace("%", " %")


def step_sentences() -> list[tuple[str, str]]:
    block, stage = more("default, per block"), more("default, per stage")
    block8, stage8, paper = (
        more("Eq. 8, unit, per block"),
        more("Eq. 8, unit, per stage"),
        more("paper (Eq. 8, raw, per layer)"),
    )
    return [
        ("README.md", f"Retention costs {block} of a CPU training step of ResNet-20 per block and {stage} per stage"),
        ("docs/LOG.md", f"+{block} and +{block8}, per stage +{stage} and +{stage8}"),
        ("docs/LOG.md", f"`paper`, layer by layer, costs +{paper}"),
        ("docs/LOG.md", f"`weights` +{more('default, weights')}, `teacher` +{more('default, teacher')}"),
        ("docs/claims.md", f"+{block8} of a step per block, +{paper} per layer (Eq. 8)"),
        ("docs/claims.md", f"+{paper} for the paper's form layer by layer, +{block8} block by block"),
    ]


def train_sentences() -> list[tuple[str, str]]:
    folder = "results/train/cifar10-resnet20-double-irnet"
    records = [json.loads((ROOT / folder / f"seed-{seed}.json").read_text()) for seed in (0, 1)]
    for record in records:
        assert (record["settings"]["epochs"], record["settings"]["weight"]) == (400, 0)
        assert [(r["split"], r["images"]) for r in record["readings"]] == [("test", 10_000)]  # read once
    pair = "{:.2f} and {:.2f}".format(*(record["readings"][0]["top1"] for record in records))
    trained = "{:.1f} and {:.1f} %".format(*(record["figures"]["last"]["train"] for record in records))
    ratios = " ".join(f"{r:.2f}".removeprefix("0") for r in records[0]["figures"]["last"]["ratios"])
    return [
        ("README.md", f"λ = 0) after its published 400 epochs: {pair} % of the CIFAR-10 test images, last epoch"),
        ("docs/LOG.md", f"IR-Net, λ = 0, 400 epochs: {pair} %"),
        ("docs/LOG.md", f"Training accuracy at the end (with crop and flip) {trained}."),
        ("docs/LOG.md", f"side by side, {records[0]['figures']['seconds']:.0f} s on an H200"),
        ("docs/LOG.md", f"without retention, seed 0: {ratios}."),
        ("docs/claims.md", f"Two first runs here (last epoch, bfloat16) reached {pair}"),
        ("lcrbnn/recipes/cifar10-resnet20-double-irnet.toml", f"Here: {pair} % (last epoch"),
    ]


def speed_sentence() -> tuple[str, str]:
    alone, four = (figures(f"fast-step-h200-{name}")["images_per_second"] / 1000 for name in ("alone", "four"))
    return "docs/LOG.md", f"{alone:.0f} k alone, {four:.0f} k for four"


def kill_sentences() -> list[tuple[str, str]]:
    found = json.loads((ROOT / "results" / "kill" / "cpu.json").read_text())["figures"]
    assert found["different"] == []
    assert (len(found["kills"]) >= 20, found["inside"] >= 5) == (True, True)
    return [("docs/LOG.md", f"{len(found['kills'])} kills, {found['inside']} of them inside a save")]


QUOTED = [
    *train_sentences(),
    speed_sentence(),
    *kill_sentences(),
    *(("docs/method.md", row) for row in power_iteration_rows()),
    *(("docs/LOG.md", row) for row in digits_rows()),
    *step_sentences(),
]


@pytest.mark.parametrize(("path", "text"), QUOTED, ids=[f"{p}-{i}" for i, (p, _) in enumerate(QUOTED)])
def test_a_quoted_figure_is_that_of_its_record(path: str, text: str) -> None:
    assert text in re.sub(r"\s*\n\s*", " ", (ROOT / path).read_text()) or text in (ROOT / path).read_text()


def test_records_were_made_from_a_commit() -> None:
    for path in (ROOT / "results").rglob("*.json"):
        record = json.loads(path.read_text())
        assert re.fullmatch(r"[0-9a-f]{12}", record["environment"]["commit"]), path.name
        assert record["schema"] == 1
