"""The random draws of a pass: where they began, so that a second pass can make the same ones and leave no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

States = list[tuple[torch.device, Tensor]]  # of torch's generators, a device each


def plain_pass() -> bool:
    """Whether torch runs what it is told as it is told: nothing is traced by the compiler or captured as a graph."""
    if torch.compiler.is_compiling():
        return False
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def states(model: nn.Module) -> States:
    """The states of the generators that a pass of the model may draw from: the CPU's and those of its GPUs."""
    gpus = {p.device for p in model.parameters() if p.is_cuda}
    return [(torch.device("cpu"), torch.get_rng_state()), *((gpu, torch.cuda.get_rng_state(gpu)) for gpu in gpus)]


def restore(noted: States) -> None:
    """Put generators back into noted states."""
    for device, state in noted:
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, device)


@contextmanager
def drawing_again(model: nn.Module, noted: States | None) -> Iterator[None]:
    """Inside, draws go on from the noted states, if any; afterwards the generators are where they were before.

    While the compiler traces or a graph is captured nothing happens: draws are part of what is traced.
    """
    if not plain_pass():
        yield
        return
    before = states(model)
    if noted is not None:
        restore(noted)
    try:
        yield
    finally:
        restore(before)
