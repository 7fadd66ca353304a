"""The compiled step against the eager step. On a CPU the step is not captured, but the code is the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.digits import read_digits
from lcrbnn.data.loading.batches import InMemoryBatches
from lcrbnn.errors import RunFailed
from lcrbnn.study.plan import read_plan
from lcrbnn.train.eager_step import EagerStep
from lcrbnn.train.fast.compiled_step import WARM_UP_STEPS, CompiledStep
from lcrbnn.train.setup.build import TrainingParts, build_training_parts
from lcrbnn.train.setup.options import STEP_MODES
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.validation import measure_lcr
from tests.train.helpers import (
    ROOT,
    SAVE_EVERY_STEP,
    SMALL,
    Crash,
    crash_after,
    read_log_without_times,
    read_newest_arrays,
    train_small_run,
)

# torch's compiler uses deprecated functions of torch, which warn.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

CPU = torch.device("cpu")
SPEC = TrainSpec(lcr_weight=2.0, lcr_warmup_epochs=1.0, augmentation="crop-flip", batch_size=300, lr=0.1)


@pytest.fixture(autouse=True)
def _forget_compiled_code() -> None:
    torch._dynamo.reset()


def run_steps(kind: type, spec: TrainSpec, count: int, first: int = 0) -> tuple[TrainingParts, Any]:
    parts = build_training_parts(spec, CPU)
    step = kind(spec, parts, InMemoryBatches(read_digits().train, DATASETS["digits"], CPU))
    step.begin_epoch(0, first, spec.lcr_weight)
    for _ in range(count):
        step.run_step()
    step.check_finite()
    return parts, step


def flatten(parts: TrainingParts, quantity: str) -> torch.Tensor:
    tensors = [p.grad if quantity == "grad" else p.detach() for p in parts.parameter_names]
    return torch.cat([t.flatten() for t in tensors if t is not None])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "optimizer": "adam",
            "lr": 1e-3,
            "lcr_weight": 0.0,
            "lcr_warmup_epochs": 0.0,
            "method": "xnor",
            "gradient_accumulation_steps": 2,
        },
        {"max_gradient_norm": 0.01},
    ],
    ids=["retention", "adam, a method that projects, a batch in parts", "clipped"],
)
def test_the_compiled_step_has_the_gradients_of_the_eager_step(changes: dict[str, Any]) -> None:
    spec = SPEC.replace(**changes)
    (slow, eager_step), (fast, compiled_step) = (run_steps(kind, spec, 1) for kind in (EagerStep, CompiledStep))
    error = (flatten(slow, "grad") - flatten(fast, "grad")).norm() / flatten(slow, "grad").norm()
    assert error < 1e-5
    moved = (flatten(slow, "value") - flatten(fast, "value")).norm() / flatten(slow, "value").norm()
    assert moved < 1e-5
    assert compiled_step.sums.tolist() == pytest.approx(eager_step.sums.tolist(), rel=1e-5)


def test_a_step_from_the_compiler_cache_gives_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step with autocast and custom autograd functions, which the compiler does not cache by default."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    other_spec = SPEC.replace(lr=0.2, seed=1)  # neither is part of the traced graph
    results = []
    for spec, hits in ((SPEC, 0), (SPEC, 2), (other_spec, 2)):  # two graphs: the objective and the bookkeeping
        torch._dynamo.reset()
        counters.clear()
        results.append(flatten(run_steps(CompiledStep, spec, 2)[0], "value"))
        traced = counters["aot_autograd"]
        assert (traced["autograd_cache_hit"], traced["autograd_cache_bypass"]) == (hits, 0)
    assert torch.equal(*results[:2])
    plain = flatten(run_steps(EagerStep, other_spec, 2)[0], "value")
    assert (results[2] - plain).norm() < 1e-3 * (plain - flatten(build_training_parts(other_spec, CPU), "value")).norm()


def test_a_compiled_epoch_with_an_incomplete_batch_follows_the_eager_one() -> None:
    """At learning rate 0, rounding cannot grow: images, lambda and counters are the same."""
    spec = SPEC.replace(lr=0.0)
    (_, eager_step), (_, compiled_step) = (run_steps(kind, spec, 5) for kind in (EagerStep, CompiledStep))
    assert compiled_step.steps_per_epoch == 5
    assert eager_step.sums[3] == compiled_step.sums[3] == 1297
    assert compiled_step.sums.tolist() == pytest.approx(eager_step.sums.tolist(), rel=1e-5)
    (_, eager_step), (_, compiled_step) = (run_steps(kind, spec, 3, first=2) for kind in (EagerStep, CompiledStep))
    assert compiled_step.sums.tolist() == pytest.approx(eager_step.sums.tolist(), rel=1e-5)


def test_a_compiled_run_resumes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(SAVE_EVERY_STEP, step_mode="compiled")
    train_small_run(tmp_path / "straight", options=options)
    with monkeypatch.context() as broken:
        crash_after(broken, 6)
        with pytest.raises(Crash):
            train_small_run(tmp_path / "run", options=options)
    train_small_run(tmp_path / "run", options=options, resume=True)
    assert read_log_without_times(tmp_path / "run") == read_log_without_times(tmp_path / "straight")
    first_arrays, second_arrays = read_newest_arrays(tmp_path / "run"), read_newest_arrays(tmp_path / "straight")
    assert all(np.array_equal(first_arrays[n], second_arrays[n]) for n in first_arrays)


def test_an_eager_replay_names_the_non_finite_layer_of_a_compiled_run(tmp_path: Path) -> None:
    spec = SMALL.replace(lr=1e25, lr_schedule="constant")
    sentence = r"non-finite values at step \d+ .*learning rate 1e\+25: .*(layer|parameter|gradient of) "
    with pytest.raises(RunFailed, match=sentence) as failure:
        train_small_run(
            tmp_path / "run", spec, replace(SAVE_EVERY_STEP, step_mode="compiled", checkpoint_interval_s=1000.0)
        )
    with pytest.raises(RunFailed) as plain:
        train_small_run(
            tmp_path / "plain", spec, replace(SAVE_EVERY_STEP, step_mode="eager", checkpoint_interval_s=1000.0)
        )
    assert str(failure.value) == str(plain.value)
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_the_replay_uses_the_runs_folder_of_the_run(tmp_path: Path) -> None:
    """The teacher is a run of a study in another folder than the default."""
    options = replace(
        SAVE_EVERY_STEP, step_mode="compiled", checkpoint_interval_s=1000.0, runs_folder=tmp_path / "elsewhere"
    )
    train_small_run(options.runs_folder / "plan" / "arm" / "seed-0")
    spec = SMALL.replace(lr=1e25, lr_schedule="constant", init_from="study:plan/arm/seed-0")
    with pytest.raises(RunFailed, match=r"non-finite values at step \d+ .*: .*(layer|parameter|gradient of) "):
        train_small_run(tmp_path / "run", spec, options)


def test_there_is_no_replay_far_from_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parallel runs would wait for the replay."""
    monkeypatch.setattr("lcrbnn.train.loop.MAX_REPLAYED_STEPS", 0)
    spec = SMALL.replace(lr=1e25, lr_schedule="constant")
    sentence = r"1e\+25: loss or gradient is not finite, [1-9]\d* steps after the last checkpoint; "
    with pytest.raises(RunFailed, match=sentence):
        train_small_run(
            tmp_path / "run", spec, replace(SAVE_EVERY_STEP, step_mode="compiled", checkpoint_interval_s=1000.0)
        )


