"""Figures from records that the entries of paper/docs/LOG.md quote."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from lcrbnn.evaluation.paired_difference import compare_paired, detectable_difference
from lcrbnn.evaluation.student_t import student_t_quantile
from paper.figures import Passage
from paper.figures.record_values import (
    RESULTS,
    format_mean_std,
    join_differences,
    join_values,
    mean_ratio_distance,
    read_bench_metrics,
    read_last_epoch,
    read_metrics,
    read_noise_accuracy,
    read_runs,
    read_test_accuracy,
    replace_hyphens,
)

LOG = "paper/docs/LOG.md"
CLAIMS = "paper/docs/claims.md"


def literal_form_table() -> Iterator[Passage]:
    """Yield accuracy and gradient ratio of the variant `paper` at five values of λ, after 50 epochs."""
    yield LOG, f"without: {join_values(read_last_epoch('cifar10-late/none-bfloat16', 'valid_top1'))}"
    for variant in ("paper-1e-3", "paper-1e-2", "paper-1e-1"):
        name = f"cifar10-paper/{variant}"
        gradient_ratios = join_values(read_last_epoch(name, "lcr_gradient_ratio"), 4).replace("0.", ".")
        yield LOG, f"| `{variant}` | {join_values(read_last_epoch(name, 'valid_top1'))} | {gradient_ratios} |"
    means = [
        f"{statistics.fmean(read_last_epoch(f'cifar10-paper/paper-1e-{k}', 'valid_top1')):.1f}" for k in (5, 4, 3, 2, 1)
    ]
    yield CLAIMS, "{}, {}, {}, {} and {} for λ = .00001, .0001, .001, .01 and .1".format(*means)


def literal_form_small_lambda() -> Iterator[Passage]:
    """Yield the accuracies of the variant `paper` at small λ, and how one of its runs diverges."""
    pairs = {"without": ("cifar10-late/none-bfloat16", "cifar10-paper-plain/none")}
    for k in (5, 4, 3):
        pairs[f"`paper-1e-{k}`"] = (f"cifar10-paper/paper-1e-{k}", f"cifar10-paper-plain/paper-1e-{k}")
    for title, variants in pairs.items():
        yield LOG, f"| {title} | {' | '.join(join_values(read_last_epoch(v, 'valid_top1')) for v in variants)} |"
    history = {line["epoch"]: line for line in read_runs("cifar10-paper-plain/paper-1e-5")[2]["figures"]["history"]}
    yield LOG, f"from {history[15]['valid_top1']:.1f} % after epoch 15"
    yield LOG, f"the ratio of one layer is {max(history[15]['sigma_ratios']):.0f}"
    yield LOG, f"to {history[19]['valid_top1']:.1f} % after epoch 19"
    yield LOG, f"a mean loss of {history[31]['train_loss']:.0f} in epoch 31"


def default_form_lambdas() -> Iterator[Passage]:
    """Yield the results of the variant `default` at multiples of its λ (one seed), and the spread over eight seeds."""
    variants = {"0": "double/none", "¼": "lambda-default/times-quarter", "½": "lambda-default/times-half"}
    variants |= {"1": "double/default", "2": "lambda-default/times-2", "4": "lambda-default/times-4"}
    test_top1 = []
    for multiple, variant in variants.items():
        (run,) = read_runs(f"cifar10-{variant}", 1)
        line = run["figures"]["last_epoch"]
        test_top1.append(run["test_results"][0]["top1"])
        distance, gradient_ratio = mean_ratio_distance(line["sigma_ratios"]), line["lcr_gradient_ratio"]
        row = f"| {multiple} | {test_top1[-1]:.2f} | {line['train_top1']:.2f} | {distance:.3f} |".replace("| 0.", "| .")
        row += f" {gradient_ratio:.3f} | {line['lcr_weight']:.0f} |".replace(" 0.", " .") if gradient_ratio else " | |"
        yield LOG, f"{row}\n"
    yield CLAIMS, f"one seed: {join_values(test_top1[:-1]).replace(' ', ', ')} and {test_top1[-1]}."
    without, with_lcr = (read_test_accuracy(f"cifar10-double/{variant}", 8) for variant in ("none", "default"))
    yield LOG, f"({max(with_lcr)}, the mean is {statistics.fmean(with_lcr):.2f})"
    differences = [b - a for a, b in zip(without, with_lcr, strict=True)]
    yield LOG, f"single pairs differ by {statistics.stdev(differences):.1f} (standard deviation)"


def literal_form_400_epochs() -> Iterator[Passage]:
    """Yield the results of the variant `paper` at λ = .00001 after 400 epochs, with eight seeds."""
    top1 = {variant: read_test_accuracy(f"cifar10-double/{variant}", 8) for variant in ("none", "paper", "default")}
    means = {variant: format_mean_std(values) for variant, values in top1.items()}
    gain = replace_hyphens(compare_paired(top1["none"], top1["paper"]))
    yield LOG, f"eight seeds at full length: {means['paper'][:5]} %, {gain}\n"
    differences = join_differences(top1["none"], top1["paper"])
    yield (
        LOG,
        f"{join_values(top1['paper'])}, mean {means['paper']}, without {means['none']}; the gain by seed {differences}",
    )
    ratios = read_last_epoch("cifar10-double/paper", "sigma_ratios", 8)
    distances = [mean_ratio_distance(run) for run in ratios]
    gradient_ratios = read_last_epoch("cifar10-double/paper", "lcr_gradient_ratio", 8)
    yield LOG, f"is {min(distances):.1f} to {max(distances):.1f} in the end"
    yield LOG, f"{min(gradient_ratios):.5f} to {max(gradient_ratios):.5f}".replace("0.", ".")
    difference = replace_hyphens(compare_paired(top1["paper"], top1["default"]))
    yield LOG, f"`default` against `paper`, eight pairs: {difference}"
    yield (
        LOG,
        f"the ratio of one layer is at {ratios[2][2]:.2f}, the next at {ratios[2][3]:.0f}".replace("at 0.", "at ."),
    )


def full_precision() -> Iterator[Passage]:
    """Yield the accuracy of ResNet-20 in full precision, and how much accuracy binarization loses."""
    top1 = read_test_accuracy("cifar10-real/none")
    mean = statistics.fmean(top1)
    yield LOG, f"{join_values(top1)}, mean {format_mean_std(top1)}"
    losses = [
        mean - statistics.fmean(read_test_accuracy(f"cifar10-{network}/none", num_seeds))
        for network, num_seeds in (("double", 8), ("plain", 5))
    ]
    yield LOG, "cost {:.1f} points here with double skips and {:.1f} with one skip".format(*losses)


def large_weight_decay() -> Iterator[Passage]:
    """Yield the results with a weight decay of 5e-4."""
    without, with_lcr = (f"cifar10-curves/{variant}" for variant in ("decay-5e-4", "default-decay-5e-4"))
    for name in (without, with_lcr):
        columns = (
            read_last_epoch(name, "valid_top1"),
            read_last_epoch(name, "train_top1"),
            read_noise_accuracy(name),
        )
        yield LOG, f"| `{name.partition('/')[2]}` | {' | '.join(map(join_values, columns))} |"
    clean = compare_paired(*(read_last_epoch(name, "valid_top1") for name in (without, with_lcr)))
    noisy = compare_paired(*(read_noise_accuracy(name) for name in (without, with_lcr)))
    yield LOG, replace_hyphens(f"LCR: {clean} on clean images. Under noise {noisy}")
    large_decay = statistics.fmean(read_last_epoch(without, "train_top1"))
    small_decay = statistics.fmean(read_last_epoch("cifar10-double/none", "train_top1", 5))
    yield LOG, f"training accuracy {large_decay:.1f} %, with a decay of 1e-4 {small_decay:.1f} %"


def one_skip_with_lcr() -> Iterator[Passage]:
    """Yield the results with LCR of the network that has one skip connection per block."""
    without, with_lcr = (read_test_accuracy(f"cifar10-plain/{variant}", 5) for variant in ("none", "default"))
    gain = replace_hyphens(compare_paired(without, with_lcr))
    yield LOG, f"{join_values(with_lcr)}, mean {format_mean_std(with_lcr)}, without {format_mean_std(without)}"
    yield LOG, f"400 epochs: {statistics.fmean(with_lcr):.2f} %, {gain}\n"
    distances = [
        statistics.fmean(map(mean_ratio_distance, read_last_epoch(f"cifar10-plain/{variant}", "sigma_ratios", 5)))
        for variant in ("default", "none")
    ]
    yield LOG, "mean |σ_B/σ_F − 1| is {:.3f} instead of {:.3f}".format(*distances).replace("0.", ".")


def runs_in_one_graph() -> Iterator[Passage]:
    """Yield the speed of five runs if their steps are captured in one CUDA graph."""
    five, team = (read_bench_metrics(f"team/gpu-steps-resnet20-{name}") for name in ("five", "team"))
    rates = [metrics["images_per_second"] / 1000 for metrics in (five, team)]
    yield LOG, "separately {:.1f} k images per second, in one graph {:.1f} k".format(*rates)
    yield LOG, f"after {team['first_step_cold_s']:.0f} instead of {five['first_step_cold_s']:.0f} s"
    step_us = [1000 * metrics["ms_per_step"] for metrics in (team, five)]
    yield LOG, "A step takes {:,.0f} µs per run instead of {:.0f}".format(*step_us)
    kernels = team["kernels"]
    convolution_us = sum(kernels["top"][name][0] for name in ("_convolve", "_correlate"))
    yield LOG, f"{kernels['count']} kernels per run and step instead of {five['kernels']['count']}"
    yield LOG, f"they take {kernels['us']:.0f} µs per run: {convolution_us} are the package's convolutions"


def compiled_against_eager() -> Iterator[Passage]:
    """Yield the accuracy after training with compiled steps, compared with eager steps."""
    valid_top1 = read_bench_metrics("twin-means-h200")["valid"]
    yield LOG, replace_hyphens(f"compiled {compare_paired(valid_top1['eager'], valid_top1['fast'])} against eager")


def loader() -> Iterator[Passage]:
    """Yield the speed of the data loader, and the ratio of predicted to measured speed of several GPUs."""
    metrics = read_bench_metrics("loader-cpu")
    small, large = metrics["500x375"], metrics["2000x1500"]
    rates = small["images_per_core_second"]
    yield LOG, f"{rates['pillow']:.0f} images per core and second, the loader {rates['loader']:.0f}"
    yield LOG, f"{small['ratio']:.2f} times as many (target 1.5), and {small['ratio_pixels']:.2f} against a loop"
    large_ratios = f"{large['ratio']:.2f} and {large['ratio_evaluation']:.2f}"
    yield LOG, f"Evaluation squares: {small['ratio_evaluation']:.2f}. At 2000 x 1500 pixels: {large_ratios}"
    scaling = read_bench_metrics("scaling-cpu")["predicted_over_measured"]
    steps = [scaling[name] for name in ("resnet20-double", "resnet18", "resnet20-double, shared norms")]
    yield (
        "docs/scaling.md",
        "{:.2f} (ResNet-20), {:.2f} (ResNet-18) and {:.2f} times (ResNet-20, shared norms)".format(*steps),
    )
    messages = [scaling["messages"][str(1 << k)] for k in (17, 20, 22, 26)]
    yield "docs/scaling.md", f"{min(messages):.2f} to {max(messages):.2f} times the duration of the other messages"


def list_literal_runs() -> dict[str, str]:
    """Return the runs of the variant `paper` with 400 epochs, as pairs of a row title and a run."""
    lambdas = {"½": "half", "1": "1", "2": "2", "4": "4", "8": "8"}
    runs = {f"λ = {sign}": f"cifar10-lambda-paper/lambda-{name}/seed-0" for sign, name in lambdas.items()}
    return runs | {f"one skip, λ = .00001, seed {seed}": f"cifar10-plain/paper/seed-{seed}" for seed in range(5)}


def format_range(values: Sequence[float]) -> str:
    """Return the smallest and the largest value as text."""
    return f"{min(values):.2f} {max(values):.2f}".removeprefix("0")


def index_of_largest(values: Sequence[float]) -> int:
    """Return the index of the largest value."""
    return max(range(len(values)), key=values.__getitem__)


def literal_form_first_logs() -> Iterator[Passage]:
    """Yield training accuracy and ratios of the first runs of the variant `paper`."""
    logs = read_metrics(RESULTS / "logs-paper-first.json")
    for title, run in list_literal_runs().items():
        train_top1 = logs[run]["train"][:391]
        best = index_of_largest(train_top1)
        cells = f"{train_top1[390]:.2f} | {train_top1[best]:.2f} in epoch {best + 1}"
        yield LOG, f"| {title} | {cells} | {format_range(logs[run]['ratios'])} |"


def literal_form_logs() -> Iterator[Passage]:
    """Yield accuracy, L_Lip and ratios of the second set of runs of the variant `paper`."""
    logs = read_metrics(RESULTS / "logs-paper.json")
    for title, run in list_literal_runs().items():
        record = read_runs(run.rpartition("/")[0], int(run[-1]) + 1)[-1]
        train_top1, lcr_loss = logs[run]["train"], logs[run]["lip"]
        best, worst = index_of_largest(train_top1), index_of_largest(lcr_loss)
        test_top1, ratios = record["test_results"][0]["top1"], record["figures"]["last_epoch"]["sigma_ratios"]
        cells = f"{test_top1:.2f} | {train_top1[-1]:.2f} | {train_top1[best]:.2f} in epoch {best + 1}"
        yield LOG, f"| {title} | {cells} | {lcr_loss[worst]:.3g} in epoch {worst + 1} | {format_range(ratios)} |"
    top1 = read_test_accuracy("cifar10-plain/paper", 5)
    yield LOG, f"{statistics.fmean(top1):.2f} % ({statistics.stdev(top1):.2f}) with one skip per block"


def noncentral_t() -> Iterator[Passage]:
    """Yield how much larger the detectable difference is than the usual approximation by a sum of two quantiles."""
    excess = [
        detectable_difference(n - 1) / (student_t_quantile(0.975, n - 1) + student_t_quantile(0.8, n - 1)) - 1
        for n in (2, 3, 8)
    ]
    yield LOG, "{:.0%} and {:.0%} larger, {:.1%} with eight pairs".format(*excess).replace("%", " %")


def kernel_launches() -> Iterator[Passage]:
    """Yield kernel launches and memory traffic of each version of the training step."""
    metrics = read_bench_metrics("launches")
    cases = {"ResNet-20": "resnet20", "ResNet-20, `latent`": "resnet20-latent", "ResNet-18": "resnet18"}
    for title, case in cases.items():
        cells = [f"{row['launches']}, {row['megabytes']:.0f} MB" for row in metrics[case].values()]
        yield LOG, f"| {title} | {' | '.join(cells)} |"


def bytes_of_hardtanh() -> Iterator[Passage]:
    """Yield the memory traffic of a step without and with the memory-efficient hardtanh."""
    metrics = read_bench_metrics("launches-clips")
    for case, rows in metrics.items():
        title = case.replace("resnet", "ResNet-").replace("-256", ", 256 images").replace("-latent", ", `latent`")
        before, after = (rows[version]["megabytes"] for version in ("unclipped", "lean"))
        yield LOG, f"| {title} | {before:.0f} | {after:.0f} |"
    after_row = metrics["resnet18-256-latent"]["lean"]
    yield LOG, f"{after_row['launches']} and {after_row['megabytes']:.0f} now"


def engine_in_a_page() -> Iterator[Passage]:
    """Yield the ratio of the WebAssembly engine's speed to that of onnxruntime-web."""
    metrics = read_bench_metrics("page")
    large, small = metrics["resnet18"], metrics["resnet20"]
    ratios = [large[f"onnxruntime-web{kind}"]["ratio"] for kind in (" int8", " int8, 2 threads", "")]
    yield LOG, f"{large['lcrbnn']['median']:.1f} ms, one thread"
    yield LOG, "8 bits {:.2f} times that, {:.2f} with two threads; float {:.2f} times".format(*ratios)
    ratios = [small[f"onnxruntime-web{kind}"]["ratio"] for kind in (" int8", "")]
    yield LOG, "ResNet-20: {:.2f} ms, {:.2f} and {:.2f} times".format(small["lcrbnn"]["median"], *ratios)


