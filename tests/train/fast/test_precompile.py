"""Steps that other processes compile first: found in the cache, in order, and nothing is left behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from lcrbnn.errors import InputError
from lcrbnn.train.fast import precompile
from lcrbnn.train.fast.precompile import compile_step, precompile_steps, run_precompile_worker
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec

# torch's compiler uses pieces that torch has deprecated, and so warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

SPEC = TrainSpec(batch_size=300)
FAST = RunOptions(device="cpu", step_mode="compiled", compile_workers=1)


def find_precompiled_methods(
    specs: list[TrainSpec], options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> list[list[str]]:
    """Which methods each process would compile."""
    method_names: list[list[str]] = []

    class Started:
        terminate = wait = staticmethod(lambda *_: None)

    def begin(specs: list[TrainSpec], options: RunOptions) -> Any:
        method_names.append([spec.method for spec in specs])
        return Started

    monkeypatch.setattr(precompile, "_start_worker", begin)
    with precompile_steps(specs, options):
        pass
    return method_names


def test_each_later_step_is_compiled_once_in_run_order(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["irnet", "xnor", "bnn", "dorefa"]
    specs = [SPEC.replace(method=name) for name in names for _ in range(2)]
    assert find_precompiled_methods(specs, FAST, monkeypatch) == [["xnor", "bnn", "dorefa"]]
    assert find_precompiled_methods(specs, RunOptions("cpu", step_mode="compiled", compile_workers=2), monkeypatch) == [
        ["xnor", "dorefa"],
        ["bnn"],
    ]
    assert find_precompiled_methods(specs, RunOptions("cpu", step_mode="compiled", compile_workers=9), monkeypatch) == [
        ["xnor"],
        ["bnn"],
        ["dorefa"],
    ]
    assert find_precompiled_methods(specs[:2], FAST, monkeypatch) == []


def test_no_worker_starts_for_eager_steps_or_image_files(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [SPEC.replace(method=name) for name in ("irnet", "xnor")]
    for options in (
        RunOptions("cpu", compile_workers=2),
        RunOptions("cpu", step_mode="compiled"),
    ):  # on a CPU steps are plain unless asked for
        assert find_precompiled_methods(specs, options, monkeypatch) == []
    assert find_precompiled_methods([spec.replace(dataset="folder") for spec in specs], FAST, monkeypatch) == []
    with pytest.raises(InputError, match=r"^compile_workers "):
        find_precompiled_methods(specs, RunOptions("cpu", step_mode="compiled", compile_workers=-1), monkeypatch)


def test_a_precompiled_step_is_loaded_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    later = SPEC.replace(method="bnn")
    with precompile_steps([SPEC, later], FAST) as (process,):
        assert process.wait(300) == 0
    torch._dynamo.reset()
    counters.clear()
    compile_step(later, FAST)
    counts = counters["inductor"]
    assert counts["fxgraph_cache_hit"] >= 2  # there and back
    assert counts["fxgraph_cache_miss"] == 0


def test_no_worker_outlives_the_study() -> None:
    with precompile_steps([SPEC, SPEC.replace(method="xnor")], FAST) as (process,):
        assert process.poll() is None
    assert process.poll() is not None


def test_a_worker_ends_with_its_parent_and_skips_failing_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def fail(spec: TrainSpec, options: RunOptions) -> None:
        tried.append(spec.method)
        raise InputError("no")

    monkeypatch.setattr(precompile, "compile_step", fail)
    job = {"specs": [SPEC.replace(method=name).to_dict() for name in ("irnet", "xnor")]}
    job |= {"threads": torch.get_num_threads(), "device": "cpu", "data_folder": ".", "runs_folder": "."}
    run_precompile_worker({**job, "parent": os.getppid() + 1})
    assert tried == []
    run_precompile_worker({**job, "parent": os.getppid()})
    assert tried == ["irnet", "xnor"]