def test_step_modes_select_the_step(tmp_path: Path) -> None:
    assert set(STEP_MODES) == {"auto", "eager", "compiled"}
    assert not STEP_MODES["auto"](CPU)
    assert STEP_MODES["auto"](torch.device("cuda"))
    assert STEP_MODES["compiled"](CPU)
    with pytest.raises(ValueError, match="no step mode is called 'quick'"):
        train_small_run(tmp_path / "run", options=replace(SAVE_EVERY_STEP, step_mode="quick"))


def test_parallel_runs_equal_single_runs(tmp_path: Path) -> None:
    from lcrbnn.train.train import train_parallel
    from tests.train.helpers import assert_same_runs, make_silent_progress

    specs = [SMALL, SMALL.replace(seed=1, lcr_weight=1.0, epochs=3)]
    train_parallel({tmp_path / "a": specs[0], tmp_path / "b": specs[1]}, SAVE_EVERY_STEP, progress=make_silent_progress)
    for name, spec in zip("ab", specs, strict=True):
        train_small_run(tmp_path / f"{name}-alone", spec)
        assert_same_runs(tmp_path / f"{name}-alone", tmp_path / name)


def test_a_failing_run_does_not_stop_a_parallel_run(tmp_path: Path) -> None:
    from lcrbnn.train.train import train_parallel
    from tests.train.helpers import assert_same_runs, make_silent_progress

    train_small_run(tmp_path / "alone")
    jobs = {tmp_path / "bad": SMALL.replace(lr=1e30), tmp_path / "good": SMALL}
    with pytest.raises(RunFailed, match=r"non-finite values at step \d+ .* learning rate 1e\+30"):
        train_parallel(jobs, SAVE_EVERY_STEP, progress=make_silent_progress)
    assert_same_runs(tmp_path / "alone", tmp_path / "good")
    assert (tmp_path / "good" / "record.json").exists()
    assert not (tmp_path / "bad" / "record.json").exists()


