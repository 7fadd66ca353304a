"""`lcrbnn export` writes a network as a .bnn or .onnx file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lcrbnn.cli.model_arguments import ZOO_HELP, load_evaluated_model
from lcrbnn.errors import InputError

if TYPE_CHECKING:
    from lcrbnn.deploy.engine.graph import BnnModel

EXAMPLES = ("lcrbnn export runs/digits -o digits.bnn", "lcrbnn export zoo:digits-resnet8-irnet -o digits.onnx")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run and the output file."""
    parser.add_argument(
        "run", type=Path, metavar="RUN", help=f"folder of a run (its newest checkpoint is exported), or {ZOO_HELP}"
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="path of the output file, which ends in .bnn or .onnx",
    )
    parser.add_argument(
        "--half", action="store_true", help="store the real weights of stem, shortcuts and head as float16"
    )


def execute(args: argparse.Namespace) -> int:
    """Write the file and print the size of the file."""
    from lcrbnn.deploy.export.export_model import export_model
    from lcrbnn.errors import check_output_file

    write = _find_writer(args.out)
    check_output_file(args.out, "a model")
    evaluated_model = load_evaluated_model(args.run)
    spec = evaluated_model.spec
    bits = f" {spec.bits}" if spec.bits else ""
    model = export_model(
        evaluated_model.model,
        evaluated_model.dataset,
        f"{spec.model} {spec.method}{bits} {spec.dataset}",
        half=args.half,
    )
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write(args.out, model)
    except OSError as error:
        raise InputError(f"a model cannot be written to {args.out}: {error.strerror}") from None
    print(f"{args.out}: {_describe_size(model, args.out)}")
    return 0


def _find_writer(path: Path) -> Callable[[Path, BnnModel], None]:
    """Return the function that writes the file type of this suffix."""
    from lcrbnn.deploy.engine.bnn_file import write_model
    from lcrbnn.deploy.export.onnx_writer import write_onnx

    writers: dict[str, Callable[[Path, BnnModel], None]] = {".bnn": write_model, ".onnx": write_onnx}
    if path.suffix not in writers:
        raise InputError(f"the output must be a {' or an '.join(writers)} file; got {str(path)!r}")
    return writers[path.suffix]


def _describe_size(model: BnnModel, path: Path) -> str:
    import numpy as np

    from lcrbnn.deploy.engine.graph import PackedSigns

    file_bytes = path.stat().st_size
    tensors = [value for node in model.nodes for value in node.attributes.values()]
    num_binary_weights = sum(len(t.packed) * t.n for t in tensors if isinstance(t, PackedSigns))
    real_arrays = [t for t in tensors if isinstance(t, np.ndarray)]
    float32_bytes = 4 * (num_binary_weights + sum(t.size for t in real_arrays))
    if path.suffix == ".onnx":
        return (
            f"{file_bytes:,} bytes; ONNX has no 1-bit weights: the {num_binary_weights:,} binary weights are stored as "
            "the floats 1 and -1"
        )
    return (
        f"{file_bytes:,} bytes; {num_binary_weights:,} weights of 1 bit, "
        f"{sum(t.nbytes for t in real_arrays):,} bytes of real numbers; "
        f"with all numbers in 32 bits: {float32_bytes:,} bytes, {float32_bytes / file_bytes:.1f} times as many"
    )
