"""Figures quoted in the documents are those of the committed records, rendered here and looked for there."""

from __future__ import annotations

import json
import re
import statistics
import tomllib
from pathlib import Path
from statistics import mean

import pytest

from lcrbnn.study.paired import paired

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
        ("docs/LOG.md", f"IR-Net, λ = 0, 400 epochs: {pair} %"),
        ("docs/LOG.md", f"Training accuracy at the end (with crop and flip) {trained}."),
        ("docs/LOG.md", f"side by side, {records[0]['figures']['seconds']:.0f} s on an H200"),
        ("docs/LOG.md", f"without retention, seed 0: {ratios}."),
        ("docs/claims.md", f"Two first runs (last epoch, bfloat16) reached {pair}"),
    ]


def full_length(seeds: int) -> tuple[dict[str, list[float]], dict[str, str], str]:
    """Of so many pairs at full length: test accuracy by arm, the mean distance of the ratios from 1, and the gain."""
    tests, apart = {}, {}
    for arm in ("none", "default"):
        paths = [ROOT / "results" / "cifar10-double" / arm / f"seed-{seed}.json" for seed in range(seeds)]
        records = [json.loads(path.read_text()) for path in paths]
        tests[arm] = [record["readings"][0]["top1"] for record in records]
        ratios = [ratio for record in records for ratio in record["figures"]["last"]["ratios"]]
        apart[arm] = f"{mean(abs(ratio - 1) for ratio in ratios):.3f}".removeprefix("0")
    return tests, apart, str(paired(tests["none"], tests["default"])).replace("-", "−")


def first_pairs_sentences() -> list[tuple[str, str]]:
    """Of the five paired seeds with which the search for a form ended."""
    tests, apart, gain = full_length(5)
    without, given = (mean(values) for values in tests.values())
    rows = [
        f"| `{arm}` | {' '.join(f'{v:.2f}' for v in values)} | {mean(values):.2f} " for arm, values in tests.items()
    ]
    return [
        ("docs/LOG.md", f"λ = 0 has {without:.2f} %, the chosen form {given:.2f} %; the difference is {gain}"),
        *(("docs/LOG.md", row) for row in rows),
        ("docs/LOG.md", f"of the nine blocks is {apart['default']} against {apart['none']}"),
    ]


def full_length_sentences() -> list[tuple[str, str]]:
    """Of all eight."""
    tests, apart, gain = full_length(8)
    without, given = (mean(values) for values in tests.values())
    each = " ".join(f"{b - a:+.2f}" for a, b in zip(*tests.values(), strict=True)).replace("-", "−")
    return [
        ("README.md", f"with double skips has {without:.2f} % at the last epoch, in the mean of eight"),
        ("README.md", f"mean |σ_B/σ_F − 1| is {apart['default']} instead of {apart['none']}"),
        ("docs/LOG.md", f"Eight paired seeds at full length: {without:.2f} and {given:.2f} %, {gain}"),
        ("docs/LOG.md", f"by seed {each}"),
        ("docs/LOG.md", f"{apart['default']} against {apart['none']} with eight"),
        ("docs/claims.md", f"is shown: double skips, eight pairs, {gain}, where 0.68"),
        ("lcrbnn/recipes/cifar10-resnet20-double-irnet.toml", f"Here: {without:.2f} % (last epoch"),
    ]


def speed_sentence() -> tuple[str, str]:
    alone, four = (figures(f"fast-step-h200-{name}")["images_per_second"] / 1000 for name in ("alone", "four"))
    return "docs/LOG.md", f"{alone:.0f} k alone, {four:.0f} k for four"


def table_row(*cells: str) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def gpu(case: str, folder: str = "") -> dict:
    return figures(f"{folder}gpu-steps-{case}")


WORDY = "wordy/"  # before steps were lean
FIRST = "first/"  # the GPU step as it was before the look at the ratios became a part of it, with lists of kernels


GPU_CASES = {
    "ResNet-20": "resnet20",
    "ResNet-20, four side by side": "resnet20-four",
    "ResNet-20, `latent`": "resnet20-latent",
    "ResNet-18": "resnet18",
    "ResNet-18, `latent`": "resnet18-latent",
}


