"""Sections of a report with one row per layer, about norms, sensitivity, map correlations and latent weights."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from lcrbnn.report.elements import Axis, CommandHint, Dot, DotChart, DotSeries, Element, Histogram, HistogramSeries
from lcrbnn.report.matched_records import (
    LAYERS,
    AnalysisResult,
    MapCorrelations,
    WeightDistribution,
    first_measurement,
    measurement_getter,
)
from lcrbnn.report.measures import (
    STAR_EXPLANATION,
    Measure,
    collect_names,
    hint_missing_measurements,
    make_comparison_table,
    make_mean_series,
)
from lcrbnn.report.run_groups import ReportRun, RunGroup

# Maximum number of layers with a drawn weight histogram, evenly spaced from the first to the last layer
MAX_HISTOGRAMS = 6
ANALYZE = "analyze"
IMAGE_PAIRS = "pairs"  # key next to the noise levels, for signs that differ between two different images
ANALYZE_COMMAND = "lcrbnn analyze RUN -o RECORDS"
LAYERS_COMMAND = "lcrbnn layers RUN -o FOLDER"


def _analysis_getter(get_value: Callable[[AnalysisResult], float | None]) -> Callable[[ReportRun], float | None]:
    return measurement_getter(ANALYZE, get_value)


def make_flips_measure(noise: str) -> Measure:
    """Return the measure of the fraction of flipped signs under this noise, averaged over layers.

    With the key of image pairs, it is the fraction that differs between two images.
    """

    def mean_flips(analysis: AnalysisResult) -> float | None:
        return statistics.fmean(analysis.sign_flips[noise].values()) if analysis.sign_flips.get(noise) else None

    title = "signs that differ between two images, %" if noise == IMAGE_PAIRS else f"sign flips under noise {noise}, %"
    return Measure(title, _analysis_getter(mean_flips))


def make_relative_flips_measure(noise: str) -> Measure:
    """Return the measure of flipped signs under noise, relative to the signs that differ between images.

    Signs that are the same for all images cannot flip, so they are in neither number.
    """

    def mean_relative_flips(analysis: AnalysisResult) -> float | None:
        pair_rates = analysis.sign_flips.get(IMAGE_PAIRS, {})
        relative_rates = [
            rate / pair_rates[name] for name, rate in analysis.sign_flips.get(noise, {}).items() if pair_rates.get(name)
        ]
        return statistics.fmean(relative_rates) if relative_rates else None

    return Measure(f"flips under noise {noise} / flips between images", _analysis_getter(mean_relative_flips), ".3f")


def build_lipschitz_section(groups: Sequence[RunGroup]) -> list[Element]:
    """Return the section with operator norms, Lipschitz bounds, sensitivity, sign flips and σ_B/σ_F ratios."""
    first_analysis: AnalysisResult | None = first_measurement(ANALYZE, groups)
    if first_analysis is None:
        return [CommandHint("Norms and sensitivity were not measured. This command measures them:", ANALYZE_COMMAND)]
    elements: list[Element] = [
        "The bound holds for the surrogate network, in which each sign is a hardtanh. The deployed network is not "
        "continuous and has no Lipschitz constant. Sensitivity is measured on the deployed network at the stated "
        "distances. " + STAR_EXPLANATION
    ]
    elements.append(_chart_norms(groups))
    unit = "σ_B / σ_F (Eq. 8, L2-normalized maps)"
    charts = [
        _chart_by_layer(
            groups,
            "Retention ratio by layer",
            RATIO_DESCRIPTION,
            Axis(unit),
            lambda analysis: analysis.sigma_ratios,
            reference_value=1.0,
        )
    ]
    charts.append(_chart_sensitivity(groups))
    for noise in [name for name in first_analysis.sign_flips if name != IMAGE_PAIRS][-1:]:
        axis = Axis("signs that flip, %", (0.0,))
        charts.append(
            _chart_by_layer(
                groups, f"Sign flips by layer, noise {noise}", FLIPS_DESCRIPTION, axis, _flips_getter(noise)
            )
        )
    elements += [chart for chart in charts if chart is not None]
    measures = [
        Measure("log10 of the surrogate's bound", _analysis_getter(lambda analysis: analysis.surrogate_bound_log10)),
        Measure("log10 of Eq. 5's product, lower end", _analysis_getter(lambda analysis: analysis.eq5_log10[0])),
        *(_make_sensitivity_measure(radius) for radius in first_analysis.sensitivity),
        *(make_flips_measure(noise) for noise in first_analysis.sign_flips),
        *(make_relative_flips_measure(noise) for noise in first_analysis.sign_flips if noise != IMAGE_PAIRS),
    ]
    if table := make_comparison_table("Continuity", groups, measures):
        elements.append(table)
    return elements + hint_missing_measurements(groups, ANALYZE, ANALYZE_COMMAND)


RATIO_DESCRIPTION = (
    "Spectral norm of the matrix of binary maps divided by that of real maps. A ratio of 1 means full retention. "
    "Means over seeds with 95 % intervals."
)
FLIPS_DESCRIPTION = (
    "Percentage of a layer's signs that flip when Gaussian noise of this standard deviation is added to the pixels. "
    "Means over seeds with 95 % intervals."
)


def _flips_getter(noise: str) -> Callable[[AnalysisResult], Mapping[str, float]]:
    return lambda analysis: analysis.sign_flips.get(noise, {})


def _make_sensitivity_measure(radius: str) -> Measure:
    get_sensitivity = _analysis_getter(lambda analysis: analysis.sensitivity.get(radius))
    return Measure(f"mean |Δf| / |Δx| at |Δx| = {radius}", get_sensitivity, ".3g")


def _chart_norms(groups: Sequence[RunGroup]) -> DotChart:
    """Return a chart of norm intervals, averaged over runs.

    An interval reaches from the power-iteration estimate to the upper bound.
    """
    get_norms = measurement_getter(ANALYZE, lambda analysis: analysis.norms)
    rows = tuple(collect_names(groups, lambda run: get_norms(run) or {}))
    series = []
    for index, group in enumerate(groups):
        norms = [
            layer_norms.norms
            for layer_norms in group.values_by_seed(measurement_getter(ANALYZE, lambda analysis: analysis)).values()
        ]
        dots = []
        for row in rows:
            intervals = [layer_norms[row] for layer_norms in norms if row in layer_norms]
            low, high = (statistics.fmean(ends) for ends in zip(*intervals, strict=True)) if intervals else (0.0, 0.0)
            dots.append(Dot(low, low, high) if intervals else None)
        series.append(DotSeries(group.name, index, tuple(dots)))
    description = (
        "Batch norm is folded in. Marker: lower bound by power iteration. Line: up to an upper bound. Means over seeds."
    )
    return DotChart(
        "Operator norm by layer", description, Axis("operator norm"), rows, "layer", tuple(series), is_log=True
    )


def _chart_sensitivity(groups: Sequence[RunGroup]) -> DotChart | None:
    def get_values(run: ReportRun) -> dict[str, float]:
        sensitivity = measurement_getter(ANALYZE, lambda analysis: analysis.relative_sensitivity)(run) or {}
        return {f"|Δx| = {radius}": v for radius, v in sensitivity.items()}

    rows = tuple(collect_names(groups, get_values))
    description = (
        "Change of the logits per random image step, relative to that between two different images. 95 % intervals."
    )
    axis = Axis("|Δf| / |Δx|, relative to image pairs")
    return (
        DotChart(
            "Sensitivity",
            description,
            axis,
            rows,
            "step",
            tuple(make_mean_series(groups, rows, get_values)),
            is_log=True,
        )
        if rows
        else None
    )


def _chart_by_layer(
    groups: Sequence[RunGroup],
    title: str,
    description: str,
    axis: Axis,
    get_by_layer: Callable[[AnalysisResult], Mapping[str, float]],
    *,
    reference_value: float | None = None,
) -> DotChart | None:
    def get_values(run: ReportRun) -> Mapping[str, float]:
        return measurement_getter(ANALYZE, get_by_layer)(run) or {}

    rows = tuple(collect_names(groups, get_values))
    return (
        DotChart(
            title,
            description,
            axis,
            rows,
            "layer",
            tuple(make_mean_series(groups, rows, get_values)),
            reference_value=reference_value,
        )
        if rows
        else None
    )


def _get_map_correlations(run: ReportRun) -> MapCorrelations:
    from_layers = measurement_getter(LAYERS, lambda layers: layers.map_correlations)(run)
    return from_layers or measurement_getter(ANALYZE, lambda analysis: analysis.map_correlations)(run) or {}


def _get_weights(run: ReportRun) -> dict[str, WeightDistribution]:
    return measurement_getter(LAYERS, lambda layers: layers.weights)(run) or {}


def build_similarity_section(groups: Sequence[RunGroup]) -> list[Element]:
    """Return the section with charts of the correlation between the feature maps of different images."""
    rows = tuple(collect_names(groups, _get_map_correlations))
    if not rows:
        return [CommandHint("Map correlations were not measured. This command measures them:", LAYERS_COMMAND)]
    elements: list[Element] = [
        "Mean absolute correlation between the flattened feature maps of two different images, at the input of each "
        "layer, for real maps and for their signs. Eq. 7 of the paper assumes that different images are uncorrelated."
    ]
    for kind, map_name in (("real", "real maps"), ("binary", "binary maps")):
        series = make_mean_series(groups, rows, _correlation_getter(kind))
        if any(dot for dot_series in series for dot in dot_series.dots):
            description = "Means over seeds with 95 % intervals. A value of 0 means uncorrelated images."
            axis = Axis("mean |correlation|", (0.0,))
            elements.append(
                DotChart(f"Correlation of {map_name}", description, axis, rows, "input of layer", tuple(series))
            )
    return elements


def _correlation_getter(kind: str) -> Callable[[ReportRun], dict[str, float]]:
    return lambda run: {
        name: correlations[kind] for name, correlations in _get_map_correlations(run).items() if kind in correlations
    }


def build_weights_section(groups: Sequence[RunGroup]) -> list[Element]:
    """Return the section with a chart of the latent weights' standard deviations and histograms of selected layers."""
    rows = tuple(collect_names(groups, _get_weights))
    if not rows:
        return [CommandHint("Latent weights were not measured. This command measures them:", LAYERS_COMMAND)]
    series = make_mean_series(
        groups, rows, lambda run: {name: weights.std for name, weights in _get_weights(run).items()}
    )
    description = "Standard deviation of the stored latent weights. Means over seeds with 95 % intervals."
    axis = Axis("standard deviation", (0.0,))
    elements: list[Element] = [DotChart("Spread of latent weights", description, axis, rows, "layer", tuple(series))]
    runs_by_group = {index: run for index, group in enumerate(groups) if (run := _find_run_with_histograms(group))}
    if not runs_by_group:
        hint = CommandHint("Weight histograms were not recorded. This command records them:", LAYERS_COMMAND)
        return [*elements, hint]
    names = [name for name in rows if all(name in _get_weights(run) for run in runs_by_group.values())]
    chosen = [names[round(i * (len(names) - 1) / (MAX_HISTOGRAMS - 1))] for i in range(MAX_HISTOGRAMS)] if names else []
    return [*elements, *(_chart_histogram(name, groups, runs_by_group) for name in dict.fromkeys(chosen))]


def _find_run_with_histograms(group: RunGroup) -> ReportRun | None:
    """Return the first run of a group that has histograms of its weights, or None."""
    return next(
        (run for run in group.runs.values() if any(weights.density for weights in _get_weights(run).values())), None
    )


def _chart_histogram(name: str, groups: Sequence[RunGroup], runs_by_group: Mapping[int, ReportRun]) -> Histogram:
    series = []
    for index, run in runs_by_group.items():
        weights = _get_weights(run)[name]
        series.append(
            HistogramSeries(
                f"{groups[index].name}, seed {run.spec.seed}", index, weights.low, weights.high, weights.density
            )
        )
    description = "Stored latent weights of one network per group."
    return Histogram(f"Weights of {name}", description, Axis("latent weight"), Axis("density"), tuple(series))
