"""An exported model beside the network it was made of: layer by layer, then answer by answer.

A layer is given PyTorch's own input. Its whole-number sums must be PyTorch's, and so must every later sign that depends
on them alone. Other signs come from real numbers, which are added in another order: one may turn where its number lies
at a threshold. How near it lay is measured here, and judged by who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lcrbnn.engine import Model, Node, reference
from lcrbnn.engine.check import OPS
from lcrbnn.engine.format import to_bytes
from lcrbnn.engine.lib import Engine
from lcrbnn.export.draft import channels_first
from lcrbnn.export.settle import CHOOSING, PASSING
from lcrbnn.export.watch import Seen, first_part, known, last, ordered, watched

LAYERS = ("conv", "bconv", "wconv")
BATCH = 50  # images that PyTorch answers at a time

# A node's value from its inputs; of a bconv also the sums.
Evaluate = Callable[[Node, Sequence[np.ndarray]], tuple[np.ndarray, np.ndarray | None]]


class Turn(NamedTuple):
    """Signs of a layer's input that are not PyTorch's, and how far the farthest of their numbers is from its threshold.

    `largest` is the largest number of the map, at least 1: what rounding is relative to.
    """

    node: str
    signs: int
    distance: float
    largest: float


@dataclass
class Layers:
    """What a comparison layer by layer found. `faults` must be empty; `turned` and `apart` are to be judged."""

    nodes: int = 0
    sums: int = 0  # whole numbers compared
    signs: int = 0  # compared, of which some depend on sums alone
    faults: list[str] = field(default_factory=list)
    turned: list[Turn] = field(default_factory=list)
    apart: float = 0.0  # the largest difference of a real value, over the largest number there or 1


class Miss(NamedTuple):
    """An image that is answered otherwise, and the first signs that turned; without any, how far two answers are."""

    image: int
    turned: Turn | None
    gap: float  # between the two best answers of the model


def by_reference(node: Node, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
    """What lcrbnn.engine.reference makes of a node."""
    sums = reference.accumulators(node, inputs[0]) if node.op == "bconv" else None
    with np.errstate(all="ignore"):
        return reference._OPS[node.op](node, *inputs), sums


def by_engine(node: Node, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
    """What the compiled engine makes of a node of one input, alone in a model; an add is left to the reference."""
    if len(inputs) > 1:
        return by_reference(node, inputs)
    (h, w, c), nodes = inputs[0].shape[1:], (Node(node.op, node.name, (0,), node.keys), Node("mean", "mean", (1,), {}))
    made = OPS[node.op].shape(node.keys, [(h, w, c)])
    model = Model("layer", (h, w, c), 1.0, (0.0,) * c, (1.0,) * c, ("",) * made[2], nodes)
    with Engine(to_bytes(model)) as engine:
        sums = engine.accumulators(inputs[0], 0) if node.op == "bconv" else None
        return engine.value(inputs[0], 0), sums


def compare_layers(net: nn.Module, model: Model, images: Tensor, evaluate: Evaluate) -> Layers:
    """Give each layer PyTorch's own input, and compare what comes of it up to the next signs with what PyTorch has."""
    with watched(net) as seen:
        answer = net(images)
    found = Layers()
    theirs = [last(images)]  # PyTorch's values, and ours where no module has one
    ours = list(theirs)  # what was made of PyTorch's inputs of the last layer
    orders: list[np.ndarray | None] = [None]
    roots = [""]  # the op that a value comes from, through ops that take or choose each number by itself
    for node in model.nodes:
        at = node.inputs[0]
        if node.op == "bconv":
            _compare_signs(node, ours[at], seen, orders[at], roots[at] == "bconv", found)
        passing = node.op in (*PASSING, *CHOOSING, "flatten", "channels")
        carried = [passing or (node.op == "add" and roots[i] in LAYERS) for i in node.inputs]
        inputs = [(ours if own else theirs)[i] for i, own in zip(node.inputs, carried, strict=True)]
        value, sums = evaluate(node, inputs)
        if sums is not None:
            _compare_sums(node, inputs[0], sums, seen, orders[at], found)
        order = None if "kernel" in node.keys else orders[at]
        orders.append(channels_first(inputs[0].shape[1:]) if node.op == "flatten" else order)
        roots.append(roots[at] if passing else node.op)
        truth = known(node, seen, orders[-1], value.shape)
        if truth is not None:
            found.apart = max(found.apart, float(np.abs(value - truth).max() / max(1, np.abs(truth).max())))
        ours.append(value)
        theirs.append(value if truth is None else truth)
        found.nodes += 1
    if not np.array_equal(theirs[-1], last(answer)):
        found.faults.append("the last value of the model is not that of any module")
    return found


