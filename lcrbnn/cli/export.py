"""`lcrbnn export`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lcrbnn.cli._given import ZOO, find_subject
from lcrbnn.errors import InputError

if TYPE_CHECKING:
    from lcrbnn.engine import Model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A run, and the file to write."""
    parser.add_argument(
        "run", type=Path, metavar="RUN", help=f"folder of a run, whose newest checkpoint is exported; or {ZOO}"
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="a .bnn file; or an .onnx file")
    parser.add_argument(
        "--half", action="store_true", help="keep the real weights of stem, shortcuts and head in 16 bits"
    )


def execute(args: argparse.Namespace) -> int:
    """Write the file, and say how large it is."""
    from lcrbnn.export import export_model
    from lcrbnn.outputs import check_output_file

    write = _writer(args.out)
    check_output_file(args.out, "a model")
    subject = find_subject(args.run, done="exported")
    spec = subject.spec
    bits = f" {spec.bits}" if spec.bits else ""
    model = export_model(subject.model, subject.row, f"{spec.model} {spec.method}{bits} {spec.data}", half=args.half)
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write(args.out, model)
    except OSError as error:
        raise InputError(f"a model cannot be written to {args.out}: {error.strerror}") from None
    print(f"{args.out}: {_sizes(model, args.out)}")
    return 0


def _writer(path: Path) -> Callable[[Path, Model], None]:
    """What writes files that end so."""
    from lcrbnn.engine.format import write_model
    from lcrbnn.export.onnx import write_onnx

    writers: dict[str, Callable[[Path, Model], None]] = {".bnn": write_model, ".onnx": write_onnx}
    if path.suffix not in writers:
        raise InputError(f"a model is a {' or an '.join(writers)} file; got {str(path)!r}")
    return writers[path.suffix]


def _sizes(model: Model, path: Path) -> str:
    import numpy as np

    from lcrbnn.engine import Bits

    size = path.stat().st_size
    tensors = [value for node in model.nodes for value in node.keys.values()]
    bits = sum(len(t.packed) * t.n for t in tensors if isinstance(t, Bits))
    arrays = [t for t in tensors if isinstance(t, np.ndarray)]
    full = 4 * (bits + sum(t.size for t in arrays))
    if path.suffix == ".onnx":
        return f"{size:,} bytes; ONNX has no weights of one bit: the {bits:,} here are real numbers of 1 and -1"
    return (
        f"{size:,} bytes; {bits:,} weights of one bit, {sum(t.nbytes for t in arrays):,} bytes of real numbers; "
        f"all in 32 bits would take {full:,}, {full / size:.1f} times as much"
    )
