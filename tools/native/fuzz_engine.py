"""Fuzz the engine, which opens up to millions of small, modified model files under sanitizers.

    python -m tools.native.fuzz_engine [--count 1000000] [--seed 0] [--jobs 2] [--bits 32] [--record FILE]
    python -m tools.native.fuzz_engine --seed 0 --case N      repeat one case and print the engine's response

The tool builds native/fuzz.cpp with the sources of the engine under AddressSanitizer and UndefinedBehaviorSanitizer.
The engine rejects a case, or accepts it and runs it if it is small enough. The fuzzing stops with exit code 1 and the
number of the case after one of these events: a crash, a case that takes more than 2 seconds, a process with more than
512 MiB, or an output that changes with operator fusion.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.deploy.engine.graph import BnnModel, Node, PackedSigns
from lcrbnn.errors import RunFailed
from lcrbnn.runs.progress import ProgressBar
from lcrbnn.runs.record import write_record
from tests.deploy.engine.small_models import (
    draw_attributes,
    draw_normal,
    draw_packed_signs,
    draw_window,
    make_model,
    make_model_with_every_op,
    make_window,
)
from tests.deploy.engine.version_2_models import make_attention_model, make_broadcast_model, make_version_2_model
from tools.native.build import build_program, find_compiler

SANITIZER_FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
SPARE_BYTES = 512  # number of spaces after the graph, so that the graph can grow without moving the tensors
CASES_PER_PROCESS = 20_000


def make_small_models(seed: int = 0) -> Iterator[tuple[str, BnnModel]]:
    """Yield models of a few kilobytes.

    Together they have every operator, next to operators that the engine fuses with it.
    """
    rng = np.random.default_rng(seed)
    three = make_window((3, 3), (1, 1), (1, 1, 1, 1))
    for sign in (-1, 0, 1):  # test comparisons with a threshold for each kind of padding
        first = draw_attributes(rng, "bconv", 3, 9, three) | {"pad_sign": sign}
        second = draw_attributes(rng, "bconv", 9, 4, three | {"stride": (2, 2)}) | {"pad_sign": sign}
        yield (
            f"signs {sign}",
            _append_mean((5, 4, 3), ("bconv", (0,), first), ("hardtanh", (1,), {}), ("bconv", (2,), second)),
        )
    groups = draw_attributes(rng, "bconv", 6, 4, make_window((2, 3), (1, 2), (0, 2, 1, 0), (2, 1), 2))
    spatial = draw_attributes(rng, "bconv", 4, 3, make_window()) | {
        "threshold": "mean",
        "spatial": draw_normal(rng, 4, 3, 1),
    }
    yield "groups", _append_mean((5, 6, 6), ("bconv", (0,), groups), ("bconv", (1,), spatial))
    many_channels = draw_attributes(rng, "bconv", 70, 17, make_window())
    yield (
        "wide",
        _append_mean((2, 2, 70), ("bconv", (0,), many_channels), ("prelu", (1,), {"slope": draw_normal(rng, 17)})),
    )
    half = draw_attributes(rng, "conv", 2, 4, make_window((3, 2), (1, 1), (1, 0, 1, 1), (1, 2)))
    half["weight"] = half["weight"].astype(np.float16)
    scaled = draw_attributes(rng, "wconv", 4, 4, three | {"groups": 2}) | {"spatial": draw_normal(rng, 5, 4, 4)}
    yield "floats", _append_mean((5, 5, 2), ("conv", (0,), half), ("wconv", (1,), scaled), ("relu", (2,), {}))
    pool = {"kernel": (2, 3), "stride": (2, 2), "pad": (0, 0, 1, 1)}
    yield (
        "pools",
        _append_mean(
            (6, 7, 2),
            ("maxpool", (0,), pool | {"pad": (1, 1, 1, 1)}),
            ("avgpool", (0,), pool),
            ("subsample", (0,), {"stride": (3, 2)}),
            ("mean", (1,), {}),
            ("mean", (2,), {}),
            ("mean", (3,), {}),
            ("add", (4, 5), {}),
            ("add", (6, 7), {}),
            ("channels", (8,), {"before": 1, "after": 2}),
            ("softmax", (9,), {}),
        ),
    )
    residual = draw_attributes(rng, "bconv", 5, 5, three)
    yield (
        "block",
        _append_mean(
            (4, 4, 5),
            ("affine", (0,), {"a": draw_normal(rng, 5), "b": draw_normal(rng, 5)}),
            ("bconv", (1,), residual),
            ("add", (2, 1), {}),
            ("shift", (3,), {"b": draw_normal(rng, 5)}),
            ("hardtanh", (4,), {}),
            ("add", (5, 3), {}),
        ),
    )
    yield "flat", make_model((2, 3, 2), Node("relu", "", (0,), {}))
    yield "one", make_model((1, 1, 1), Node("bconv", "", (0,), draw_attributes(rng, "bconv", 1, 1, make_window())))
    taps = 9 * 64
    weight = PackedSigns(draw_packed_signs(rng, 1, taps).packed, taps)
    deep = draw_attributes(rng, "bconv", 64, 1, three) | {"weight": weight}
    yield "deep", _append_mean((3, 3, 64), ("bconv", (0,), deep))
    yield "every op", make_model_with_every_op(rng)
    yield "version 2", make_version_2_model(rng)
    yield "attention", make_attention_model(rng)
    yield "broadcast", make_broadcast_model(rng)
    for i in range(24):  # random windows and channel counts
        op, c = ("bconv", "conv", "wconv", "bconv")[i % 4], int(rng.choice([1, 3, 4, 8, 24, 65]))
        slide = draw_window(rng, c)
        out = slide["groups"] * int(rng.choice([1, 3] if c > 8 else [1, 3, 9]))
        second = draw_window(rng, out) | {"groups": 1, "pad": (2, 3, 2, 3)}
        yield (
            f"window {i}",
            _append_mean(
                (7, 8, c),
                (op, (0,), draw_attributes(rng, op, c, out, slide)),
                ("bconv", (1,), draw_attributes(rng, "bconv", out, 8, second)),
            ),
        )


def _append_mean(shape: tuple[int, int, int], *rows: tuple[str, tuple[int, ...], dict[str, Any]]) -> BnnModel:
    """Append a mean operator to the nodes, so that the image size is not fixed."""
    nodes = [Node(op, f"{op} {i}", inputs, keys) for i, (op, inputs, keys) in enumerate(rows)]
    return make_model(shape, *nodes, Node("mean", "mean", (len(nodes),), {}))


def pad_graph(data: bytes, spare: int = SPARE_BYTES) -> bytes:
    """Return the model file with spaces after its graph."""
    length, start, count = struct.unpack_from("<QQQ", data, 32)
    graph = json.loads(data[64 : 64 + length])
    graph_bytes = start - 64 + spare
    for entry in graph["tensors"]:
        entry["offset"] += spare
    text = json.dumps(graph, separators=(",", ":"), ensure_ascii=False).encode().ljust(graph_bytes)
    header = struct.pack(
        "<12sIQQQQQQ", data[:12], 0, 64 + graph_bytes + count + 32, 64, graph_bytes, 64 + graph_bytes, count, 0
    )
    body = header + text + data[start : start + count]
    return body + hashlib.sha256(body).digest()


def write_models(folder: Path) -> None:
    """Write the model files that the cases modify."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in make_small_models():
        (folder / f"{name}.bnn").write_bytes(pad_graph(to_bytes(model)))


