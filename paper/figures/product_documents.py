"""Figures that the product's documents quote about data loading, scaling, engine, zoo, corruptions and regularizers."""

from __future__ import annotations

from collections.abc import Iterator

from bench.deploy.engine_tables import RECORDS as ENGINE_RECORDS
from bench.deploy.engine_tables import render_generated_block as render_engine_tables
from bench.distributed.scaling import render_tables as render_scaling_tables
from lcrbnn.evaluation.corruptions.corruption_registry import CORRUPTIONS
from lcrbnn.zoo.zoo_index import list_members
from paper.figures import Passage
from paper.figures.record_values import (
    BENCH_RECORDS,
    RESULTS,
    ROOT,
    read_bench_metrics,
    read_cached_record,
    read_metrics,
)


def data_loading() -> Iterator[Passage]:
    """Yield the training speed with images from files, and the speed of the data loader on a CPU."""
    for augmentation in ("zoom-flip", "resized-crop"):
        figures = read_bench_metrics(f"data-wait-{augmentation}")
        for name, row in figures.items():
            if name != "goal":
                fraction = "1" if name == "noise" else f"{row['of_noise']:.3f}"
                title = "noise on the device" if name == "noise" else name
                yield "docs/data.md", f"| {title} |…| {row['images_per_second']:,.0f} | {fraction} |"
    streamed = read_cached_record(BENCH_RECORDS / "data-wait-resized-crop.json")
    rate = streamed["figures"]["streamed"]["images_per_second"] / streamed["settings"]["workers"]
    yield "docs/data.md", f"{round(rate, -2):,.0f} images per process and second"
    loader = read_bench_metrics("loader-cpu")["500x375"]
    ratios = [f"{loader[name]:.2f} times" for name in ("ratio", "ratio_pixels")]
    yield (
        "docs/data.md",
        "{} the rate of a Pillow loop that also normalises with NumPy, and {} the rate of one".format(*ratios),
    )
    core_rate = loader["images_per_core_second"]["loader"]
    yield "docs/scaling.md", f"16 cores give {round(16 * core_rate, -2):,.0f}"


def scaling() -> Iterator[Passage]:
    """Yield the rows of the scaling tables."""
    for line in render_scaling_tables().splitlines():
        if line.startswith("|"):
            yield "docs/scaling.md", line


def engine() -> Iterator[Passage]:
    """Yield the rows of the speed tables of the engine."""
    if all(path.exists() for path in ENGINE_RECORDS.values()):
        for line in render_engine_tables().splitlines():
            if line.startswith("|"):
                yield "docs/engine.md", line


def zoo() -> Iterator[Passage]:
    """Yield one row per network of the zoo."""
    for member in list_members().values():
        record = read_cached_record(ROOT / member.record)
        trained = record["figures"]["as_trained"]
        accuracy = "not read" if trained is None else f"{trained['top1']:.2f} % ({record['settings']['precision']})"
        mean = "–" if member.mean_top1 is None else f"{member.mean_top1:.2f} % ({member.runs} runs)"
        yield (
            "docs/zoo.md",
            f"| `{member.name}` | {member.seed} | {accuracy} | {member.top1:.2f} % | {mean} | {member.bytes:,} |",
        )


def parity_of_corruptions() -> Iterator[Passage]:
    """Yield one row per corruption, with the number of values that differ from the published generators."""
    figures = read_metrics(RESULTS / "corrupt" / "parity.json")
    for name in CORRUPTIONS:
        cells = [
            f"{row['differ']} of {row['values']:,}" for row in (figures[side][name] for side in ("32", "64", "224"))
        ]
        yield "docs/corruptions.md", f"| {name} |…| {' | '.join(cells)} |"


def exact_norm() -> Iterator[Passage]:
    """Yield how long an exact spectral norm takes on a GPU."""
    times = read_bench_metrics("exact-norm-h200")
    step = read_bench_metrics("gpu-steps-resnet20")["ms_per_step"]
    svd, power = (1000 * times[f"{name}_seconds"] for name in ("svd", "power"))
    yield "paper/docs/claims.md", f"{svd:.0f} ms on an H200, five steps of power iteration {power:.1f}"
    yield "paper/docs/claims.md", f"a compiled step takes {step:.1f} ms without LCR"
    yield "paper/docs/LOG.md", f"takes {svd:.1f} ms where five steps of power iteration take {power:.1f}"


def regularizers() -> Iterator[Passage]:
    """Yield how much each regularizer slows down a training step on a GPU."""
    figures = read_bench_metrics("regularizers-h200")
    lcr, before, after, loss = (f"{row['ratio']:.2f}" for name, row in figures.items() if name != "none")
    yield "paper/docs/claims.md", f"{lcr}, {before}, {after} and {loss} times"
    yield (
        "paper/docs/LOG.md",
        f"LCR takes {lcr} times the step without, spectral normalisation {before} (before the sign) and {after} "
        f"(after it), defensive quantisation {loss}",
    )


PASSAGES = [data_loading, scaling, engine, zoo, parity_of_corruptions, exact_norm, regularizers]
