"""What docs/analysis.md says of the committed records is what they hold."""

from __future__ import annotations

import statistics
from pathlib import Path

from lcrbnn.analyze.cost_paper import paper_costs
from lcrbnn.analyze.operator import CLOSE
from lcrbnn.analyze.robust import SUMMARY
from lcrbnn.attack.run import summary
from lcrbnn.runs.record import read_record
from lcrbnn.study.groups import compare
from lcrbnn.study.paired import Paired, paired

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "analysis.md").read_text()
ARMS = ("none", "default")


def records() -> dict[str, dict[int, dict]]:
    folder = ROOT / "results" / "analyze" / "cifar10-double"
    return {arm: {s: read_record(folder / arm / f"seed-{s}.json") for s in range(5)} for arm in ARMS}


def summaries() -> dict[str, dict[int, dict[str, float]]]:
    return {arm: {s: one["figures"]["summary"] for s, one in runs.items()} for arm, runs in records().items()}


def test_the_table_is_that_of_the_records() -> None:
    table = "\n".join(line.rstrip() for line in compare(summaries(), SUMMARY).splitlines())
    assert f"```\n{table}\n```" in TEXT


def test_what_is_said_of_the_table_is_in_the_records() -> None:
    found = summaries()

    def difference(name: str) -> Paired:
        return paired(*([one[name] for one in found[arm].values()] for arm in ARMS))

    for noise in ("0.04", "0.08", "0.12"):
        assert difference(f"flips_{noise}").high < 0  # fewer flip
        assert not difference(f"flips_over_pairs_{noise}").decided  # not more than differ less
    assert difference("flips_pairs").high < 0
    assert difference("cosine").low > 0
    assert not difference("surrogate_log10").decided
    assert not difference("eq5_log10").decided
    decided = [name for name in SUMMARY if name.startswith(("sens", "over")) and difference(name).decided]
    assert decided == ["sensitivity_1", "over_pairs_1"]


def test_the_figures_of_the_log_are_in_the_records() -> None:
    log = (ROOT / "docs" / "LOG.md").read_text()
    found = summaries()

    def mean(arm: str, name: str) -> float:
        return statistics.fmean(one[name] for one in found[arm].values())

    def pair(name: str, shown: str) -> str:
        return " to ".join(f"{mean(arm, name):{shown}}" for arm in ARMS)

    assert f"**Sign flips fall from {pair('flips_0.08', '.1f')} %** under noise of 0.08" in log
    assert f"signs that differ between two images fall as well, from {pair('flips_pairs', '.1f')} %**" in log
    assert f"(off-diagonal cosine {pair('cosine', '.2f').replace('0.', '.')})" in log
    moved = [[r * mean(arm, f"sensitivity_{r:g}") for arm in ARMS] for r in (0.01, 0.1, 4)]
    for text in (TEXT, log):
        assert all(f"{value:.1f}" == "3.2" for value in moved[0])
        assert all(f"{value:.1f}" == "3.6" for value in moved[1])
        assert "3.2" in text
        assert "3.6" in text
    assert "one of 4 by 12" in log
    assert all(round(value) == 12 for value in moved[2])
    one = {
        arm: statistics.fmean(100 * r["figures"]["flips"]["0.08"]["layer3.2.conv1"] for r in runs.values())
        for arm, runs in records().items()
    }
    assert f"{one['none']:.1f} to {one['default']:.1f} % at the input of its fifth convolution" in log


def attacks(arm: str, seeds: int = 5) -> dict[int, dict]:
    folder = ROOT / "results" / "attack" / "cifar10-double" / arm
    found = {s: read_record(folder / f"seed-{s}.json") for s in range(seeds)}
    assert all(one["settings"]["images"] == 1000 and len(one["settings"]["attacks"]) == 5 for one in found.values())
    return {s: one["figures"] for s, one in found.items()}


