"""`lcrbnn layers`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lcrbnn.cli._given import refuse_members
from lcrbnn.cli.train import add_options
from lcrbnn.errors import InputError, choose, number

KINDS = {"svg": "lines, for documents", "png": "pixels"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Networks, and where the figures go."""
    parser.add_argument(
        "networks",
        nargs="+",
        metavar="NAME=NETWORK",
        help="folder of a run, or file of weights, such as none=runs/a/none/seed-0; the name may be left out; the maps "
        "that are drawn are the first one's",
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FOLDER", help="of the figures and the record")
    parser.add_argument("--kind", default="svg", help="svg or png")
    parser.add_argument("--images", type=int, default=128, help="training images whose maps are compared")
    add_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Measure, draw both figures, write the record, say where they lie."""
    from lcrbnn.analyze.layers import first_images
    from lcrbnn.outputs import check_output_file, check_output_folder
    from lcrbnn.runs.record import write_record
    from lcrbnn.study.snapshots import draw_maps, draw_weights
    from lcrbnn.train.options import Options

    refuse_members(args.networks, "layers takes runs, for files of the zoo have no latent weights")
    choose(KINDS, args.kind, "kind of figure")
    number(args.images, "--images", low=2, high=10_000, whole=True)
    weights, maps, record = (args.out / name for name in (f"weights.{args.kind}", f"maps.{args.kind}", "layers.json"))
    check_output_folder(args.out, "figures and their record")
    for path in (weights, maps, record):
        check_output_file(path, "a record" if path == record else "a figure")
    loaded = _load(args.networks)
    specs = [spec for spec, *_ in loaded.values()]
    names = {names for *_, names in loaded.values() if names}
    if len({(spec.data, spec.model) for spec in specs}) > 1 or len(names) > 1:
        raise InputError("networks of one figure are built alike and learned the same data and classes")
    options = Options(args.device, args.data_folder)
    images = first_images(specs[0], options, args.images, names=next(iter(names), ()))
    models = {label: model for label, (_, model, _) in loaded.items()}
    found = _measured(models, images)
    draw_weights({label: one["weights"] for label, one in found.items()}, weights)
    matrices = _matrices(next(iter(models.values())), images)
    draw_maps(matrices, {label: one["maps"] for label, one in found.items()}, maps)
    write_record(record, "layers", {label: spec.stored() for label, (spec, *_) in loaded.items()}, found)
    print(weights, maps, record, sep="\n")
    return 0


def _measured(models: dict[str, Any], images: Any) -> dict[str, Any]:
    """What a record holds of each network, with the histograms of its weights."""
    from lcrbnn.analyze.latent import histograms, sample_weights
    from lcrbnn.analyze.layers import describe

    found = {label: describe(model, images) for label, model in models.items()}
    for label, layers in histograms({label: sample_weights(model) for label, model in models.items()}).items():
        for name, histogram in layers.items():
            found[label]["weights"][name]["histogram"] = histogram._asdict()
    return found


def _matrices(model: Any, images: Any) -> dict[str, dict[str, Any]]:
    """The correlations between the maps of a batch, by layer, real and binary."""
    from lcrbnn.analyze.correlation import correlations, layer_maps

    return {
        name: {kind: correlations(rows).cpu().numpy() for kind, rows in maps._asdict().items() if rows is not None}
        for name, maps in layer_maps(model, images).items()
    }


def _load(given: list[str]) -> dict[str, Any]:
    """Spec and network of each, and the names of the classes that it learned if it keeps them, by its own name."""
    from lcrbnn.runs.folder import RunFolder
    from lcrbnn.study.weights import read_weights
    from lcrbnn.train.build import load_network

    loaded = {}
    for text in given:
        name, sign, place = text.rpartition("=")
        path = Path(place)
        label = name if sign else _name(path)
        if label in loaded:
            raise InputError(f"two networks are called {label!r}: say NAME=NETWORK")
        if path.is_dir():
            loaded[label] = (*load_network(RunFolder(path))[:2], RunFolder(path).read_classes())
        else:
            loaded[label] = (*read_weights(path)[:2], ())
    return loaded


def _name(path: Path) -> str:
    """The arm of a run that is one seed of several; the name of the folder or file otherwise."""
    return path.absolute().parent.name if path.name.startswith("seed-") else path.stem
