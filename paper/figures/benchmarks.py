"""Figures from benchmarks, and from the first runs on CIFAR-10."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator
from typing import Any

from lcrbnn.evaluation.paired_difference import compare_paired
from lcrbnn.study.study_variants import read_toml
from paper.figures import Passage
from paper.figures.record_values import (
    BENCH_RECORDS,
    STUDIES,
    format_mean_std,
    format_row,
    join_differences,
    join_values,
    mean_ratio_distance,
    read_bench_metrics,
    read_cached_record,
    read_last_epoch,
    read_test_accuracy,
    replace_hyphens,
)

LOG, CLAIMS, README = "paper/docs/LOG.md", "paper/docs/claims.md", "README.md"
UNFUSED = "wordy/"  # prefix of records of compiled steps before their modules were fused
# Prefix of records of compiled steps that did not measure σ_B/σ_F; these records contain lists of kernels
FIRST = "first/"

GPU_CASES = {
    "ResNet-20": "resnet20",
    "ResNet-20, four side by side": "resnet20-four",
    "ResNet-20, `latent`": "resnet20-latent",
    "ResNet-18": "resnet18",
    "ResNet-18, `latent`": "resnet18-latent",
}
MORE_GPU_CASES = {
    **GPU_CASES,
    "ResNet-20, `teacher`": "resnet20-teacher",
    "ResNet-18, `teacher`": "resnet18-teacher",
    "ResNet-18, 224 pixels": "resnet18-224",
    "the same, `latent`": "resnet18-224-latent",
}


def to_passages(document: str, texts: Iterable[str]) -> Iterator[Passage]:
    """Yield each text as a passage of one document."""
    return ((document, text) for text in texts)


def training_speed() -> Iterator[Passage]:
    """Yield the speed of training steps and the cost of LCR in them."""
    alone, four = (
        read_bench_metrics(f"fast-step-h200-{name}")["images_per_second"] / 1000 for name in ("alone", "four")
    )
    yield LOG, f"{alone:.0f} k alone, {four:.0f} k for four"
    yield from gpu_sentences()
    yield from to_passages(LOG, gpu_rows(MORE_GPU_CASES, UNFUSED))
    yield from to_passages(LOG, gpu_rows(GPU_CASES, FIRST))
    yield from to_passages(LOG, first_gpu_sentences())
    yield from to_passages(LOG, convolution_rows())
    yield from cpu_step_sentences()


def read_gpu_steps(case: str, folder: str = "") -> dict[str, Any]:
    """Return the measurements of compiled steps on a GPU, by name."""
    return read_bench_metrics(f"{folder}gpu-steps-{case}")


def gpu_sentences() -> Iterator[Passage]:
    """Yield the speed of compiled steps on an H200, and how much LCR slows them down."""

    def format_rate(case: str, folder: str = "") -> str:
        return f"{read_gpu_steps(case, folder)['images_per_second'] / 1000:.0f} k"

    def format_extra_time(case: str, folder: str = "") -> str:
        return f"{read_gpu_steps(case, folder)['time_ratio'] - 1:.1%}".replace("%", " %")

    unfused_rates = format_rate("resnet20", UNFUSED), format_rate("resnet20-four", UNFUSED)
    yield LOG, "{} images per second alone, {} for four".format(*unfused_rates)
    fused_rates = format_rate("resnet20"), format_rate("resnet20-five-lean")
    yield README, "{} images per second alone and {} over five parallel runs".format(*fused_rates)
    latent, paper, blocks = (format_extra_time(f"resnet20-{name}") for name in ("latent", "paper", "paper-blocks"))
    yield README, f"adds {latent} to a step, the variant `paper` {paper}"
    unfused18 = format_extra_time("resnet18-latent", UNFUSED)
    yield CLAIMS, f"+{latent} (ResNet-20), and +{unfused18} (ResNet-18, before fusion)"
    yield CLAIMS, f"+{paper} layer by layer, +{blocks} block by block. On a CPU"


def gpu_rows(cases: dict[str, str], folder: str) -> Iterator[str]:
    """Yield one row per case, with speed, memory, ratios to the baseline, and the targets that were met."""
    target_titles = {"images_per_second": "", "time_ratio": "time ", "memory_ratio": "memory "}
    for title, case in cases.items():
        metrics = read_gpu_steps(case, folder)
        ratios = [f"{metrics[r]:.{d}f}" if r in metrics else "" for r, d in (("time_ratio", 3), ("memory_ratio", 2))]
        targets = []
        for name, target in metrics["targets"].items():
            bound = target.get("at_least", target.get("at_most"))
            bound_text = f"{bound / 1000:g} k" if bound > 1000 else f"{bound:g}"
            targets.append(f"{target_titles[name]}{bound_text} {'met' if target['met'] else 'missed'}")
        yield format_row(
            title,
            f"{metrics['images_per_second'] / 1000:.1f} k",
            f"{metrics['ms_per_step']:.3f}",
            f"{metrics['memory_of_a_run_mb']:.0f} MB",
            *ratios,
            ", ".join(targets),
        )


def first_gpu_sentences() -> Iterator[str]:
    """Yield the figures about the kernels of the first compiled steps."""
    cases = {case: read_gpu_steps(case, FIRST) for case in GPU_CASES.values()}
    rate = {case: f"{metrics['images_per_second'] / 1000:.0f} k" for case, metrics in cases.items()}
    kernels = {case: metrics["kernels"] for case, metrics in cases.items()}
    # only the second of the three epochs does not measure σ_B/σ_F
    epoch_s = {case: metrics["epoch_s"][1] for case, metrics in cases.items()}
    ratio20, ratio18 = (epoch_s[f"{case}-latent"] / epoch_s[case] for case in ("resnet20", "resnet18"))
    epoch_rate = cases["resnet20"]["steps_per_epoch"] * 128 / epoch_s["resnet20"] / 1000
    top20, top18 = kernels["resnet20-latent"]["top"], kernels["resnet18"]["top"]
    convolution_us = sum(
        us for name, (us, _) in kernels["resnet20"]["top"].items() if name.startswith(("_convolve", "_correlate"))
    )
    cudnn_us = sum(us for name, (us, _) in top18.items() if re.search("xmma|cutlass|cask|nhwcAdd", name))
    compiled_us = sum(us for name, (us, _) in top18.items() if name.startswith("triton_"))
    without_us, with_lcr_us = kernels["resnet20"]["us"], kernels["resnet20-latent"]["us"]
    yield f"{rate['resnet20']} images per second alone, {rate['resnet20-four']} for four"
    yield f"{epoch_rate:.1f} k, `latent` {ratio20:.3f} (ResNet-18: {ratio18:.3f})"
    yield f"{without_us:.0f} us against {with_lcr_us:.0f} us with `latent`, a ratio of {with_lcr_us / without_us:.3f}"
    yield f"{kernels['resnet20']['count']} kernels per step, {kernels['resnet20-latent']['count']} with `latent`"
    yield f"{top20['_parts'][0] + top20['_power'][0]} of the {with_lcr_us - without_us:.0f} us"
    yield f"{convolution_us} of the {without_us:.0f} us are the package's own convolutions"
    yield f"names {sum(us for us, _ in top18.values()) / 1000:.2f} of {kernels['resnet18']['us'] / 1000:.2f} ms"
    yield f"{cudnn_us / 1000:.2f} in cuDNN's convolutions and {compiled_us / 1000:.2f} in compiled"


def convolution_rows() -> Iterator[str]:
    """Yield one row per convolution, with the times in PyTorch and in the package's kernel."""
    for shape, products in read_bench_metrics("conv-kernels").items():
        cells = [
            f"{products[p]['torch_us']:.1f} / {products[p]['kernel_us']:.1f}" if p in products else ""
            for p in ("forward", "input", "weight")
        ]
        channels, size = shape.split("@")
        yield format_row(f"{channels.replace('x', ' → ')}, {size} × {size}", *cells)


