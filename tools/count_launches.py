"""Count the kernel launches of a compiled training step and the bytes they access, without a GPU.

    python -m tools.count_launches [--cases resnet20 resnet18 ...] [--leans wordy lean]
        [--record bench/records/launches.json]

Only the compiled part of the step is counted: choice of images, forward and backward pass, and loss. Cases and fusion
options are those of bench/training/gpu_cases.py. A launch accesses each of its tensors once. The data set is not
counted, because a launch reads only one batch of it.
"""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import NamedTuple

from bench.training.gpu_cases import CASES, FUSION_OPTIONS
from lcrbnn.runs.record import write_record

NUM_IMAGES = 1000  # number of noise images; no other tensor has this size, so this number identifies the data set
TORCH_TYPE_BYTES = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
    "bool": 1,
}
TRITON_TYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8, "i64": 8, "i32": 4, "i8": 1, "u8": 1, "i1": 1}


class LaunchCount(NamedTuple):
    """Number of launches in generated code, and the bytes that they access."""

    num_launches: int
    bytes: int

    def add(self, right: LaunchCount) -> LaunchCount:
        """Return the sum of two counts."""
        return LaunchCount(self.num_launches + right.num_launches, self.bytes + right.bytes)


def count_launches(code: str) -> LaunchCount:
    """Return the number of launches in generated code. Triton kernels and calls of library kernels count."""
    types = {name: re.findall(r"'\*(\w+)'", text) for name, text in _find_kernels(code)}
    sizes: dict[str, tuple[int, int]] = {}  # dictionary: name of a tensor -> (number of elements, bytes per element)
    total = LaunchCount(0, 0)
    for line in map(str.strip, code[code.index("def call(") :].splitlines()):
        if match := re.match(r"assert_size_stride\((\w+), \(([^)]*)\)", line):
            is_data_set = match[2].startswith(f"{NUM_IMAGES}, ")  # whether this tensor is the whole data set
            sizes.setdefault(match[1], (0 if is_data_set else _product(match[2]), 2))
        elif match := re.match(r"(\w+) = empty_strided_\w+\(\(([^)]*)\), \([^)]*\), torch\.(\w+)\)", line):
            sizes[match[1]] = (_product(match[2]), TORCH_TYPE_BYTES[match[3]])
        elif match := re.match(r"(\w+) = reinterpret_tensor\((\w+), \(([^)]*)\)", line):
            sizes[match[1]] = (_product(match[3]), sizes.get(match[2], (0, 2))[1])
        elif (match := re.match(r"(\w+) = (\w+)(?:; del .*)?(?:\s*#.*)?$", line)) and match[2] in sizes:
            sizes[match[1]] = sizes[match[2]]
        elif match := re.match(r"(triton_\w+)\.run\((.*)\)$", line):
            names = re.findall(r"(?:^|, )(?:reinterpret_tensor\()?([a-z]\w*)", match[2])
            types_by_argument = dict(zip(names, types.get(match[1], []), strict=False))
            total = total.add(
                LaunchCount(
                    1,
                    sum(
                        sizes.get(name, (0, 0))[0] * TRITON_TYPE_BYTES[kind] for name, kind in types_by_argument.items()
                    ),
                )
            )
        elif match := re.match(r"(?:\w+ = )?(?:torch\.ops|extern_kernels)\.[\w.]+\((.*)", line):
            names = re.findall(r"\b[a-z]\w*\d\b", match[1])
            total = total.add(LaunchCount(1, sum(math.prod(sizes.get(name, (0, 2))) for name in set(names))))
    return total


def _find_kernels(code: str) -> list[tuple[str, str]]:
    """Return the names of the kernels, and the signatures of their arguments."""
    kernels = re.findall(r"(triton_\w+) = async_compile\.triton\('\w+', '''(.*?)'''", code, re.S)
    return [(name, signature[1]) for name, text in kernels if (signature := re.search(r"'signature': \{(.*?)\}", text))]


def _product(shape: str) -> int:
    return math.prod(int(n) for n in re.findall(r"\d+", shape))


def main() -> None:
    """Count the launches of all cases, print the counts and write the record."""
    from tools.offline_compile import generate_code

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", nargs="+", default=["resnet20", "resnet20-latent", "resnet18"], choices=list(CASES))
    parser.add_argument("--leans", nargs="+", default=list(FUSION_OPTIONS), choices=list(FUSION_OPTIONS))
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for case in args.cases:
        figures[case] = {}
        for options_name in args.leans:
            total = LaunchCount(0, 0)
            for code in generate_code(CASES[case], FUSION_OPTIONS[options_name]):
                total = total.add(count_launches(code))
            figures[case][options_name] = {"launches": total.num_launches, "megabytes": round(total.bytes / 1e6, 1)}
            print(f"{case:16} {options_name:9} {total.num_launches:4} launches {total.bytes / 1e6:8.1f} MB", flush=True)
    if args.record:
        write_record(args.record, "launches", {"cases": args.cases, "leans": args.leans}, figures)


if __name__ == "__main__":
    main()
