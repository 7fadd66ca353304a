"""One of two processes that train together; tests/train/test_ranks.py starts both and looks at what they leave.

Each line that it prints is a sentence of one of them; an assertion that fails ends it, and the other one with it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lcrbnn.data.listing import Listing
from lcrbnn.errors import Failed, InputError, Repeated, Stopped
from lcrbnn.runs import files
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train import Spec, sources
from lcrbnn.train import build as building
from lcrbnn.train.build import build_network
from lcrbnn.train.channel import Channel
from lcrbnn.train.loop import Loop
from lcrbnn.train.options import Options
from lcrbnn.train.pool import Pool
from lcrbnn.train.ranks import Ranks, joined
from lcrbnn.train.run import train
from lcrbnn.train.shared_norm import share_norms
from lcrbnn.train.signals import StopRequest
from tests.train.helpers import quiet
from tests.train.test_numbers import Poison
from tests.train.test_ranks import DOUBLE, HASHED, PIECES, SHARED, STRAIGHT, VIEWS


def go(name: str, spec: Spec, folder: Path, ranks: Ranks, **more: Any) -> Path:
    options = Options(device="cpu", save_seconds=0.0, ranks=ranks, **more)
    return train(spec, folder / name, options, resume=True, progress=quiet)


def refused(work: Callable[[], Any], ranks: Ranks) -> str:
    """What the first process says; the others only end."""
    try:
        work()
    except Repeated as error:
        assert not ranks.first
        return str(error.code)
    except (InputError, Failed) as error:
        return str(error)
    raise AssertionError("nothing was refused")


def only_the_first_writes(ranks: Ranks) -> None:
    def forbidden(*_: Any) -> None:
        raise AssertionError("a process that is not the first wrote")

    if not ranks.first:
        files.os.fsync = forbidden
        for name in ("create", "locked", "append", "save", "tidy", "cut_log", "write_fault", "read_broken"):
            setattr(RunFolder, name, forbidden)


def norms_agree(ranks: Ranks) -> None:
    """A shared norm of two uneven parts is torch's own of the whole: values, gradients, running statistics."""
    draw = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(7, 4, 3, 5, generator=draw, dtype=torch.float64) + 100
    pull = torch.randn(7, 4, 3, 5, generator=draw, dtype=torch.float64)
    whole, net = nn.BatchNorm2d(4).double(), nn.Sequential(nn.BatchNorm2d(4)).double()
    for norm in (whole, net[0]):
        nn.init.constant_(norm.weight, 1.5)
    share_norms(net)
    part = slice(0, 5) if ranks.first else slice(5, 7)
    full, mine = x.clone().requires_grad_(), x[part].clone().requires_grad_()
    y = whole(full)
    (y * pull).sum().backward()
    z = net(mine)
    (z * pull[part]).sum().backward()
    assert torch.allclose(z, y[part], rtol=0, atol=1e-11)
    assert torch.allclose(mine.grad, full.grad[part], rtol=0, atol=1e-11)
    for a, b in zip(net.parameters(), whole.parameters(), strict=True):
        assert torch.allclose(ranks.add(a.grad), b.grad, rtol=0, atol=1e-11)
    for a, b in zip(net.buffers(), whole.buffers(), strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=0)
    assert list(net.state_dict()) == [f"0.{name}" for name in whole.state_dict()]


def reads_files(folder: Path, ranks: Ranks) -> dict[str, list[int]]:
    """How many images this process looked at for broken ones, and for how many each of its pools has memory."""
    seen: dict[str, list[int]] = {"checked": [], "capacities": []}
    check, pool = sources.check, sources.Pool

    def checked(listing: Listing, channel: Channel) -> dict[str, str]:
        seen["checked"].append(len(listing))
        return check(listing, channel)

    def made(*given: Any, **more: Any) -> Pool:
        seen["capacities"].append(given[2])
        return pool(*given, **more)

    sources.check, sources.Pool = checked, made
    go("views", VIEWS, folder, ranks, data_folder=folder / "images.zip", workers=1, cache="no")
    sources.check, sources.Pool = check, pool
    return seen


