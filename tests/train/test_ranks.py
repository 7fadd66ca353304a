"""Two processes train as one: to the same weights, stopped together, told of errors once, killed without a hang."""

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

from lcrbnn.cli import main
from lcrbnn.data import DATASETS
from lcrbnn.data.digits import read_digits
from lcrbnn.errors import InputError
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train import Spec
from lcrbnn.train import build as building
from lcrbnn.train.batches import Batches, part
from lcrbnn.train.build import build_network
from lcrbnn.train.ranks import ALONE
from tests.data.trees import as_zip, generated
from tests.train.helpers import OFTEN, ROOT, SMALL, arrays, assert_same, environment, log, small_run

STRAIGHT = SMALL  # batches of 300, the last of an epoch of 100
DOUBLE = SMALL.but(epochs=3, precision="float64", batch_norm="sync")  # 12 steps
PIECES = SMALL.but(precision="float64", weight=1.0)  # local batch norm, retention
SHARED = SMALL.but(share=0.1, batch_norm="sync", method="rbnn", accumulate=2)  # what is measured and drawn in a run

HASHED = DOUBLE.but(epochs=2, method="bwnh")  # what its layers remember of their inputs, and use in the second epoch
FILES = Spec(data="folder", side=16, classes=3, epochs=2, batch=12, precision="float64", batch_norm="sync")
VIEWS = FILES.but(skip_broken=True, augment="augmix-views", consistency=2.0)
TREE = {**generated(train=20, val=4, size=(24, 20)), "train/bee/003.JPEG": b"no image"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """What two processes leave: tests/train/two_ranks.py, run once, whichever worker of pytest asks first."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "pair"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            as_zip(TREE, folder / "images.zip")
            run_two(folder)
    return folder


def run_two(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.train.two_ranks", str(folder)],
            env={**environment(), **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [process.communicate(timeout=200)[0] for process in both]
    assert [process.returncode for process in both] == [3, -signal.SIGKILL], said


def said(folder: Path, rank: int) -> dict[str, Any]:
    return json.loads((folder / f"said-{rank}.json").read_text())


def furthest(one: Path, other: Path, prefix: str = "") -> float:
    """The largest difference of two runs in an array of their checkpoints."""
    mine, theirs = arrays(one), arrays(other)
    assert list(mine) == list(theirs)
    return max(float(np.abs(mine[n].astype(float) - theirs[n]).max()) for n in mine if n.startswith(prefix))


# -- the same as one process ------------------------------------------------------------------------------------------


def test_two_processes_with_shared_norms_are_one_with_the_same_batch(pair: Path, tmp_path: Path) -> None:
    small_run(tmp_path / "one", DOUBLE)
    assert arrays(pair / "double")["model/stem.0.weight"].dtype == np.float64
    assert furthest(tmp_path / "one", pair / "double") < 1e-9  # parameters, statistics, momenta; found: 3e-12
    for one, two in zip(log(tmp_path / "one"), log(pair / "double"), strict=True):
        assert one["train"] == two["train"]
        assert one["valid"] == two["valid"]
        assert one["loss"] == pytest.approx(two["loss"], abs=1e-12)
        assert one["valid_loss"] == pytest.approx(two["valid_loss"], abs=1e-6)  # answers are float32


def test_what_layers_remember_of_their_inputs_is_that_of_all_processes(pair: Path, tmp_path: Path) -> None:
    small_run(tmp_path / "one", HASHED)
    assert furthest(tmp_path / "one", pair / "hashed") < 1e-9


def test_two_processes_that_read_files_are_one(pair: Path, tmp_path: Path) -> None:
    """Streamed there with a process each, in three views, one image broken; here held in memory."""
    small_run(tmp_path / "one", VIEWS, replace(OFTEN, data_folder=pair / "images.zip", workers=0, cache="yes"))
    assert furthest(tmp_path / "one", pair / "views") < 1e-9
    assert list(RunFolder(pair / "views").read_broken() or {}) == ["train/bee/003.JPEG"]
    for one, two in zip(log(tmp_path / "one"), log(pair / "views"), strict=True):
        assert one["valid"] == two["valid"]
        assert one["loss"] == pytest.approx(two["loss"], abs=1e-12)


def test_each_process_looks_for_broken_images_in_its_part_and_has_memory_for_its_part(pair: Path) -> None:
    for rank in (0, 1):
        assert said(pair, rank)["checked"] == [30]  # of 60 images
        assert said(pair, rank)["capacities"] == [256, 256, 6]  # checking, opening, and half of a batch of 12


def test_two_processes_are_one_that_cuts_its_batch_in_two(pair: Path, tmp_path: Path) -> None:
    """With local norms and retention: both see a part at a time. Their running statistics differ by definition."""
    small_run(tmp_path / "one", PIECES.but(accumulate=2))
    spec = json.loads((pair / "pieces" / "spec.json").read_text())
    assert spec["accumulate"] == 1
    mine, theirs = arrays(tmp_path / "one"), arrays(pair / "pieces")
    learned = [name for name in mine if "running" not in name and "tracked" not in name]
    assert len(learned) > 40
    assert max(float(np.abs(mine[n] - theirs[n]).max()) for n in learned) < 1e-9
    assert int(mine["model/stem.1.num_batches_tracked"]) == 2 * int(theirs["model/stem.1.num_batches_tracked"]) == 16


def test_a_batch_in_parts_is_a_batch_where_no_norm_sees_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_norms(spec: Spec) -> nn.Module:
        model = build_network(spec)
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
                    setattr(module, name, nn.Hardtanh())
        return model

    monkeypatch.setattr(building, "build_network", without_norms)
    spec = SMALL.but(precision="float64", lr=0.01, images="all", epochs=1)
    for parts in (1, 2, 3):
        small_run(tmp_path / str(parts), spec.but(accumulate=parts))
    assert furthest(tmp_path / "1", tmp_path / "2") < 1e-9
    assert furthest(tmp_path / "1", tmp_path / "3") < 1e-9  # the last 97 images in 32, 32, 33
    start = small_run(tmp_path / "start", spec.but(lr=0.0))
    assert furthest(start, tmp_path / "1", "model/") > 1e-3  # they did learn


def test_the_parts_of_a_batch_in_order_are_the_batch() -> None:
    split, row, cpu = read_digits().train, DATASETS["digits"], torch.device("cpu")
    whole = list(Batches(split, row, cpu).epoch(1, 2, 300, "crop-flip", 1, 5))
    ranks = [list(Batches(split, row, cpu, r, 3).epoch(1, 2, 300, "crop-flip", 1, 5)) for r in range(3)]
    for batch, *parts in zip(whole, *ranks, strict=True):
        assert torch.equal(torch.cat([p.rows for p in parts]), batch.rows)
        assert torch.equal(torch.cat([p.images for p in parts]), batch.images)
        assert torch.equal(torch.cat([p.labels for p in parts]), batch.labels)
        assert max(len(p.rows) for p in parts) - min(len(p.rows) for p in parts) <= 1
    assert [part(10, 20, i, 3) for i in range(3)] == [slice(10, 13), slice(13, 16), slice(16, 20)]
    reader = Batches(split, row, cpu)
    shown = torch.cat([b.rows for r in range(3) for b in reader.plain(100, r, 3)])
    assert shown.sort().values.tolist() == list(range(len(split.labels)))
    with pytest.raises(InputError, match=r"^the last batch of an epoch, of 97, is too small for 1 x 49 parts"):
        reader.steps(300, False, 49)
    assert reader.steps(300, True, 49) == 4


# -- in step ----------------------------------------------------------------------------------------------------------


def test_only_the_first_process_writes_and_it_writes_everything(pair: Path) -> None:
    """The second one would have ended at its first attempt (tests/train/two_ranks.py)."""
    for name in ("double", "pieces", "straight", "shared", "stopped"):
        folder = RunFolder(pair / name)
        assert folder.record.exists()
        assert len(log(pair / name)) == folder.read_spec()["epochs"]
    assert len(list((pair / "straight" / "tensorboard").iterdir())) == 1
    figures = json.loads((pair / "straight" / "record.json").read_text())["figures"]
    assert figures["step"] == "EagerStep on 2 x 1 threads"
    assert set(figures["noise"]) == {"0.04", "0.08", "0.12"}
    assert all(line["share"] == pytest.approx(0.1, rel=0.5) for line in log(pair / "shared"))


def test_a_signal_to_one_process_stops_both_after_the_same_step_and_loses_nothing(pair: Path) -> None:
    assert_same(pair / "straight", pair / "stopped")


def test_bad_numbers_in_one_process_end_both_and_are_told_once(pair: Path) -> None:
    first, second = said(pair, 0), said(pair, 1)
    assert first["poisoned"].startswith(
        "bad numbers at step 2 (epoch 1, step 2 of 4), learning rate 0.05: the loss is nan; "
        "the first bad output is that of layer layer2.0.act1.1; the checkpoint "
    )
    assert second["poisoned"] == "1"
    fault = json.loads((pair / "poisoned" / "fault.json").read_text())
    batches = Batches(DATASETS["digits"].load(Path()).divided(297)[0], DATASETS["digits"], torch.device("cpu"), 1, 2)
    *_, batch = batches.epoch(0, 0, 300, "usual", 2, 3)
    assert fault["rows"] == batch.rows.tolist()  # of the process that had them
    assert all(np.isfinite(a).all() for a in arrays(pair / "poisoned").values())


def test_what_is_refused_is_refused_by_all_and_said_by_the_first(pair: Path) -> None:
    first, second = said(pair, 0), said(pair, 1)
    assert first["drifted"].startswith("the processes differ in their weights before epoch 1: rank 1 from rank 0; ")
    assert first["there"].startswith(f"there is a run in {pair / 'straight'} already")
    assert first["small"].startswith("a batch of 3 is too small for 2 x 1 parts (processes x accumulate) of two images")
    assert first["fast"].startswith("a fast step has parts of one size, and a batch of 301 does not go into 2 x 1")
    assert second["drifted"] == first["drifted"]
    assert [second[name] for name in ("there", "small", "fast")] == ["2", "2", "2"]
    assert not (pair / "small").exists()


def test_a_process_that_is_killed_ends_the_other(pair: Path) -> None:
    seen = json.loads((pair / "dead.json").read_text())
    assert seen["said"].startswith("another process of this run has ended or cannot be reached (")
    assert seen["seconds"] < 60  # at once, or after the 40 s that a message may take
    assert RunFolder(pair / "dead").newest() is not None
    assert not (pair / "dead" / "record.json").exists()


# -- the launcher -----------------------------------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(one) for one in found.stdout.split()]


def wait_for(what: Any, seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def test_torchrun_starts_again_after_a_kill_and_ends_as_if_nothing_had_been(pair: Path, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
    settings = ["--device", "cpu", "--batch", "300", "--epochs", "2", "--save-seconds", "0", "--resume"]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(
            [*launcher, "-m", "lcrbnn", "train", "--folder", str(tmp_path / "run"), *settings],
            env=environment(),
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        wait_for(lambda: list((tmp_path / "run" / "checkpoints").glob("step-*2.safetensors")))
        workers = children(process.pid)
        os.kill(workers[-1], signal.SIGKILL)
        assert process.wait(timeout=120) == 0, (tmp_path / "out").read_text()
    text = (tmp_path / "out").read_text()
    assert text.count("no run in") == 1  # once, by the first process
    assert text.count("going on from epoch 1, step ") == 1
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert_same(pair / "straight", tmp_path / "run")


def test_no_process_trains_on_when_the_launcher_is_killed(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    settings = ["--device", "cpu", "--batch", "300", "--epochs", "500", "--save-seconds", "1000"]
    process = subprocess.Popen(
        [*launcher, "-m", "lcrbnn", "train", "--folder", str(tmp_path / "run"), *settings],
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: len(RunFolder(tmp_path / "run").read_log() if (tmp_path / "run" / "log.jsonl").exists() else []))
    workers = children(process.pid)
    process.kill()
    process.wait()
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), 30)
    assert len(workers) == 2
    assert RunFolder(tmp_path / "run").newest() is not None  # what was learned is kept
    assert len(RunFolder(tmp_path / "run").read_log()) < 500


@pytest.mark.parametrize("killed", [False, True], ids=["all stop together", "one is killed first"])
def test_a_signal_to_the_launcher_is_one_message(killed: bool, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    settings = ["--device", "cpu", "--batch", "300", "--epochs", "500", "--save-seconds", "1000"]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(
            [*launcher, "-m", "lcrbnn", "train", "--folder", str(tmp_path / "run"), *settings],
            env=environment(),
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        wait_for((tmp_path / "run" / "log.jsonl").exists)
        wait_for(lambda: RunFolder(tmp_path / "run").read_log())
        second = children(process.pid)[-1]
        if killed:
            os.kill(second, signal.SIGSTOP)
            time.sleep(1)  # the first one now waits for it
        process.send_signal(signal.SIGTERM)
        if killed:
            time.sleep(1)
            os.kill(second, signal.SIGKILL)
        assert process.wait(timeout=60) == 1
    lines = [line for line in (tmp_path / "out").read_text().splitlines() if line.startswith("lcrbnn: ")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("lcrbnn: stopped by SIGTERM")
    assert (RunFolder(tmp_path / "run").newest() is None) == killed


def test_a_run_of_many_processes_is_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    for name, value in (("MASTER_ADDR", "localhost"), ("RANK", "0"), ("WORLD_SIZE", "x")):
        monkeypatch.setenv(name, value)
    assert main(["train", "digits", "--run", str(tmp_path / "run"), "--seeds", "0-1"]) == 2
    assert capsys.readouterr().err == "lcrbnn: the launcher says WORLD_SIZE='x', which is no number\n"
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert main(["train", "digits", "--run", str(tmp_path / "run"), "--device", "cpu"]) == 2
    assert capsys.readouterr().err == "lcrbnn: RANK is 5, and of WORLD_SIZE 2 processes the last is 1\n"
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    try:
        assert main(["train", "digits", "--run", str(tmp_path / "run"), "--device", "cpu", "--seeds", "0-1"]) == 2
    finally:
        torch.distributed.destroy_process_group()
    assert capsys.readouterr().err == (
        "lcrbnn: under torchrun all processes share one run: start each seed by itself, with --seed\n"
    )


def test_only_training_is_shared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["recipes"]) == 2
    assert capsys.readouterr() == (
        "",
        "lcrbnn: torchrun starts several processes, and recipes is for one: only train shares its work\n",
    )


def test_alone_nothing_is_sent() -> None:
    assert OFTEN.ranks is ALONE
    x = torch.ones(1)
    assert ALONE.add(x) is ALONE.spread(x) is x
    assert ALONE.most(3, 4) == [3, 4]
    assert ALONE.of_all(7) == [7]
    assert ALONE.told(lambda: 5) == ALONE.everywhere(lambda: 5) == ALONE.of_first(5) == 5