def _compare_signs(
    node: Node, x: np.ndarray, seen: Seen, order: np.ndarray | None, settled: bool, found: Layers
) -> None:
    """The signs that a layer takes of what the node before it made."""
    turned = turn(node, x, ordered(seen.signs[first_part(node)], order, x.shape))
    found.signs += x.size
    if turned and settled and not isinstance(node.keys["threshold"], str):
        found.faults.append(f"{node.name}: {turned.signs} signs that depend on sums alone are not PyTorch's")
    elif turned:
        found.turned.append(turned)


def _compare_sums(
    node: Node, x: np.ndarray, sums: np.ndarray, seen: Seen, order: np.ndarray | None, found: Layers
) -> None:
    """The signs of PyTorch's own input, and the sums."""
    name = first_part(node)
    theirs = ordered(seen.signs[name], order, x.shape)
    turned = turn(node, x, theirs)
    same = np.ones(len(x), bool)
    if turned and isinstance(node.keys["threshold"], str):  # PyTorch takes the mean in float32
        found.turned.append(turned)
        same = (reference.signs(node, x) == theirs).reshape(len(x), -1).all(1)
    elif turned:
        found.faults.append(f"{node.name}: {turned.signs} signs of the same numbers are not PyTorch's")
    found.sums += sums[same].size
    if not np.array_equal(sums[same], last(seen.sums[name]).reshape(sums.shape)[same]):
        found.faults.append(f"{node.name}: sums are not PyTorch's")


def turn(node: Node, x: np.ndarray, theirs: np.ndarray) -> Turn | None:
    """Where a layer's signs of x are not `theirs`; None if they all are."""
    differing = reference.signs(node, x) != theirs
    if not differing.any():
        return None
    threshold = node.keys["threshold"]
    if isinstance(threshold, str):
        threshold = x.mean(axis=(1, 2, 3), dtype=np.float64, keepdims=True)
    distance = np.abs(x - threshold)[differing].max()
    return Turn(node.name, int(differing.sum()), float(distance), max(1.0, float(np.abs(x).max())))


def answers(net: nn.Module, images: Tensor) -> np.ndarray:
    """What PyTorch answers, (n, classes), BATCH images at a time."""
    with torch.no_grad():
        return torch.cat([net(part) for part in images.split(BATCH)]).numpy()


def misses(net: nn.Module, model: Model, images: Tensor, theirs: np.ndarray, ours: np.ndarray) -> list[Miss]:
    """Trace every image whose first answer differs: `theirs` from `answers`, `ours` from the engine."""
    wrong = np.flatnonzero(theirs.argmax(1) != ours.argmax(1))
    made: list[Miss] = []
    with Engine(to_bytes(model), fuse=False) as engine:
        for start in sorted({int(i) // BATCH * BATCH for i in wrong}):
            part = images[start : start + BATCH]  # as PyTorch saw them: its sums may depend on the batch
            with watched(net) as seen:
                net(part)
            for image in wrong[(wrong >= start) & (wrong < start + BATCH)]:
                two = np.sort(ours[image])[-2:]
                made.append(Miss(int(image), _first(engine, model, part, seen, image - start), float(two[1] - two[0])))
    return made


def _first(engine: Engine, model: Model, images: Tensor, seen: Seen, image: int) -> Turn | None:
    """The first layer of which a sign turned for an image: all before it was the same."""
    one = last(images[image : image + 1])
    orders: list[np.ndarray | None] = [None]
    for node in model.nodes:
        at = node.inputs[0]
        if node.op == "bconv":
            x = one if at == 0 else engine.value(one, at - 1)
            theirs = seen.signs[first_part(node)][image : image + 1]
            turned = turn(node, x, ordered(theirs, orders[at], x.shape))
            if turned:
                return turned
        shape = engine.shape if at == 0 else engine.nodes[at - 1].shape
        order = None if "kernel" in node.keys else orders[at]
        orders.append(channels_first(shape) if node.op == "flatten" else order)
    return None
