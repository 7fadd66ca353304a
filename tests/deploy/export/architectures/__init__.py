"""ARCHITECTURES: networks as people write them in plain PyTorch, for small inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from tests.deploy.export.architectures.classic import CLASSIC
from tests.deploy.export.architectures.dense_prediction import DENSE_PREDICTION
from tests.deploy.export.architectures.generative import GENERATIVE
from tests.deploy.export.architectures.mobile import MOBILE
from tests.deploy.export.architectures.residual import RESIDUAL
from tests.deploy.export.architectures.tokens import TOKENS


class Architecture(NamedTuple):
    """A network of ARCHITECTURES, and the shape of one input without the axis of the batch."""

    make: Callable[[], nn.Module]
    input_shape: tuple[int, ...]


ARCHITECTURES: dict[str, Architecture] = {
    name: Architecture(*row)
    for table in (RESIDUAL, MOBILE, CLASSIC, DENSE_PREDICTION, TOKENS, GENERATIVE)
    for name, row in table.items()
}
