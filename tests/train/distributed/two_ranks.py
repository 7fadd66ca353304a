"""One of two processes that train together. tests/train/distributed/test_ranks.py starts both and checks their files.

A failed assertion ends the process, and the other one with it.
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

from lcrbnn.data.image_files.image_index import ImageIndex
from lcrbnn.data.loading.device_prefetcher import DevicePrefetcher
from lcrbnn.data.loading.worker_pool import WorkerPool
from lcrbnn.errors import ErrorOnOtherRank, InputError, RunFailed, StopSignal
from lcrbnn.runs import atomic_files as files
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.runs.stop_request import StopRequest
from lcrbnn.train.distributed.ranks import Ranks, join_process_group
from lcrbnn.train.distributed.sync_batch_norm import convert_sync_batch_norm
from lcrbnn.train.loop import TrainingLoop
from lcrbnn.train.setup import build as building
from lcrbnn.train.setup import dataset as dataset_module
from lcrbnn.train.setup.build_network import build_network
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.train import train
from tests.train.distributed.test_ranks import DOUBLE, HASHED, PIECES, SHARED, STRAIGHT, VIEWS
from tests.train.helpers import make_silent_progress
from tests.train.test_non_finite_values import Poison


def train_run(name: str, spec: TrainSpec, folder: Path, ranks: Ranks, **settings: Any) -> Path:
    options = RunOptions(device="cpu", checkpoint_interval_s=0.0, ranks=ranks, **settings)
    return train(spec, folder / name, options, resume=True, progress=make_silent_progress)


def catch_error_message(work: Callable[[], Any], ranks: Ranks) -> str:
    """Return the error message of rank 0, or the exit code of the other processes."""
    try:
        work()
    except ErrorOnOtherRank as error:
        assert not ranks.is_first
        return str(error.exit_code)
    except (InputError, RunFailed) as error:
        return str(error)
    raise AssertionError("no error was raised")


def forbid_writes_of_other_ranks(ranks: Ranks) -> None:
    def forbidden(*_: Any) -> None:
        raise AssertionError("a process other than rank 0 wrote a file")

    if not ranks.is_first:
        files.os.fsync = forbidden
        for name in (
            "create",
            "lock",
            "append_log_line",
            "save_checkpoint",
            "remove_leftovers",
            "truncate_log",
            "write_fault",
            "read_broken_images",
        ):
            setattr(RunFolder, name, forbidden)


def compare_batch_norms(ranks: Ranks) -> None:
    """Check that synchronized batch norm of two unequal parts equals torch's batch norm of the whole batch."""
    draw = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(7, 4, 3, 5, generator=draw, dtype=torch.float64) + 100
    pull = torch.randn(7, 4, 3, 5, generator=draw, dtype=torch.float64)
    full_norm, net = nn.BatchNorm2d(4).double(), nn.Sequential(nn.BatchNorm2d(4)).double()
    for norm in (full_norm, net[0]):
        nn.init.constant_(norm.weight, 1.5)
    convert_sync_batch_norm(net)
    part = slice(0, 5) if ranks.is_first else slice(5, 7)
    full, own_part = x.clone().requires_grad_(), x[part].clone().requires_grad_()
    y = full_norm(full)
    (y * pull).sum().backward()
    z = net(own_part)
    (z * pull[part]).sum().backward()
    assert torch.allclose(z, y[part], rtol=0, atol=1e-11)
    assert torch.allclose(own_part.grad, full.grad[part], rtol=0, atol=1e-11)
    for a, b in zip(net.parameters(), full_norm.parameters(), strict=True):
        assert torch.allclose(ranks.all_reduce_sum(a.grad), b.grad, rtol=0, atol=1e-11)
    for a, b in zip(net.buffers(), full_norm.buffers(), strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=0)
    assert list(net.state_dict()) == [f"0.{name}" for name in full_norm.state_dict()]


def train_on_image_files(folder: Path, ranks: Ranks) -> dict[str, list[int]]:
    """Return how many images this process checked, and for how many images each of its pools has memory."""
    reads: dict[str, list[int]] = {"checked": [], "capacities": []}
    check, pool = dataset_module.find_broken_images, dataset_module.WorkerPool

    def record_checked_images(images: ImageIndex, prefetcher: DevicePrefetcher) -> dict[str, str]:
        reads["checked"].append(len(images))
        return check(images, prefetcher)

    def record_pool(*args: Any, **options: Any) -> WorkerPool:
        reads["capacities"].append(args[2])
        return pool(*args, **options)

    dataset_module.find_broken_images, dataset_module.WorkerPool = record_checked_images, record_pool
    train_run("views", VIEWS, folder, ranks, data_folder=folder / "images.zip", workers=1, cache_images="no")
    dataset_module.find_broken_images, dataset_module.WorkerPool = check, pool
    return reads


