"""Networks layer by layer: operator norms, sensitivity, retention, likeness of maps, latent weights."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from lcrbnn.report.charts import Axis, Dot, Dots, DotSeries, Hint, Histogram, Part, Steps
from lcrbnn.report.compare import STARRED, Measure, by_name, comparison, incomplete, names_in
from lcrbnn.report.groups import Group, Run
from lcrbnn.report.records import LAYERS, Analysis, Likeness, Weights, first_of, of_run

HISTOGRAMS = 6  # layers whose weights are shown, from the first to the last


ANALYZE = "analyze"
PAIRS = "pairs"  # beside the deviations of the noise: signs that differ between two images
MEASURE = "lcrbnn analyze RUN -o RECORDS"


def _analysed(pick: Callable[[Analysis], float | None]) -> Callable[[Run], float | None]:
    return of_run(ANALYZE, pick)


def flips_measure(noise: str) -> Measure:
    """Signs that turn over, the mean over layers."""

    def pick(found: Analysis) -> float | None:
        return statistics.fmean(found.flips[noise].values()) if found.flips.get(noise) else None

    title = "signs that differ between two images, %" if noise == PAIRS else f"sign flips under noise {noise}, %"
    return Measure(title, _analysed(pick))


def relative_flips_measure(noise: str) -> Measure:
    """The same over the signs that differ between two images: signs that never change cannot flip either."""

    def pick(found: Analysis) -> float | None:
        pairs = found.flips.get(PAIRS, {})
        shares = [rate / pairs[name] for name, rate in found.flips.get(noise, {}).items() if pairs.get(name)]
        return statistics.fmean(shares) if shares else None

    return Measure(f"flips under noise {noise} / flips between images", _analysed(pick), ".3f")


def lipschitz(groups: Sequence[Group]) -> list[Part]:
    """Norms of layers, products, sensitivity, sign flips, ratios."""
    some: Analysis | None = first_of(ANALYZE, groups)
    if some is None:
        return [Hint("Norms and sensitivity were not measured. This measures them:", MEASURE)]
    parts: list[Part] = [
        "The bound is of the surrogate network, whose signs are hardtanhs: the deployed network jumps and has no "
        "Lipschitz constant. Sensitivity is measured on the deployed network, at stated distances. " + STARRED
    ]
    parts.append(_norms(groups))
    unit = "σ_B / σ_F (Eq. 8, unit maps)"
    charts = [_layered(groups, "Retention ratio by layer", RATIO, Axis(unit), lambda found: found.ratios, mark=1.0)]
    charts.append(_sensitivity(groups))
    for noise in [name for name in some.flips if name != PAIRS][-1:]:
        axis = Axis("signs that flip, %", (0.0,))
        charts.append(_layered(groups, f"Sign flips by layer, noise {noise}", FLIPS, axis, _flips(noise)))
    parts += [chart for chart in charts if chart is not None]
    measures = [
        Measure("log10 of the surrogate's bound", _analysed(lambda f: f.surrogate_log10)),
        Measure("log10 of Eq. 5's product, lower end", _analysed(lambda f: f.eq5_log10[0])),
        *(_sensitivity_measure(radius) for radius in some.sensitivity),
        *(flips_measure(noise) for noise in some.flips),
        *(relative_flips_measure(noise) for noise in some.flips if noise != PAIRS),
    ]
    if table := comparison("Continuity", groups, measures):
        parts.append(table)
    return parts + incomplete(groups, ANALYZE, MEASURE)


RATIO = "Spectral norm of the binary maps' matrix over the real ones'; means over seeds, 95 % intervals; 1 is retained."
FLIPS = "Share of a layer's signs that turn over when pixels get noise of this deviation; 95 % intervals over seeds."


def _flips(noise: str) -> Callable[[Analysis], Mapping[str, float]]:
    return lambda found: found.flips.get(noise, {})


def _sensitivity_measure(radius: str) -> Measure:
    return Measure(f"mean |Δf| / |Δx| at |Δx| = {radius}", _analysed(lambda f: f.sensitivity.get(radius)), ".3g")


def _norms(groups: Sequence[Group]) -> Dots:
    """From the lower end of power iteration to the upper bound, each the mean over runs."""
    rows = tuple(names_in(groups, lambda run: of_run(ANALYZE, lambda found: found.norms)(run) or {}))
    series = []
    for place, group in enumerate(groups):
        found = [one.norms for one in group.values(of_run(ANALYZE, lambda found: found)).values()]
        dots = []
        for row in rows:
            ends = [one[row] for one in found if row in one]
            low, high = (statistics.fmean(end) for end in zip(*ends, strict=True)) if ends else (0.0, 0.0)
            dots.append(Dot(low, low, high) if ends else None)
        series.append(DotSeries(group.name, place, tuple(dots)))
    about = "Batch norm folded in; from what power iteration reaches (mark) to an upper bound (line). Means over seeds."
    return Dots("Operator norm by layer", about, Axis("operator norm"), rows, "layer", tuple(series), log=True)


def _sensitivity(groups: Sequence[Group]) -> Dots | None:
    def pick(run: Run) -> dict[str, float]:
        found = of_run(ANALYZE, lambda seen: seen.over_pairs)(run) or {}
        return {f"|Δx| = {radius}": v for radius, v in found.items()}

    rows = tuple(names_in(groups, pick))
    about = "How far logits move for a random step of an image, over the same for two different images; 95 % intervals."
    axis = Axis("|Δf| / |Δx|, over that of image pairs")
    return (
        Dots("Sensitivity", about, axis, rows, "step", tuple(by_name(groups, rows, pick)), log=True) if rows else None
    )


def _layered(
    groups: Sequence[Group],
    title: str,
    about: str,
    axis: Axis,
    pick: Callable[[Analysis], Mapping[str, float]],
    *,
    mark: float | None = None,
) -> Dots | None:
    def of(run: Run) -> Mapping[str, float]:
        return of_run(ANALYZE, pick)(run) or {}

    rows = tuple(names_in(groups, of))
    return Dots(title, about, axis, rows, "layer", tuple(by_name(groups, rows, of)), mark=mark) if rows else None


# -- maps and weights --------------------------------------------------------------------------------------------


def _maps(run: Run) -> Likeness:
    found = of_run(LAYERS, lambda seen: seen.maps)(run) or of_run(ANALYZE, lambda seen: seen.likeness)(run)
    return found or {}


def _weights(run: Run) -> dict[str, Weights]:
    return of_run(LAYERS, lambda seen: seen.weights)(run) or {}


def likeness(groups: Sequence[Group]) -> list[Part]:
    """How alike the maps of different images are."""
    rows = tuple(names_in(groups, _maps))
    if not rows:
        return [Hint("The likeness of maps was not measured. This measures it:", "lcrbnn layers RUN -o FOLDER")]
    parts: list[Part] = [
        "Mean absolute correlation between the flattened maps of two different images, at the input of each layer: of "
        "the real maps and of their signs. Eq. 7 of the paper assumes that different images have nothing in common."
    ]
    for kind, what in (("real", "real maps"), ("binary", "maps as binarised")):
        series = by_name(groups, rows, _alike(kind))
        if any(dot for one in series for dot in one.dots):
            about = "Means over seeds and their 95 % intervals; 0 would be independent images."
            axis = Axis("mean |correlation|", (0.0,))
            parts.append(Dots(f"Correlation of {what}", about, axis, rows, "input of layer", tuple(series)))
    return parts


def _alike(kind: str) -> Callable[[Run], dict[str, float]]:
    return lambda run: {name: one[kind] for name, one in _maps(run).items() if kind in one}


def weights(groups: Sequence[Group]) -> list[Part]:
    """How wide latent weights are spread, and their histograms."""
    rows = tuple(names_in(groups, _weights))
    if not rows:
        return [Hint("Latent weights were not looked at. This looks at them:", "lcrbnn layers RUN -o FOLDER")]
    series = by_name(groups, rows, lambda run: {name: one.std for name, one in _weights(run).items()})
    about = "Standard deviation of the latent weights as they are stored; means over seeds and 95 % intervals."
    axis = Axis("standard deviation", (0.0,))
    parts: list[Part] = [Dots("Spread of latent weights", about, axis, rows, "layer", tuple(series))]
    shown = {place: run for place, group in enumerate(groups) if (run := _with_histograms(group))}
    if not shown:
        return [*parts, Hint("There are no histograms of the weights. This makes them:", "lcrbnn layers RUN -o FOLDER")]
    names = [name for name in rows if all(name in _weights(run) for run in shown.values())]
    chosen = [names[round(i * (len(names) - 1) / (HISTOGRAMS - 1))] for i in range(HISTOGRAMS)] if names else []
    return [*parts, *(_histogram(name, groups, shown) for name in dict.fromkeys(chosen))]


def _with_histograms(group: Group) -> Run | None:
    """The first run of a group whose weights have histograms."""
    return next((run for run in group.runs.values() if any(one.density for one in _weights(run).values())), None)


def _histogram(name: str, groups: Sequence[Group], shown: Mapping[int, Run]) -> Histogram:
    series = []
    for place, run in shown.items():
        one = _weights(run)[name]
        series.append(Steps(f"{groups[place].name}, seed {run.spec.seed}", place, one.low, one.high, one.density))
    about = "Latent weights of one network a group, as they are stored."
    return Histogram(f"Weights of {name}", about, Axis("latent weight"), Axis("density"), tuple(series))
