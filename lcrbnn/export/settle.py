"""No sign changes by folding: where sums lead to nothing but signs, all of them are tried, and numbers moved by ulps.

A binary layer has few possible sums. Each is taken through PyTorch's own modules and through the arithmetic of the
format, up to the next layer's sign. Where the two differ in a channel, its `b` (then `a`) moves to the nearest number
with which they agree. A pool of maxima may stand between: what follows it is monotone, so the sign of the largest is
the largest or the smallest sign.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from lcrbnn.engine import Model, Node
from lcrbnn.engine.reference import signs, values
from lcrbnn.export.draft import Step, channels_first, refuse, users

PASSING = ("affine", "hardtanh", "relu", "prelu", "shift")  # what takes each number by itself
CHOOSING = ("maxpool", "subsample")  # what gives back some of its numbers
CHUNK = 2**22  # numbers at a time
MOVES = [m << n for n in range(12) for m in (2, 3)]  # how far b moves, in half ulps: 1, 1.5, 2, 3, 4, 6 ... ulps


class Path(NamedTuple):
    """From a binary layer to one that reads its sign: all steps, the last of them only for its sign."""

    steps: list[Step]
    target: Step

    @property
    def knob(self) -> int:
        """Which step's numbers can move: the last that has them."""
        return max(i for i, step in enumerate(self.steps) if "a" in step.keys)


def settle(steps: Sequence[Step]) -> None:
    """See to every sign that depends on one sum alone; refuse a layer for which no numbers agree with PyTorch."""
    reading = users(steps)
    for step in steps:
        if step.op == "bconv":
            paths = list(_paths([step], reading))
            for path in paths:
                repair(path)
            for path in paths if len(paths) > 1 else []:  # a second repair may undo the first
                if wrong(path).any():
                    refuse(step.name, "no numbers give the signs of all the layers that read it")


def _paths(steps: list[Step], reading: Mapping[Step, list[Step]]) -> Iterator[Path]:
    for user in reading[steps[-1]]:
        if user.op == "bconv" and not isinstance(user.keys["threshold"], str):
            yield Path(steps, user)
        elif user.op in (*PASSING, *CHOOSING, "flatten"):
            yield from _paths([*steps, user], reading)


def reachable(step: Step) -> np.ndarray:
    """Every sum that a binary layer may have, and where zeros pad it also those of other parity."""
    taps = step.keys["weight"].n
    mixed = step.keys["pad_sign"] == 0 and any(step.keys["pad"])
    return np.arange(-taps, taps + 1, 1 if mixed else 2, dtype=np.float32)