def cpu_step_sentences() -> Iterator[Passage]:
    """Yield how much LCR slows down training steps on a CPU."""

    def format_extra_time(variant: str) -> str:
        ratio = read_bench_metrics("retention-step-cpu")["ratio_to_without"][variant]
        return f"{ratio - 1:.0%}".replace("%", " %")

    block, stage = (format_extra_time(f"default, per {unit}") for unit in ("block", "stage"))
    block8, stage8 = (format_extra_time(f"Eq. 8, unit, per {unit}") for unit in ("block", "stage"))
    paper = format_extra_time("paper (Eq. 8, raw, per layer)")
    weights, teacher = (format_extra_time(f"default, {reference}") for reference in ("weights", "teacher"))
    yield README, f"{block} of a CPU training step of ResNet-20 per block and {stage} per stage"
    yield LOG, f"+{block} and +{block8}, per stage +{stage} and +{stage8}"
    yield LOG, f"`paper`, layer by layer, +{paper}"
    yield LOG, f"`weights` +{weights}, `teacher` +{teacher}"
    yield CLAIMS, f"+{block8} of a step per block, +{paper} per layer (Eq. 8)"
    yield CLAIMS, f"+{paper} layer by layer, +{block8} block by block"


def accuracy_of_the_first_runs() -> Iterator[Passage]:
    """Yield the accuracies of ResNet-20 with and without LCR."""
    yield from first_run_sentences()
    yield from first_pairs_sentences()
    yield from full_length_sentences()
    top1 = read_test_accuracy("cifar10-plain/none", 5)
    yield LOG, f"{join_values(top1)}: {format_mean_std(top1)}"
    yield README, f"{statistics.fmean(top1):.2f} % with one skip per block"
    yield from to_passages(LOG, diagnosis_rows())
    yield from to_passages(LOG, digits_rows())


