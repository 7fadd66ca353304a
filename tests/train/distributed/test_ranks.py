"""Two processes equal one: the same weights, stopped together, errors reported once, killed without a hang."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.digits import read_digits
from lcrbnn.data.loading.batches import InMemoryBatches, slice_part
from lcrbnn.errors import InputError
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.distributed.ranks import SINGLE_PROCESS
from lcrbnn.train.setup import build as building
from lcrbnn.train.setup.build_network import build_network
from lcrbnn.train.setup.spec import TrainSpec
from tests.data.image_folders import make_image_files, write_zip
from tests.train.helpers import (
    ROOT,
    SAVE_EVERY_STEP,
    SMALL,
    assert_same_runs,
    make_environment,
    read_log_without_times,
    read_newest_arrays,
    train_small_run,
)

STRAIGHT = SMALL  # batches of 300; the last one of an epoch has 100
DOUBLE = SMALL.replace(epochs=3, precision="float64", batch_norm="sync")  # 12 steps
PIECES = SMALL.replace(precision="float64", lcr_weight=1.0)  # local batch norm and LCR
# A run with measurements and random draws.
SHARED = SMALL.replace(lcr_gradient_ratio=0.1, batch_norm="sync", method="rbnn", gradient_accumulation_steps=2)

HASHED = DOUBLE.replace(epochs=2, method="bwnh")  # its layers observe their inputs and use this in the second epoch
FILES = TrainSpec(
    dataset="folder", image_size=16, num_classes=3, epochs=2, batch_size=12, precision="float64", batch_norm="sync"
)
VIEWS = FILES.replace(skip_broken_images=True, augmentation="augmix-views", consistency_weight=2.0)
TREE = {**make_image_files(train=20, val=4, size=(24, 20)), "train/bee/003.JPEG": b"no image"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Run two_ranks.py once, in the first pytest worker that needs it, and return its folder."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "pair"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            write_zip(TREE, folder / "images.zip")
            run_two(folder)
    return folder


def run_two(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.train.distributed.two_ranks", str(folder)],
            env={**make_environment(), **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [3, -signal.SIGKILL], outputs


def read_results(folder: Path, rank: int) -> dict[str, Any]:
    return json.loads((folder / f"said-{rank}.json").read_text())


def find_largest_difference(first: Path, second: Path, prefix: str = "") -> float:
    """Return the largest difference between the checkpoint arrays of two runs."""
    first_arrays, second_arrays = read_newest_arrays(first), read_newest_arrays(second)
    assert list(first_arrays) == list(second_arrays)
    return max(
        float(np.abs(first_arrays[n].astype(float) - second_arrays[n]).max())
        for n in first_arrays
        if n.startswith(prefix)
    )


# -- equal to one process ---------------------------------------------------------------------------------------------


def test_two_processes_with_synchronized_batch_norm_equal_one_process(pair: Path, tmp_path: Path) -> None:
    train_small_run(tmp_path / "one", DOUBLE)
    assert read_newest_arrays(pair / "double")["model/stem.0.weight"].dtype == np.float64
    # Parameters, statistics and momenta; measured: 3e-12.
    assert find_largest_difference(tmp_path / "one", pair / "double") < 1e-9
    for first, two in zip(
        read_log_without_times(tmp_path / "one"), read_log_without_times(pair / "double"), strict=True
    ):
        assert first["train_top1"] == two["train_top1"]
        assert first["valid_top1"] == two["valid_top1"]
        assert first["train_loss"] == pytest.approx(two["train_loss"], abs=1e-12)
        assert first["valid_loss"] == pytest.approx(two["valid_loss"], abs=1e-6)  # logits are float32


def test_observation_buffers_are_averaged_over_all_processes(pair: Path, tmp_path: Path) -> None:
    train_small_run(tmp_path / "one", HASHED)
    assert find_largest_difference(tmp_path / "one", pair / "hashed") < 1e-9


def test_two_processes_that_read_image_files_equal_one_process(pair: Path, tmp_path: Path) -> None:
    """Both ranks stream three views of the images, one of them broken; the single process has them in memory."""
    train_small_run(
        tmp_path / "one",
        VIEWS,
        replace(SAVE_EVERY_STEP, data_folder=pair / "images.zip", workers=0, cache_images="yes"),
    )
    assert find_largest_difference(tmp_path / "one", pair / "views") < 1e-9
    assert list(RunFolder(pair / "views").read_broken_images() or {}) == ["train/bee/003.JPEG"]
    for first, two in zip(
        read_log_without_times(tmp_path / "one"), read_log_without_times(pair / "views"), strict=True
    ):
        assert first["valid_top1"] == two["valid_top1"]
        assert first["train_loss"] == pytest.approx(two["train_loss"], abs=1e-12)


def test_each_process_checks_and_allocates_its_part_of_the_images(pair: Path) -> None:
    for rank in (0, 1):
        assert read_results(pair, rank)["checked"] == [30]  # of 60 images
        assert read_results(pair, rank)["capacities"] == [
            256,
            256,
            6,
        ]  # to check and open images, and half of a batch of 12


def test_two_processes_equal_one_with_two_accumulation_steps(pair: Path, tmp_path: Path) -> None:
    """With local batch norm and LCR, which use one part at a time; running statistics differ by definition."""
    train_small_run(tmp_path / "one", PIECES.replace(gradient_accumulation_steps=2))
    spec = json.loads((pair / "pieces" / "spec.json").read_text())
    assert spec["gradient_accumulation_steps"] == 1
    first_arrays, second_arrays = read_newest_arrays(tmp_path / "one"), read_newest_arrays(pair / "pieces")
    learned = [name for name in first_arrays if "running" not in name and "tracked" not in name]
    assert len(learned) > 40
    assert max(float(np.abs(first_arrays[n] - second_arrays[n]).max()) for n in learned) < 1e-9
    assert (
        int(first_arrays["model/stem.1.num_batches_tracked"])
        == 2 * int(second_arrays["model/stem.1.num_batches_tracked"])
        == 16
    )


def test_gradient_accumulation_equals_a_full_batch_without_batch_norm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_norms(*arguments: Any) -> nn.Module:
        model = build_network(*arguments)
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
                    setattr(module, name, nn.Hardtanh())
        return model

    monkeypatch.setattr(building, "build_network", without_norms)
    spec = SMALL.replace(precision="float64", lr=0.01, train_split="train+valid", epochs=1)
    for parts in (1, 2, 3):
        train_small_run(tmp_path / str(parts), spec.replace(gradient_accumulation_steps=parts))
    assert find_largest_difference(tmp_path / "1", tmp_path / "2") < 1e-9
    assert (
        find_largest_difference(tmp_path / "1", tmp_path / "3") < 1e-9
    )  # the last 97 images in parts of 32, 32 and 33
    start = train_small_run(tmp_path / "start", spec.replace(lr=0.0))
    assert find_largest_difference(start, tmp_path / "1", "model/") > 1e-3  # training changed the weights


def test_the_parts_of_the_ranks_in_order_are_the_batch() -> None:
    split, row, cpu = read_digits().train, DATASETS["digits"], torch.device("cpu")
    original = list(InMemoryBatches(split, row, cpu).train_batches(1, 2, 300, "crop-flip", 1, 5))
    ranks = [list(InMemoryBatches(split, row, cpu, r, 3).train_batches(1, 2, 300, "crop-flip", 1, 5)) for r in range(3)]
    for batch, *parts in zip(original, *ranks, strict=True):
        assert torch.equal(torch.cat([p.rows for p in parts]), batch.rows)
        assert torch.equal(torch.cat([p.images for p in parts]), batch.images)
        assert torch.equal(torch.cat([p.labels for p in parts]), batch.labels)
        assert max(len(p.rows) for p in parts) - min(len(p.rows) for p in parts) <= 1
    assert [slice_part(10, 20, i, 3) for i in range(3)] == [slice(10, 13), slice(13, 16), slice(16, 20)]
    reader = InMemoryBatches(split, row, cpu)
    actual = torch.cat([b.rows for r in range(3) for b in reader.evaluation_batches(100, r, 3)])
    assert actual.sort().values.tolist() == list(range(len(split.labels)))
    with pytest.raises(
        InputError, match=r"^the last batch of an epoch \(97 images\) is too small for 1 processes with 49 "
    ):
        reader.count_steps(300, False, 49)
    assert reader.count_steps(300, True, 49) == 4


# -- both processes at the same step ----------------------------------------------------------------------------------


def test_only_rank_0_writes_and_writes_everything(pair: Path) -> None:
    """Rank 1 raises at its first write (tests/train/distributed/two_ranks.py)."""
    for name in ("double", "pieces", "straight", "shared", "stopped"):
        folder = RunFolder(pair / name)
        assert folder.record_file.exists()
        assert len(read_log_without_times(pair / name)) == folder.read_spec()["epochs"]
    assert len(list((pair / "straight" / "tensorboard").iterdir())) == 1
    figures = json.loads((pair / "straight" / "record.json").read_text())["figures"]
    assert figures["training_step"] == "EagerStep on 2 x 1 threads"
    assert set(figures["noise_top1"]) == {"0.04", "0.08", "0.12"}
    assert all(
        line["lcr_gradient_ratio"] == pytest.approx(0.1, rel=0.5) for line in read_log_without_times(pair / "shared")
    )


def test_a_signal_to_one_process_stops_both_after_the_same_step_and_loses_nothing(pair: Path) -> None:
    assert_same_runs(pair / "straight", pair / "stopped")


def test_non_finite_values_in_one_process_end_both_with_one_message(pair: Path) -> None:
    first, second = read_results(pair, 0), read_results(pair, 1)
    assert first["poisoned"].startswith(
        "non-finite values at step 2 (epoch 1, step 2 of 4), learning rate 0.05: the loss is nan; "
        "the first non-finite output is that of layer layer2.0.act1.1; the checkpoint "
    )
    assert second["poisoned"] == "1"
    fault = json.loads((pair / "poisoned" / "fault.json").read_text())
    batches = InMemoryBatches(
        DATASETS["digits"].load(Path()).split_validation(297)[0], DATASETS["digits"], torch.device("cpu"), 1, 2
    )
    *_, batch = batches.train_batches(0, 0, 300, "standard", 2, 3)
    assert fault["rows"] == batch.rows.tolist()  # of the process with the NaN
    assert all(np.isfinite(a).all() for a in read_newest_arrays(pair / "poisoned").values())


def test_all_processes_reject_invalid_input_and_rank_0_reports_it(pair: Path) -> None:
    first, second = read_results(pair, 0), read_results(pair, 1)
    assert first["drifted"].startswith("the processes differ in their weights before epoch 1: rank 1 from rank 0; ")
    assert first["there"].startswith(f"there is a run in {pair / 'straight'} already")
    assert first["small"].startswith("a batch of 3 images is too small for 2 processes with 1 gradient accumulation ")
    assert first["fast"].startswith(
        "a compiled step has parts of equal size, and a batch of 301 cannot be cut into 2 x 1"
    )
    assert second["drifted"] == first["drifted"]
    assert [second[name] for name in ("there", "small", "fast")] == ["2", "2", "2"]
    assert not (pair / "small").exists()


def test_a_process_that_is_killed_ends_the_other(pair: Path) -> None:
    result = json.loads((pair / "dead.json").read_text())
    assert result["said"].startswith("another process of this run has ended or cannot be reached (")
    assert result["seconds"] < 60  # immediately, or after the timeout of 40 s
    assert RunFolder(pair / "dead").find_newest_checkpoint() is not None
    assert not (pair / "dead" / "record.json").exists()


# -- the launcher -----------------------------------------------------------------------------------------------------


def list_child_pids(pid: int) -> list[int]:
    listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(child_pid) for child_pid in listing.stdout.split()]


def wait_for(condition: Any, seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def test_torchrun_restarts_a_killed_run_to_the_same_result(pair: Path, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
    settings = ["--device", "cpu", "--batch-size", "300", "--epochs", "2", "--checkpoint-interval", "0", "--resume"]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(
            [*launcher, "-m", "lcrbnn", "train", "--run-folder", str(tmp_path / "run"), *settings],
            env=make_environment(),
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        wait_for(lambda: list((tmp_path / "run" / "checkpoints").glob("step-*2.safetensors")))
        workers = list_child_pids(process.pid)
        os.kill(workers[-1], signal.SIGKILL)
        assert process.wait(timeout=120) == 0, (tmp_path / "out").read_text()
    text = (tmp_path / "out").read_text()
    assert text.count("no run in") == 1  # once, by rank 0
    assert text.count("resuming from epoch 1, step ") == 1
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert_same_runs(pair / "straight", tmp_path / "run")


def test_all_processes_stop_when_the_launcher_is_killed(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    settings = ["--device", "cpu", "--batch-size", "300", "--epochs", "500", "--checkpoint-interval", "1000"]
    process = subprocess.Popen(
        [*launcher, "-m", "lcrbnn", "train", "--run-folder", str(tmp_path / "run"), *settings],
        env=make_environment(),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: len(RunFolder(tmp_path / "run").read_log() if (tmp_path / "run" / "log.jsonl").exists() else []))
    workers = list_child_pids(process.pid)
    process.kill()
    process.wait()
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), 30)
    assert len(workers) == 2
    assert RunFolder(tmp_path / "run").find_newest_checkpoint() is not None  # a checkpoint was saved
    assert len(RunFolder(tmp_path / "run").read_log()) < 500


@pytest.mark.parametrize("killed", [False, True], ids=["all stop together", "one is killed first"])
def test_a_signal_to_the_launcher_is_one_message(killed: bool, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    settings = ["--device", "cpu", "--batch-size", "300", "--epochs", "500", "--checkpoint-interval", "1000"]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(
            [*launcher, "-m", "lcrbnn", "train", "--run-folder", str(tmp_path / "run"), *settings],
            env=make_environment(),
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        wait_for((tmp_path / "run" / "log.jsonl").exists)
        wait_for(lambda: RunFolder(tmp_path / "run").read_log())
        second = list_child_pids(process.pid)[-1]
        if killed:
            os.kill(second, signal.SIGSTOP)
            time.sleep(1)  # rank 0 now waits for it
        process.send_signal(signal.SIGTERM)
        if killed:
            time.sleep(1)
            os.kill(second, signal.SIGKILL)
        assert process.wait(timeout=60) == 1
    lines = [line for line in (tmp_path / "out").read_text().splitlines() if line.startswith("lcrbnn: ")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("lcrbnn: stopped by SIGTERM")
    assert (RunFolder(tmp_path / "run").find_newest_checkpoint() is None) == killed


def test_a_single_process_sends_nothing() -> None:
    assert SAVE_EVERY_STEP.ranks is SINGLE_PROCESS
    x = torch.ones(1)
    assert SINGLE_PROCESS.all_reduce_sum(x) is SINGLE_PROCESS.broadcast(x) is x
    assert SINGLE_PROCESS.all_reduce_max(3, 4) == [3, 4]
    assert SINGLE_PROCESS.all_gather_object(7) == [7]
    assert (
        SINGLE_PROCESS.run_on_rank0(lambda: 5)
        == SINGLE_PROCESS.run_on_all_ranks(lambda: 5)
        == SINGLE_PROCESS.broadcast_object(5)
        == 5
    )
