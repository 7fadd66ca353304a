"""What the documents say of the first screen of forms (results/cifar10-screen) is what its records hold."""

from __future__ import annotations

import json
import re
import statistics
import tomllib
from pathlib import Path

import pytest

from lcrbnn.study.paired import Paired, paired
from tests.test_figures import table_row

ROOT = Path(__file__).parents[1]
SCREEN = ROOT / "results" / "cifar10-screen"
ARMS = list(tomllib.loads((ROOT / "studies" / "cifar10-screen.toml").read_text())["arms"])
RUNS = {
    arm: [json.loads((SCREEN / arm / f"seed-{seed}.json").read_text())["figures"] for seed in (0, 1)] for arm in ARMS
}


def last(arm: str, name: str) -> list[float]:
    return [run["last"][name] for run in RUNS[arm]]


def noisy(arm: str) -> list[float]:
    return [statistics.fmean(run["noise"].values()) for run in RUNS[arm]]


def gaps(arm: str, epoch: int = 50) -> list[float]:
    lines = [next(line for line in run["over_training"] if line["epoch"] == epoch) for run in RUNS[arm]]
    return [statistics.fmean(abs(r - 1) for r in line["ratios"]) for line in lines]


def seen(arm: str, epoch: int, name: str) -> list[float]:
    return [next(line[name] for line in run["over_training"] if line["epoch"] == epoch) for run in RUNS[arm]]


def short(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}".removeprefix("0")


def against(values: list[float], control: list[float]) -> Paired:
    return paired(control, values)


def interval(found: Paired) -> str:
    return f"{found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}]".replace("-", "−")


def screen_rows() -> list[str]:
    rows = []
    for arm in ARMS:
        cells = []
        for read in (lambda a: last(a, "valid"), noisy):
            cells.append(f"{statistics.fmean(read(arm)):.1f} ({statistics.stdev(read(arm)):.1f})")
            cells.append("" if arm == "none" else interval(against(read(arm), read("none"))))
        share = last(arm, "share")
        cells += ["" if None in share else short(statistics.fmean(share), 4), short(statistics.fmean(gaps(arm)))]
        rows.append(table_row(f"`{arm}`", *cells))
    return rows


def change(arm: str) -> str:
    return f"{against(last(arm, 'valid'), last('none', 'valid')).mean:+.1f}".replace("-", "−")


def both(values: list[float], digits: int = 1) -> str:
    return "{} and {}".format(*(short(v, digits) if v < 1 else f"{v:,.{digits}f}" for v in values))


