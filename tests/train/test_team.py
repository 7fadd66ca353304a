"""Runs whose steps are made together end as each would alone. The mapped graph is run as it is, not compiled."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lcrbnn.data import DATASETS
from lcrbnn.data.digits import read_digits
from lcrbnn.errors import Stopped
from lcrbnn.train import Spec
from lcrbnn.train import team as teams
from lcrbnn.train.batches import Batches
from lcrbnn.train.build import build
from lcrbnn.train.run import Options, train_together
from lcrbnn.train.step_eager import BadNumbers, EagerStep
from lcrbnn.train.step_fast import FastStep
from lcrbnn.train.team import Team, can_team, join
from tests.kernels.interpreted import run_interpreted
from tests.train.helpers import arrays, assert_same, log, quiet

CPU = torch.device("cpu")
SPEC = Spec(epochs=2, batch=400, precision="float64", share=0.03, ramp=1.0, augment="crop-flip")
TEAM = Options(device="cpu", step="team", save_seconds=1000.0)


@pytest.fixture(autouse=True)
def _uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "compiled", lambda graph, inputs: graph)


def seeds(folder: Path, spec: Spec = SPEC) -> dict[Path, Spec]:
    """Two runs; retention, if any, is stronger in the second."""
    return {folder / f"seed-{seed}": spec.but(seed=seed, share=(1 + seed) * spec.share) for seed in range(2)}


def together(folder: Path, spec: Spec = SPEC, options: Options = TEAM, *, resume: bool = False) -> list[Path]:
    train_together(seeds(folder, spec), options, resume=resume, progress=quiet)
    return list(seeds(folder, spec))


def members(spec: Spec, count: int = 2, kind: type = FastStep) -> list[Any]:
    split = read_digits().train
    found = []
    for seed in range(count):
        one = spec.but(seed=seed)
        found.append(kind(one, build(one, CPU), Batches(split, DATASETS["digits"], CPU)))
    return found


def begin(steps: list[Any], weight: float) -> None:
    for step in steps:
        step.parts.model.train()
        step.begin(0, 0, weight)


def test_a_team_ends_as_each_of_its_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    whole = Team._body
    monkeypatch.setattr(Team, "_body", lambda self: (calls.append(len(self.members)), whole(self))[1])
    made = together(tmp_path / "team")
    assert calls == [2] * 5  # one to get ready, and two full batches an epoch; the incomplete one is each run's own
    alone = together(tmp_path / "alone", options=replace(TEAM, step="eager"))
    for mine, theirs in zip(made, alone, strict=True):
        for line, plain in zip(log(mine), log(theirs), strict=True):
            assert line == {k: v if k in ("train", "valid") else pytest.approx(v, rel=1e-6) for k, v in plain.items()}
        found, wanted = arrays(mine), arrays(theirs)
        assert list(found) == list(wanted)
        for name in found:  # rates are float32 in a fast step
            assert np.allclose(found[name], wanted[name], rtol=1e-6, atol=1e-6), name


def test_a_stopped_team_goes_on_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SPEC.but(share=0.0, ramp=0.0, method="xnor")  # which projects its weights
    straight = together(tmp_path / "straight", spec)
    with monkeypatch.context() as broken:
        whole = Team.ask

        def ask(self: Team, epoch: int, step: int) -> None:
            whole(self, epoch, step)
            if (epoch, step) == (1, 0):
                signal.raise_signal(signal.SIGTERM)

        broken.setattr(Team, "ask", ask)
        with pytest.raises(Stopped, match="stopped by SIGTERM and saved"):
            together(tmp_path / "run", spec)
    for one, other in zip(together(tmp_path / "run", spec, resume=True), straight, strict=True):
        assert_same(one, other)


def test_bad_numbers_of_one_run_are_its_own() -> None:
    spec = SPEC.but(share=0.0, ramp=0.0, drop_last=True)
    steps = members(spec)
    Team(steps)
    begin(steps, 0.0)
    with torch.no_grad():
        next(steps[1].parts.model.parameters()).fill_(torch.nan)
    for _ in range(4):  # beyond the epoch: the other one is not asked any more
        steps[0].take()
        steps[0]._step %= 2
    steps[0].check()
    with pytest.raises(BadNumbers):
        steps[1].check()
    alone = members(spec, 1, EagerStep)
    begin(alone, 0.0)
    alone[0].take()
    assert torch.isfinite(steps[0].sums).all()


def test_only_runs_that_differ_in_seed_and_strength_are_a_team() -> None:
    one, other = members(SPEC)
    assert can_team([one, other])
    assert can_team([one, members(SPEC.but(share=0.0, weight=8.0, ramp=0.0))[1]])
    for changes in ({"lr": 0.2}, {"method": "xnor"}, {"share": 0.0, "ramp": 0.0}, {"form_options": ("beta=1",)}):
        assert not can_team([one, members(SPEC.but(**changes))[1]])
    for changes in ({"optimizer": "adam"}, {"accumulate": 2}, {"method": "reactnet"}):
        assert not can_team(members(SPEC.but(**changes)))


def test_joined_tensors_are_parts_of_one_with_their_own_strides() -> None:
    tensors = [torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last) for _ in range(3)]
    before = [(t.clone(), t.stride()) for t in tensors]
    whole = join(tensors)
    whole[1].mul_(2)
    for i, (tensor, (value, strides)) in enumerate(zip(tensors, before, strict=True)):
        assert tensor.stride() == strides
        assert tensor.data_ptr() == whole[i].data_ptr()
        assert torch.equal(tensor, value * (2 if i == 1 else 1))


def by_kernels() -> dict[str, Any]:
    """One step of two runs by the package's own kernels: launches alone and together, and how far the weights are."""
    from lcrbnn.kernels import conv_triton

    teams.compiled = lambda graph, inputs: graph
    launches = []
    whole = conv_triton.convolve
    conv_triton.convolve = lambda x, *args, **keys: (launches.append(x.shape[0]), whole(x, *args, **keys))[1]
    spec = Spec(batch=4, precision="float16", weight=1.0, drop_last=True)
    alone, steps = members(spec, kind=EagerStep), members(spec)
    begin(alone, 1.0)
    for step in alone:
        step.take()
    plain, launches[:] = list(launches), []
    Team(steps)
    begin(steps, 1.0)
    launches.clear()
    for step in steps:
        step.take()
    weights = [torch.cat([p.detach().flatten() for s in some for p in s.parts.names]) for some in (alone, steps)]
    return {"alone": plain, "team": launches, "apart": float((weights[0] - weights[1]).norm() / weights[0].norm())}


def test_the_kernels_take_all_runs_in_one_launch() -> None:
    found = run_interpreted(by_kernels)
    assert found["alone"] == [1] * len(found["alone"])
    assert found["team"] == [2] * (len(found["alone"]) // 2)
    assert found["apart"] < 1e-3