def run_cases(program: Path, models: Path, seed: int, first: int, count: int, *extra_arguments: str) -> dict[str, Any]:
    """Run cases in a process and return their counts. If the process fails, raise RunFailed with its stderr."""
    command = [
        str(program),
        str(models),
        "--seed",
        str(seed),
        "--first",
        str(first),
        "--count",
        str(count),
        *extra_arguments,
    ]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RunFailed(f"{process.stderr[-6000:]}")
    return json.loads(process.stdout)


def merge_results(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums of the counts of all processes. Times and memory are maxima."""
    reasons: Counter[str] = Counter()
    for part in parts:
        reasons.update(part["reasons"])
    sums = {key: sum(part[key] for part in parts) for key in ("cases", "refused", "no_memory", "accepted", "run")}
    maxima = {key: max(part[key] for part in parts) for key in ("longest_s", "peak_mib")}
    return {**sums, **maxima, "reasons": dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))}


def main() -> int:
    """Build the fuzzer, run it in parallel processes, print the counts and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=1_000_000, help="number of cases")
    parser.add_argument("--seed", type=int, default=0, help="random seed from which the cases are drawn")
    parser.add_argument("--case", type=int, help="number of the only case that is run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of parallel processes")
    parser.add_argument(
        "--bits", type=int, choices=(32, 64), default=64, help="number of bits of an address; 32 bits need g++-multilib"
    )
    parser.add_argument("--record", type=Path, help="write seed, counts and result to this JSON file")
    args = parser.parse_args()
    flags = (*SANITIZER_FLAGS, "-m32") if args.bits == 32 else SANITIZER_FLAGS
    if not find_compiler():
        print("there is no C++ compiler", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        models = Path(scratch) / "models"
        write_models(models)
        program = build_program("fuzz", Path(scratch), flags)
        if args.case is not None:
            command = [str(program), str(models), "--seed", str(args.seed), "--case", str(args.case)]
            return subprocess.run(command, check=False).returncode
        start_s, progress = time.monotonic(), ProgressBar(-(-args.count // CASES_PER_PROCESS))

        def run_block(first: int) -> dict[str, Any]:
            part = run_cases(program, models, args.seed, first, min(CASES_PER_PROCESS, args.count - first))
            progress.advance(lambda: f"blocks of {CASES_PER_PROCESS:,} cases")
            return part

        try:
            with ThreadPoolExecutor(args.jobs) as pool:
                figures = merge_results(list(pool.map(run_block, range(0, args.count, CASES_PER_PROCESS))))
        except RunFailed as error:
            print(error, file=sys.stderr)
            return 1
        figures["seconds"] = round(time.monotonic() - start_s, 1)
    print(", ".join(f"{key} {value}" for key, value in figures.items() if key != "reasons"))
    print(f"{len(figures['reasons'])} different reasons for rejection")
    if args.record:
        settings = {
            "seed": args.seed,
            "count": args.count,
            "flags": list(flags),
            "models": len(list(make_small_models())),
        }
        write_record(args.record, "fuzz", settings, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