MORE_CASES = {
    **GPU_CASES,
    "ResNet-20, `teacher`": "resnet20-teacher",
    "ResNet-18, `teacher`": "resnet18-teacher",
    "ResNet-18, 224 pixels": "resnet18-224",
    "the same, `latent`": "resnet18-224-latent",
}


def gpu_rows(cases: dict[str, str], folder: str) -> list[str]:
    rows = []
    for shown, case in cases.items():
        found = gpu(case, folder)
        ratios = [f"{found[r]:.{d}f}" if r in found else "" for r, d in (("time_ratio", 3), ("memory_ratio", 2))]
        named = {"images_per_second": "", "time_ratio": "time ", "memory_ratio": "memory "}
        targets = []
        for name, target in found["targets"].items():
            bound = target.get("at_least", target.get("at_most"))
            size = f"{bound / 1000:g} k" if bound > 1000 else f"{bound:g}"
            targets.append(f"{named[name]}{size} {'met' if target['met'] else 'missed'}")
        cells = [
            f"{found['images_per_second'] / 1000:.1f} k",
            f"{found['ms_per_step']:.3f}",
            f"{found['memory_of_a_run_mb']:.0f} MB",
            *ratios,
            ", ".join(targets),
        ]
        rows.append(table_row(shown, *cells))
    return rows


def conv_rows() -> list[str]:
    rows = []
    for shape, products in figures("conv-kernels").items():
        cells = [
            f"{products[p]['torch_us']:.1f} / {products[p]['kernel_us']:.1f}" if p in products else ""
            for p in ("forward", "input", "weight")
        ]
        channels, side = shape.split("@")
        rows.append(table_row(f"{channels.replace('x', ' → ')}, {side} × {side}", *cells))
    return rows


def percent_more(case: str, folder: str = "") -> str:
    return f"{gpu(case, folder)['time_ratio'] - 1:.1%}".replace("%", " %")


def gpu_sentences() -> list[tuple[str, str]]:
    rate = {
        (case, folder): f"{gpu(case, folder)['images_per_second'] / 1000:.0f} k"
        for case, folder in (
            ("resnet20", WORDY),
            ("resnet20-four", WORDY),
            ("resnet20", ""),
            ("resnet20-five-lean", ""),
        )
    }
    before = f"{rate['resnet20', WORDY]} images a second alone, {rate['resnet20-four', WORDY]} for four, and what"
    lean = (
        f"{rate['resnet20', '']} images a second alone and {rate['resnet20-five-lean', '']} over five runs side by side"
    )
    more = {case: percent_more(f"resnet20-{case}") for case in ("latent", "paper", "paper-blocks")}
    eighteen = percent_more("resnet18-latent", WORDY)
    return [
        ("docs/LOG.md", before),
        ("README.md", lean),
        ("README.md", f"adds {more['latent']} to a step there, the paper's literal form {more['paper']}"),
        ("docs/claims.md", f"+{more['latent']} (ResNet-20), and +{eighteen} (ResNet-18, before"),
        ("docs/claims.md", f"+{more['paper']} layer by layer, +{more['paper-blocks']} block by block. On a CPU"),
    ]


def first_gpu_sentences() -> list[str]:
    cases = {case: gpu(case, FIRST) for case in GPU_CASES.values()}
    rate = {case: f"{found['images_per_second'] / 1000:.0f} k" for case, found in cases.items()}
    device = {case: found["kernels"] for case, found in cases.items()}
    epochs = {case: found["epoch_s"] for case, found in cases.items()}  # the middle one of three has no look
    between = {c: epochs[f"{c}-latent"][1] / epochs[c][1] for c in ("resnet20", "resnet18")}
    alone = cases["resnet20"]["steps_per_epoch"] * 128 / epochs["resnet20"][1] / 1000
    top, top18 = device["resnet20-latent"]["top"], device["resnet18"]["top"]
    ours = sum(
        us for name, (us, _) in device["resnet20"]["top"].items() if name.startswith(("_convolve", "_correlate"))
    )
    library = sum(us for name, (us, _) in top18.items() if re.search("xmma|cutlass|cask|nhwcAdd", name))
    compiled = sum(us for name, (us, _) in top18.items() if name.startswith("triton_"))
    us, kept = device["resnet20"]["us"], device["resnet20-latent"]["us"]
    return [
        f"{rate['resnet20']} images a second alone, {rate['resnet20-four']} for four",
        f"{alone:.1f} k, `latent` {between['resnet20']:.3f} (ResNet-18: {between['resnet18']:.3f})",
        f"{us:.0f} us against {kept:.0f} us with `latent`, a ratio of {kept / us:.3f}",
        f"{device['resnet20']['count']} kernels a step, {device['resnet20-latent']['count']} with `latent`",
        f"{top['_parts'][0] + top['_power'][0]} of the {kept - us:.0f} us",
        f"{ours} of the {us:.0f} us are the package's own convolutions",
        f"names {sum(v for v, _ in top18.values()) / 1000:.2f} of {device['resnet18']['us'] / 1000:.2f} ms",
        f"{library / 1000:.2f} in cuDNN's convolutions and {compiled / 1000:.2f} in compiled",
    ]


