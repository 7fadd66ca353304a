"""Launches of a compiled training step and the bytes that they touch, counted without a GPU, a row for each case.

    python -m tools.launches [--cases resnet20 resnet18 ...] [--leans wordy lean] [--record results/bench/launches.json]

Of the compiled part: picking images, the network forward and back, the loss. Cases and leans are those of
bench/cases.py. A launch touches each of its tensors once; the data set, of which it picks a batch, is left out.
"""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import NamedTuple

from bench.cases import CASES, LEANS
from lcrbnn.runs.record import write_record

IMAGES = 1000  # of a data set of noise: a number by which it is known, for nothing else has it
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}
SHORT = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8, "i64": 8, "i32": 4, "i8": 1, "u8": 1, "i1": 1}


class Launches(NamedTuple):
    """Of one piece of code, or of several."""

    number: int
    bytes: int

    def plus(self, other: Launches) -> Launches:
        """Both."""
        return Launches(self.number + other.number, self.bytes + other.bytes)


def count(code: str) -> Launches:
    """Of what the compiler wrote: its own kernels, and calls of others'."""
    types = {name: re.findall(r"'\*(\w+)'", text) for name, text in _kernels(code)}
    sizes: dict[str, tuple[int, int]] = {}  # numbers of a tensor, bytes of each
    total = Launches(0, 0)
    for line in map(str.strip, code[code.index("def call(") :].splitlines()):
        if found := re.match(r"assert_size_stride\((\w+), \(([^)]*)\)", line):
            data = found[2].startswith(f"{IMAGES}, ")  # the whole data set
            sizes.setdefault(found[1], (0 if data else _product(found[2]), 2))
        elif found := re.match(r"(\w+) = empty_strided_\w+\(\(([^)]*)\), \([^)]*\), torch\.(\w+)\)", line):
            sizes[found[1]] = (_product(found[2]), BYTES[found[3]])
        elif found := re.match(r"(\w+) = reinterpret_tensor\((\w+), \(([^)]*)\)", line):
            sizes[found[1]] = (_product(found[3]), sizes.get(found[2], (0, 2))[1])
        elif (found := re.match(r"(\w+) = (\w+)(?:; del .*)?(?:\s*#.*)?$", line)) and found[2] in sizes:
            sizes[found[1]] = sizes[found[2]]
        elif found := re.match(r"(triton_\w+)\.run\((.*)\)$", line):
            names = re.findall(r"(?:^|, )(?:reinterpret_tensor\()?([a-z]\w*)", found[2])
            wide = dict(zip(names, types.get(found[1], []), strict=False))
            total = total.plus(
                Launches(1, sum(sizes.get(name, (0, 0))[0] * SHORT[kind] for name, kind in wide.items()))
            )
        elif found := re.match(r"(?:\w+ = )?(?:torch\.ops|extern_kernels)\.[\w.]+\((.*)", line):
            names = re.findall(r"\b[a-z]\w*\d\b", found[1])
            total = total.plus(Launches(1, sum(math.prod(sizes.get(name, (0, 2))) for name in set(names))))
    return total


def _kernels(code: str) -> list[tuple[str, str]]:
    """Names and the types of their arguments."""
    made = re.findall(r"(triton_\w+) = async_compile\.triton\('\w+', '''(.*?)'''", code, re.S)
    return [(name, signature[1]) for name, text in made if (signature := re.search(r"'signature': \{(.*?)\}", text))]


def _product(shape: str) -> int:
    return math.prod(int(n) for n in re.findall(r"\d+", shape))


def main() -> None:
    """Count, print, write a record."""
    from tools.offline import code_of  # which loads torch's compiler

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", nargs="+", default=["resnet20", "resnet20-latent", "resnet18"], choices=list(CASES))
    parser.add_argument("--leans", nargs="+", default=list(LEANS), choices=list(LEANS))
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for case in args.cases:
        figures[case] = {}
        for lean in args.leans:
            total = Launches(0, 0)
            for code in code_of(CASES[case], LEANS[lean]):
                total = total.plus(count(code))
            figures[case][lean] = {"launches": total.number, "megabytes": round(total.bytes / 1e6, 1)}
            print(f"{case:16} {lean:9} {total.number:4} launches {total.bytes / 1e6:8.1f} MB", flush=True)
    if args.record:
        write_record(args.record, "launches", {"cases": args.cases, "leans": args.leans}, figures)


if __name__ == "__main__":
    main()
