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
from lcrbnn.train import Spec, ahead
from lcrbnn.train.ahead import compiled_ahead, prepare, work
from lcrbnn.train.options import Options

# torch's compiler uses pieces that torch has deprecated, and so warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

SPEC = Spec(batch=300)
FAST = Options(device="cpu", step="fast", ahead=1)


def asked(specs: list[Spec], options: Options, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Which methods each process would compile."""
    found: list[list[str]] = []

    class Started:
        terminate = wait = staticmethod(lambda *_: None)

    def begin(specs: list[Spec], options: Options) -> Any:
        found.append([spec.method for spec in specs])
        return Started

    monkeypatch.setattr(ahead, "_started", begin)
    with compiled_ahead(specs, options):
        pass
    return found


def test_every_later_step_is_compiled_once_in_the_order_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["irnet", "xnor", "bnn", "dorefa"]
    specs = [SPEC.but(method=name) for name in names for _ in range(2)]
    assert asked(specs, FAST, monkeypatch) == [["xnor", "bnn", "dorefa"]]
    assert asked(specs, Options("cpu", step="fast", ahead=2), monkeypatch) == [["xnor", "dorefa"], ["bnn"]]
    assert asked(specs, Options("cpu", step="fast", ahead=9), monkeypatch) == [["xnor"], ["bnn"], ["dorefa"]]
    assert asked(specs[:2], FAST, monkeypatch) == []


def test_where_nothing_is_compiled_or_images_are_files_no_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [SPEC.but(method=name) for name in ("irnet", "xnor")]
    for options in (Options("cpu", ahead=2), Options("cpu", step="fast")):  # on a CPU steps are plain unless asked for
        assert asked(specs, options, monkeypatch) == []
    assert asked([spec.but(data="folder") for spec in specs], FAST, monkeypatch) == []
    with pytest.raises(InputError, match=r"^ahead "):
        asked(specs, Options("cpu", step="fast", ahead=-1), monkeypatch)


def test_what_a_process_compiled_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    later = SPEC.but(method="bnn")
    with compiled_ahead([SPEC, later], FAST) as (process,):
        assert process.wait(300) == 0
    torch._dynamo.reset()
    counters.clear()
    prepare(later, FAST)
    found = counters["inductor"]
    assert found["fxgraph_cache_hit"] >= 2  # there and back
    assert found["fxgraph_cache_miss"] == 0


def test_no_process_outlives_the_study() -> None:
    with compiled_ahead([SPEC, SPEC.but(method="xnor")], FAST) as (process,):
        assert process.poll() is None
    assert process.poll() is not None


def test_a_process_goes_with_its_parent_and_leaves_out_what_it_cannot_make(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def fail(spec: Spec, options: Options) -> None:
        tried.append(spec.method)
        raise InputError("no")

    monkeypatch.setattr(ahead, "prepare", fail)
    told = {"specs": [SPEC.but(method=name).stored() for name in ("irnet", "xnor")]}
    told |= {"threads": torch.get_num_threads(), "device": "cpu", "data_folder": ".", "runs": "."}
    work({**told, "parent": os.getppid() + 1})
    assert tried == []
    work({**told, "parent": os.getppid()})
    assert tried == ["irnet", "xnor"]
