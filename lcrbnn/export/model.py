"""From a network to the model of a file: walk, fold, settle the signs, check."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import nn

from lcrbnn.data import DataSet
from lcrbnn.engine import Model, Node
from lcrbnn.engine.check import Whole, shapes
from lcrbnn.errors import InputError
from lcrbnn.export.draft import Draft, Step, Value, refuse
from lcrbnn.export.fold import fold, round_once
from lcrbnn.export.rules import follow
from lcrbnn.export.settle import settle
from lcrbnn.layers import evaluating


@dataclass(frozen=True)
class Input:
    """What a network takes and what its answers are called; a row of DATASETS says as much of its own images."""

    shape: tuple[int, int, int]  # height, width, channels
    classes: tuple[str, ...]
    top: float = 255.0  # the largest pixel; a pixel becomes (pixel / top - mean) / std
    mean: tuple[float, ...] = ()  # a channel; without it 0
    std: tuple[float, ...] = ()  # a channel; without it 1
    margin: float = 1.0  # a picture's shorter side, when its middle is cut out, over that of the middle

    @classmethod
    def of(cls, row: DataSet) -> Input:
        """That of a data set; classes without names are numbered."""
        names = row.names or map(str, range(row.classes))
        return cls((row.image, row.image, row.channels), tuple(names), row.top, row.mean, row.std, row.margin)


def export_model(net: nn.Module, images: DataSet | Input, name: str, *, half: bool = False) -> Model:
    """The model of a network for the images of a data set (or an Input), as docs/format.md has it.

    A module of one's own is followed through its forward, if that calls only what the format can say.
    Batch norms move into the layers before them, and no sign that depends on one sum alone changes by it. `half` keeps
    the weights of real convolutions and linear layers in float16.
    """
    _check_numbers(net)
    given = _plain(images)
    draft = Draft(given.shape)
    with evaluating(net), torch.no_grad():
        draft.keep(_in_order(draft, draft.now(follow(draft, "", net, draft.image), "")))
        steps = fold(draft.steps)
        round_once(steps)
        settle(steps)
    index: dict[Step, int] = {draft.image.step: 0} | {step: i for i, step in enumerate(steps, 1)}
    model = Model(
        name=name,
        shape=given.shape,
        top=given.top,
        mean=(0.0,) * given.shape[2] if given.mean in ((), None) else given.mean,
        std=(1.0,) * given.shape[2] if given.std in ((), None) else given.std,
        margin=given.margin,
        classes=given.classes,
        nodes=tuple(Node(s.op, s.name, tuple(index[one] for one in s.inputs), _keys(s, half)) for s in steps),
    )
    shapes(model)
    return model


def _plain(images: DataSet | Input) -> Input:
    """An Input of Python's own numbers; arrays, tensors and NumPy's numbers become such."""
    if not isinstance(images, DataSet | Input):
        raise InputError(f"images are a DataSet or an lcrbnn.export.Input; got {type(images).__name__}")
    given = Input.of(images) if isinstance(images, DataSet) else images
    made = Input(*(_listed(getattr(given, each.name)) for each in fields(given)))
    Whole(1, count=3).check(made.shape, "the input's shape")
    return made


def _listed(value: Any) -> Any:
    """A number or a tuple of them as Python has it, what is neither as it is."""
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        value = value.tolist()
    return tuple(map(_listed, value)) if isinstance(value, tuple | list) else value


def _in_order(draft: Draft, answer: Value) -> Value:
    """Answers that are a flattened map have the format's order: put them into PyTorch's, that of the classes."""
    return answer if answer.order is None else follow(draft, "order", _identity(answer.shape[2]), answer)


def _identity(n: int) -> nn.Linear:
    same = nn.Linear(n, n, bias=False)
    same.weight.copy_(torch.eye(n))
    return same


def _keys(step: Step, half: bool) -> dict[str, Any]:
    if not half or step.op != "conv":
        return step.keys
    with np.errstate(over="ignore"):
        weight = step.keys["weight"].astype(np.float16)
    if not np.isfinite(weight).all():
        refuse(step.name, "its weight holds numbers that float16 does not; export it without half")
    return step.keys | {"weight": weight}


def _check_numbers(net: nn.Module) -> None:
    if not isinstance(net, nn.Module):
        raise InputError(f"export_model takes a torch.nn.Module; got {type(net).__name__}")
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        if tensor.device.type != "cpu" or (tensor.is_floating_point() and tensor.dtype != torch.float32):
            kind = str(tensor.dtype).removeprefix("torch.")
            raise InputError(
                f"a network is exported from float32 on the CPU, and {name} is {kind} on {tensor.device.type}: "
                "net.float().cpu() brings it there"
            )
