"""Train, export and run 75 architectures in plain PyTorch with several methods, and compare the engine with PyTorch.

    python -m tools.architectures [--record bench/records/engine/architectures.json] [--names NAME ...]

The architectures are in tests/deploy/export/architectures. Each is binarised, trained for two steps with LCR, exported,
and run by the engine with batches of 1 and 3 images, fused and unfused, with every binary kernel of this CPU. The
largest difference from PyTorch must be at most MAX_RELATIVE_DIFFERENCE times the largest output. A network that
check_export refuses before training is not trained. Its reason and alternatives are printed. If binarize refuses to
replace a function call such as F.relu, activation="keep" is used, as the error message advises. A pair is unstable if
PyTorch itself gives another result in float64.
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import lcrbnn
from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.deploy.engine.graph import BnnModel
from lcrbnn.deploy.engine.runtime import Engine
from lcrbnn.deploy.export.export_model import ModelInput, export_model
from lcrbnn.deploy.export.graph.torch_activations import to_channels_last
from lcrbnn.errors import InputError, RunFailed
from lcrbnn.nn.layers import BinaryLayer
from lcrbnn.nn.model_hooks import iter_binary_layers
from lcrbnn.runs.record import write_record
from tests.deploy.export.architectures import ARCHITECTURES, Architecture

METHODS = ("irnet", "reactnet", "xnor", "adabin")
KERNELS = ("avx512", "avx2", "neon", "scalar")  # those that this CPU lacks are left out
BATCH_SIZES = (1, 3)
NUM_STEPS = 2
LEARNING_RATE, MAX_GRADIENT_NORM = 0.001, 1.0  # without clipping, one of the 300 networks has NaN after two steps
TRAINING_BATCH_SIZE = 4
MAX_RELATIVE_DIFFERENCE = 1e-4  # of the largest absolute output
EQUAL, REFUSED, UNSTABLE, WRONG = "equal", "refused", "unstable", "wrong"


def list_available_kernels() -> list[str]:
    """Return the binary kernels that this CPU can run."""
    net = nn.Sequential(lcrbnn.BinaryConv2d(1, 1, 1, method="bnn"), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    data = to_bytes(export_model(net, ModelInput((1, 1, 1), ("one",)), "kernels"))
    available = []
    for kernel in KERNELS:
        try:
            Engine(data, kernel=kernel).close()
        except InputError:
            continue
        available.append(kernel)
    return available


def flatten_outputs(result: Any) -> list[Tensor]:
    """Return the tensors of nested tuples, lists and dicts in order."""
    if isinstance(result, Tensor):
        return [result]
    items = result.values() if isinstance(result, dict) else result
    return [tensor for item in items for tensor in flatten_outputs(item)]


def list_called_layers(net: nn.Module, images: Tensor) -> list[str]:
    """Return the names of the convolutions and linear layers, binary or real, in the order of their first call.

    Layers that read the images themselves are left out: LCR has no gradient there.
    """
    names: list[str] = []

    def record_call(name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].requires_grad:
            names.append(name)

    hooks = [
        layer.register_forward_pre_hook(partial(record_call, name))
        for name, layer in net.named_modules()
        if isinstance(layer, BinaryLayer | nn.Conv2d | nn.Linear)
    ]
    net(images)
    for hook in hooks:
        hook.remove()
    return list(dict.fromkeys(names))


def choose_measured_layers(net: nn.Module, images: Tensor) -> list[str]:
    """Return layers whose inputs LCR compares: the first, middle and last binary one, or the only one and the next."""
    names = list_called_layers(net, images)
    binary_names = {name for name, _ in iter_binary_layers(net)}
    binary = [name for name in names if name in binary_names]
    if len(binary) == 1:
        return [binary[0], names[names.index(binary[0]) + 1]]
    return list(dict.fromkeys([binary[0], binary[len(binary) // 2], binary[-1]]))


def train_with_lcr(net: nn.Module, images: Tensor) -> None:
    """Train a network for NUM_STEPS steps with an LCR loss on some of its binary layers."""
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=LEARNING_RATE)
    net.train()
    lcrbnn.start_epoch(net)
    with lcrbnn.Retention(net, layers=choose_measured_layers(net, images), lcr_weight=1.0) as retention:
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            outputs = flatten_outputs(net(images))
            loss = torch.stack([(output**2).mean() for output in outputs]).sum() + retention.loss()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()
            lcrbnn.project_weights(net)
    net.eval()


def find_largest_difference(net: nn.Module, model: BnnModel, images: Tensor, kernels: list[str]) -> float:
    """Return the largest difference of the engine from PyTorch, divided by the largest absolute output."""
    data, largest = to_bytes(model), 0.0
    for size in BATCH_SIZES:
        batch = images[:size]
        with torch.no_grad():
            expected = [output.numpy() for output in flatten_outputs(net(batch))]
        scale = max(float(np.abs(output).max()) for output in expected) or 1.0
        for kernel in kernels:
            for fuse in (True, False):
                with Engine(data, fuse=fuse, kernel=kernel) as engine:
                    outputs = list(engine.run_outputs(to_channels_last(batch)).values())
                for output, reference in zip(outputs, expected, strict=True):
                    arranged = output.transpose(0, 3, 1, 2) if reference.ndim == 4 else output
                    difference = np.abs(arranged.reshape(reference.shape) - reference).max()
                    largest = max(largest, float(np.nan_to_num(difference / scale, nan=np.inf)))
    return largest


def check_architecture(architecture: Architecture, method: str, kernels: list[str]) -> dict[str, Any]:
    """Return one row of the record: the result, and the largest difference or the reason."""
    shape = architecture.input_shape
    torch.manual_seed(0)
    net, images = architecture.make(), torch.randn(TRAINING_BATCH_SIZE, *shape)
    try:
        activation = binarize_as_advised(net, method, (TRAINING_BATCH_SIZE, *shape))
    except InputError as error:
        return {"result": REFUSED, "by": "binarize", "reason": str(error)}
    check = lcrbnn.check_export(net, (1, *shape))
    if not check.is_exportable:
        problem = check.problems[0]
        reason = f"{problem.layer}: {problem.outcome}"
        return {"result": REFUSED, "by": "check_export", "reason": reason, "problems": len(check.problems)}
    try:
        train_with_lcr(net, images)
        channels, height, width = shape
        model = export_model(net, ModelInput((height, width, channels), ()), "architecture")
        difference = find_largest_difference(net, model, images, kernels)
    except (InputError, RunFailed, RuntimeError, ValueError) as error:
        return {"result": WRONG, "reason": f"{type(error).__name__}: {error}"}
    is_equal = difference <= MAX_RELATIVE_DIFFERENCE
    result = EQUAL if is_equal else UNSTABLE if depends_on_rounding(net, images) else WRONG
    return {"result": result, "difference": difference, "nodes": len(model.nodes), "activation": activation}


def depends_on_rounding(net: nn.Module, images: Tensor) -> bool:
    """Return whether PyTorch itself gives another result in float64, by more than the bound.

    An example is an instance norm of a constant map: it divides rounding errors by a small number. The signs of the
    next binary layer are then arbitrary.
    """
    with torch.no_grad():
        single = flatten_outputs(net(images))
        double = flatten_outputs(copy.deepcopy(net).double()(images.double()))
    scale = max(float(output.abs().max()) for output in single) or 1.0
    differences = [float((a - b).abs().max()) / scale for a, b in zip(single, double, strict=True)]
    return max(differences) > MAX_RELATIVE_DIFFERENCE


def binarize_as_advised(net: nn.Module, method: str, shape: tuple[int, ...]) -> str:
    """Binarize a network and return the value of `activation` that was used.

    By default, binarize replaces a ReLU in front of a binary layer. It cannot replace a function call, such as
    F.relu(x). The error message then advises activation="keep" as one alternative, which is used here.
    """
    try:
        lcrbnn.binarize(net, method, example=shape)
    except InputError:
        lcrbnn.binarize(net, method, example=shape, activation="keep")
        return "keep"
    return "replace"


def check_all(names: list[str], methods: list[str], kernels: list[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the name, the method and the row of each pair."""
    for name in names:
        for method in methods:
            with warnings.catch_warnings(action="ignore"):
                yield name, method, check_architecture(ARCHITECTURES[name], method, kernels)


