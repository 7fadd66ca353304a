"""`lcrbnn layers` draws latent weights and activation correlations, layer by layer."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lcrbnn.cli.model_arguments import reject_zoo_models
from lcrbnn.cli.run_options import add_data_folder_option, add_device_option
from lcrbnn.errors import InputError, check_number, lookup

EXAMPLES = (
    "lcrbnn layers runs/digits -o figures",
    "lcrbnn layers none=runs/none/seed-0 lcr=runs/lcr/seed-0 -o figures --format png",
)
FORMATS = {"svg": "vector graphics, for documents", "png": "pixels"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the networks, the output folder and the options of the figures."""
    parser.add_argument(
        "networks",
        nargs="+",
        metavar="NAME=NETWORK",
        help="run folder or weights file, with an optional name: none=runs/a/none/seed-0 (default name: the name "
        "of the variant, folder or file). The correlation matrices are drawn for the first network only",
    )
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="FOLDER", help="output folder of the figures and the record"
    )
    parser.add_argument("--format", default="svg", metavar="{svg,png}", help="file format of the figures")
    parser.add_argument(
        "--num-images",
        type=int,
        default=128,
        metavar="N",
        help="number of training images whose activations are compared",
    )
    add_device_option(parser)
    add_data_folder_option(parser)


def execute(args: argparse.Namespace) -> int:
    """Measure the networks, draw both figures, write the record and print the paths of the three files."""
    from lcrbnn.errors import check_output_file, check_output_folder
    from lcrbnn.evaluation.analysis.layer_report import load_first_images
    from lcrbnn.report.figures.layer_figures import draw_map_correlations, draw_weights
    from lcrbnn.runs.record import write_record
    from lcrbnn.train.setup.options import RunOptions

    reject_zoo_models(args.networks, "layers needs runs, because files of the zoo have no latent weights")
    lookup(FORMATS, args.format, "figure format", "lcrbnn layers --help")
    check_number(args.num_images, "--num-images", low=2, high=10_000, integer=True)
    weights_file, correlations_file, record_file = (
        args.out / name for name in (f"weights.{args.format}", f"maps.{args.format}", "layers.json")
    )
    check_output_folder(args.out, "figures and their record")
    for path in (weights_file, correlations_file, record_file):
        check_output_file(path, "a record" if path == record_file else "a figure")
    loaded = _load_networks(args.networks)
    specs = [spec for spec, *_ in loaded.values()]
    class_names = {class_names for *_, class_names, _ in loaded.values() if class_names}
    picture_splits = [picture_split for *_, picture_split in loaded.values() if picture_split is not None]
    if len({(spec.dataset, spec.model) for spec in specs}) > 1 or len(class_names) > 1:
        raise InputError("the networks of a figure must have the same model, data set and classes")
    options = RunOptions(args.device, args.data_folder)
    images = load_first_images(
        specs[0],
        options,
        args.num_images,
        class_names=next(iter(class_names), ()),
        picture_split=next(iter(picture_splits), None),
    )
    models = {label: model for label, (_, model, *_) in loaded.items()}
    figures = _measure_models(models, images)
    draw_weights({label: layer_figures["weights"] for label, layer_figures in figures.items()}, weights_file)
    matrices = _correlation_matrices(next(iter(models.values())), images)
    draw_map_correlations(
        matrices, {label: layer_figures["activations"] for label, layer_figures in figures.items()}, correlations_file
    )
    write_record(record_file, "layers", {label: spec.to_dict() for label, (spec, *_) in loaded.items()}, figures)
    print(weights_file, correlations_file, record_file, sep="\n")
    return 0


def _measure_models(models: dict[str, Any], images: Any) -> dict[str, Any]:
    """Return the figures of each network for the record, with the histograms of its weights."""
    from lcrbnn.evaluation.analysis.latent_weights import compute_histograms, sample_weights
    from lcrbnn.evaluation.analysis.layer_report import measure_layers

    figures = {label: measure_layers(model, images) for label, model in models.items()}
    for label, layers in compute_histograms({label: sample_weights(model) for label, model in models.items()}).items():
        for name, histogram in layers.items():
            figures[label]["weights"][name]["histogram"] = histogram._asdict()
    return figures


def _correlation_matrices(model: Any, images: Any) -> dict[str, dict[str, Any]]:
    """Return a dictionary: layer -> "real" or "binary" -> correlation matrix between the activations of the images."""
    from lcrbnn.evaluation.analysis.map_similarity import capture_layer_maps, pairwise_correlations

    return {
        name: {
            kind: pairwise_correlations(rows).cpu().numpy() for kind, rows in maps._asdict().items() if rows is not None
        }
        for name, maps in capture_layer_maps(model, images).items()
    }


def _load_networks(arguments: list[str]) -> dict[str, Any]:
    """Return spec, network, class names (empty if not stored) and split of the pictures of each network, by label."""
    from lcrbnn.runs.run_folder import RunFolder
    from lcrbnn.train.setup.dataset import read_picture_split
    from lcrbnn.train.setup.load import load_network
    from lcrbnn.train.setup.weights_file import read_weights

    loaded = {}
    for argument in arguments:
        name, separator, source = argument.rpartition("=")
        path = Path(source)
        label = name if separator else _default_label(path)
        if label in loaded:
            raise InputError(f"two networks are called {label!r}; give them names with NAME=NETWORK")
        if path.is_dir():
            folder = RunFolder(path)
            loaded[label] = (*load_network(folder)[:2], folder.read_classes(), read_picture_split(folder))
        else:
            loaded[label] = (*read_weights(path)[:2], (), None)
    return loaded


def _default_label(path: Path) -> str:
    """Return the name of the variant for a folder seed-N, and the name of the folder or file otherwise."""
    return path.absolute().parent.name if path.name.startswith("seed-") else path.stem