def test_parallel_runs_must_share_data_and_precision(tmp_path: Path) -> None:
    from lcrbnn.train.train import train_parallel

    jobs = {tmp_path / "a": SMALL, tmp_path / "b": SMALL.replace(train_split="train+valid")}
    with pytest.raises(ValueError, match="parallel runs must have the same train_split; got train and train\\+valid"):
        train_parallel(jobs, SAVE_EVERY_STEP)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("taken", [0, 3], ids=["fresh", "trained a little"])
def test_the_compiled_lcr_measurement_equals_the_eager_one_and_changes_nothing(taken: int) -> None:
    spec = SPEC.replace(lcr_warmup_epochs=0.0)
    parts, step = run_steps(CompiledStep, spec, taken)
    before = [t.clone() for t in (*parts.model.parameters(), *parts.model.buffers())]
    expected = measure_lcr(spec, parts, step.train)
    actual = step.measure_lcr()
    assert actual is not None
    assert actual.sigma_ratios == pytest.approx(expected.sigma_ratios, rel=5e-3)  # a sign near zero may differ
    assert actual.gradient_ratio == pytest.approx(expected.gradient_ratio, rel=3e-2)
    after = [*parts.model.parameters(), *parts.model.buffers()]
    assert all(a.equal(b) for a, b in zip(before, after, strict=True))


def test_without_lcr_the_compiled_step_has_no_measurement() -> None:
    assert run_steps(CompiledStep, SPEC.replace(lcr_weight=0.0, lcr_warmup_epochs=0.0), 1)[1].measure_lcr() is None


def test_the_recompilation_limit_exceeds_the_planned_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ("recompile_limit", "accumulated_recompile_limit")
    for name in limits:
        monkeypatch.setattr(torch._dynamo.config, name, 8)
    run_steps(
        CompiledStep, SPEC.replace(batch_size=2000, drop_last=False), 0
    )  # nothing is compiled, because no batch is full
    planned = sum(len(read_plan(path).list_runs()) for path in (ROOT / "paper" / "studies").glob("*.toml"))
    assert all(getattr(torch._dynamo.config, name) > planned > 64 for name in limits)


def test_a_gpu_can_warm_up_with_the_last_step_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up = CompiledStep._warm_up
    monkeypatch.setattr(CompiledStep, "_warm_up", lambda self, times: warm_up(self, 1 + WARM_UP_STEPS))  # as on a GPU
    spec = SPEC.replace(lcr_weight=0.0, lcr_warmup_epochs=0.0)
    full_batches = len(read_digits().train.labels) // spec.batch_size
    plain, fast = (run_steps(kind, spec, 1, first=full_batches - 1)[0] for kind in (EagerStep, CompiledStep))
    assert torch.allclose(flatten(plain, "value"), flatten(fast, "value"), atol=1e-5)
