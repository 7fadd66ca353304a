"""Does any file harm the engine? Changes small model files in a million ways and opens each under the sanitizers.

    python -m tools.fuzz [--count 1000000] [--seed 0] [--jobs 2] [--bits 32] [--record FILE]
    python -m tools.fuzz --seed 0 --case N      one case again, and what the engine says to it

Builds native/fuzz.cpp with the engine's sources under AddressSanitizer and UndefinedBehaviorSanitizer. A case is
refused, or accepted and, if it is not too large, run. A crash, a case of more than 2 seconds, a process of more than
512 MiB or an answer that depends on fusing ends it all with exit code 1 and the number of the case.
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

from lcrbnn.engine import Bits, Model, Node
from lcrbnn.engine.format import to_bytes
from lcrbnn.errors import Failed
from lcrbnn.runs.progress import Progress
from lcrbnn.runs.record import write_record
from tests.engine import every_op, made, normal, random_bits, random_keys, random_window, window
from tools.build import build, compiler

HARM = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
SPARE = 512  # spaces behind a graph: it may grow without moving the tensors
BLOCK = 20_000  # cases of one process


def small_models(seed: int = 0) -> Iterator[tuple[str, Model]]:
    """Yield models of a few kilobytes: every op, in the neighbourhoods that the engine fuses."""
    rng = np.random.default_rng(seed)
    three = window((3, 3), (1, 1), (1, 1, 1, 1))
    for sign in (-1, 0, 1):  # compares of counts, with each kind of border
        first = random_keys(rng, "bconv", 3, 9, three) | {"pad_sign": sign}
        second = random_keys(rng, "bconv", 9, 4, three | {"stride": (2, 2)}) | {"pad_sign": sign}
        yield (
            f"signs {sign}",
            _headed((5, 4, 3), ("bconv", (0,), first), ("hardtanh", (1,), {}), ("bconv", (2,), second)),
        )
    groups = random_keys(rng, "bconv", 6, 4, window((2, 3), (1, 2), (0, 2, 1, 0), (2, 1), 2))
    spatial = random_keys(rng, "bconv", 4, 3, window()) | {"threshold": "mean", "spatial": normal(rng, 4, 3, 1)}
    yield "groups", _headed((5, 6, 6), ("bconv", (0,), groups), ("bconv", (1,), spatial))
    wide = random_keys(rng, "bconv", 70, 17, window())
    yield "wide", _headed((2, 2, 70), ("bconv", (0,), wide), ("prelu", (1,), {"slope": normal(rng, 17)}))
    half = random_keys(rng, "conv", 2, 4, window((3, 2), (1, 1), (1, 0, 1, 1), (1, 2)))
    half["weight"] = half["weight"].astype(np.float16)
    scaled = random_keys(rng, "wconv", 4, 4, three | {"groups": 2}) | {"spatial": normal(rng, 5, 4, 4)}
    yield "floats", _headed((5, 5, 2), ("conv", (0,), half), ("wconv", (1,), scaled), ("relu", (2,), {}))
    pool = {"kernel": (2, 3), "stride": (2, 2), "pad": (0, 0, 1, 1)}
    yield (
        "pools",
        _headed(
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
    residual = random_keys(rng, "bconv", 5, 5, three)
    yield (
        "block",
        _headed(
            (4, 4, 5),
            ("affine", (0,), {"a": normal(rng, 5), "b": normal(rng, 5)}),
            ("bconv", (1,), residual),
            ("add", (2, 1), {}),
            ("shift", (3,), {"b": normal(rng, 5)}),
            ("hardtanh", (4,), {}),
            ("add", (5, 3), {}),
        ),
    )
    yield "flat", made((2, 3, 2), Node("relu", "", (0,), {}))
    yield "one", made((1, 1, 1), Node("bconv", "", (0,), random_keys(rng, "bconv", 1, 1, window())))
    taps = 9 * 64
    weight = Bits(random_bits(rng, 1, taps).packed, taps)
    deep = random_keys(rng, "bconv", 64, 1, three) | {"weight": weight}
    yield "deep", _headed((3, 3, 64), ("bconv", (0,), deep))
    yield "every op", every_op(rng)
    for i in range(24):  # windows and numbers of channels of all kinds
        op, c = ("bconv", "conv", "wconv", "bconv")[i % 4], int(rng.choice([1, 3, 4, 8, 24, 65]))
        slide = random_window(rng, c)
        out = slide["groups"] * int(rng.choice([1, 3] if c > 8 else [1, 3, 9]))
        second = random_window(rng, out) | {"groups": 1, "pad": (2, 3, 2, 3)}
        yield (
            f"window {i}",
            _headed(
                (7, 8, c),
                (op, (0,), random_keys(rng, op, c, out, slide)),
                ("bconv", (1,), random_keys(rng, "bconv", out, 8, second)),
            ),
        )


def _headed(shape: tuple[int, int, int], *rows: tuple[str, tuple[int, ...], dict[str, Any]]) -> Model:
    """Put a mean behind nodes, so that the size of the image is free."""
    nodes = [Node(op, f"{op} {i}", inputs, keys) for i, (op, inputs, keys) in enumerate(rows)]
    return made(shape, *nodes, Node("mean", "mean", (len(nodes),), {}))


def roomy(data: bytes, spare: int = SPARE) -> bytes:
    """Return a model file with spaces behind its graph."""
    length, start, count = struct.unpack_from("<QQQ", data, 32)
    graph = json.loads(data[64 : 64 + length])
    room = start - 64 + spare
    for entry in graph["tensors"]:
        entry["offset"] += spare
    text = json.dumps(graph, separators=(",", ":"), ensure_ascii=False).encode().ljust(room)
    header = struct.pack("<8sIIQQQQQQ", data[:8], 1, 0, 64 + room + count + 32, 64, room, 64 + room, count, 0)
    body = header + text + data[start : start + count]
    return body + hashlib.sha256(body).digest()


def write_models(folder: Path) -> None:
    """Write the files that cases are made of."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in small_models():
        (folder / f"{name}.bnn").write_bytes(roomy(to_bytes(model)))


