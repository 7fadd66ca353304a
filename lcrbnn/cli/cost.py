"""`lcrbnn cost` counts parameters, stored bits and operations of networks."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lcrbnn.cli.model_arguments import ZOO_HELP, load_evaluated_model
from lcrbnn.errors import InputError, check_number
from lcrbnn.zoo.zoo_index import parse_zoo_name

if TYPE_CHECKING:
    from lcrbnn.evaluation.analysis.cost import Cost

EXAMPLES = ("lcrbnn cost resnet20-double --method irnet", "lcrbnn cost runs/digits --per-layer -o cost.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the networks, their options and the output file."""
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help=f"network name from the list of lcrbnn models, folder of a run, or {ZOO_HELP}",
    )
    parser.add_argument(
        "--method", metavar="NAME", help="binarization method, or real for full precision (default: irnet)"
    )
    parser.add_argument(
        "--bits",
        metavar="W/A",
        help="bit widths of weights and activations, such as 1/32 (default: the bit widths of the method)",
    )
    parser.add_argument(
        "--image-size",
        type=int,
        metavar="PIXELS",
        help="side length of the input images in pixels (default: the image size of the network)",
    )
    parser.add_argument(
        "--num-classes", type=int, metavar="N", help="number of classes (default: the number of classes of the network)"
    )
    parser.add_argument(
        "--per-layer", action="store_true", help="also print a table with one row per layer of each network"
    )
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write all numbers to this .json record")


def execute(args: argparse.Namespace) -> int:
    """Print the cost of each network, and write the record if --out is given."""
    if not args.models:
        raise InputError(
            "give at least one network; lcrbnn models lists them (the paper's cost table: python -m paper costs)"
        )
    if args.out is not None and len(args.models) > 1:
        raise InputError(f"-o writes the record of one network; got {len(args.models)} networks")
    if args.out is not None:
        from lcrbnn.errors import check_output_file

        check_output_file(args.out, "a record")
    for settings, figures in (_print_cost(name_or_run, args) for name_or_run in args.models):
        if args.out is not None:
            from lcrbnn.runs.record import write_record

            write_record(args.out, "cost", settings, figures)
            print(args.out)
    return 0


def _print_cost(name_or_run: str, args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    from lcrbnn.evaluation.analysis.cost import count_cost

    model, name, shape = _build_model(name_or_run, args)
    cost = count_cost(model, shape)
    file_bytes, reason = _measure_bnn_file(model, name, shape)
    print(f"{name}, image size {' x '.join(map(str, shape))} (channels, height, width)")
    lines = {
        "parameters": f"{cost.parameters:,}, of which {cost.binary_weights:,} are stored in {_describe_bits(cost)}",
        "stored bits": f"{cost.stored_bits:,} ({cost.stored_bits / 8e6:.3f} MB; in full precision "
        f"{(cost.stored_bits + 32 * cost.binary_weights - cost.weight_bits) / 8e6:.3f} MB)",
        "file": f"{file_bytes:,} bytes as .bnn" if file_bytes is not None else reason,
        "binary MACs": f"{cost.binary_macs:,}"
        + _append_if_different(cost.bit_operations, cost.binary_macs, "1-bit operations"),
        "mixed MACs": f"{cost.mixed_macs:,} (1-bit weights, real activations)" if cost.mixed_macs else "0",
        "real MACs": f"{cost.real_macs:,}",
        "element-wise": f"{cost.element_wise:,} (counting rule: docs/analysis.md)",
        "OPs": f"{cost.ops:,.0f} = FP + BOPs / 64; with element-wise operations {cost.ops_all:,.0f}",
    }
    for title, text in lines.items():
        print(f"  {title:<13} {text}")
    if args.per_layer:
        width = max((len(layer.name) for layer in cost.layers), default=0)
        for layer in cost.layers:
            print(f"  {layer.name:<{width}}  {layer.kind:<6}  {layer.weights:>10,} weights  {layer.macs:>13,} MACs")
    settings = {"model": name, "shape": list(shape)}
    return settings, {
        **asdict(cost),
        "flops": cost.flops,
        "ops": cost.ops,
        "ops_all": cost.ops_all,
        "file_bytes": file_bytes,
    }


def _describe_bits(cost: Cost) -> str:
    bits_per_weight = cost.weight_bits / max(cost.binary_weights, 1)
    return "1 bit" if bits_per_weight in (0, 1) else f"{bits_per_weight:g} bits"


def _append_if_different(value: int, default_value: int, unit: str) -> str:
    return "" if value == default_value else f" ({value:,} {unit})"


def _build_model(name_or_run: str, args: argparse.Namespace) -> tuple[Any, str, tuple[int, int, int]]:
    """Return a network, its name in the output and the shape of an image."""
    from lcrbnn.nn.models.model_registry import MODELS, create_model

    zoo_name = parse_zoo_name(name_or_run)
    if zoo_name is not None or (name_or_run not in MODELS and Path(name_or_run).is_dir()):
        if any(option is not None for option in (args.method, args.bits, args.image_size, args.num_classes)):
            raise InputError(
                "--method, --bits, --image-size and --num-classes are fixed for a run and for a network of the zoo"
            )
        evaluated_model = load_evaluated_model(Path(name_or_run))
        spec, dataset = evaluated_model.spec, evaluated_model.dataset
        name = f"{spec.model} {spec.method}" if zoo_name is None else f"{name_or_run}, {spec.model} {spec.method}"
        return evaluated_model.model, name, (dataset.channels, dataset.image_size, dataset.image_size)
    method = args.method or "irnet"
    if args.image_size is not None:
        check_number(args.image_size, "--image-size", low=8, high=4096, integer=True)
    model = create_model(name_or_run, method, bits=args.bits, num_classes=args.num_classes, image_size=args.image_size)
    image_size = MODELS[name_or_run].image_size if args.image_size is None else args.image_size
    return model, f"{name_or_run} {method}{f' {args.bits}' if args.bits else ''}", (3, image_size, image_size)


def _measure_bnn_file(model: Any, name: str, shape: tuple[int, int, int]) -> tuple[int | None, str]:
    """Return the bytes of the exported .bnn file and "", or None and the reason why there is no export."""
    import torch

    from lcrbnn.deploy.engine.bnn_file import write_model
    from lcrbnn.deploy.export.export_model import ModelInput, export_model

    channels, *image_size = shape
    with torch.no_grad():
        num_classes = model.eval()(torch.zeros(1, *shape)).shape[1]
    model_input = ModelInput((image_size[0], image_size[1], channels), tuple(map(str, range(num_classes))))
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.bnn"
        try:
            write_model(path, export_model(model, model_input, name))
        except InputError as error:
            return None, f"no .bnn file: {error}"
        return path.stat().st_size, ""
