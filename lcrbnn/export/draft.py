"""A graph while it is made: steps that know their shapes, their exact numbers and the PyTorch code they stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

import numpy as np
from torch import Tensor

from lcrbnn.errors import InputError

Source = Callable[[Tensor], Tensor]
Shape = tuple[int, int, int]  # of a map: height, width, channels


@dataclass(eq=False)
class Step:
    """A node to be. Its numbers are float64 until they are written, so that folding rounds once.

    `sources` is what PyTorch does here, one function after the other: of a binary layer on its sums, otherwise on the
    input. `sign` is how a binary layer takes the signs of its input.
    """

    op: str
    name: str
    inputs: list[Step]
    shape: Shape
    keys: dict[str, Any] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)
    sign: Source | None = None
    flat: bool = False  # PyTorch holds (n, features), not (n, channels, h, w)


@dataclass(eq=False)
class Home:
    """A tensor of PyTorch, which may be written over: the step that makes its numbers as they are now.

    `memory` are all tensors that may lie in the same memory, itself among them. Once another of them was written
    over, nothing says what this one holds: `lost` is the name of who wrote.
    """

    step: Step
    memory: list[Home] = field(default_factory=list)
    lost: str = ""

    def __post_init__(self) -> None:
        """Lie in the memory."""
        self.memory.append(self)


@dataclass(frozen=True)
class Value:
    """What a step makes, and how PyTorch holds it."""

    step: Step
    home: Home
    flat: bool = False  # as in Step; a map of one pixel may be either
    order: np.ndarray | None = None  # of a flattened map: PyTorch's index of each number

    @classmethod
    def of(cls, step: Step, *, flat: bool = False, order: np.ndarray | None = None) -> Value:
        """That of a step, in memory of its own."""
        return cls(step, Home(step), flat, order)

    def copied(self) -> Value:
        """The same numbers in memory of its own."""
        return replace(self, home=Home(self.step))

    def beside(self, other: Value) -> Value:
        """The same, where PyTorch may have made it in the memory of another value."""
        return replace(self, home=Home(self.step, other.home.memory))

    @property
    def shape(self) -> Shape:
        """Height, width, channels."""
        return self.step.shape

    def arranged(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers of PyTorch's features (their last axis), in the order of this value."""
        return numbers if self.order is None else numbers[..., self.order]


class Window(NamedTuple):
    """The window of an op, as the format has it."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, left, bottom, right
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def size(self, shape: Shape, name: str) -> tuple[int, int]:
        """Height and width of the output for a map of this shape."""
        top, left, bottom, right = self.pad
        pads = (top + bottom, left + right)
        spans = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True)]
        sizes = [(shape[i] + pads[i] - spans[i]) // self.stride[i] + 1 for i in (0, 1)]
        if min(sizes) < 1:
            refuse(name, f"its window does not fit a map of {shape[0]} x {shape[1]}")
        return sizes[0], sizes[1]

    def keys(self) -> dict[str, Any]:
        """The keys of a node."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in self._asdict().items()}


class Draft:
    """The steps made so far, in order."""

    def __init__(self, shape: Shape) -> None:
        """Start from images of this shape."""
        self.image = Value.of(Step("image", "image", [], shape))
        self.steps: list[Step] = []

    def emit(
        self,
        op: str,
        name: str,
        inputs: Value | Sequence[Value],
        shape: Shape | None = None,
        source: Source | None = None,
        **keys: Any,
    ) -> Value:
        """Add a step; without a shape it is that of the first input."""
        values = [self.now(v, name) for v in ([inputs] if isinstance(inputs, Value) else inputs)]
        first = values[0]
        step = Step(op, name, [v.step for v in values], shape or first.shape, keys, [source] if source else [])
        step.flat = first.flat
        self.steps.append(step)
        return Value.of(step, flat=first.flat, order=first.order)

    def write(self, name: str, old: Value, new: Value) -> Value:
        """PyTorch wrote the second over the first: who has the first now has the second.

        Others that may lie in the same memory are lost. Return the second where it is now.
        """
        if new.home is old.home:
            return new
        old.home.step = new.step
        for other in old.home.memory:
            if other is not old.home:
                other.lost = name
        return replace(new, home=old.home)

    def now(self, value: Value, name: str) -> Value:
        """A value as it is after all that was written over it, for a layer that reads it."""
        if value.home.lost:
            refuse(
                name, f"it reads a map that {value.home.lost!r} may have written over, by another view of its memory"
            )
        return replace(value, step=value.home.step)

    def keep(self, answer: Value) -> None:
        """Drop the steps that an answer does not come from."""
        needed, waiting = set(), [answer.step]
        while waiting:
            step = waiting.pop()
            if step not in needed:
                needed.add(step)
                waiting += step.inputs
        self.steps = [step for step in self.steps if step in needed]


def refuse(name: str, reason: str) -> NoReturn:
    """Say which layer cannot be exported, and why."""
    raise InputError(f"{f'layer {name!r}' if name else 'the network'} cannot be exported: {reason}")


def channels_first(shape: Shape) -> np.ndarray:
    """PyTorch's index, (c, h, w), of each number of a flattened map, (h, w, c)."""
    h, w, c = shape
    return np.arange(c * h * w).reshape(c, h, w).transpose(1, 2, 0).reshape(-1)


def users(steps: Sequence[Step]) -> dict[Step, list[Step]]:
    """The steps that read each step."""
    found: dict[Step, list[Step]] = {step: [] for step in steps}
    for step in steps:
        for one in step.inputs:
            found.setdefault(one, []).append(step)
    return found
