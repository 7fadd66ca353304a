"""Convert network and optimizer to named arrays and back, for checkpoints and for comparisons between processes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError
from lcrbnn.train.distributed.ranks import Ranks

MAX_LISTED_DIFFERENCES = 3  # maximum number of array names that an error message lists
# How the arrays of a resnet20-double-prelu that was trained before 2026-11-19 differ from those of today.
PRELU_STEM_DIFFERENCE = "it has the extra array stem.2.weight"


def to_array(tensor: Tensor) -> np.ndarray:
    """Return a copy of a tensor as an array."""
    return tensor.detach().cpu().contiguous().numpy().copy()


def module_to_arrays(module: nn.Module, prefix: str) -> dict[str, np.ndarray]:
    """Return the parameters and buffers of a module as arrays. Each name starts with the prefix."""
    return {f"{prefix}/{name}": to_array(t) for name, t in module.state_dict().items()}


def optimizer_to_arrays(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> dict[str, np.ndarray]:
    """Return the state that the optimizer has for each parameter, as arrays."""
    return {
        f"optimizer/{name}/{key}": to_array(value)
        for parameter, name in names.items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def find_parameters_without_state(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> list[str]:
    """Return the names of the parameters for which the optimizer has no state, because they never had a gradient.

    If the optimizer has no state at all, like SGD without momentum, the list is empty.
    """
    stateless_names = [name for parameter, name in names.items() if not optimizer.state.get(parameter)]
    return stateless_names if len(stateless_names) < len(names) else []


@torch.no_grad()
def restore_module(module: nn.Module, prefix: str, arrays: Mapping[str, np.ndarray], where: str) -> None:
    """Copy arrays into a module. If an array is not finite or does not fit, raise InputError and change nothing.

    An array fits if its name, shape and type are the same. In addition, the variance of a batch norm must not be
    negative, because its root would be NaN.
    """
    non_finite_name = find_non_finite(arrays)
    if non_finite_name is not None:
        raise InputError(f"{where} contains non-finite values in {non_finite_name!r}")
    negative_name = next((name for name, a in arrays.items() if name.endswith(".running_var") and (a < 0).any()), None)
    if negative_name is not None:
        raise InputError(f"{where} contains a negative variance in {negative_name!r}")
    current = module.state_dict()
    restored = {name.removeprefix(f"{prefix}/"): a for name, a in arrays.items() if name.startswith(f"{prefix}/")}
    differences = [
        *(f"it lacks {name}" for name in current if name not in restored),
        *(f"it has the extra array {name}" for name in restored if name not in current),
        *(
            f"{name} is {_describe_type(restored[name])} instead of {_describe_type(to_array(current[name]))}"
            for name in current
            if name in restored and _describe_type(restored[name]) != _describe_type(to_array(current[name]))
        ),
    ]
    if differences == [PRELU_STEM_DIFFERENCE]:
        raise InputError(
            f"{where} belongs to resnet20-double-prelu with a PReLU in the stem, as before 2026-11-19; the network now "
            "has a ReLU there, as in SiMaN's released code: train it again"
        )
    if differences:
        num_unlisted = len(differences) - MAX_LISTED_DIFFERENCES
        unlisted = f", and {num_unlisted} more" if num_unlisted > 0 else ""
        listed = "; ".join(differences[:MAX_LISTED_DIFFERENCES])
        raise InputError(f"{where} belongs to another network: {listed}{unlisted}")
    for name, tensor in current.items():
        tensor.copy_(torch.from_numpy(restored[name].copy()))


@torch.no_grad()
def restore_optimizer(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], arrays: Mapping[str, np.ndarray]
) -> None:
    """Restore the state that the optimizer has for each parameter. Parameters without arrays are skipped."""
    for parameter, name in names.items():
        prefix = f"optimizer/{name}/"
        tensors = {
            n.removeprefix(prefix): torch.from_numpy(a.copy()) for n, a in arrays.items() if n.startswith(prefix)
        }
        if not tensors:
            continue
        # If an optimizer is not fused, its step count is on the CPU. All other state has the device and memory format
        # of the parameter.
        step_device = parameter.device if optimizer.defaults.get("fused") else "cpu"
        optimizer.state[parameter] = {
            k: v.to(step_device) if k == "step" else torch.empty_like(parameter).copy_(v) for k, v in tensors.items()
        }


def initialize_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Create zeros as state for parameters without state. The zeros do not change the effect of the next step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if optimizer.state[parameter]:
                continue
            if isinstance(optimizer, torch.optim.Adam):
                zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                optimizer.state[parameter] = {"step": torch.zeros((), device=parameter.device), **zeros}
            elif group["momentum"] > 0:
                optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}


def digest_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of the names and values of all arrays."""
    digest = hashlib.sha256()
    for name, values in arrays.items():
        digest.update(name.encode() + values.tobytes())
    return digest.hexdigest()


@torch.no_grad()
def broadcast_module(module: nn.Module, ranks: Ranks) -> None:
    """Overwrite the parameters and buffers of a module on all processes with those of rank 0."""
    if ranks.size > 1:
        for tensor in module.state_dict().values():
            tensor.copy_(ranks.broadcast(tensor.contiguous()))


def find_non_finite(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return the name of the first array that has a non-finite value, or None."""
    return next((name for name, a in arrays.items() if a.dtype.kind == "f" and not np.isfinite(a).all()), None)


def _describe_type(a: np.ndarray) -> str:
    return f"{a.dtype} {tuple(a.shape)}"