def twin_rows(folder: str) -> list[str]:
    """Relative errors of a step's gradients: as they are, with the same signs, rounded in the same places."""
    rows = []
    for model in ("resnet20", "resnet18"):
        for name in ("float32", "float32-latent", "bfloat16", "bfloat16-latent"):
            found = figures(f"{folder}twin-{model}-{name}")
            signs = found["signs"]
            rounded = found.get("error_rounded_as_eager")
            cells = [
                f"{found['error']['all']:.1e}",
                f"{signs['flipped']:,} of {signs['of']:,}",
                f"{signs['error_with_the_same_signs']['all']:.1e}",
                "" if rounded is None else f"{rounded['all']:.1e}",
            ]
            rows.append(table_row(f"{model}, {name}", *cells))
    return rows


def diagnosis_rows() -> list[str]:
    rows = []
    folder = ROOT / "results" / "cifar10-diagnosis"
    for arm in tomllib.loads((ROOT / "studies" / "cifar10-diagnosis.toml").read_text())["arms"]:
        runs = [json.loads((folder / arm / f"seed-{seed}.json").read_text())["figures"] for seed in (0, 1)]
        cells = [" ".join(f"{run['last'][part]:.2f}" for run in runs) for part in ("valid", "train")]
        rows.append(table_row(f"`{arm}`", *cells))
    return rows


def plain_sentences() -> list[tuple[str, str]]:
    folder = ROOT / "results" / "cifar10-plain" / "none"
    tests = [json.loads((folder / f"seed-{s}.json").read_text())["readings"][0]["top1"] for s in range(5)]
    row = f"{' '.join(f'{t:.2f}' for t in tests)}: {mean(tests):.2f} ({statistics.stdev(tests):.2f})"
    return [("docs/LOG.md", row), ("README.md", f"{mean(tests):.2f} % with one skip a block")]


def corruption_sentences() -> list[tuple[str, str]]:
    found = figures("corruptions-h200")
    assert all(one["largest"] == 0 for one in found["each"].values())
    return [(path, f"in {found['whole_s']:.0f} s on an H200") for path in ("docs/LOG.md", "docs/corruptions.md")]


def kill_sentences() -> list[tuple[str, str]]:
    found = json.loads((ROOT / "results" / "kill" / "cpu.json").read_text())["figures"]
    assert found["different"] == []
    assert (len(found["kills"]) >= 20, found["inside"] >= 5) == (True, True)
    return [("docs/LOG.md", f"{len(found['kills'])} kills, {found['inside']} of them inside a save")]


QUOTED = [
    *train_sentences(),
    *first_pairs_sentences(),
    *full_length_sentences(),
    speed_sentence(),
    *kill_sentences(),
    *gpu_sentences(),
    *(("docs/LOG.md", row) for row in gpu_rows(MORE_CASES, WORDY)),
    *(("docs/LOG.md", row) for row in gpu_rows(GPU_CASES, FIRST)),
    *(("docs/LOG.md", sentence) for sentence in first_gpu_sentences()),
    *(("docs/LOG.md", row) for folder in ("", WORDY) for row in twin_rows(folder)),
    *(("docs/LOG.md", row) for row in diagnosis_rows()),
    *plain_sentences(),
    *corruption_sentences(),
    *(("docs/LOG.md", row) for row in conv_rows()),
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