def first_run_sentences() -> Iterator[Passage]:
    """Yield the figures of the first two runs without LCR."""
    folder = BENCH_RECORDS / "train" / "cifar10-resnet20-double-irnet"
    records = [read_cached_record(folder / f"seed-{seed}.json") for seed in (0, 1)]
    top1 = "{:.2f} and {:.2f}".format(*(record["test_results"][0]["top1"] for record in records))
    train_top1 = "{:.1f} and {:.1f} %".format(*(r["figures"]["last_epoch"]["train_top1"] for r in records))
    ratios = " ".join(f"{r:.2f}".removeprefix("0") for r in records[0]["figures"]["last_epoch"]["sigma_ratios"])
    yield LOG, f"IR-Net, λ = 0, 400 epochs: {top1} %"
    yield LOG, f"training accuracy at the end (with crop and flip) {train_top1}."
    yield LOG, f"in parallel, {records[0]['figures']['seconds']:.0f} s on an H200"
    yield LOG, f"without LCR, seed 0: {ratios}."
    yield CLAIMS, f"Two first runs (last epoch, bfloat16) reached {top1}"


def read_full_length(num_seeds: int) -> tuple[dict[str, list[float]], dict[str, str], str]:
    """Return test accuracies and mean |σ_B/σ_F − 1| of each variant with all epochs, and the gain from LCR."""
    variants = {name: f"cifar10-double/{name}" for name in ("none", "default")}
    top1 = {name: read_test_accuracy(variant, num_seeds) for name, variant in variants.items()}
    distances = {
        name: statistics.fmean(map(mean_ratio_distance, read_last_epoch(variant, "sigma_ratios", num_seeds)))
        for name, variant in variants.items()
    }
    shown_distances = {name: f"{distance:.3f}".removeprefix("0") for name, distance in distances.items()}
    return top1, shown_distances, replace_hyphens(compare_paired(top1["none"], top1["default"]))


def first_pairs_sentences() -> Iterator[Passage]:
    """Yield the figures of the first five pairs that were trained with all epochs."""
    top1, distances, gain = read_full_length(5)
    without, with_lcr = (statistics.fmean(values) for values in top1.values())
    yield LOG, f"λ = 0 has {without:.2f} %, `default` {with_lcr:.2f} %; the difference is {gain}"
    for variant, values in top1.items():
        yield LOG, f"| `{variant}` | {join_values(values)} | {statistics.fmean(values):.2f} "
    yield LOG, f"of the nine blocks is {distances['default']} against {distances['none']}"