def test_the_table_of_the_attacks_is_that_of_the_records() -> None:
    figures = {arm: {s: summary(one) for s, one in attacks(arm).items()} for arm in ARMS}
    table = "\n".join(line.rstrip() for line in compare(figures, {n: n for n in figures["none"][0]}).splitlines())
    assert f"```\n{table}\n```" in TEXT


def test_what_is_said_of_the_attacks_is_in_the_records() -> None:
    found = {arm: attacks(arm) for arm in ARMS}
    small = {arm: [one["0.5/255"] for one in runs.values()] for arm, runs in found.items()}
    worst = {arm: [one["worst"] for one in runs] for arm, runs in small.items()}
    means = [statistics.fmean(worst[arm]) for arm in ARMS]
    gain = str(paired(*(worst[arm] for arm in ARMS))).replace("-", "−")
    assert "from {:.2f} to {:.2f} % ({})".format(*means, gain) in TEXT
    short = "{1:.2f} instead of {0:.2f} %".format(*means)
    assert f"{short} of 1,000 images survive all attacks at 0.5/255" in (ROOT / "README.md").read_text()
    assert f"{short} survive all attacks at 0.5/255, {gain}" in (ROOT / "docs" / "claims.md").read_text()
    both = [one for runs in found.values() for one in runs.values()]
    assert all(one[eps]["worst"] == 0 for one in both for eps in ("2/255", "8/255"))
    alone = [one["black_box_only"] for runs in small.values() for one in runs]
    assert f"{min(alone)} to {max(alone)} images a network fell to it alone" in TEXT
    each = [(arm, s, eps) for arm, runs in found.items() for s, one in runs.items() for eps in one]
    masked = [(arm, s, eps) for arm, s, eps in each if found[arm][s][eps]["masked"]]
    assert masked == [("default", 4, "0.5/255")]
    last = small["default"][4]
    assert f"{last['best_black_box']:.1f} against {last['best_gradient']:.1f} %" in TEXT


def test_the_attacks_bite_on_a_full_precision_twin() -> None:
    record = read_record(ROOT / "results" / "attack" / "cifar10-double" / "teacher" / "seed-0.json")
    assert (record["settings"]["images"], record["settings"]["run"]["method"]) == (1000, "real")
    whole = record["figures"]
    assert f"({whole['2/255']['clean']:.1f} % of these images right)" in TEXT
    worst = [whole[eps]["worst"] for eps in ("0.5/255", "2/255", "8/255")]
    assert "the worst case leaves {:.1f} % at 0.5/255, {:.1f} % at 2/255 and {:.1f} % at 8/255".format(*worst) in TEXT
    assert worst[-1] < 5


def test_intervals_converged_and_are_as_narrow_as_is_said() -> None:
    norms = [
        norm
        for runs in records().values()
        for one in runs.values()
        for norm in one["figures"]["norms"].values()
        if norm["steps"]
    ]
    assert max(norm["residual"] for norm in norms) <= CLOSE
    apart = [100 * (norm["high"] / norm["low"] - 1) for norm in norms]
    assert f"the ends are {min(apart):.2f} to {max(apart):.1f} % apart" in TEXT


def test_records_are_of_a_clean_commit_and_of_the_runs_of_the_study() -> None:
    for arm, runs in records().items():
        for seed, record in runs.items():
            assert "+" not in record["environment"]["commit"]
            trained = read_record(ROOT / "results" / "cifar10-double" / arm / f"seed-{seed}.json")
            assert record["settings"]["checkpoint_sha256"] == trained["figures"]["checkpoint_sha256"]
            assert record["settings"]["run"] == trained["settings"]


def test_the_cost_table_is_what_is_counted() -> None:
    for row, cost in paper_costs():
        line = next(line for line in TEXT.splitlines() if line.startswith(f"| {row.title} |"))
        assert f"| {cost.bit_operations:,} |" in line
        assert f"| {cost.flops:,} |" in line
