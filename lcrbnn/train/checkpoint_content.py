"""Checks what a checkpoint with valid checksums holds: its facts, the sums of the epoch, the optimiser's memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from lcrbnn.errors import InputError, number
from lcrbnn.runs.checkpoint import Checkpoint
from lcrbnn.train.finished import WHOLE
from lcrbnn.train.spec import Spec

SUMS_ARRAY = "sums"
SUMS_SHAPE = (4,)  # loss, L_Lip, correct answers, images
WITHOUT_MEMORY = "without_memory"  # a fact: the parameters that never had a gradient
_FACTS = ("spec", "teacher", "made", "weight", "epoch", "step", "seconds")
_PREFIXES = ("model/", "retention/", "optimizer/")


def check_facts(checkpoint: Checkpoint, path: Path) -> None:
    """Raise unless the checkpoint has every fact of a run, each of a valid type."""
    facts, damaged = checkpoint.facts, _damaged(path)
    missing = [name for name in _FACTS if name not in facts]
    if missing:
        raise InputError(f"{damaged}: it lacks {', '.join(missing)}")
    for name in ("spec", "made", "images", WHOLE):
        if name in facts and not isinstance(facts[name], str):
            raise InputError(f"{damaged}: its {name} must be a text; got {facts[name]!r}")
    if not isinstance(facts["teacher"], str | None):
        raise InputError(f"{damaged}: its teacher must be a text or null; got {facts['teacher']!r}")
    for name in ("epoch", "step"):
        number(facts[name], f"{damaged}: its {name}", low=0, high=2**63 - 1, whole=True)
    for name in ("seconds", "weight"):
        number(facts[name], f"{damaged}: its {name}", low=0)
    if WHOLE in facts and not re.fullmatch("[0-9a-f]{64}", facts[WHOLE]):
        raise InputError(f"{damaged}: its {WHOLE} must be a SHA-256 (64 hexadecimal digits); got {facts[WHOLE]!r}")
    names = facts.get(WITHOUT_MEMORY, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{damaged}: its {WITHOUT_MEMORY} must be a list of names; got {names!r}")


def check_training_state(
    checkpoint: Checkpoint, parameters: Iterable[str], spec: Spec, path: Path, steps: int | None = None
) -> None:
    """Raise unless the place in training, lambda, the sums and the optimiser's memory are those of a run of `spec`.

    `parameters` are names of arrays in the checkpoint. `steps` are those of an epoch, None if they are not known. Call
    `check_facts` first. A slim copy has neither sums nor a memory, so these are not checked.
    """
    facts, arrays, damaged = checkpoint.facts, checkpoint.arrays, _damaged(path)
    _check_place(facts["epoch"], facts["step"], spec.epochs, path, steps)
    if spec.share == 0 and facts["weight"] != spec.weight:
        raise InputError(f"{damaged}: its weight is {facts['weight']:g}, and that of its run {spec.weight:g}")
    foreign = [name for name in arrays if not name.startswith(_PREFIXES) and name != SUMS_ARRAY]
    if foreign:
        raise InputError(f"{damaged}: it has the unknown array {foreign[0]!r}")
    if WHOLE not in facts:
        _check_sums(checkpoint, damaged)
        _check_memory(checkpoint, parameters, spec, path)


def _check_place(epoch: int, step: int, epochs: int, path: Path, steps: int | None) -> None:
    """Raise unless this place is one of a run, and its number of steps since the beginning that of the file's name."""
    done = _steps_in_name(path)
    valid = epoch < epochs or (epoch == epochs and step == 0)
    if steps is not None:
        valid = valid and step <= steps and done in (None, epoch * steps + step)
    elif done is not None:  # is there any number of steps per epoch with which all three agree?
        before = done - step
        valid = valid and (before == 0 if epoch == 0 else before % epoch == 0 and before // epoch >= max(step, 1))
    if not valid:
        where = "" if steps is None else f", with {steps} steps per epoch"
        raise InputError(
            f"{_damaged(path)}: epoch {epoch}, step {step} is no place of its name in a run of {epochs} epochs{where}"
        )


def _check_sums(checkpoint: Checkpoint, damaged: str) -> None:
    if SUMS_ARRAY not in checkpoint.arrays:
        raise InputError(f"{damaged}: it lacks the array {SUMS_ARRAY!r}")
    sums, step = checkpoint.arrays[SUMS_ARRAY], checkpoint.facts["step"]
    if sums.dtype != np.float64 or sums.shape != SUMS_SHAPE:
        raise InputError(f"{damaged}: {SUMS_ARRAY!r} is {sums.dtype} {sums.shape} instead of float64 {SUMS_SHAPE}")
    _, _, correct, seen = sums.tolist()
    if not 0 <= correct <= seen or seen < step or (step == 0 and sums.any()):
        raise InputError(f"{damaged}: {SUMS_ARRAY!r} has {correct:g} correct answers of {seen:g} images at step {step}")


def _check_memory(checkpoint: Checkpoint, parameters: Iterable[str], spec: Spec, path: Path) -> None:
    """Raise unless the arrays of the optimiser are exactly those of these parameters, with their types and shapes."""
    arrays, damaged = checkpoint.arrays, _damaged(path)
    without = checkpoint.facts.get(WITHOUT_MEMORY, [])
    names = list(parameters)
    unknown = [name for name in without if name not in names]
    if unknown:
        raise InputError(f"{damaged}: its {WITHOUT_MEMORY} has {unknown[0]!r}, which is not a parameter of its network")
    if without and len(set(without)) == len(names):  # a run with a gradient has a memory of some parameter
        raise InputError(f"{damaged}: its {WITHOUT_MEMORY} has all parameters, so the optimizer's memory is lost")
    trained = [name for name in names if name not in without]
    wanted = {f"optimizer/{name}/{key}": arrays[name] for name in trained for key in _memory_keys(spec)}
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise InputError(f"{damaged}: it lacks the array {missing[0]!r}")
    foreign = [name for name in arrays if name.startswith("optimizer/") and name not in wanted]
    if foreign:
        raise InputError(f"{damaged}: it has the array {foreign[0]!r}, which the optimiser of its run does not have")
    for name, parameter in wanted.items():
        memory, is_step = arrays[name], name.endswith("/step")
        dtype, shape = (np.dtype(np.float32), ()) if is_step else (parameter.dtype, parameter.shape)
        if memory.dtype != dtype or memory.shape != shape:
            raise InputError(f"{damaged}: {name!r} is {memory.dtype} {memory.shape} instead of {dtype} {shape}")
        if is_step and not _is_count(float(memory), _steps_in_name(path)):
            raise InputError(f"{damaged}: {name!r} is no number of steps that were made; got {float(memory):g}")
        if name.endswith("/exp_avg_sq") and (memory < 0).any():
            raise InputError(f"{damaged}: {name!r}, a mean of squares, has negative numbers")


def _memory_keys(spec: Spec) -> tuple[str, ...]:
    """The names of the arrays that the optimiser keeps per parameter."""
    if spec.optimizer == "adam":
        return ("step", "exp_avg", "exp_avg_sq")
    return ("momentum_buffer",) if spec.momentum > 0 else ()


def _is_count(value: float, done: int | None) -> bool:
    return value.is_integer() and value >= 0 and (done is None or value <= done)


def _steps_in_name(path: Path) -> int | None:
    """The number of steps in the name of a checkpoint, step-N.safetensors; None if it has another name."""
    match = re.fullmatch(r"step-(\d{9,})", path.stem)
    return int(match[1]) if match else None


def _damaged(path: Path) -> str:
    return f"the checkpoint {path} is damaged"