def fuzz(program: Path, models: Path, seed: int, first: int, count: int, *more: str) -> dict[str, Any]:
    """Run cases in a process; Failed tells what it said when it ended badly."""
    words = [str(program), str(models), "--seed", str(seed), "--first", str(first), "--count", str(count), *more]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{done.stderr[-6000:]}")
    return json.loads(done.stdout)


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum the counts of processes; the longest and the largest of them stand for all."""
    reasons: Counter[str] = Counter()
    for part in parts:
        reasons.update(part["reasons"])
    sums = {key: sum(part[key] for part in parts) for key in ("cases", "refused", "no_memory", "accepted", "run")}
    most = {key: max(part[key] for part in parts) for key in ("longest_s", "peak_mib")}
    return {**sums, **most, "reasons": dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))}


def main() -> int:
    """Build, run in as many processes as asked for, print, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=1_000_000, help="cases")
    parser.add_argument("--seed", type=int, default=0, help="of the cases")
    parser.add_argument("--case", type=int, help="only this one, again")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--bits", type=int, choices=(32, 64), default=64, help="of an address; 32 takes g++-multilib")
    parser.add_argument("--record", type=Path, help="write seed, counts and outcome into this JSON file")
    args = parser.parse_args()
    flags = (*HARM, "-m32") if args.bits == 32 else HARM
    if not compiler():
        print("there is no C++ compiler", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        models = Path(scratch) / "models"
        write_models(models)
        program = build("fuzz", Path(scratch), flags)
        if args.case is not None:
            words = [str(program), str(models), "--seed", str(args.seed), "--case", str(args.case)]
            return subprocess.run(words, check=False).returncode
        began, progress = time.monotonic(), Progress(-(-args.count // BLOCK))

        def block(first: int) -> dict[str, Any]:
            part = fuzz(program, models, args.seed, first, min(BLOCK, args.count - first))
            progress.advance(lambda: f"blocks of {BLOCK:,} cases")
            return part

        try:
            with ThreadPoolExecutor(args.jobs) as pool:
                figures = merged(list(pool.map(block, range(0, args.count, BLOCK))))
        except Failed as error:
            print(error, file=sys.stderr)
            return 1
        figures["seconds"] = round(time.monotonic() - began, 1)
    print(", ".join(f"{key} {value}" for key, value in figures.items() if key != "reasons"))
    print(f"{len(figures['reasons'])} different reasons to refuse")
    if args.record:
        settings = {"seed": args.seed, "count": args.count, "flags": list(flags), "models": len(list(small_models()))}
        write_record(args.record, "fuzz", settings, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
