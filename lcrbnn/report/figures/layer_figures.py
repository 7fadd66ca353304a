"""Draw figures like the paper's Figures 2 and 3, with latent weights per layer and correlations of feature maps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError
from lcrbnn.report.figures.figure import COLORS, draw_figure, escape_label

MAX_COLUMNS = 6
MAX_IMAGES_DRAWN = 48  # maximum number of images in the drawn correlation matrices; the means cover all images
LINE_STYLES = {"real": ("-", "o"), "binary": ("--", "s")}  # line style and marker for real and for binary maps

# Dictionary from a layer to the recorded measurements of this layer in one network
LayerRecords = Mapping[str, Mapping[str, Any]]


def _check_count(labels: list[str]) -> None:
    if not 1 <= len(labels) <= len(COLORS):
        raise InputError(f"a figure shows 1 to {len(COLORS)} networks; got {len(labels)}")


def draw_weights(networks: Mapping[str, LayerRecords], path: Path) -> None:
    """Draw one panel per layer, with histograms of the weights of all networks. Panel titles state standard deviations.

    The measurements of a layer have the keys `histogram` (low, high, counts) and `std`.
    """
    labels = list(networks)
    _check_count(labels)
    names = list(networks[labels[0]])
    if any(list(layers) != names for layers in networks.values()):
        raise InputError(f"networks of one figure must have the same layers; got different layers than {labels[0]}")
    columns = min(MAX_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    with draw_figure(path, rows, columns, 2.0 * columns, 1.55 * rows + 0.6) as (figure, grid):
        for axis in grid.flat[len(names) :]:
            axis.remove()
        for axis, name in zip(grid.flat, names, strict=False):
            for label, color in zip(labels, COLORS, strict=False):
                _draw_histogram(axis, networks[label][name]["histogram"], color, escape_label(label))
            deviations = "  ".join(f"{networks[label][name]['std']:.3f}" for label in labels)
            axis.set_title(escape_label(f"{name}\nsd {deviations}"))
            axis.set_ylim(bottom=0)
            axis.tick_params(labelleft=False)
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(labels))
        figure.supxlabel("stored latent weight")


def _draw_histogram(axis: Any, histogram: Mapping[str, Any], color: str, label: str) -> None:
    """Draw a histogram as a density, so that layers with different numbers of weights are comparable."""
    low, high, counts = histogram["low"], histogram["high"], histogram["counts"]
    width = (high - low) / len(counts)
    edges = [low + width * i for i in range(len(counts) + 1)]
    total = max(sum(counts), 1) * width
    axis.stairs([n / total for n in counts], edges, color=color, label=label, fill=False, linewidth=1.2)


def draw_map_correlations(
    matrices: Mapping[str, Mapping[str, Any]], networks: Mapping[str, LayerRecords], path: Path
) -> None:
    """Draw the map correlations of one network at several layers. Below, draw the mean correlations of all networks.

    `matrices` has one N x N array per layer for the real maps and, if there are any, for the binary maps. The
    measurements of a layer have the mean correlations under the same keys.
    """
    labels = list(networks)
    _check_count(labels)
    names = list(matrices)
    drawn_layers = [
        names[round(i * (len(names) - 1) / max(MAX_COLUMNS - 1, 1))] for i in range(min(MAX_COLUMNS, len(names)))
    ]
    kinds = [kind for kind in LINE_STYLES if kind in matrices[names[0]]]
    rows = len(kinds) + 2
    with draw_figure(path, rows, len(drawn_layers), 1.7 * len(drawn_layers) + 0.8, 1.7 * rows) as (figure, grid):
        for row, kind in zip(grid, kinds, strict=False):
            for axis, name in zip(row, drawn_layers, strict=True):
                correlations = matrices[name][kind][:MAX_IMAGES_DRAWN, :MAX_IMAGES_DRAWN]
                image = axis.imshow(correlations, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="none")
                axis.set(xticks=[], yticks=[])
                axis.grid(False)
                mean = networks[labels[0]][name][kind]["correlation"]
                axis.set_title(escape_label(f"{name}\n{kind}, mean {mean:.3f}"))
        figure.colorbar(image, ax=grid[: len(kinds), :].ravel().tolist(), shrink=0.8, label="correlation")
        below = figure.add_subplot(grid[0, 0].get_gridspec()[len(kinds) :, :])
        for axis in grid[len(kinds) :].flat:
            axis.remove()
        _draw_mean_correlations(below, networks)


def _draw_mean_correlations(axis: Any, networks: Mapping[str, LayerRecords]) -> None:
    for (label, layers), color in zip(networks.items(), COLORS, strict=False):
        for kind, (line, marker) in LINE_STYLES.items():
            values = {name: layer[kind]["correlation"] for name, layer in layers.items() if kind in layer}
            if values:
                axis.plot(
                    list(values),
                    list(values.values()),
                    line,
                    marker=marker,
                    ms=3,
                    color=color,
                    label=escape_label(f"{label}, {kind}"),
                )
    chance = {name: layer["chance"] for name, layer in next(iter(networks.values())).items()}
    axis.plot(list(chance), list(chance.values()), ":", color="0.35", label="independent maps")
    axis.tick_params(axis="x", rotation=90)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("mean |correlation|\nof two images")
    axis.legend(ncols=2)
