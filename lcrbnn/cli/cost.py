"""`lcrbnn cost`."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lcrbnn.cli._given import ZOO, find_subject
from lcrbnn.errors import InputError, number
from lcrbnn.zoo import named

if TYPE_CHECKING:
    from lcrbnn.analyze.cost import Cost


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Networks and their images, or the paper's table."""
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help=f"a network (lcrbnn models), the folder of a run, or {ZOO}"
    )
    parser.add_argument("--method", help="how it is binarised (lcrbnn methods; irnet if not said), or real")
    parser.add_argument(
        "--bits", help="weights/activations, such as 1/32 (lcrbnn methods lists them); the method's own if not said"
    )
    parser.add_argument("--image", type=int, help="side of an image in pixels; the network's own if not said")
    parser.add_argument("--classes", type=int, help="the network's own if not said")
    parser.add_argument("--layers", action="store_true", help="a line a layer too")
    parser.add_argument("--paper", action="store_true", help="the paper's cost table beside our counts")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="write a record of one network, or of --paper; .json"
    )


def execute(args: argparse.Namespace) -> int:
    """Count, print, and write the record if asked."""
    if args.paper == bool(args.models):
        raise InputError("say a network or --paper, one of them")
    if args.out is not None and len(args.models) > 1:
        raise InputError(f"a record is of one network; got {len(args.models)} and -o")
    if args.out is not None:
        from lcrbnn.outputs import check_output_file

        check_output_file(args.out, "a record")
    for settings, figures in [_paper()] if args.paper else (_model(word, args) for word in args.models):
        if args.out is not None:
            from lcrbnn.runs.record import write_record

            write_record(args.out, "cost", settings, figures)
            print(args.out)
    return 0


def _model(word: str, args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    from lcrbnn.analyze.cost import count

    net, name, shape = _find(word, args)
    cost = count(net, shape)
    size, why = _file_size(net, name, shape)
    print(f"{name}, an image of {' x '.join(map(str, shape))} (channels, height, width)")
    lines = {
        "parameters": f"{cost.parameters:,}, of which {cost.binary_weights:,} keep {_bits(cost)}",
        "stored bits": f"{cost.stored_bits:,} ({cost.stored_bits / 8e6:.3f} MB; in full precision "
        f"{(cost.stored_bits + 32 * cost.binary_weights - cost.weight_bits) / 8e6:.3f} MB)",
        "file": f"{size:,} bytes as .bnn" if size is not None else why,
        "binary MACs": f"{cost.binary_macs:,}" + _more(cost.bit_operations, cost.binary_macs, "1-bit operations"),
        "mixed MACs": f"{cost.mixed_macs:,} (1-bit weights, real activations)" if cost.mixed_macs else "0",
        "real MACs": f"{cost.real_macs:,}",
        "element-wise": f"{cost.element_wise:,} (the rule: docs/analysis.md)",
        "OPs": f"{cost.ops:,.0f} = FP + BOPs / 64; with element-wise operations {cost.ops_all:,.0f}",
    }
    for title, text in lines.items():
        print(f"  {title:<13} {text}")
    if args.layers:
        width = max((len(one.name) for one in cost.layers), default=0)
        for one in cost.layers:
            print(f"  {one.name:<{width}}  {one.kind:<6}  {one.weights:>10,} weights  {one.macs:>13,} MACs")
    settings = {"model": name, "shape": list(shape)}
    return settings, {**asdict(cost), "flops": cost.flops, "ops": cost.ops, "ops_all": cost.ops_all, "file_bytes": size}


def _bits(cost: Cost) -> str:
    each = cost.weight_bits / max(cost.binary_weights, 1)
    return "one bit" if each in (0, 1) else f"{each:g} bits each"


def _more(value: int, usual: int, what: str) -> str:
    return "" if value == usual else f" ({value:,} {what})"


def _find(word: str, args: argparse.Namespace) -> tuple[Any, str, tuple[int, int, int]]:
    """The network, what it is called, and the shape of an image."""
    from lcrbnn.models import MODELS, network

    member = named(word)
    if member is not None or (word not in MODELS and Path(word).is_dir()):
        if any(one is not None for one in (args.method, args.bits, args.image, args.classes)):
            raise InputError(
                "a run has its method, bits, image and classes, and so has a network of the zoo: say none of them"
            )
        subject = find_subject(Path(word), done="counted")
        spec, row = subject.spec, subject.row
        name = f"{spec.model} {spec.method}" if member is None else f"{word}, {spec.model} {spec.method}"
        return subject.model, name, (row.channels, row.image, row.image)
    method = args.method or "irnet"
    if args.image is not None:
        number(args.image, "--image", low=8, high=4096, whole=True)
    net = network(word, method, bits=args.bits, classes=args.classes, image=args.image)
    side = MODELS[word].image if args.image is None else args.image
    return net, f"{word} {method}{f' {args.bits}' if args.bits else ''}", (3, side, side)


def _file_size(net: Any, name: str, shape: tuple[int, int, int]) -> tuple[int | None, str]:
    """Bytes of the exported file; otherwise why there is none."""
    import torch

    from lcrbnn.engine.format import write_model
    from lcrbnn.export.model import Input, export_model

    channels, *sides = shape
    with torch.no_grad():
        classes = net.eval()(torch.zeros(1, *shape)).shape[1]
    given = Input((sides[0], sides[1], channels), tuple(map(str, range(classes))))
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.bnn"
        try:
            write_model(path, export_model(net, given, name))
        except InputError as error:
            return None, f"no .bnn file: {error}"
        return path.stat().st_size, ""


def _paper() -> tuple[dict[str, Any], dict[str, Any]]:
    from lcrbnn.analyze.cost_paper import IMAGE, UNKNOWN, agrees, paper_costs

    print(f"{'':<15} {'BOPS, paper':>11} {'ours':>14}   {'FLOPS, paper':>12} {'ours':>14}")
    figures = {}
    for row, cost in paper_costs():
        same = [agrees(row.bops, cost.bit_operations), agrees(row.flops, cost.flops)]
        words = ["exact" if one else "not derivable" for one in same]
        print(
            f"{row.title:<15} {row.bops:>11.3e} {cost.bit_operations:>14,}   {row.flops:>12.3e} {cost.flops:>14,}"
            f"  BOPS {words[0]}, FLOPS {words[1]}"
        )
        figures[row.title] = {
            "network": row.network,
            "bops": cost.bit_operations,
            "bops_exact": same[0],
            "flops": cost.flops,
            "flops_exact": same[1],
            "printed": [row.bops, row.flops],
        }
    print(UNKNOWN)
    return {"model": "the paper's cost table", "shape": list(IMAGE)}, figures
