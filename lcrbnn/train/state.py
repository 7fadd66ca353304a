"""The state of a run as named arrays: network, optimiser, the sums of the epoch; taken, compared and put back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError
from lcrbnn.train.ranks import Ranks

SHOWN = 3  # differences that a message lists
PRELU_STEM = "it has stem.2.weight besides"  # the only difference of a resnet20-double-prelu from before 2026-11-19


def array(tensor: Tensor) -> np.ndarray:
    """A copy of a tensor, on the CPU."""
    return tensor.detach().cpu().contiguous().numpy().copy()


def module_arrays(module: nn.Module, prefix: str) -> dict[str, np.ndarray]:
    """Parameters and buffers of a module."""
    return {f"{prefix}/{name}": array(t) for name, t in module.state_dict().items()}


def optimizer_arrays(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> dict[str, np.ndarray]:
    """What the optimiser remembers of each parameter."""
    return {
        f"optimizer/{name}/{key}": array(value)
        for parameter, name in names.items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def without_memory(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> list[str]:
    """The names of the parameters that never had a gradient: the optimiser remembers others, but nothing of them.

    Empty for an optimiser that remembers nothing at all, as SGD without momentum.
    """
    without = [name for parameter, name in names.items() if not optimizer.state.get(parameter)]
    return without if len(without) < len(names) else []


@torch.no_grad()
def restore_module(module: nn.Module, prefix: str, arrays: Mapping[str, np.ndarray], where: str) -> None:
    """Put arrays back into a module; if any is not finite, or its name, shape or type differs, change nothing.

    The variance of a batch normalisation must not be negative either: its root would be NaN.
    """
    bad = first_bad(arrays)
    if bad is not None:
        raise InputError(f"{where} holds numbers that are not finite, in {bad!r}")
    negative = next((name for name, a in arrays.items() if name.endswith(".running_var") and (a < 0).any()), None)
    if negative is not None:
        raise InputError(f"{where} holds a negative variance, in {negative!r}")
    mine = module.state_dict()
    theirs = {name.removeprefix(f"{prefix}/"): a for name, a in arrays.items() if name.startswith(f"{prefix}/")}
    differences = [
        *(f"it lacks {name}" for name in mine if name not in theirs),
        *(f"it has {name} besides" for name in theirs if name not in mine),
        *(
            f"{name} is {_kind(theirs[name])} instead of {_kind(array(mine[name]))}"
            for name in mine
            if name in theirs and _kind(theirs[name]) != _kind(array(mine[name]))
        ),
    ]
    if differences == [PRELU_STEM]:
        raise InputError(
            f"{where} is of resnet20-double-prelu with a PReLU in the stem, as before 2026-11-19; the network has a "
            "ReLU there now, as in SiMaN's released code: train it again"
        )
    if differences:
        more = f", and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        raise InputError(f"{where} is of another network: {'; '.join(differences[:SHOWN])}{more}")
    for name, tensor in mine.items():
        tensor.copy_(torch.from_numpy(theirs[name].copy()))


@torch.no_grad()
def restore_optimizer(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], arrays: Mapping[str, np.ndarray]
) -> None:
    """Give the optimiser back what it remembered."""
    for parameter, name in names.items():
        prefix = f"optimizer/{name}/"
        kept = {n.removeprefix(prefix): torch.from_numpy(a.copy()) for n, a in arrays.items() if n.startswith(prefix)}
        if not kept:
            continue
        # A count of steps stays on the CPU, where a plain optimiser keeps it; all else lies as the parameter does.
        there = parameter.device if optimizer.defaults.get("fused") else "cpu"
        optimizer.state[parameter] = {
            k: v.to(there) if k == "step" else torch.empty_like(parameter).copy_(v) for k, v in kept.items()
        }


def fill_memory(optimizer: torch.optim.Optimizer) -> None:
    """Give the optimiser, where it has none yet, the memory of a first step from nothing: zeros, to the same effect."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if optimizer.state[parameter]:
                continue
            if isinstance(optimizer, torch.optim.Adam):
                zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                optimizer.state[parameter] = {"step": torch.zeros((), device=parameter.device), **zeros}
            elif group["momentum"] > 0:
                optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """A short name of what arrays hold."""
    whole = hashlib.sha256()
    for name, values in arrays.items():
        whole.update(name.encode() + values.tobytes())
    return whole.hexdigest()


@torch.no_grad()
def spread(module: nn.Module, ranks: Ranks) -> None:
    """Give all processes what the first one has in this module."""
    if ranks.size > 1:
        for tensor in module.state_dict().values():
            tensor.copy_(ranks.spread(tensor.contiguous()))


def first_bad(arrays: Mapping[str, np.ndarray]) -> str | None:
    """The name of the first array with a number that is not finite."""
    return next((name for name, a in arrays.items() if a.dtype.kind == "f" and not np.isfinite(a).all()), None)


def _kind(a: np.ndarray) -> str:
    return f"{a.dtype} {tuple(a.shape)}"
