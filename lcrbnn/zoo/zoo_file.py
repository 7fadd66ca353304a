"""Read and write zoo files, with one bit per binary weight and base, and float16 for other numbers (docs/zoo.md)."""

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

# The magnitude of all binary weights after loading. If training continues on digits with learning rate 0.05, 40 steps
# flip about 5 % of the signs.
SIGN_MAGNITUDE = 0.01


class StoredSignWeight(WeightBinarizer):
    """The sum over the bases of scale * sign, plus an offset. Only the first sign can change.

    The first sign is that of the weight, with a surrogate gradient of 1 for |w| <= 1, else 0. `more_signs` has the
    signs of the other bases, (bases - 1, *weight.shape). It is None for one base.
    """

    scale: Tensor | None
    offset: Tensor | None
    more_signs: Tensor | None

    def __init__(self, weight: Tensor, stored: BinaryTensor) -> None:
        """Copy the scale, the offset and the signs of all bases but the first."""
        super().__init__(weight)
        self.bits = stored.num_bases
        buffers = {
            "scale": stored.scale,
            "offset": stored.offset,
            "more_signs": stored.signs[1:] if stored.num_bases > 1 else None,
        }
        for name, values in buffers.items():
            self.register_buffer(name, None if values is None else values.detach().clone())

    def forward(self, weight: Tensor) -> BinaryTensor:
        """Return the signs, with scale and offset."""
        signs = ops.surrogate_sign(weight, ops.closed_clip_slope)
        if self.more_signs is None:
            return BinaryTensor(signs, self.scale, self.offset)
        return BinaryTensor(torch.cat([signs[None], self.more_signs]), self.scale, self.offset, self.bits)


@torch.no_grad()
def store_signs(net: nn.Module) -> None:
    """Replace the latent weights of each binary layer by their signs times SIGN_MAGNITUDE.

    The layers then need no other state of their binarization method. The magnitude is the distance of a weight from a
    sign flip in further training. If a weight has several bases, its latent weight has the signs of the first one.
    """
    with eval_mode(net):  # some methods binarize differently in evaluation mode
        weights = {layer: _make_storable_weight(name, layer) for name, layer in iter_binary_layers(net)}
    for layer, stored in weights.items():
        layer.weight.copy_((stored.signs if stored.num_bases == 1 else stored.signs[0]) * SIGN_MAGNITUDE)
        layer.weight_binarizer = StoredSignWeight(layer.weight, stored)
        layer.normalizer = None  # the scale includes the effect of the normalizer


def _make_storable_weight(name: str, layer: BinaryLayer) -> BinaryTensor:
    """Return the binary weight of a layer as signs. Three levels become two bases.

    Raise InputError for other levels.
    """
    weight = layer.binarize_weight()
    if layer.method.has_real_weights:
        raise InputError(f"the weights of layer {name!r} cannot be stored with one bit per base: its weights are real")
    if layer.weight_binarizer.bits == 2 and weight.num_bases == 1:  # two bits and one base mean the levels -1, 0 and +1
        weight = _split_ternary_weight(weight)
    if weight.non_binary_reason or not bool((weight.signs.abs() == 1).all()):
        reason = weight.non_binary_reason or "its levels are not signs"
        raise InputError(f"the weights of layer {name!r} cannot be stored with one bit per base: {reason}")
    return weight


def _split_ternary_weight(weight: BinaryTensor) -> BinaryTensor:
    """Return levels -1, 0 and +1 as half of the sum of two signs, which differ where the level is 0."""
    levels, scale = weight.signs, weight.scale
    signs = torch.stack([torch.where(levels >= 0, 1.0, -1.0), torch.where(levels > 0, 1.0, -1.0)])
    half_scale = levels.new_full((1,) * (levels.dim() - 1), 0.5) if scale is None else scale / 2
    return BinaryTensor(signs, torch.stack([half_scale, half_scale]), weight.offset, num_bases=2)


MODULE_PREFIX = "model"
MORE_SIGNS = "weight_binarizer.more_signs"
# Largest number of float16, and the smallest one with full precision
FLOAT16_MAX, FLOAT16_MIN_NORMAL = 65504.0, 2.0**-14


class ZooNetwork(NamedTuple):
    """The contents of a zoo file."""

    spec: TrainSpec
    model: nn.Module  # in evaluation mode
    checkpoint_sha256: str  # of the checkpoint the file was made from


def write_zoo_file(path: Path, spec: TrainSpec, net: nn.Module, checkpoint_sha256: str) -> None:
    """Write a network to a zoo file. This replaces the latent weights of the network by their signs."""
    reject_network_file(spec, path)
    store_signs(net)
    sign_names = {
        f"{MODULE_PREFIX}/{name}.{tensor}" for name, _ in iter_binary_layers(net) for tensor in ("weight", MORE_SIGNS)
    }
    bits: list[np.ndarray] = []
    halves: list[np.ndarray] = []
    shapes: dict[str, dict[str, list[int]]] = {"bits": {}, "halves": {}}
    for name, array in module_to_arrays(net, MODULE_PREFIX).items():
        if array.dtype.kind != "f":
            continue  # skip the batch counters of batch norms
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
    """Return the network in a zoo file. If the file is not a zoo file, raise InputError."""
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
    """Return the network of a zoo member. If its file is missing or has another SHA-256, raise InputError."""
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
    """Return float16 numbers and an exponent e such that array = numbers * 2^e.

    If all numbers are in the normal range of float16, the exponent is 0. Otherwise it follows from the largest number.
    """
    magnitudes = np.abs(array[array != 0])
    exponent = 0
    if magnitudes.size and (magnitudes.max() > FLOAT16_MAX or magnitudes.min() < FLOAT16_MIN_NORMAL):
        exponent = math.frexp(float(magnitudes.max()))[1] - 15
    return np.ldexp(array, -exponent).astype(np.float16), exponent


def _unpack_weights(bits: np.ndarray, shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Return the weights of binary layers, in the form that `store_signs` gives them."""
    parts = _split_array(bits, [shape[0] * -(-math.prod(shape[1:]) // 8) for shape in shapes.values()])
    weights = {}
    for (name, shape), packed in zip(shapes.items(), parts, strict=True):
        signs = unpack_signs(packed.reshape(shape[0], -1), math.prod(shape[1:])).reshape(shape)
        magnitude = 1.0 if name.endswith(MORE_SIGNS) else SIGN_MAGNITUDE
        weights[f"{MODULE_PREFIX}/{name}"] = signs * np.float32(magnitude)
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
