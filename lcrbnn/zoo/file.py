"""A trained network as a small file: one bit a binary weight, float16 for everything else (docs/zoo.md).

It is a checkpoint of two arrays: `bits`, the signs of all binary layers, and `halves`, all other numbers. The facts
beside them name the tensors of each in order, with their shapes; of those of `halves` an exponent of two comes first.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lcrbnn.bits import pack, unpack
from lcrbnn.errors import InputError
from lcrbnn.layers import binary_layers
from lcrbnn.models import Network
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from lcrbnn.train.build import build_network
from lcrbnn.train.spec import Spec
from lcrbnn.train.state import module_arrays, restore_module
from lcrbnn.zoo.index import Member
from lcrbnn.zoo.kept import SIZE, keep

PREFIX = "model"
LARGEST, SMALLEST = 65504.0, 2.0**-14  # of float16; below the latter it holds fewer digits


class Small(NamedTuple):
    """What a file holds."""

    spec: Spec
    model: Network  # in evaluation mode
    checkpoint: str  # SHA-256 of the checkpoint that it was made from


def write_small(path: Path, spec: Spec, net: Network, checkpoint: str) -> None:
    """Write a network; its latent weights become their signs."""
    keep(net)
    signs = {f"{PREFIX}/{name}.weight" for name, _ in binary_layers(net)}
    bits: list[np.ndarray] = []
    halves: list[np.ndarray] = []
    names: dict[str, dict[str, list[int]]] = {"bits": {}, "halves": {}}
    for name, array in module_arrays(net, PREFIX).items():
        if array.dtype.kind != "f":
            continue  # counts of batches
        short = name.removeprefix(f"{PREFIX}/")
        if name in signs:
            bits.append(pack(array.reshape(len(array), -1)).reshape(-1))
            names["bits"][short] = list(array.shape)
        else:
            numbers, exponent = halved(array)
            halves.append(numbers.reshape(-1))
            names["halves"][short] = [exponent, *array.shape]
    arrays = {"bits": _joined(bits, np.uint8), "halves": _joined(halves, np.float16)}
    facts = {"spec": spec.stored(), "checkpoint_sha256": checkpoint, "tensors": names}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(path, Checkpoint(arrays, facts))
    except OSError as error:
        raise InputError(f"a network cannot be written to {path}: {error.strerror}") from None


def read_small(path: Path) -> Small:
    """The network in a file: its signs and numbers are exactly those of the file."""
    arrays, facts = read_checkpoint(path)
    if set(arrays) != {"bits", "halves"} or not {"spec", "checkpoint_sha256", "tensors"} <= set(facts):
        raise InputError(f"{path} holds a checkpoint, and no network of one bit a weight")
    kinds = {"bits": np.uint8, "halves": np.float16}
    if any(arrays[name].ndim != 1 or arrays[name].dtype != kind for name, kind in kinds.items()):
        raise InputError(f"{path} holds a checkpoint whose bits and halves are no lists of uint8 and float16 numbers")
    if not isinstance(facts["spec"], dict) or not isinstance(facts["checkpoint_sha256"], str):
        raise InputError(f"{path} holds a checkpoint whose spec is no object or whose checkpoint_sha256 is no text")
    spec = Spec.of(facts["spec"])
    net = build_network(spec)
    keep(net)
    found = {name: np.zeros_like(a) for name, a in module_arrays(net, PREFIX).items() if a.dtype.kind != "f"}
    try:
        names = facts["tensors"]
        found |= _signs(arrays["bits"], names["bits"]) | _numbers(arrays["halves"], names["halves"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(f"{path} does not describe its own tensors: {error}") from None
    restore_module(net, PREFIX, found, str(path))
    return Small(spec, net.eval(), facts["checkpoint_sha256"])


def read_member(member: Member) -> Small:
    """The network of a line of the list; a file that is whole but not the one that was listed is refused."""
    if not member.path.exists():
        raise InputError(
            f"{member.path} is missing: a network of {member.bytes:,} bytes is not installed with the package, "
            "only the source tree of lcrbnn has it"
        )
    small = read_small(member.path)
    found = hashlib.sha256(member.path.read_bytes()).hexdigest()
    if found != member.sha256:
        raise InputError(
            f"{member.path} is not the file of the list: its SHA-256 begins with {found[:12]}, not {member.sha256[:12]}"
        )
    return small


def halved(array: np.ndarray) -> tuple[np.ndarray, int]:
    """float16 numbers and an exponent of two: 0 where float16 has the range, else as the largest number needs it."""
    sizes = np.abs(array[array != 0])
    exponent = 0
    if sizes.size and (sizes.max() > LARGEST or sizes.min() < SMALLEST):
        exponent = math.frexp(float(sizes.max()))[1] - 15
    return np.ldexp(array, -exponent).astype(np.float16), exponent


def _signs(bits: np.ndarray, names: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """The weights of binary layers, as keep makes them."""
    parts = _cut(bits, [shape[0] * -(-math.prod(shape[1:]) // 8) for shape in names.values()])
    found = {}
    for (name, shape), part in zip(names.items(), parts, strict=True):
        signs = unpack(part.reshape(shape[0], -1), math.prod(shape[1:])).reshape(shape)
        found[f"{PREFIX}/{name}"] = signs * np.float32(SIZE)
    return found


def _numbers(halves: np.ndarray, names: dict[str, list[int]]) -> dict[str, np.ndarray]:
    parts = _cut(halves, [math.prod(shape) for _, *shape in names.values()])
    return {
        f"{PREFIX}/{name}": np.ldexp(part.astype(np.float32), exponent).reshape(shape)
        for (name, (exponent, *shape)), part in zip(names.items(), parts, strict=True)
    }


def _cut(whole: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    if sum(sizes) != len(whole):
        raise ValueError(f"they take {sum(sizes)} places, and there are {len(whole)}")
    return np.split(whole, np.cumsum(sizes))[:-1]


def _joined(parts: list[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, kind)
