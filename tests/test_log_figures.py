"""Figures that entries of docs/LOG.md quote from records, told as the entries tell them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lcrbnn.study.paired import paired, quantile, shift_seen

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"


def runs(arm: str, seeds: int = 3) -> list[dict[str, Any]]:
    """The records of an arm, PLAN/ARM, by seed."""
    return [json.loads((RESULTS / arm / f"seed-{seed}.json").read_text()) for seed in range(seeds)]


def last(arm: str, what: str) -> list[float]:
    return [run["figures"]["last"][what] for run in runs(arm)]


def listed(values: list[float], places: int = 2) -> str:
    return " ".join(f"{value:.{places}f}" for value in values)


def minus(text: str) -> str:
    return text.replace("-", "−")


def noisy(arm: str) -> list[float]:
    return [statistics.fmean(run["figures"]["noise"].values()) for run in runs(arm)]


def test_the_table_of_the_literal_form() -> None:
    assert f"(without: {listed(last('cifar10-late/none-bfloat16', 'valid'))})" in LOG
    for arm in ("paper-1e-3", "paper-1e-2", "paper-1e-1"):
        shares = listed(last(f"cifar10-paper/{arm}", "share"), 4).replace("0.", ".")
        assert f"| `{arm}` | {listed(last(f'cifar10-paper/{arm}', 'valid'))} | {shares} |" in LOG
    levels = [f"{statistics.fmean(last(f'cifar10-paper/paper-1e-{k}', 'valid')):.1f}" for k in (5, 4, 3, 2, 1)]
    claims = (ROOT / "docs" / "claims.md").read_text()
    assert "{}, {}, {}, {} and {} for λ = .00001, .0001, .001, .01 and .1".format(*levels) in claims


def test_the_literal_form_at_small_strengths() -> None:
    pairs = {"without": ("cifar10-late/none-bfloat16", "cifar10-paper-plain/none")}
    for k in (5, 4, 3):
        pairs[f"`paper-1e-{k}`"] = (f"cifar10-paper/paper-1e-{k}", f"cifar10-paper-plain/paper-1e-{k}")
    for title, arms in pairs.items():
        assert f"| {title} | {' | '.join(listed(last(arm, 'valid')) for arm in arms)} |" in LOG
    for study in ("cifar10-paper", "cifar10-paper-plain"):
        means = {k: statistics.fmean(last(f"{study}/paper-1e-{k}", "valid")) for k in (5, 4, 3)}
        assert max(means, key=means.__getitem__) == 5
    table = runs("cifar10-paper-plain/paper-1e-5")[2]["figures"]["over_training"]
    at = {row["epoch"]: row for row in table}
    before, after = at[15], at[19]
    assert f"from {before['valid']:.1f} % after epoch 15" in LOG
    assert f"the ratio of one layer is {max(before['ratios']):.0f}" in LOG
    assert f"to {after['valid']:.1f} % after epoch 19" in LOG
    assert f"a mean loss of {at[31]['loss']:.0f} in epoch 31" in LOG


def test_strengths_of_the_form_that_works() -> None:
    arms = {"0": "double/none", "¼": "lambda-default/times-quarter", "½": "lambda-default/times-half"}
    arms |= {"1": "double/default", "2": "lambda-default/times-2", "4": "lambda-default/times-4"}
    tests = []
    for strength, arm in arms.items():
        (run,) = runs(f"cifar10-{arm}", 1)
        end = run["figures"]["last"]
        tests.append(run["readings"][0]["top1"])
        apart = statistics.fmean(abs(ratio - 1) for ratio in end["ratios"])
        row = f"| {strength} | {tests[-1]:.2f} | {end['train']:.2f} | {apart:.3f} |".replace("| 0.", "| .")
        row += f" {end['share']:.3f} | {end['weight']:.0f} |".replace(" 0.", " .") if end["share"] else " | |"
        assert f"{row}\n" in LOG
    assert (
        f"one seed: {listed(tests[:-1]).replace(' ', ', ')} and {tests[-1]}." in (ROOT / "docs/claims.md").read_text()
    )
    full = {
        arm: [run["readings"][0]["top1"] for run in runs(f"cifar10-double/{arm}", 8)] for arm in ("none", "default")
    }
    assert max(full["default"]) == full["default"][0]
    assert f"({max(full['default'])}, their mean is {statistics.fmean(full['default']):.2f})" in LOG
    differences = [b - a for a, b in zip(*full.values(), strict=True)]
    assert f"single pairs differ by {statistics.stdev(differences):.1f} (standard deviation)" in LOG


def test_the_literal_form_at_full_length() -> None:
    found = {arm: runs(f"cifar10-double/{arm}", 8) for arm in ("none", "paper", "default")}
    test = {arm: [run["readings"][0]["top1"] for run in some] for arm, some in found.items()}
    means = {arm: f"{statistics.fmean(v):.2f} ({statistics.stdev(v):.2f})" for arm, v in test.items()}
    gain = minus(str(paired(test["none"], test["paper"])))
    each = " ".join(f"{b - a:+.2f}" for a, b in zip(test["none"], test["paper"], strict=True))
    assert f"eight seeds at full length: {means['paper'][:5]} %, {gain}\n" in LOG
    assert (
        f"{listed(test['paper'])}, mean {means['paper']}, without {means['none']}; the gain by seed {minus(each)}"
        in LOG
    )
    last = [run["figures"]["last"] for run in found["paper"]]
    apart = [statistics.fmean(abs(ratio - 1) for ratio in end["ratios"]) for end in last]
    shares = [end["share"] for end in last]
    assert f"is {min(apart):.1f} to {max(apart):.1f} in the end" in LOG
    assert f"{min(shares):.5f} to {max(shares):.5f}".replace("0.", ".") in LOG
    assert minus(f"`default` against `paper`, eight pairs: {paired(test['paper'], test['default'])}") in LOG
    worst = last[2]["ratios"]
    assert f"one layer's ratio at {worst[2]:.2f} and its neighbour's at {worst[3]:.0f}".replace("at 0.", "at .") in LOG


def test_full_precision() -> None:
    test = [run["readings"][0]["top1"] for run in runs("cifar10-real/none")]
    mean = statistics.fmean(test)
    assert f"{listed(test)}, mean {mean:.2f} ({statistics.stdev(test):.2f})" in LOG
    lost = {
        name: mean - statistics.fmean(run["readings"][0]["top1"] for run in runs(f"cifar10-{name}/none", seeds))
        for name, seeds in (("double", 8), ("plain", 5))
    }
    assert f"cost {lost['double']:.1f} points here with double skips and {lost['plain']:.1f} with one skip" in LOG


def test_the_table_of_the_large_decay() -> None:
    arms = ("decay-5e-4", "default-decay-5e-4")
    for arm in arms:
        name = f"cifar10-curves/{arm}"
        cells = (last(name, "valid"), last(name, "train"), noisy(name))
        assert f"| `{arm}` | {' | '.join(map(listed, cells))} |" in LOG
    clean = paired(*(last(f"cifar10-curves/{arm}", "valid") for arm in arms))
    under = paired(*(noisy(f"cifar10-curves/{arm}") for arm in arms))
    assert minus(f"Retention: {clean} on clean images. Under noise {under}") in LOG
    known = statistics.fmean(last("cifar10-curves/decay-5e-4", "train"))
    full = statistics.fmean(run["figures"]["last"]["train"] for run in runs("cifar10-double/none", 5))
    assert f"knows {known:.1f} % of its training images, where those with a decay of 1e-4 know {full:.1f} %" in LOG


def test_one_skip_with_retention() -> None:
    found = {arm: runs(f"cifar10-plain/{arm}", 5) for arm in ("none", "default")}
    test = {arm: [run["readings"][0]["top1"] for run in some] for arm, some in found.items()}
    gain = minus(str(paired(test["none"], test["default"])))
    means = {arm: f"{statistics.fmean(v):.2f} ({statistics.stdev(v):.2f})" for arm, v in test.items()}
    assert f"{listed(test['default'])}, mean {means['default']}, without {means['none']}" in LOG
    assert f"400 epochs: {means['default'][:5]} %, {gain}\n" in LOG
    gaps = {
        arm: statistics.fmean(abs(r - 1) for run in some for r in run["figures"]["last"]["ratios"])
        for arm, some in found.items()
    }
    said = f"is {gaps['default']:.3f} instead of {gaps['none']:.3f}".replace("0.", ".")
    assert f"mean |σ_B/σ_F − 1| {said}" in LOG


def test_runs_as_one_graph() -> None:
    five, team = (
        json.loads((RESULTS / "bench" / "team" / f"gpu-steps-resnet20-{name}.json").read_text())["figures"]
        for name in ("five", "team")
    )
    rates = [found["images_per_second"] / 1000 for found in (five, team)]
    assert "side by side {:.1f} k images a second, as a team {:.1f} k".format(*rates) in LOG
    assert f"after {team['first_step_cold_s']:.0f} instead of {five['first_step_cold_s']:.0f} s" in LOG
    steps = [1000 * found["ms_per_step"] for found in (team, five)]
    assert "A step takes {:,.0f} µs a run instead of {:.0f}".format(*steps) in LOG
    kernels = team["kernels"]
    ours = sum(kernels["top"][name][0] for name in ("_convolve", "_correlate"))
    assert f"launches {kernels['count']} kernels a run and step instead of {five['kernels']['count']}" in LOG
    assert f"they take {kernels['us']:.0f} µs a run: {ours} are the package's convolutions" in LOG


@pytest.mark.parametrize("file", ["twin-means-h200"])
def test_the_twins_on_a_gpu(file: str) -> None:
    record = json.loads((RESULTS / "bench" / f"{file}.json").read_text())
    assert "H200" in record["environment"]["gpu"]
    difference = paired(record["figures"]["valid"]["eager"], record["figures"]["valid"]["fast"])
    assert minus(f"the captured step {difference} against the eager one") in LOG


def test_the_loader() -> None:
    figures = json.loads((RESULTS / "bench" / "loader-cpu.json").read_text())["figures"]
    small, large = figures["500x375"], figures["2000x1500"]
    rates = small["images_per_core_second"]
    assert f"{rates['pillow']:.0f} images a core and second, the loader {rates['loader']:.0f}" in LOG
    assert f"{small['ratio']:.2f} times as many (1.5 asked), and {small['ratio_pixels']:.2f} against a loop" in LOG
    squares = f"Evaluation squares: {small['ratio_evaluation']:.2f}. At 2000 x 1500 pixels, where draft mode takes part"
    assert f"{squares}: {large['ratio']:.2f} and {large['ratio_evaluation']:.2f}" in LOG
    scaling = json.loads((RESULTS / "bench" / "scaling-cpu.json").read_text())["figures"]["predicted_over_measured"]
    steps = [scaling[name] for name in ("resnet20-double", "resnet18", "resnet20-double, shared norms")]
    said = (ROOT / "docs" / "scaling.md").read_text()
    assert "{:.2f} (ResNet-20), {:.2f} (ResNet-18) and {:.2f} times (ResNet-20, shared norms)".format(*steps) in said
    others = [scaling["messages"][str(1 << k)] for k in (17, 20, 22, 26)]
    assert f"{min(others):.2f} to {max(others):.2f} times what the other messages took" in said


LOG = (ROOT / "docs" / "LOG.md").read_text()


LITERAL = {f"λ = {sign}": f"cifar10-lambda-paper/lambda-{name}/seed-0"
           for sign, name in (("½", "half"), ("1", "1"), ("2", "2"), ("4", "4"), ("8", "8"))}  # fmt: skip
LITERAL |= {f"one skip, λ = .00001, seed {seed}": f"cifar10-plain/paper/seed-{seed}" for seed in range(5)}


def ends(values: Sequence[float]) -> str:
    return f"{min(values):.2f} {max(values):.2f}".removeprefix("0")


def best(values: Sequence[float]) -> int:
    """The index of the largest."""
    return max(range(len(values)), key=values.__getitem__)


def test_the_runs_of_which_only_logs_are_left() -> None:
    found = json.loads((RESULTS / "logs-paper-first.json").read_text())["figures"]
    for title, place in LITERAL.items():
        train = found[place]["train"][:391]
        top = best(train)
        shown = f"{train[390]:.2f} | {train[top]:.2f} in epoch {top + 1} | {ends(found[place]['ratios'])}"
        assert f"| {title} | {shown} |" in LOG
    lips = {seed: found[f"cifar10-plain/paper/seed-{seed}"]["lip"] for seed in (2, 4)}
    assert {seed: (max(lip), best(lip) + 1) for seed, lip in lips.items()} == {2: (17300, 189), 4: (862, 336)}


def test_the_same_runs_with_their_records() -> None:
    found = json.loads((RESULTS / "logs-paper.json").read_text())["figures"]
    tests = {}
    for title, place in LITERAL.items():
        record = json.loads((RESULTS / f"{place}.json").read_text())
        last, tests[place] = record["figures"]["last"], record["readings"][0]["top1"]
        train, lips = found[place]["train"], found[place]["lip"]
        assert [f"{train[-1]:.2f}"] == [f"{last['train']:.2f}"]
        top, worst = best(train), best(lips)
        shown = f"{tests[place]:.2f} | {train[-1]:.2f} | {train[top]:.2f} in epoch {top + 1}"
        assert f"| {title} | {shown} | {lips[worst]:.3g} in epoch {worst + 1} | {ends(last['ratios'])} |" in LOG
    plain = [tests[f"cifar10-plain/paper/seed-{seed}"] for seed in range(5)]
    assert f"{statistics.fmean(plain):.2f} % ({statistics.stdev(plain):.2f}) with one skip a block" in LOG


def test_how_much_more_the_noncentral_t_asks_for() -> None:
    more = {n: shift_seen(n - 1) / (quantile(0.975, n - 1) + quantile(0.8, n - 1)) - 1 for n in (2, 3, 8)}
    words = f"{more[2]:.0%} and {more[3]:.0%} larger there, {more[8]:.1%} with eight pairs".replace("%", " %")
    assert words in LOG


def test_launches_of_a_step() -> None:
    found = json.loads((RESULTS / "bench" / "launches.json").read_text())["figures"]
    titles = {"ResNet-20": "resnet20", "ResNet-20, `latent`": "resnet20-latent", "ResNet-18": "resnet18"}
    for title, case in titles.items():
        cells = [f"{row['launches']}, {row['megabytes']:.0f} MB" for row in found[case].values()]
        assert list(found[case]) == ["wordy", "norms", "together", "lean"]
        assert f"| {title} | {' | '.join(cells)} |" in LOG


def test_bytes_of_a_step_with_hardtanhs_that_go_back_by_their_result() -> None:
    found = json.loads((RESULTS / "bench" / "launches-clips.json").read_text())["figures"]
    for case, rows in found.items():
        title = case.replace("resnet", "ResNet-").replace("-256", ", 256 images").replace("-latent", ", `latent`")
        before, after = (rows[lean]["megabytes"] for lean in ("unclipped", "lean"))
        assert f"| {title} | {before:.0f} | {after:.0f} |" in LOG
        assert 0.86 < after / before < 0.97  # docs/training.md has 3 to 14 % fewer
    most = found["resnet18-256-latent"]["lean"]
    assert f"{most['launches']} and {most['megabytes']:.0f} now" in LOG


def test_the_engine_in_a_page() -> None:
    found = json.loads((RESULTS / "bench" / "page.json").read_text())["figures"]
    large, small = found["resnet18"], found["resnet20"]
    ratios = [large[f"onnxruntime-web{kind}"]["ratio"] for kind in (" int8", " int8, 2 threads", "")]
    assert f"{large['lcrbnn']['median']:.1f} ms, one thread" in LOG
    assert "8 bits {:.2f} times that, {:.2f} with two threads; its floats {:.2f} times".format(*ratios) in LOG
    less = [small[f"onnxruntime-web{kind}"]["ratio"] for kind in (" int8", "")]
    assert "ResNet-20: {:.2f} ms, {:.2f} and {:.2f} times".format(small["lcrbnn"]["median"], *less) in LOG


def test_binary_weights_with_real_activations() -> None:
    for title, name in (("without", "none"), ("`default`", "default"), ("`paper`, λ = .00001", "paper")):
        found = runs(f"cifar10-weights/{name}")
        tests = [run["readings"][0]["top1"] for run in found]
        ratios = [ratio for run in found for ratio in run["figures"]["last"]["ratios"]]
        ends = f"{min(ratios):.2f} {max(ratios):.2f}".replace("0.", ".")
        mean = f"{statistics.fmean(tests):.2f} ({statistics.stdev(tests):.2f})"
        train = listed(last(f"cifar10-weights/{name}", "train"))
        assert f"| {title} | {listed(tests)} | {mean} | {train} | {ends} |" in LOG


def test_how_the_literal_form_ends_runs_with_real_activations() -> None:
    found = json.loads((RESULTS / "logs-weights.json").read_text())["figures"]
    logs = [found[f"cifar10-weights/paper/seed-{seed}"] for seed in range(3)]
    for seed, log in enumerate(logs):
        assert [f"{log['train'][-1]:.2f}"] == [f"{last('cifar10-weights/paper', 'train')[seed]:.2f}"]
    first = [next(i for i, lip in enumerate(log["lip"]) if lip > 1000) for log in logs]
    blows = [*(log["lip"][i] for log, i in zip(logs, first, strict=True)), *(i + 1 for i in first)]
    assert "L_Lip of {:.0f}, {:.0f} and {:.0f} in epochs {}, {} and {}, up to ".format(*blows) in LOG
    assert f"up to {max(max(log['lip']) for log in logs):.0f} later" in LOG
    train = logs[0]["train"]
    assert f"regains, {train[349]:.2f} % of its images in epoch 350" in LOG
    assert train[357] < train[356] / 2
    arms = [[run["readings"][0]["top1"] for run in runs(f"cifar10-weights/{arm}")] for arm in ("none", "default")]
    apart = [kept - plain for plain, kept in zip(*arms, strict=True)]
    assert f"The three differences, {minus(listed(apart))}, are close" in LOG


def test_lean_steps_on_a_gpu() -> None:
    pairs = ("resnet20-five", "resnet20-five-latent", "resnet18-three")
    cases = dict.fromkeys(pairs, "") | {f"{case}-lean": "time" for case in pairs}
    cases |= {"resnet20": "alone"} | {f"resnet20-{form}": "both" for form in ("latent", "paper", "paper-blocks")}
    for case, shown in cases.items():
        found = json.loads((RESULTS / "bench" / f"gpu-steps-{case}.json").read_text())["figures"]
        row = f"| {found['images_per_second'] / 1000:.1f} k | {found['ms_per_step']:.3f} |"
        row += f" {found['time_ratio']:.3f} |" if shown in ("time", "both") else " |"
        row += {"alone": " |", "both": f" {found.get('memory_ratio', 0):.2f} |"}.get(shown, "")
        assert row in LOG
    lean, kept = (
        json.loads((RESULTS / "bench" / f"gpu-steps-resnet20-five{form}-lean.json").read_text())["figures"][
            "ms_per_step"
        ]
        for form in ("", "-latent")
    )
    assert f"{100 * (kept / lean - 1):.1f} % with five runs side by side" in LOG
