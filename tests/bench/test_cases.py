from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config

from bench.cases import CASES, COMPILERS, RETENTIONS
from bench.gpu_steps import _with_bases
from bench.one_case import _compared
from bench.synthetic import SYNTHETIC, digits, known, noise, untaught
from lcrbnn.data import DATASETS
from lcrbnn.train.build import build


@pytest.mark.parametrize("name", CASES)
def test_a_case_names_things_that_exist(name: str) -> None:
    case = CASES[name]
    assert case.data in SYNTHETIC
    assert case.retention in RETENTIONS
    assert (case.base is None) == (case.retention == "none" and case.compiler == "plain")
    assert case.base is None or list(CASES).index(case.base) < list(CASES).index(name)


@pytest.mark.parametrize("name", COMPILERS)
def test_the_compiler_knows_its_settings(name: str) -> None:
    compiler: Any = torch._inductor.config
    with compiler.patch(COMPILERS[name]):
        assert compiler.combo_kernels == (name == "combo")
        assert compiler.triton.cooperative_reductions == (name == "cooperative")


def test_what_cases_compile_for() -> None:
    assert CASES["resnet20"].compiled == CASES["resnet20-four"].compiled
    assert len({CASES[name].compiled for name in ("resnet20", "resnet20-latent", "resnet20-combo")}) == 3


def test_a_case_brings_its_base_along_and_before_it() -> None:
    assert _with_bases(["resnet18-teacher", "resnet20"]) == ["resnet18", "resnet18-teacher", "resnet20"]
    with pytest.raises(ValueError, match="no case is called 'resnet19'"):
        _with_bases(["resnet19"])


def test_targets_are_compared_with_what_was_found() -> None:
    base = {"ms_per_step": 1.0, "memory_of_a_run_mb": 100.0}
    found = {"ms_per_step": 1.1, "memory_of_a_run_mb": 120.0, "images_per_second": 1e5}
    seen = _compared(CASES["resnet20-latent"], found, base)
    assert seen["time_ratio"] == pytest.approx(1.1)
    assert {name: target["met"] for name, target in seen["targets"].items()} == {
        "time_ratio": True,
        "memory_ratio": False,
    }
    assert _compared(CASES["resnet20"], found, None)["targets"]["images_per_second"]["met"]
    assert _compared(CASES["resnet20-latent"], found, None)["targets"]["time_ratio"]["met"] is None


def test_the_trainer_knows_images_of_noise_only_inside() -> None:
    split = noise("synthetic-32", 20)
    assert split.images.shape == (20, 3, 32, 32)
    with known("synthetic-32", split) as row:
        assert DATASETS["synthetic-32"] is row
        with known("synthetic-32", noise("synthetic-32", 4)):
            assert len(DATASETS["synthetic-32"].load(Path()).train.labels) == 4
        assert DATASETS["synthetic-32"] is row
    assert "synthetic-32" not in DATASETS


def test_enlarged_digits_keep_their_pixels() -> None:
    small, large = digits("synthetic-8", 5), digits("synthetic-32", 5)
    assert large.images.shape == (5, 3, 32, 32)
    assert large.images.max() == 255
    assert (large.images[:, :, ::4, ::4] == small.images).all()


def test_a_teacher_of_noise_teaches(tmp_path: Path) -> None:
    case = CASES["resnet20-teacher"]
    path = untaught(case.spec(), tmp_path / "teacher")
    assert untaught(case.spec(), path) == path
    with known(case.data, noise(case.data, 4)):
        parts = build(case.spec(str(path)), torch.device("cpu"))
    assert parts.teacher is not None
    assert parts.retention is not None
