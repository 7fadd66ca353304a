"""The compiled step and its plain twin: on a CPU it is not captured, but it is the same code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from lcrbnn.data import DATASETS
from lcrbnn.data.digits import read_digits
from lcrbnn.errors import Failed
from lcrbnn.study.plan import read_plan
from lcrbnn.train import Spec
from lcrbnn.train.batches import Batches
from lcrbnn.train.build import Parts, build
from lcrbnn.train.evaluate import look
from lcrbnn.train.options import STEPS
from lcrbnn.train.step_eager import EagerStep
from lcrbnn.train.step_fast import WARM_UP, FastStep
from tests.train.helpers import OFTEN, ROOT, SMALL, Crash, arrays, crash_after, log, small_run

# torch's compiler uses pieces that torch has deprecated, and so warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

CPU = torch.device("cpu")
SPEC = Spec(weight=2.0, ramp=1.0, augment="crop-flip", batch=300, lr=0.1)


@pytest.fixture(autouse=True)
def _forget_compiled_code() -> None:
    torch._dynamo.reset()


def steps(kind: type, spec: Spec, count: int, first: int = 0) -> tuple[Parts, Any]:
    parts = build(spec, CPU)
    step = kind(spec, parts, Batches(read_digits().train, DATASETS["digits"], CPU))
    step.begin(0, first, spec.weight)
    for _ in range(count):
        step.take()
    step.check()
    return parts, step


def flat(parts: Parts, what: str) -> torch.Tensor:
    found = [p.grad if what == "grad" else p.detach() for p in parts.names]
    return torch.cat([t.flatten() for t in found if t is not None])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": "adam", "lr": 1e-3, "weight": 0.0, "ramp": 0.0, "method": "xnor", "accumulate": 2},
        {"max_gradient_norm": 0.01},
    ],
    ids=["retention", "adam, a method that projects, a batch in parts", "clipped"],
)
def test_one_step_has_the_gradients_of_the_plain_one(changes: dict[str, Any]) -> None:
    spec = SPEC.but(**changes)
    (slow, one), (fast, other) = (steps(kind, spec, 1) for kind in (EagerStep, FastStep))
    error = (flat(slow, "grad") - flat(fast, "grad")).norm() / flat(slow, "grad").norm()
    assert error < 1e-5
    moved = (flat(slow, "value") - flat(fast, "value")).norm() / flat(slow, "value").norm()
    assert moved < 1e-5
    assert other.sums.tolist() == pytest.approx(one.sums.tolist(), rel=1e-5)


def test_a_step_from_the_compilers_cache_is_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With autocast and gradients of the package's own, which the compiler by itself would trace again each time."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    other = SPEC.but(lr=0.2, seed=1)  # neither is part of what was traced
    found = []
    for one, hits in ((SPEC, 0), (SPEC, 2), (other, 2)):  # the objective, and what a step writes down
        torch._dynamo.reset()
        counters.clear()
        found.append(flat(steps(FastStep, one, 2)[0], "value"))
        traced = counters["aot_autograd"]
        assert (traced["autograd_cache_hit"], traced["autograd_cache_bypass"]) == (hits, 0)
    assert torch.equal(*found[:2])
    plain = flat(steps(EagerStep, other, 2)[0], "value")
    assert (found[2] - plain).norm() < 1e-3 * (plain - flat(build(other, CPU), "value")).norm()


def test_an_epoch_with_its_incomplete_batch_follows_the_plain_one() -> None:
    """The learning rate is 0, so that rounding cannot grow: what is seen, ramped and counted is the same."""
    spec = SPEC.but(lr=0.0)
    (_, one), (_, other) = (steps(kind, spec, 5) for kind in (EagerStep, FastStep))
    assert other.steps == 5
    assert one.sums[3] == other.sums[3] == 1297
    assert other.sums.tolist() == pytest.approx(one.sums.tolist(), rel=1e-5)
    (_, one), (_, other) = (steps(kind, spec, 3, first=2) for kind in (EagerStep, FastStep))
    assert other.sums.tolist() == pytest.approx(one.sums.tolist(), rel=1e-5)


def test_a_fast_run_resumes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(OFTEN, step="fast")
    small_run(tmp_path / "straight", options=options)
    with monkeypatch.context() as broken:
        crash_after(broken, 6)
        with pytest.raises(Crash):
            small_run(tmp_path / "run", options=options)
    small_run(tmp_path / "run", options=options, resume=True)
    assert log(tmp_path / "run") == log(tmp_path / "straight")
    mine, theirs = arrays(tmp_path / "run"), arrays(tmp_path / "straight")
    assert all(np.array_equal(mine[n], theirs[n]) for n in mine)


def test_a_fast_run_names_the_layer_of_bad_numbers_by_an_eager_replay(tmp_path: Path) -> None:
    spec = SMALL.but(lr=1e25, schedule="constant")
    sentence = r"bad numbers at step \d+ .*learning rate 1e\+25: .*(layer|parameter|gradient of) "
    with pytest.raises(Failed, match=sentence) as failure:
        small_run(tmp_path / "run", spec, replace(OFTEN, step="fast", save_seconds=1000.0))
    with pytest.raises(Failed) as plain:
        small_run(tmp_path / "plain", spec, replace(OFTEN, step="eager", save_seconds=1000.0))
    assert str(failure.value) == str(plain.value)
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_the_replay_finds_what_the_run_was_started_with_where_the_run_found_it(tmp_path: Path) -> None:
    """A run of a study that is not in `runs`, the usual place."""
    options = replace(OFTEN, step="fast", save_seconds=1000.0, runs=tmp_path / "elsewhere")
    small_run(options.runs / "plan" / "arm" / "seed-0")
    spec = SMALL.but(lr=1e25, schedule="constant", start="study:plan/arm/seed-0")
    with pytest.raises(Failed, match=r"bad numbers at step \d+ .*: .*(layer|parameter|gradient of) "):
        small_run(tmp_path / "run", spec, options)


def test_far_from_a_checkpoint_the_layer_is_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs side by side would wait for the replay."""
    monkeypatch.setattr("lcrbnn.train.loop.REPLAYED", 0)
    spec = SMALL.but(lr=1e25, schedule="constant")
    sentence = r"1e\+25: loss or gradient is not finite, [1-9]\d* steps after the last checkpoint; "
    with pytest.raises(Failed, match=sentence):
        small_run(tmp_path / "run", spec, replace(OFTEN, step="fast", save_seconds=1000.0))