def stop_by_signal(folder: Path, ranks: Ranks) -> None:
    """A signal to one process stops both after the same step; the run then resumes and finishes."""
    original, counts = TrainingLoop._run_step, []

    def run_step(self: TrainingLoop) -> None:
        original(self)
        counts.append(self.steps_done)
        if self.steps_done == 3 and not ranks.is_first:
            signal.raise_signal(signal.SIGTERM)

    TrainingLoop._run_step = run_step
    with pytest.raises(StopSignal, match="stopped by SIGTERM and saved"):
        train_run("stopped", STRAIGHT, folder, ranks)
    TrainingLoop._run_step = original
    assert counts == [1, 2, 3]
    train_run("stopped", STRAIGHT, folder, ranks)


def stop_after_last_step(folder: Path, ranks: Ranks) -> None:
    """A signal to one process after the last step stops both; the run is finished."""
    original = TrainingLoop.train_steps

    def train_steps(self: TrainingLoop, stop: StopRequest) -> Iterator[None]:
        yield from original(self, stop)
        if not ranks.is_first:
            signal.raise_signal(signal.SIGTERM)

    TrainingLoop.train_steps = train_steps
    with pytest.raises(StopSignal, match="stopped by SIGTERM and saved"):
        train_run("stopped-late", STRAIGHT.replace(epochs=1), folder, ranks)
    TrainingLoop.train_steps = original
    if ranks.is_first:
        assert RunFolder(folder / "stopped-late").record_file.exists()


def fail_by_nan(folder: Path, ranks: Ranks) -> str:
    """NaN in one process ends both, and rank 0 reports what the other process found."""

    def make(*arguments: Any) -> nn.Module:
        model = build_network(*arguments)
        if not ranks.is_first:
            model.layer2[0].act1 = nn.Sequential(model.layer2[0].act1, Poison(2, "forward"))
        return model

    building.build_network = make
    try:
        return catch_error_message(
            lambda: train_run("poisoned", STRAIGHT.replace(batch_norm="sync"), folder, ranks), ranks
        )
    finally:
        building.build_network = build_network


def fail_by_drift(folder: Path, ranks: Ranks) -> str:
    """Weights that differ between processes are an error."""

    def make(spec: TrainSpec, *arguments: Any) -> nn.Module:
        return build_network(spec.replace(seed=ranks.rank), *arguments)

    building.build_network = make
    try:
        return catch_error_message(lambda: train_run("drifted", STRAIGHT, folder, ranks), ranks)
    finally:
        building.build_network = build_network


def die(folder: Path, ranks: Ranks) -> None:
    """Rank 1 is killed in a step; rank 0 reports it."""
    original = TrainingLoop._run_step

    def run_step(self: TrainingLoop) -> None:
        original(self)
        if self.steps_done == 2 and not ranks.is_first:
            os.kill(os.getpid(), signal.SIGKILL)

    TrainingLoop._run_step = run_step
    start = time.monotonic()
    message = catch_error_message(lambda: train_run("dead", STRAIGHT, folder, ranks), ranks)
    (folder / "dead.json").write_text(json.dumps({"said": message, "seconds": time.monotonic() - start}))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with join_process_group("cpu", 40.0) as ranks:
        assert ranks.size == 2
        write = files.os.fsync
        forbid_writes_of_other_ranks(ranks)
        compare_batch_norms(ranks)
        for name, spec in (("double", DOUBLE), ("pieces", PIECES), ("straight", STRAIGHT), ("shared", SHARED)):
            train_run(name, spec, folder, ranks, tensorboard=name == "straight")
        train_run("hashed", HASHED, folder, ranks)
        reads = train_on_image_files(folder, ranks)
        stop_by_signal(folder, ranks)
        stop_after_last_step(folder, ranks)
        results: dict[str, Any] = {
            **reads,
            "poisoned": fail_by_nan(folder, ranks),
            "drifted": fail_by_drift(folder, ranks),
            "there": catch_error_message(
                lambda: train(DOUBLE, folder / "straight", RunOptions(device="cpu", ranks=ranks)), ranks
            ),
            "small": catch_error_message(
                lambda: train_run("small", STRAIGHT.replace(batch_size=3), folder, ranks), ranks
            ),
            "fast": catch_error_message(
                lambda: train_run("fast", STRAIGHT.replace(batch_size=301), folder, ranks, step_mode="compiled"), ranks
            ),
        }
        files.os.fsync = write
        (folder / f"said-{ranks.rank}.json").write_text(json.dumps(results))
        values: list[Tensor] = [torch.tensor([ranks.rank + 1.0]), torch.tensor([ranks.rank])]
        assert ranks.all_reduce_sum(values[0]).item() == 3
        assert ranks.broadcast(values[1]).item() == 0
        assert ranks.all_reduce_max(5 - ranks.rank, ranks.rank) == [5, 1]
        assert ranks.all_gather_object(ranks.rank) == [0, 1]
        assert np.isfinite(ranks.broadcast_object(float(ranks.rank)))
        die(folder, ranks)
        os._exit(3)  # rank 1 is dead, so the process group cannot be closed


if __name__ == "__main__":
    main(Path(sys.argv[1]))
