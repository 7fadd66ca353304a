"""Zoo files: trained networks with one bit per binary weight and float16 for everything else (docs/zoo.md)."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lcrbnn.deploy.engine.bits import pack_signs, unpack_signs
from lcrbnn.errors import InputError
from lcrbnn.nn import functional as ops
from lcrbnn.nn.layers import BinaryLayer
from lcrbnn.nn.methods.binarizer import BinaryTensor, WeightBinarizer
from lcrbnn.nn.model_hooks import eval_mode, iter_binary_layers
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from lcrbnn.train.setup.build_network import build_network
from lcrbnn.train.setup.network_file import reject_network_file
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.state import module_to_arrays, restore_module
from lcrbnn.zoo.zoo_index import ZooMember

# Magnitude of all binary weights after loading: in further training with learning rate 0.05, 40 steps on digits flip
# about 5 % of the signs.
SIGN_MAGNITUDE = 0.01


class StoredSignWeight(WeightBinarizer):
    """scale * sign(w) with a fixed scale. The surrogate gradient of sign is 1 for |w| <= 1, else 0."""

    scale: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor | None) -> None:
        """Copy the scale, or use none."""
        super().__init__(weight)
        self.register_buffer("scale", None if scale is None else scale.detach().clone())

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs of the weight, with the scale."""
        return BinaryTensor(ops.surrogate_sign(weight, ops.closed_clip_slope), self.scale)


@torch.no_grad()
def store_signs(net: nn.Module) -> None:
    """Replace the latent weights of each binary layer by their signs times SIGN_MAGNITUDE.

    The layers then need no other state of their binarization method. The magnitude is the distance of a weight from a
    sign flip in further training.
    """
    with eval_mode(net):  # some methods binarize differently in evaluation mode
        weights = {layer: _one_bit_weight(name, layer) for name, layer in iter_binary_layers(net)}
    for layer, w in weights.items():
        layer.weight.copy_(w.signs * SIGN_MAGNITUDE)
        layer.weight_binarizer = StoredSignWeight(layer.weight, w.scale)
        layer.normalizer = None  # the scale includes the effect of the normalizer


def _one_bit_weight(name: str, layer: BinaryLayer) -> BinaryTensor:
    """Return the binary weight of a layer, and raise InputError if it needs more than one bit and a scale."""
    w = layer.binarize_weight()
    reason = w.non_binary_reason or ("its weights are real" if layer.method.has_real_weights else "")
    reason = reason or (
        f"{w.num_bases} bases" if w.num_bases > 1 else "" if w.offset is None else "its two levels are not opposite"
    )
    if reason:
        raise InputError(f"the weights of layer {name!r} cannot be stored with one bit: {reason}")
    return w


MODULE_PREFIX = "model"
FLOAT16_MAX, FLOAT16_MIN_NORMAL = 65504.0, 2.0**-14  # smaller numbers have fewer digits


class ZooNetwork(NamedTuple):
    """Contents of a zoo file."""

    spec: TrainSpec
    model: nn.Module  # in evaluation mode
    checkpoint_sha256: str  # of the checkpoint the file was made from


def write_zoo_file(path: Path, spec: TrainSpec, net: nn.Module, checkpoint_sha256: str) -> None:
    """Write a network to a zoo file. This replaces the latent weights of the network by their signs."""
    reject_network_file(spec, path)
    store_signs(net)
    sign_names = {f"{MODULE_PREFIX}/{name}.weight" for name, _ in iter_binary_layers(net)}
    bits: list[np.ndarray] = []
    halves: list[np.ndarray] = []
    shapes: dict[str, dict[str, list[int]]] = {"bits": {}, "halves": {}}
    for name, array in module_to_arrays(net, MODULE_PREFIX).items():
        if array.dtype.kind != "f":
            continue  # batch counters of batch norms
        short_name = name.removeprefix(f"{MODULE_PREFIX}/")
        if name in sign_names:
            bits.append(pack_signs(array.reshape(len(array), -1)).reshape(-1))
            shapes["bits"][short_name] = list(array.shape)
        else:
            numbers, exponent = to_float16(array)
            halves.append(numbers.reshape(-1))
            shapes["halves"][short_name] = [exponent, *array.shape]
    arrays = {"bits": _concatenate(bits, np.uint8), "halves": _concatenate(halves, np.float16)}
    metadata = {"spec": spec.to_dict(), "checkpoint_sha256": checkpoint_sha256, "tensors": shapes}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(path, Checkpoint(arrays, metadata))
    except OSError as error:
        raise InputError(f"a network cannot be written to {path}: {error.strerror}") from None