def real_activations() -> Iterator[Passage]:
    """Yield the results of networks with binary weights and real activations."""
    for title, variant in (("without", "none"), ("`default`", "default"), ("`paper`, λ = .00001", "paper")):
        name = f"cifar10-weights/{variant}"
        top1 = read_test_accuracy(name)
        ratios = [ratio for run in read_last_epoch(name, "sigma_ratios") for ratio in run]
        ratio_range = f"{min(ratios):.2f} {max(ratios):.2f}".replace("0.", ".")
        train_top1 = join_values(read_last_epoch(name, "train_top1"))
        yield LOG, f"| {title} | {join_values(top1)} | {format_mean_std(top1)} | {train_top1} | {ratio_range} |"


def literal_form_real_activations() -> Iterator[Passage]:
    """Yield how the runs of the variant `paper` with real activations diverge."""
    metrics = read_metrics(RESULTS / "logs-weights.json")
    logs = [metrics[f"cifar10-weights/paper/seed-{seed}"] for seed in range(3)]
    first_large = [next(i for i, loss in enumerate(log["lip"]) if loss > 1000) for log in logs]
    losses = [log["lip"][i] for log, i in zip(logs, first_large, strict=True)]
    epochs = [i + 1 for i in first_large]
    yield LOG, "L_Lip of {:.0f}, {:.0f} and {:.0f} in epochs {}, {} and {}, up to ".format(*losses, *epochs)
    yield LOG, f"up to {max(max(log['lip']) for log in logs):.0f} later"
    yield LOG, f"training accuracy {logs[0]['train'][349]:.2f} % in epoch 350"
    without, with_lcr = (read_test_accuracy(f"cifar10-weights/{variant}") for variant in ("none", "default"))
    differences = [b - a for a, b in zip(without, with_lcr, strict=True)]
    yield LOG, f"The three differences, {replace_hyphens(join_values(differences))}, are close"


