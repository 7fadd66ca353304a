"""Sections of a report with one row per layer, about norms, sensitivity, map correlations and latent weights."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from lcrbnn.lcr.sigma_ratios import NOT_AVAILABLE
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
    NamedValuesGetter,
    collect_names,
    hint_missing_measurements,
    make_comparison_table,
    make_mean_chart,
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


def _find_eq5_lower_end(analysis: AnalysisResult) -> float | None:
    return None if analysis.eq5_log10 is None else analysis.eq5_log10[0]


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
    if first_analysis.norms:  # not known for the modules of every network
        elements.append(_chart_norms(groups))
    elements += make_mean_chart(
        groups,
        "Retention ratio by layer",
        RATIO_DESCRIPTION + _explain_missing_ratios(groups),
        Axis("σ_B / σ_F (Eq. 8, L2-normalized maps)"),
        "layer",
        _named_values_getter(
            lambda analysis: {name: r for name, r in analysis.sigma_ratios.items() if not math.isnan(r)}
        ),
        reference_value=1.0,
    )
    elements += make_mean_chart(
        groups,
        "Sensitivity",
        SENSITIVITY_DESCRIPTION,
        Axis("|Δf| / |Δx|, relative to image pairs"),
        "step",
        _named_values_getter(
            lambda analysis: {f"|Δx| = {radius}": v for radius, v in analysis.relative_sensitivity.items()}
        ),
        is_log=True,
    )
    for noise in [name for name in first_analysis.sign_flips if name != IMAGE_PAIRS][-1:]:
        title, axis = f"Sign flips by layer, noise {noise}", Axis("signs that flip, %", (0.0,))
        elements += make_mean_chart(groups, title, FLIPS_DESCRIPTION, axis, "layer", _flips_getter(noise))
    measures = [
        Measure("log10 of the surrogate's bound", _analysis_getter(lambda analysis: analysis.surrogate_bound_log10)),
        Measure("log10 of Eq. 5's product, lower end", _analysis_getter(_find_eq5_lower_end)),
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
SENSITIVITY_DESCRIPTION = (
    "Change of the logits per random image step, relative to that between two different images. 95 % intervals."
)
FLIPS_DESCRIPTION = (
    "Percentage of a layer's signs that flip when Gaussian noise of this standard deviation is added to the pixels. "
    "Means over seeds with 95 % intervals."
)


def _explain_missing_ratios(groups: Sequence[RunGroup]) -> str:
    get_ratios = measurement_getter(ANALYZE, lambda analysis: analysis.sigma_ratios)
    ratios_by_run = [get_ratios(run) or {} for group in groups for run in group.runs.values()]
    names = dict.fromkeys(name for ratios in ratios_by_run for name, ratio in ratios.items() if math.isnan(ratio))
    return f" {NOT_AVAILABLE} (only one sign): {', '.join(names)}." if names else ""


def _named_values_getter(get_values: Callable[[AnalysisResult], Mapping[str, float]]) -> NamedValuesGetter:
    get_measurement = measurement_getter(ANALYZE, get_values)
    return lambda run: get_measurement(run) or {}


def _flips_getter(noise: str) -> NamedValuesGetter:
    return _named_values_getter(lambda analysis: analysis.sign_flips.get(noise, {}))


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


def _get_map_correlations(run: ReportRun) -> MapCorrelations:
    from_layers = measurement_getter(LAYERS, lambda layers: layers.map_correlations)(run)
    return from_layers or measurement_getter(ANALYZE, lambda analysis: analysis.map_correlations)(run) or {}


def _get_weights(run: ReportRun) -> dict[str, WeightDistribution]:
    return measurement_getter(LAYERS, lambda layers: layers.weights)(run) or {}


def build_similarity_section(groups: Sequence[RunGroup]) -> list[Element]:
    """Return charts of the correlation between the feature maps of different images."""
    if not collect_names(groups, _get_map_correlations):
        return [CommandHint("Map correlations were not measured. This command measures them:", LAYERS_COMMAND)]
    elements: list[Element] = [
        "Mean absolute correlation between the flattened feature maps of two different images, at the input of each "
        "layer, for real maps and for their signs. Eq. 7 of the paper assumes that different images are uncorrelated."
    ]
    description = "Means over seeds with 95 % intervals. A value of 0 means uncorrelated images."
    axis = Axis("mean |correlation|", (0.0,))
    for kind in ("real", "binary"):
        title, get_values = f"Correlation of {kind} maps", _correlation_getter(kind)
        elements += make_mean_chart(groups, title, description, axis, "input of layer", get_values)
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
    elements = make_mean_chart(
        groups,
        "Spread of latent weights",
        "Standard deviation of the stored latent weights. Means over seeds with 95 % intervals.",
        Axis("standard deviation", (0.0,)),
        "layer",
        lambda run: {name: weights.std for name, weights in _get_weights(run).items()},
    )
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