def screen_sentences() -> list[tuple[str, str]]:
    mean = statistics.fmean
    gap = {arm: short(mean(gaps(arm))) for arm in ARMS}
    trained = [f"{mean(last(arm, 'train')):.1f}" for arm in ("none", "eq9-share-2", "eq9-share-10")]
    at_37 = [f"{mean(seen(arm, 37, 'valid')):.1f}" for arm in ("eq9-share-10-ramp", "none")]
    at_3 = {arm: both(seen(arm, 3, "share"), 3) for arm in ("eq9-share-10-ramp", "eq9-share-2")}
    valid_3 = {arm: f"{mean(seen(arm, 3, 'valid')):.0f}" for arm in ("eq9-share-10-ramp", "eq9-share-2")}
    channel = [both([r[-1] for r in seen("channel-share-10", epoch, "ratios")], 2) for epoch in (1, 50)]
    raw = [both(gaps("eq8-raw-share-10", epoch), 2) for epoch in (1, 50)]
    block_7 = both([r[6] for r in seen("eq8-unit-share-10", 50, "ratios")], 2)
    assert max(abs(r - 1) for run in RUNS["eq9-share-10-beta-1"] for r in run["last"]["ratios"]) < 0.05
    assert all(r > 0.9995 for r in RUNS["eq9-share-30"][1]["last"]["ratios"])
    assert not any(against(noisy(arm), noisy("none")).decided for arm in ARMS if arm != "none")
    decided = [arm for arm in ARMS if arm != "none" and against(last(arm, "valid"), last("none", "valid")).decided]
    fall = {
        arm: f"{mean(last(arm, 'valid')) - mean(noisy(arm)):.1f}" for arm in ("none", "eq9-share-2", "teacher-share-10")
    }
    taught = both([b - a for a, b in zip(last("none", "valid"), last("distill", "valid"), strict=True)])
    small, large = (
        both([b - a for a, b in zip(last("none", "valid"), last(arm, "valid"), strict=True)])
        for arm in ("eq9-share-2", "eq9-share-10")
    )
    log = [
        f"(by seed {small}, {large};".replace("-", "−"),
        f"2 % of the gradient: {change('eq9-share-2')} points; 10 %: {change('eq9-share-10')}",
        f"with 30 % the two runs end at {both(last('eq9-share-30', 'valid'))} %",
        f"falls from {gap['none']} to {gap['eq9-share-2']}, {gap['eq9-share-10']} and {gap['eq9-share-30']}",
        f"{trained[0]}, {trained[1]} and {trained[2]} %",
        f"epochs: {change('eq9-share-10-ramp')}, and |ratio − 1| comes to {gap['eq9-share-10-ramp']}",
        f"{at_37[0]} against {at_37[1]} %",
        f"{at_3['eq9-share-10-ramp']} of the gradient in the one arm, {at_3['eq9-share-2']} in the other",
        f"{valid_3['eq9-share-10-ramp']} and {valid_3['eq9-share-2']} %",
        f"{both(last('eq9-1', 'share'), 3)} at the end; {change('eq9-1')}",
        f"{both(last('eq9-8', 'share'), 3)}; {change('eq9-8')}",
        f"{both(last('eq9-share-2', 'weight'))} with 2 %, {both(last('eq9-share-10', 'weight'), 0)} with 10 %",
        f"{both(last('eq9-share-10-ramp', 'weight'), 0)} with the ramp",
        "{:.1f}·10⁵ and {:.1f}·10⁸ with 30 %".format(
            *(v / 10**k for v, k in zip(last("eq9-share-30", "weight"), (5, 8), strict=True))
        ),
        f"block 7 ends at {block_7}",
        f"from {channel[0]} after the first epoch to {channel[1]}",
        f"|ratio − 1| goes from {raw[0]} to {raw[1]}",
        f"mean of {both(last('eq8-raw-share-10', 'share'), 2)}",
        "{:.1f} % after epoch 47 to {:.1f} %".format(*(seen("eq8-raw-share-10", e, "valid")[1] for e in (47, 50))),
        f"end at {both(last('eq9-share-10-weights', 'valid'))} %",
        f"{seen('eq9-share-10-weights', 37, 'valid')[0]:.1f} % after epoch 37",
        f"the last three blocks alone {change('eq9-share-10-last-3')}",
        f"all blocks alike (β = 1) {change('eq9-share-10-beta-1')}",
        f"level ({change('paper-1e-3')}) with a share of {both(last('paper-1e-3', 'share'), 4)}",
        f"λ = 1 ends at {both(last('paper-1', 'valid'))} % with shares of {both(last('paper-1', 'share'), 3)}",
        f"level on clean images ({change('teacher-share-10').replace('+', '−')})",
        f"{both(noisy('teacher-share-10'))} against {both(noisy('none'))} %",
        f"own strength: {change('official')}, with a share of {both(last('official', 'share'), 4)}",
        f"same teacher: {change('distill')} ({taught} by seed)",
        f"only {', '.join(f'`{arm}`' for arm in decided)} leave 0 out",
        f"{fall['none']} points without retention, {fall['eq9-share-2']} with 2 %",
        f"{fall['teacher-share-10']} with the teacher",
    ]
    *levels, most = (f"{mean(last(arm, 'valid')):.1f}" for arm in ("none", "eq9-1", "eq9-8", "eq9-share-10"))
    return [
        *(("docs/LOG.md", text) for text in log),
        ("docs/claims.md", f"{', '.join(levels)} and {most} for λ = 0, 1, 8"),
        ("docs/claims.md", f"is {gap['eq9-share-10']} with a share of 10 % and {gap['none']} without"),
    ]


QUOTED = [*screen_sentences(), *(("docs/LOG.md", row) for row in screen_rows())]


@pytest.mark.parametrize(("path", "text"), QUOTED, ids=[f"{p}-{i}" for i, (p, _) in enumerate(QUOTED)])
def test_a_quoted_figure_is_that_of_its_record(path: str, text: str) -> None:
    written = (ROOT / path).read_text()
    assert text in written or text in re.sub(r"\s*\n\s*", " ", written)
