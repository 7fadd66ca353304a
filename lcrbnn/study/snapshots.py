"""The paper's Figures 2 and 3, of networks as they are: latent weights of each layer, likeness of a batch's maps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError
from lcrbnn.study.figure import COLORS, drawing, named

COLUMNS = 6
DRAWN = 48  # images whose correlations are drawn; the means are over all of them
KINDS = {"real": ("-", "o"), "binary": ("--", "s")}  # how their lines are drawn

Layers = Mapping[str, Mapping[str, Any]]  # what a record holds of one network, by layer


def _check(labels: list[str]) -> None:
    if not 1 <= len(labels) <= len(COLORS):
        raise InputError(f"a figure shows 1 to {len(COLORS)} networks; got {len(labels)}")


def draw_weights(networks: Mapping[str, Layers], path: Path) -> None:
    """A panel a layer: the histograms of all networks, and their standard deviations in its title.

    A layer has `histogram` (low, high, counts) and `std`.
    """
    labels = list(networks)
    _check(labels)
    names = list(networks[labels[0]])
    if any(list(layers) != names for layers in networks.values()):
        raise InputError(f"networks of one figure have the same layers; {labels[0]} and another have not")
    columns = min(COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    with drawing(path, rows, columns, 2.0 * columns, 1.55 * rows + 0.6) as (figure, grid):
        for axis in grid.flat[len(names) :]:
            axis.remove()
        for axis, name in zip(grid.flat, names, strict=False):
            for label, color in zip(labels, COLORS, strict=False):
                _histogram(axis, networks[label][name]["histogram"], color, named(label))
            deviations = "  ".join(f"{networks[label][name]['std']:.3f}" for label in labels)
            axis.set_title(named(f"{name}\nsd {deviations}"))
            axis.set_ylim(bottom=0)
            axis.tick_params(labelleft=False)
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(labels))
        figure.supxlabel("latent weight, as it is stored")


def _histogram(axis: Any, found: Mapping[str, Any], color: str, label: str) -> None:
    """As a density, so that networks with different numbers of weights compare."""
    low, high, counts = found["low"], found["high"], found["counts"]
    width = (high - low) / len(counts)
    edges = [low + width * i for i in range(len(counts) + 1)]
    total = max(sum(counts), 1) * width
    axis.stairs([n / total for n in counts], edges, color=color, label=label, fill=False, linewidth=1.2)


def draw_maps(matrices: Mapping[str, Mapping[str, Any]], networks: Mapping[str, Layers], path: Path) -> None:
    """The correlations of one network's maps at a few layers, real above binary; below, their means in all networks.

    `matrices` has, by layer, an N x N array for real and, where there is one, binary; the first images are drawn. A
    layer of a network has the means under `real` and `binary`.
    """
    labels = list(networks)
    _check(labels)
    names = list(matrices)
    shown = [names[round(i * (len(names) - 1) / max(COLUMNS - 1, 1))] for i in range(min(COLUMNS, len(names)))]
    kinds = [kind for kind in KINDS if kind in matrices[names[0]]]
    rows = len(kinds) + 2
    with drawing(path, rows, len(shown), 1.7 * len(shown) + 0.8, 1.7 * rows) as (figure, grid):
        for row, kind in zip(grid, kinds, strict=False):
            for axis, name in zip(row, shown, strict=True):
                drawn = matrices[name][kind][:DRAWN, :DRAWN]
                image = axis.imshow(drawn, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="none")
                axis.set(xticks=[], yticks=[])
                axis.grid(False)
                mean = networks[labels[0]][name][kind]["correlation"]
                axis.set_title(named(f"{name}\n{kind}, mean {mean:.3f}"))
        figure.colorbar(image, ax=grid[: len(kinds), :].ravel().tolist(), shrink=0.8, label="correlation")
        below = figure.add_subplot(grid[0, 0].get_gridspec()[len(kinds) :, :])
        for axis in grid[len(kinds) :].flat:
            axis.remove()
        _means(below, networks)


def _means(axis: Any, networks: Mapping[str, Layers]) -> None:
    for (label, layers), color in zip(networks.items(), COLORS, strict=False):
        for kind, (line, mark) in KINDS.items():
            values = {name: one[kind]["correlation"] for name, one in layers.items() if kind in one}
            if values:
                axis.plot(
                    list(values),
                    list(values.values()),
                    line,
                    marker=mark,
                    ms=3,
                    color=color,
                    label=named(f"{label}, {kind}"),
                )
    chance = {name: one["chance"] for name, one in next(iter(networks.values())).items()}
    axis.plot(list(chance), list(chance.values()), ":", color="0.35", label="independent maps")
    axis.tick_params(axis="x", rotation=90)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("mean |correlation|\nof two images")
    axis.legend(ncols=2)