def fused_steps() -> Iterator[Passage]:
    """Yield the speed of fused steps, for a single run and for several parallel runs."""
    for case, shows_time_ratio in (
        ("resnet20-five", False),
        ("resnet20-five-latent", False),
        ("resnet18-three", False),
        ("resnet20-five-lean", True),
        ("resnet20-five-latent-lean", True),
        ("resnet18-three-lean", True),
    ):
        yield LOG, _format_speed(case) + (f" {_read_steps(case)['time_ratio']:.3f} |" if shows_time_ratio else " |")
    yield LOG, f"{_format_speed('resnet20')} | |"
    for variant in ("latent", "paper", "paper-blocks"):
        metrics = _read_steps(f"resnet20-{variant}")
        ratios = f" {metrics['time_ratio']:.3f} | {metrics['memory_ratio']:.2f} |"
        yield LOG, _format_speed(f"resnet20-{variant}") + ratios
    without, with_lcr = (_read_steps(f"resnet20-five{lcr}-lean")["ms_per_step"] for lcr in ("", "-latent"))
    yield LOG, f"{100 * (with_lcr / without - 1):.1f} % with five parallel runs"


def _read_steps(case: str) -> dict[str, float]:
    return read_bench_metrics(f"gpu-steps-{case}")


def _format_speed(case: str) -> str:
    metrics = _read_steps(case)
    return f"| {metrics['images_per_second'] / 1000:.1f} k | {metrics['ms_per_step']:.3f} |"


PASSAGES = [
    compiled_against_eager,
    literal_form_table,
    literal_form_small_lambda,
    default_form_lambdas,
    literal_form_400_epochs,
    full_precision,
    large_weight_decay,
    one_skip_with_lcr,
    runs_in_one_graph,
    loader,
    literal_form_first_logs,
    literal_form_logs,
    noncentral_t,
    kernel_launches,
    bytes_of_hardtanh,
    engine_in_a_page,
    real_activations,
    literal_form_real_activations,
    fused_steps,
]
