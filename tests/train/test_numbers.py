"""Bad numbers end a run with step, layer and learning rate, and never reach a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lcrbnn.data import DATASETS
from lcrbnn.errors import Failed
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train import build as building
from lcrbnn.train.build import build_network
from tests.train.helpers import SMALL, arrays, small_run


class Poison(nn.Module):
    """An identity that gives NaN from the n-th training pass on: forward, or only backward."""

    def __init__(self, passes: int, where: str) -> None:
        super().__init__()
        self.left, self.where = passes, where

    def forward(self, x: Tensor) -> Tensor:
        self.left -= self.training
        if self.left >= 0 or not self.training:
            return x
        if self.where == "forward":
            return x * float("nan")
        x = x.clone()
        x.register_hook(lambda gradient: gradient * float("inf"))
        return x


def poisoned(monkeypatch: pytest.MonkeyPatch, passes: int, where: str) -> None:
    def make(spec: Any) -> nn.Module:
        model = build_network(spec)
        model.layer2[0].act1 = nn.Sequential(model.layer2[0].act1, Poison(passes, where))
        return model

    monkeypatch.setattr(building, "build_network", make)


def test_a_loss_that_is_nan_names_step_layer_and_learning_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poisoned(monkeypatch, 6, "forward")  # five steps, and the look at the ratios between them
    with pytest.raises(Failed) as failure:
        small_run(tmp_path / "run")
    said = str(failure.value)
    assert said.startswith("bad numbers at step 5 (epoch 2, step 1 of 4), learning rate 0.025: the loss is nan; ")
    assert "the first bad output is that of layer layer2.0.act1.1; the checkpoint " in said
    newest = RunFolder(tmp_path / "run").newest()
    assert said.endswith(f"{newest} is kept")
    assert newest is not None
    assert newest.name == "step-000000005.safetensors"
    assert all(np.isfinite(a).all() for a in arrays(tmp_path / "run").values())
    fault = json.loads((tmp_path / "run" / "fault.json").read_text())
    assert (fault["step"], fault["epoch"], fault["lr"]) == (5, 2, pytest.approx(0.025))
    assert len(fault["rows"]) == 300
    assert not (tmp_path / "run" / "record.json").exists()


def test_a_gradient_that_is_infinite_is_caught_before_it_reaches_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, 2, "backward")
    with pytest.raises(Failed, match=r"at step 2 .* but the gradient of layer2\.0\.\w+\.\w+ is not finite"):
        small_run(tmp_path / "run")
    assert all(np.isfinite(a).all() for a in arrays(tmp_path / "run").values())


def test_the_run_goes_on_from_the_kept_checkpoint_once_the_cause_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        poisoned(broken, 2, "forward")
        with pytest.raises(Failed):
            small_run(tmp_path / "run")
    # the poisoned network has the same parameters, so its checkpoint fits
    small_run(tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "record.json").exists()


def test_a_learning_rate_far_too_high_is_caught(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"bad numbers at step \d+ .* learning rate 1e\+30"):
        small_run(tmp_path / "run", SMALL.but(lr=1e30, method="bnn"))
    newest = RunFolder(tmp_path / "run").newest()
    assert newest is None or all(np.isfinite(a).all() for a in arrays(tmp_path / "run").values())


def test_a_hidden_bad_weight_never_reaches_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sign of a NaN is +1, so a loss does not show it; what is saved is looked at."""
    from lcrbnn.train.loop import Loop

    whole = Loop._one

    def one(self: Loop) -> None:
        whole(self)
        if self.done == 3:
            with torch.no_grad():
                self.parts.model.layer1[0].bn1.running_var[0] = float("nan")

    monkeypatch.setattr(Loop, "_one", one)
    with pytest.raises(Failed, match=r"bad numbers at step 3 .* model/layer1\.0\.bn1\.running_var is not finite"):
        small_run(tmp_path / "run")
    newest = RunFolder(tmp_path / "run").newest()
    assert newest is not None
    assert newest.name == "step-000000002.safetensors"


def test_images_that_are_not_finite_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    monkeypatch.setitem(DATASETS, "digits", replace(DATASETS["digits"], std=(0.0,)))
    with pytest.raises(Failed, match=r"at step 0 .* the images themselves are not finite; there is no checkpoint yet"):
        small_run(tmp_path / "run")


class Louder(nn.Module):
    """Multiplies its input by 1e18: its outputs are finite, and the products of the paper's form overflow."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 1e18


def test_a_retention_loss_that_overflows_names_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(spec: Any) -> nn.Module:
        model = build_network(spec)
        model.layer2[0].act1 = nn.Sequential(model.layer2[0].act1, Louder())
        return model

    monkeypatch.setattr(building, "build_network", make)
    sentence = r"at step 0 .* the retention loss overflows at the input of 'layer2\.0\.conv2'"
    with pytest.raises(Failed, match=sentence):
        small_run(tmp_path / "run", SMALL.but(form="paper", weight=1.0))