def format_row(name: str, method: str, row: dict[str, Any]) -> str:
    """Return one printed line."""
    detail = f"{row['difference']:.1e}" if "difference" in row else row["reason"]
    return f"{name:32} {method:10} {row['result']:8} {detail}"


def main() -> int:
    """Check the pairs, print one line each and a summary, and write the record. Return 1 if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path, help="write the results to this file")
    parser.add_argument("--names", nargs="+", default=list(ARCHITECTURES), choices=list(ARCHITECTURES), metavar="NAME")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="METHOD")
    args = parser.parse_args()
    kernels, rows = list_available_kernels(), {}
    for name, method, row in check_all(args.names, args.methods, kernels):
        rows[f"{name} {method}"] = row
        print(format_row(name, method, row), flush=True)
    counts = Counter(row["result"] for row in rows.values())
    num_kept = sum(row.get("activation") == "keep" for row in rows.values())
    results = ", ".join(f"{counts[result]} {result}" for result in (EQUAL, REFUSED, UNSTABLE, WRONG))
    print(f"{len(rows)} pairs: {results}; {num_kept} with activation='keep', because they call F.relu")
    if args.record:
        settings = {
            "methods": args.methods,
            "kernels": kernels,
            "steps": NUM_STEPS,
            "learning_rate": LEARNING_RATE,
            "batch_sizes": list(BATCH_SIZES),
            "bound": MAX_RELATIVE_DIFFERENCE,
        }
        write_record(
            args.record,
            "architectures",
            settings,
            {"counts": dict(counts), "kept_activations": num_kept, "pairs": rows},
        )
    return 1 if counts[WRONG] else 0


if __name__ == "__main__":
    sys.exit(main())