def _chunks(path: Path, width: int = 1) -> Iterator[np.ndarray]:
    """The reachable sums in parts, so that a part with all its positions and channels is not too large."""
    sums = reachable(path.steps[0])
    count = max(CHUNK // (width * max(s.shape[2] for s in path.steps) * _positions(path.steps[0])[0]), 1)
    for start in range(0, len(sums), count):
        yield sums[start : start + count]


def _positions(step: Step) -> tuple[int, tuple[int, int]]:
    size = step.shape[:2] if "spatial" in step.keys else (1, 1)
    return size[0] * size[1], size


def wanted(path: Path, sums: np.ndarray) -> np.ndarray:
    """Whether PyTorch's sign is -1, for each sum (and position) and each channel at the knob."""
    first, x = path.steps[0], torch.from_numpy(sums)
    with torch.no_grad():
        if first.flat:
            x = first.sources[0](x[:, None].expand(-1, first.shape[2]).contiguous())
        else:
            size = _positions(first)[1]
            x = first.sources[0](x[:, None, None, None].expand(-1, first.shape[2], *size).contiguous())
            x = x.transpose(0, 1).reshape(1, first.shape[2], -1, 1)  # points side by side, as those of a map
        for source in first.sources[1:]:
            x = source(x)
        order = None
        for before, step in zip(path.steps, path.steps[1:], strict=False):
            if step.op == "flatten":
                order = channels_first(before.shape)
                x = x[0, :, :, 0].T[:, :, None].expand(-1, -1, before.shape[0] * before.shape[1]).flatten(1)
            for source in step.sources:
                x = source(x)
        assert path.target.sign is not None
        if path.target.flat and x.dim() == 4:  # a map of one pixel that became a vector
            x = x[0, :, :, 0].T
        negative = (path.target.sign(x) < 0).numpy()
    negative = negative[0, :, :, 0].T if negative.ndim == 4 else negative
    negative = negative if order is None else negative[:, order]
    return negative.reshape(-1, path.steps[path.knob].shape[2])


def _one(op: str, keys: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    """The format's arithmetic of an op that takes each number by itself, on (n, channels)."""
    c = x.shape[1]
    model = Model("path", (1, 1, c), 1.0, (0.0,) * c, (1.0,) * c, ("",) * c, (Node(op, op, (0,), keys),))
    return values(model, x[:, None, None])[-1][:, 0, 0]


def _run(steps: Sequence[Step], x: np.ndarray, columns: np.ndarray, channels: int) -> np.ndarray:
    """Take (n, columns), each column a number of the channel named for it, through steps."""
    for step in steps:
        if step.op == "flatten":
            x = np.tile(x, step.shape[2] // step.inputs[0].shape[2])
        elif step.op in PASSING:
            x = _one(step.op, {k: _part(v, columns, channels) for k, v in step.keys.items()}, x)
    return x


def _part(numbers: np.ndarray, columns: np.ndarray, channels: int) -> np.ndarray:
    """The numbers of some channels; after a flatten there are as many of each as there were pixels."""
    return numbers.reshape(-1, channels)[:, columns].reshape(-1)


def entering(path: Path, sums: np.ndarray) -> np.ndarray:
    """What comes to the knob in the format's arithmetic, (n, channels)."""
    first, knob = path.steps[0], path.knob
    x = np.broadcast_to(sums[:, None, None, None], (len(sums), *_positions(first)[1], first.shape[2]))
    if "spatial" in first.keys:
        x = first.keys["spatial"] * x
    x = np.ascontiguousarray(x.reshape(-1, first.shape[2]), np.float32)
    if knob == 0:
        return x
    every = np.arange(first.shape[2])
    x = _one("affine", {"a": first.keys["a"], "b": first.keys["b"]}, x)
    return _run(path.steps[1:knob], x, every, first.shape[2])


def found(path: Path, x: np.ndarray, columns: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether the format's sign is -1, from what enters the knob, with these numbers in it."""
    channels = path.steps[path.knob].shape[2]
    y = _run(path.steps[path.knob + 1 :], _one("affine", {"a": a, "b": b}, x), columns, channels)
    threshold = _part(path.target.keys["threshold"], columns, channels)
    negative = signs(Node("bconv", path.target.name, (0,), {"threshold": threshold}), y) < 0
    return negative.reshape(-1, len(columns))


def wrong(path: Path) -> np.ndarray:
    """The channels at the knob in which some sign differs."""
    knob = path.steps[path.knob]
    every = np.arange(knob.shape[2])
    bad = np.zeros(len(every), bool)
    for sums in _chunks(path):
        got = found(path, entering(path, sums), every, knob.keys["a"], knob.keys["b"])
        bad |= (got != wanted(path, sums)).any(0)
    return bad


def repair(path: Path) -> None:
    """Move a and b of the channels whose signs differ."""
    knob = path.steps[path.knob]
    for channel in np.flatnonzero(wrong(path)):
        a, b = candidates(knob.keys["a"][channel], knob.keys["b"][channel])
        alive = np.ones(len(a), bool)
        for sums in _chunks(path, 1 + len(a) // knob.shape[2]):
            x = np.repeat(entering(path, sums)[:, channel, None], alive.sum(), axis=1)
            got = found(path, x, np.full(alive.sum(), channel), a[alive], b[alive])
            alive[alive] = (got == wanted(path, sums)[:, channel, None]).all(0)
            if not alive.any():
                refuse(knob.name, f"no numbers near those of channel {channel} give all of PyTorch's signs")
        best = np.flatnonzero(alive)[0]
        knob.keys["a"][channel], knob.keys["b"][channel] = a[best], b[best]


def candidates(a: np.floating, b: np.floating) -> tuple[np.ndarray, np.ndarray]:
    """Pairs near (a, b), the nearest first: b alone moved, then a too."""
    ulp = float(np.spacing(max(np.abs(a), np.abs(b))))
    shifts = [0.0, *(sign * move / 2 * ulp for move in MOVES for sign in (1, -1))]
    slopes = [float(a) + n * float(np.spacing(np.abs(a))) for n in (0, 1, -1, 2, -2)]
    pairs = np.array([(slope, float(b) + shift) for slope in slopes for shift in shifts], np.float32)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