def read_zoo_file(path: Path) -> ZooNetwork:
    """Return the network of a zoo file, and raise InputError if the file is not a zoo file."""
    arrays, metadata = read_checkpoint(path)
    if set(arrays) != {"bits", "halves"} or not {"spec", "checkpoint_sha256", "tensors"} <= set(metadata):
        raise InputError(f"{path} is a checkpoint, not a zoo file")
    dtypes = {"bits": np.uint8, "halves": np.float16}
    if any(arrays[name].ndim != 1 or arrays[name].dtype != dtype for name, dtype in dtypes.items()):
        raise InputError(f"{path} is not a zoo file: bits and halves must be one-dimensional uint8 and float16 arrays")
    if not isinstance(metadata["spec"], dict) or not isinstance(metadata["checkpoint_sha256"], str):
        raise InputError(f"{path} is not a zoo file: spec must be an object and checkpoint_sha256 a string")
    spec = TrainSpec.from_dict(metadata["spec"])
    reject_network_file(spec, path)
    net = build_network(spec)
    store_signs(net)
    module_values = {
        name: np.zeros_like(a) for name, a in module_to_arrays(net, MODULE_PREFIX).items() if a.dtype.kind != "f"
    }
    try:
        shapes = metadata["tensors"]
        module_values |= _unpack_weights(arrays["bits"], shapes["bits"]) | _unpack_halves(
            arrays["halves"], shapes["halves"]
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(f"{path} has a wrong description of its tensors: {error}") from None
    restore_module(net, MODULE_PREFIX, module_values, str(path))
    return ZooNetwork(spec, net.eval(), metadata["checkpoint_sha256"])


def load_member(member: ZooMember) -> ZooNetwork:
    """Return the network of a zoo member, and raise InputError if its file is missing or has another SHA-256."""
    if not member.path.exists():
        raise InputError(
            f"{member.path} is missing: networks as large as {member.bytes:,} bytes are not installed with "
            "the package; they are in the source tree of lcrbnn"
        )
    network = read_zoo_file(member.path)
    sha256 = hashlib.sha256(member.path.read_bytes()).hexdigest()
    if sha256 != member.sha256:
        raise InputError(
            f"{member.path} is not the listed file: its SHA-256 starts with {sha256[:12]}, not {member.sha256[:12]}"
        )
    return network


def to_float16(array: np.ndarray) -> tuple[np.ndarray, int]:
    """Return float16 numbers and an exponent e, with array = numbers * 2^e.

    The exponent is 0 if all numbers are in the normal range of float16. Otherwise the largest number determines it.
    """
    magnitudes = np.abs(array[array != 0])
    exponent = 0
    if magnitudes.size and (magnitudes.max() > FLOAT16_MAX or magnitudes.min() < FLOAT16_MIN_NORMAL):
        exponent = math.frexp(float(magnitudes.max()))[1] - 15
    return np.ldexp(array, -exponent).astype(np.float16), exponent


def _unpack_weights(bits: np.ndarray, shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Return the weights of binary layers in the form of `store_signs`."""
    parts = _split_array(bits, [shape[0] * -(-math.prod(shape[1:]) // 8) for shape in shapes.values()])
    weights = {}
    for (name, shape), packed in zip(shapes.items(), parts, strict=True):
        signs = unpack_signs(packed.reshape(shape[0], -1), math.prod(shape[1:])).reshape(shape)
        weights[f"{MODULE_PREFIX}/{name}"] = signs * np.float32(SIGN_MAGNITUDE)
    return weights


def _unpack_halves(halves: np.ndarray, shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    parts = _split_array(halves, [math.prod(shape) for _, *shape in shapes.values()])
    return {
        f"{MODULE_PREFIX}/{name}": np.ldexp(part.astype(np.float32), exponent).reshape(shape)
        for (name, (exponent, *shape)), part in zip(shapes.items(), parts, strict=True)
    }


def _split_array(array: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    if sum(sizes) != len(array):
        raise ValueError(f"its tensors need {sum(sizes)} entries, the file has {len(array)}")
    return np.split(array, np.cumsum(sizes))[:-1]


def _concatenate(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)
