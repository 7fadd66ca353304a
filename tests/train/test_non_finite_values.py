"""Non-finite values end a run with step, layer and learning rate, and never reach a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lcrbnn.data.datasets import DATASETS
from lcrbnn.errors import RunFailed
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup import build as building
from lcrbnn.train.setup.build_network import build_network
from tests.train.helpers import SMALL, read_newest_arrays, train_small_run


class Poison(nn.Module):
    """Identity that returns NaN from the n-th training pass on, in the forward or only in the backward pass."""

    def __init__(self, passes: int, direction: str) -> None:
        super().__init__()
        self.left, self.where = passes, direction

    def forward(self, x: Tensor) -> Tensor:
        self.left -= self.training
        if self.left >= 0 or not self.training:
            return x
        if self.where == "forward":
            return x * float("nan")
        x = x.clone()
        x.register_hook(lambda gradient: gradient * float("inf"))
        return x


def poison_training(monkeypatch: pytest.MonkeyPatch, passes: int, direction: str) -> None:
    def make(*arguments: Any) -> nn.Module:
        model = build_network(*arguments)
        model.layer2[0].act1 = nn.Sequential(model.layer2[0].act1, Poison(passes, direction))
        return model

    monkeypatch.setattr(building, "build_network", make)


def test_a_loss_that_is_nan_names_step_layer_and_learning_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison_training(monkeypatch, 6, "forward")  # five steps and one measurement between them
    with pytest.raises(RunFailed) as failure:
        train_small_run(tmp_path / "run")
    message = str(failure.value)
    assert message.startswith(
        "non-finite values at step 5 (epoch 2, step 1 of 4), learning rate 0.025: the loss is nan; "
    )
    assert "the first non-finite output is that of layer layer2.0.act1.1; the checkpoint " in message
    newest = RunFolder(tmp_path / "run").find_newest_checkpoint()
    assert message.endswith(f"{newest} is kept")
    assert newest is not None
    assert newest.name == "step-000000005.safetensors"
    assert all(np.isfinite(a).all() for a in read_newest_arrays(tmp_path / "run").values())
    fault = json.loads((tmp_path / "run" / "fault.json").read_text())
    assert (fault["step"], fault["epoch"], fault["lr"]) == (5, 2, pytest.approx(0.025))
    assert len(fault["rows"]) == 300
    assert not (tmp_path / "run" / "record.json").exists()


def test_a_gradient_that_is_infinite_is_caught_before_it_reaches_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison_training(monkeypatch, 2, "backward")
    with pytest.raises(RunFailed, match=r"at step 2 .* but the gradient of layer2\.0\.\w+\.\w+ is not finite"):
        train_small_run(tmp_path / "run")
    assert all(np.isfinite(a).all() for a in read_newest_arrays(tmp_path / "run").values())


def test_the_run_resumes_from_the_last_checkpoint_once_the_cause_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        poison_training(broken, 2, "forward")
        with pytest.raises(RunFailed):
            train_small_run(tmp_path / "run")
    # the poisoned network has the same parameters, so its checkpoint fits
    train_small_run(tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "record.json").exists()


def test_a_learning_rate_far_too_high_is_caught(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"non-finite values at step \d+ .* learning rate 1e\+30"):
        train_small_run(tmp_path / "run", SMALL.replace(lr=1e30, method="bnn"))
    newest = RunFolder(tmp_path / "run").find_newest_checkpoint()
    assert newest is None or all(np.isfinite(a).all() for a in read_newest_arrays(tmp_path / "run").values())


def test_a_non_finite_buffer_never_reaches_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sign of a NaN is +1, so the loss stays finite; the saved arrays are checked."""
    from lcrbnn.train.loop import TrainingLoop

    original = TrainingLoop._run_step

    def one(self: TrainingLoop) -> None:
        original(self)
        if self.steps_done == 3:
            with torch.no_grad():
                self.parts.model.layer1[0].bn1.running_var[0] = float("nan")

    monkeypatch.setattr(TrainingLoop, "_run_step", one)
    with pytest.raises(
        RunFailed, match=r"non-finite values at step 3 .* model/layer1\.0\.bn1\.running_var is not finite"
    ):
        train_small_run(tmp_path / "run")
    newest = RunFolder(tmp_path / "run").find_newest_checkpoint()
    assert newest is not None
    assert newest.name == "step-000000002.safetensors"


def test_non_finite_images_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    monkeypatch.setitem(DATASETS, "digits", replace(DATASETS["digits"], std=(0.0,)))
    with pytest.raises(
        RunFailed, match=r"at step 0 .* the images themselves are not finite; there is no checkpoint yet"
    ):
        train_small_run(tmp_path / "run")


class Louder(nn.Module):
    """Multiplies its input by 1e18: outputs are finite, but the products of the LCR variant paper overflow."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 1e18


def test_an_overflow_of_the_lcr_loss_names_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*arguments: Any) -> nn.Module:
        model = build_network(*arguments)
        model.layer2[0].act1 = nn.Sequential(model.layer2[0].act1, Louder())
        return model

    monkeypatch.setattr(building, "build_network", make)
    sentence = r"at step 0 .* the LCR loss overflows at the input of 'layer2\.0\.conv2'"
    with pytest.raises(RunFailed, match=sentence):
        train_small_run(tmp_path / "run", SMALL.replace(lcr_variant="paper", lcr_weight=1.0))