def test_what_a_step_may_be_called(tmp_path: Path) -> None:
    assert set(STEPS) == {"auto", "eager", "fast"}
    assert not STEPS["auto"](CPU)
    assert STEPS["auto"](torch.device("cuda"))
    assert STEPS["fast"](CPU)
    with pytest.raises(ValueError, match="no kind of step is called 'quick'; there are auto, eager, fast"):
        small_run(tmp_path / "run", options=replace(OFTEN, step="quick"))


def test_runs_side_by_side_are_the_runs_alone(tmp_path: Path) -> None:
    from lcrbnn.train.run import train_together
    from tests.train.helpers import assert_same, quiet

    specs = [SMALL, SMALL.but(seed=1, weight=1.0, epochs=3)]
    train_together({tmp_path / "a": specs[0], tmp_path / "b": specs[1]}, OFTEN, progress=quiet)
    for name, spec in zip("ab", specs, strict=True):
        small_run(tmp_path / f"{name}-alone", spec)
        assert_same(tmp_path / f"{name}-alone", tmp_path / name)


def test_a_run_that_fails_leaves_the_one_beside_it_alone(tmp_path: Path) -> None:
    from lcrbnn.train.run import train_together
    from tests.train.helpers import assert_same, quiet

    small_run(tmp_path / "alone")
    jobs = {tmp_path / "bad": SMALL.but(lr=1e30), tmp_path / "good": SMALL}
    with pytest.raises(Failed, match=r"bad numbers at step \d+ .* learning rate 1e\+30"):
        train_together(jobs, OFTEN, progress=quiet)
    assert_same(tmp_path / "alone", tmp_path / "good")
    assert (tmp_path / "good" / "record.json").exists()
    assert not (tmp_path / "bad" / "record.json").exists()


def test_runs_side_by_side_share_their_data_and_arithmetic(tmp_path: Path) -> None:
    from lcrbnn.train.run import train_together

    jobs = {tmp_path / "a": SMALL, tmp_path / "b": SMALL.but(images="all")}
    with pytest.raises(ValueError, match="runs side by side share images; got train and all"):
        train_together(jobs, OFTEN)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("taken", [0, 3], ids=["fresh", "trained a little"])
def test_the_compiled_step_sees_what_the_plain_look_sees_and_leaves_no_trace(taken: int) -> None:
    spec = SPEC.but(ramp=0.0)
    parts, step = steps(FastStep, spec, taken)
    before = [t.clone() for t in (*parts.model.parameters(), *parts.model.buffers())]
    wanted = look(spec, parts, step.train)
    found = step.look()
    assert found is not None
    assert found.ratios == pytest.approx(wanted.ratios, rel=5e-3)  # a sign near zero may differ
    assert found.share == pytest.approx(wanted.share, rel=3e-2)
    after = [*parts.model.parameters(), *parts.model.buffers()]
    assert all(a.equal(b) for a, b in zip(before, after, strict=True))


def test_without_retention_the_compiled_step_has_no_look_of_its_own() -> None:
    assert steps(FastStep, SPEC.but(weight=0.0, ramp=0.0), 1)[1].look() is None


def test_a_process_may_compile_the_steps_of_every_run_that_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ("recompile_limit", "accumulated_recompile_limit")
    for name in limits:
        monkeypatch.setattr(torch._dynamo.config, name, 8)
    steps(FastStep, SPEC.but(batch=2000, drop_last=False), 0)  # nothing is compiled: no batch is whole
    planned = sum(len(read_plan(path).jobs()) for path in (ROOT / "studies").glob("*.toml"))
    assert all(getattr(torch._dynamo.config, name) > planned > 64 for name in limits)


def test_a_gpu_warms_up_with_the_last_step_of_an_epoch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up = FastStep._warm_up
    monkeypatch.setattr(FastStep, "_warm_up", lambda self, times: warm_up(self, 1 + WARM_UP))  # as where it is captured
    spec = SPEC.but(weight=0.0, ramp=0.0)
    whole = len(read_digits().train.labels) // spec.batch
    plain, fast = (steps(kind, spec, 1, first=whole - 1)[0] for kind in (EagerStep, FastStep))
    assert torch.allclose(flat(plain, "value"), flat(fast, "value"), atol=1e-5)