def full_length_sentences() -> Iterator[Passage]:
    """Yield the figures of all eight pairs that were trained with all epochs."""
    top1, distances, gain = read_full_length(8)
    without, with_lcr = (statistics.fmean(values) for values in top1.values())
    yield README, f"with double skips has {without:.2f} % at the last epoch, mean of eight"
    yield README, f"mean |σ_B/σ_F − 1| is {distances['default']} instead of {distances['none']}"
    yield LOG, f"Eight paired seeds at full length: {without:.2f} and {with_lcr:.2f} %, {gain}"
    yield LOG, f"by seed {join_differences(top1['none'], top1['default'])}"
    yield LOG, f"{distances['default']} against {distances['none']} with eight"
    yield CLAIMS, f"double skips, eight pairs, {gain}, where 0.68"
    yield "lcrbnn/recipes/cifar10-resnet20-double-irnet.toml", f"Here: {without:.2f} % (last epoch"


def diagnosis_rows() -> Iterator[str]:
    """Yield one row per variant of the study that searched the cause of ResNet-20's low accuracy."""
    _, plan = read_toml(STUDIES / "cifar10-diagnosis.toml", "plan")
    for variant in plan["variants"]:
        cells = (read_last_epoch(f"cifar10-diagnosis/{variant}", c, 2) for c in ("valid_top1", "train_top1"))
        yield format_row(f"`{variant}`", *map(join_values, cells))


def digits_rows() -> Iterator[str]:
    """Yield one row per LCR variant on digits, with accuracies and ratios at three values of λ."""
    metrics = read_bench_metrics("digits-forms")
    for variant in dict.fromkeys(name.rsplit(", lambda", 1)[0] for name in metrics):
        cells = []
        for lcr_weight in ("0", "1", "8"):
            run = metrics[f"{variant}, lambda {lcr_weight}"]
            ratios = " ".join(f"{ratio:.2f}".removeprefix("0") for ratio in run["ratios"])
            cells.append(ratios if lcr_weight == "0" else f"{format_mean_std(run['accuracy'], 1)} {ratios}")
        yield f"| {variant} | {' | '.join(cells)} |"


def numerical_agreement() -> Iterator[Passage]:
    """Yield how compiled and eager steps agree, the error of power iteration, and the result of the killed runs."""
    for folder in ("", UNFUSED):
        yield from to_passages(LOG, gradient_error_rows(folder))
    yield from to_passages("docs/method.md", power_iteration_rows())
    kills = read_bench_metrics("kill/cpu")
    yield LOG, f"{len(kills['kills'])} kills, {kills['inside']} of them during a save"
    seconds = read_bench_metrics("corruptions-h200")["whole_s"]
    for document in (LOG, "docs/corruptions.md"):
        yield document, f"in {seconds:.0f} s on an H200"


def gradient_error_rows(folder: str) -> Iterator[str]:
    """Yield relative errors of gradients: as computed, with equal signs, and with the rounding of the eager step."""
    for model in ("resnet20", "resnet18"):
        for name in ("float32", "float32-latent", "bfloat16", "bfloat16-latent"):
            metrics = read_bench_metrics(f"{folder}twin-{model}-{name}")
            signs, rounded = metrics["signs"], metrics.get("error_rounded_as_eager")
            yield format_row(
                f"{model}, {name}",
                f"{metrics['error']['all']:.1e}",
                f"{signs['flipped']:,} of {signs['of']:,}",
                f"{signs['error_with_the_same_signs']['all']:.1e}",
                "" if rounded is None else f"{rounded['all']:.1e}",
            )


def power_iteration_rows() -> Iterator[str]:
    """Yield the error of power iteration after five steps, by network, matrix and start vector."""
    networks = {
        "ResNet-20, fresh, CIFAR-10": "resnet20-double, CIFAR-10, fresh",
        "the same after 150 steps": "resnet20-double, CIFAR-10, 150 steps",
        "ResNet-8, digits, trained": "resnet8-double, digits, 5 epochs",
    }
    metrics = read_bench_metrics("power-iteration")
    for title, network in networks.items():
        for matrix_title, matrix in (("Eq. 9, unit", "square unit"), ("Eq. 8, unit", "batch unit")):
            cells = []
            for start in ("random", "heaviest"):
                errors = metrics[network][f"{matrix}, {start} start, 5 steps"]
                cells += [f"{errors[e]['median']:.1%} / {errors[e]['largest']:.0%}" for e in ("binary", "ratio")]
            yield f"| {title} | {matrix_title} | {' | '.join(cells)} |".replace("%", " %")


PASSAGES = [training_speed, accuracy_of_the_first_runs, numerical_agreement]