def stops_together(folder: Path, ranks: Ranks) -> None:
    """A signal that one process hears stops both after the same step; the run then goes on to its end."""
    whole, heard = Loop._one, []

    def one(self: Loop) -> None:
        whole(self)
        heard.append(self.done)
        if self.done == 3 and not ranks.first:
            signal.raise_signal(signal.SIGTERM)

    Loop._one = one
    with pytest.raises(Stopped, match="stopped by SIGTERM and saved"):
        go("stopped", STRAIGHT, folder, ranks)
    Loop._one = whole
    assert heard == [1, 2, 3]
    go("stopped", STRAIGHT, folder, ranks)


def stops_after_the_last_step(folder: Path, ranks: Ranks) -> None:
    """A signal that one process hears after the last step stops both; the run is finished."""
    end = Loop.march

    def march(self: Loop, stop: StopRequest) -> Iterator[None]:
        yield from end(self, stop)
        if not ranks.first:
            signal.raise_signal(signal.SIGTERM)

    Loop.march = march
    with pytest.raises(Stopped, match="stopped by SIGTERM and saved"):
        go("stopped-late", STRAIGHT.but(epochs=1), folder, ranks)
    Loop.march = end
    if ranks.first:
        assert RunFolder(folder / "stopped-late").record.exists()


def poisoned(folder: Path, ranks: Ranks) -> str:
    """NaN in one process: both end, and the first tells what the other one found."""

    def make(spec: Spec) -> nn.Module:
        model = build_network(spec)
        if not ranks.first:
            model.layer2[0].act1 = nn.Sequential(model.layer2[0].act1, Poison(2, "forward"))
        return model

    building.build_network = make
    try:
        return refused(lambda: go("poisoned", STRAIGHT.but(batch_norm="sync"), folder, ranks), ranks)
    finally:
        building.build_network = build_network


def drifted(folder: Path, ranks: Ranks) -> str:
    """Weights that differ between processes are noticed."""

    def make(spec: Spec) -> nn.Module:
        return build_network(spec.but(seed=ranks.rank))

    building.build_network = make
    try:
        return refused(lambda: go("drifted", STRAIGHT, folder, ranks), ranks)
    finally:
        building.build_network = build_network


def die(folder: Path, ranks: Ranks) -> None:
    """The second process is killed in a step; the first one notices."""
    whole = Loop._one

    def one(self: Loop) -> None:
        whole(self)
        if self.done == 2 and not ranks.first:
            os.kill(os.getpid(), signal.SIGKILL)

    Loop._one = one
    begun = time.monotonic()
    said = refused(lambda: go("dead", STRAIGHT, folder, ranks), ranks)
    (folder / "dead.json").write_text(json.dumps({"said": said, "seconds": time.monotonic() - begun}))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with joined("cpu", 40.0) as ranks:
        assert ranks.size == 2
        write = files.os.fsync
        only_the_first_writes(ranks)
        norms_agree(ranks)
        for name, spec in (("double", DOUBLE), ("pieces", PIECES), ("straight", STRAIGHT), ("shared", SHARED)):
            go(name, spec, folder, ranks, tensorboard=name == "straight")
        go("hashed", HASHED, folder, ranks)
        seen = reads_files(folder, ranks)
        stops_together(folder, ranks)
        stops_after_the_last_step(folder, ranks)
        said: dict[str, Any] = {
            **seen,
            "poisoned": poisoned(folder, ranks),
            "drifted": drifted(folder, ranks),
            "there": refused(lambda: train(DOUBLE, folder / "straight", Options(device="cpu", ranks=ranks)), ranks),
            "small": refused(lambda: go("small", STRAIGHT.but(batch=3), folder, ranks), ranks),
            "fast": refused(lambda: go("fast", STRAIGHT.but(batch=301), folder, ranks, step="fast"), ranks),
        }
        files.os.fsync = write
        (folder / f"said-{ranks.rank}.json").write_text(json.dumps(said))
        values: list[Tensor] = [torch.tensor([ranks.rank + 1.0]), torch.tensor([ranks.rank])]
        assert ranks.add(values[0]).item() == 3
        assert ranks.spread(values[1]).item() == 0
        assert ranks.most(5 - ranks.rank, ranks.rank) == [5, 1]
        assert ranks.of_all(ranks.rank) == [0, 1]
        assert np.isfinite(ranks.of_first(float(ranks.rank)))
        die(folder, ranks)
        os._exit(3)  # the other one is dead: nobody is left to say goodbye to


if __name__ == "__main__":
    main(Path(sys.argv[1]))
