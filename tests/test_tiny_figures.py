"""What the documents say of Tiny-ImageNet is what its records hold."""

from __future__ import annotations

import math
import statistics

from lcrbnn.study.paired import paired, quantile
from tests.test_log_figures import LOG, ROOT, last, listed, minus, runs


def tops(arm: str, seeds: int = 3) -> list[list[float]]:
    """Top-1 by seed, top-5 by seed."""
    return [[run["readings"][0][what] for run in runs(arm, seeds)] for what in ("top1", "top5")]


def compare_rows(arms: dict[str, str]) -> None:
    for title, arm in arms.items():
        cells = [f"{statistics.fmean(top):.2f} ({statistics.stdev(top):.2f})" for top in tops(arm)]
        assert f"| {title} | {listed(tops(arm)[0])} | {' | '.join(cells)} | {listed(last(arm, 'train'))} |" in LOG


def compare_ratios(plan: str, seeds: int = 3) -> None:
    for arm in ("none", "default"):
        ratios = [run["figures"]["last"]["ratios"] for run in runs(f"{plan}/{arm}", seeds)]
        shown = listed([statistics.fmean(block) for block in zip(*ratios, strict=True)])
        assert " ".join(ratio.removeprefix("0") for ratio in shown.split()) in LOG


def gains(plan: str, seeds: int = 3) -> list[str]:
    """Of retention in top-1 and in top-5, with intervals."""
    arms = (tops(f"{plan}/{arm}", seeds) for arm in ("none", "default"))
    return [minus(str(paired(*two))) for two in zip(*arms, strict=True)]


def test_irnet() -> None:
    """All five seeds."""
    none, default = (tops(f"tiny-irnet/{arm}", 5) for arm in ("none", "default"))
    for title, arm in {"IR-Net": none, "with LCR, `default`": default}.items():
        cells = [f"{statistics.fmean(top):.2f} ({statistics.stdev(top):.2f})" for top in arm]
        assert f"| {title} | {listed(arm[0])} | {' | '.join(cells)} |\n" in LOG
    texts = [(ROOT / name).read_text() for name in ("README.md", "docs/claims.md")]
    for which, (found, *two) in enumerate(zip(gains("tiny-irnet", 5), none, default, strict=True)):
        assert f"{found} ({' '.join(f'{b - a:+.2f}' for a, b in zip(*two, strict=True))})" in LOG
        assert found in texts[0]
        assert which or found in texts[1]
    compare_ratios("tiny-irnet", 5)
    known = [[run["figures"]["last"]["train"] for run in runs(f"tiny-irnet/{arm}", 5)] for arm in ("none", "default")]
    assert f"knows more of its training images, {paired(*known)}." in LOG
    assert f"{statistics.fmean(none[0]):.2f} % without and {statistics.fmean(default[0]):.2f} % with LCR" in texts[0]


def test_the_first_three_pairs_of_irnet() -> None:
    compare_rows(
        {
            "full precision": "tiny-real/none",
            "IR-Net": "tiny-irnet/none",
            "with LCR, `default`": "tiny-irnet/default",
        }
    )
    compare_ratios("tiny-irnet")
    for found in gains("tiny-irnet"):
        assert found in LOG
    text = (ROOT / "docs" / "reproduce.md").read_text()
    more = [b - a for a, b in zip(*(tops(f"tiny-irnet/{arm}", 5)[0][3:] for arm in ("none", "default")), strict=True)]
    assert f"three had {gains('tiny-irnet')[0]}" in text
    assert "({:+.2f} and {:+.2f})".format(*more) in text
    assert f"The two new pairs have {statistics.fmean(more):+.2f} in the mean" in LOG
    for two in zip(tops("tiny-irnet/none"), tops("tiny-irnet/default"), strict=True):
        assert " ".join(f"{b - a:+.2f}" for a, b in zip(*two, strict=True)) in LOG
    known = paired(last("tiny-irnet/none", "train"), last("tiny-irnet/default", "train"))
    assert f"no fewer of them, {minus(str(known))}." in LOG


def test_reactnet() -> None:
    compare_rows(
        {
            "first step, 32/1": "tiny-react18-first/none",
            "second step, 1/1": "tiny-react18/none",
            "with LCR, `default`": "tiny-react18/default",
        }
    )
    compare_ratios("tiny-react18")
    first, fifth = gains("tiny-react18")
    pairs = zip(tops("tiny-react18/none")[0], tops("tiny-react18/default")[0], strict=True)
    assert f"in top-1, {first} ({minus(' '.join(f'{b - a:+.2f}' for a, b in pairs))})" in LOG
    known = paired(last("tiny-react18/none", "train"), last("tiny-react18/default", "train"))
    assert f"in top-5, {fifth}, and in what is known of the training images, {minus(str(known))}." in LOG
    real, react = ([statistics.fmean(top) for top in tops(arm)] for arm in ("tiny-real/none", "tiny-react18/none"))
    assert (
        f"{react[0]:.2f} % beside {real[0]:.2f} % in full precision, top-5 {react[1]:.2f} beside {real[1]:.2f}" in LOG
    )
    sides = [tops(arm)[0] for arm in ("tiny-real/none", "tiny-react18/none")]
    wide = quantile(0.975, 3) * math.sqrt(sum(statistics.variance(side) / len(side) for side in sides))  # Welch: 3.97
    assert f"({minus(f'{react[0] - real[0]:+.2f}')} ± {wide:.2f})" in LOG
    (teacher, *_), _ = tops("tiny-real/none")
    assert f"seed 0: {teacher:.2f} %) as the teacher of both steps" in LOG
    assert first in (ROOT / "docs" / "claims.md").read_text()
    both = f"{react[0]:.2f} % with 1-bit weights and activations, {real[0]:.2f} % in full precision"
    assert both in (ROOT / "README.md").read_text()
