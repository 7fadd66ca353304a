"""What a `Retention` looks at once, at its first loss: whether what it was told to compare makes sense."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lcrbnn import ops
from lcrbnn.errors import InputError
from lcrbnn.retention.capture import Maps, Point, Span
from lcrbnn.retention.matrix import Pair, comparable

FEW = 32  # numbers of a map; fewer may have one sign by chance


def check_order(maps: Maps, spans: Sequence[Span]) -> None:
    """Raise unless the spans are named in the order in which the pass went through them: later ones weigh more."""
    what = "layers" if spans[0][1].side == "in" else "blocks"
    points = [back for _, back in spans]
    if what == "layers":
        points.insert(0, spans[0][0])
    ordered = sorted(points, key=list(maps.real).index)
    if points != ordered:
        raise InputError(
            f"{what} are named in another order than the network goes through: {_names(points)}; the order counts, "
            f"so write {_names(ordered)}"
        )


def check_shapes(pairs: Sequence[Pair], spans: Sequence[Span], matrix: str, whose: str = "") -> None:
    """Raise unless each pair of maps has shapes that this kind of matrix can be made of."""
    for (front, back), (before, after) in zip(pairs, spans, strict=True):
        if back.dim() < 2:
            raise InputError(
                f"retention compares the samples of a batch, (n, c, h, w) or (n, d){whose}: {after} has shape "
                f"{tuple(back.shape)}; name a module before it"
            )
        if matrix != "square" and not comparable(front, back):
            raise InputError(
                f"retention compares two maps (n, c, h, w), two (n, d), or two of one shape{whose}: {before} has shape "
                f"{tuple(front.shape)} and {after} {tuple(back.shape)}; name a module before the pooling or flattening"
            )


def one_signed(maps: Maps, points: Sequence[Point]) -> list[Point]:
    """The points whose map has one sign only when it is binarised."""
    return [point for point in points if _one_sign(maps, point)]


def _one_sign(maps: Maps, point: Point) -> bool:
    real, binary = maps.real[point].detach(), maps.binary.get(point)
    signs = ops.sign(real)[None] if binary is None else binary.signs.detach()
    rows = signs.flatten(1) if binary is not None and binary.bases > 1 else signs.reshape(1, -1)
    return rows.shape[1] >= FEW and _constant(rows) and not bool(real.isnan().any())


def _constant(rows: Tensor) -> bool:
    return bool((rows.amin(1) == rows.amax(1)).all())


def sentence_on(points: Sequence[Point]) -> str:
    """What a user should know of maps of one sign."""
    which = ", ".join(str(point) for point in points)
    return (
        f"binarised, each map at {which} has one sign only: it is the same for every image, and retention has "
        "nothing to compare there. A binary layer behind a ReLU sees no negative number: take Hardtanh or PReLU in its "
        "place, or put a batch norm right before the layer (docs/method.md)"
    )


def _names(points: Sequence[Point]) -> list[str]:
    return [point.module for point in points]
