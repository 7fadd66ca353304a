from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config

from bench.training.gpu_case_worker import _compare_with_targets
from bench.training.gpu_cases import ADDED_LOSSES, CASES, COMPILER_SETTINGS
from bench.training.gpu_throughput import _add_baselines
from bench.training.synthetic_data import (
    SYNTHETIC_SIZES,
    make_enlarged_digits,
    make_noise_split,
    register_dataset,
    train_teacher_on_noise,
)
from lcrbnn.data.datasets import DATASETS
from lcrbnn.train.setup.build import build_training_parts


@pytest.mark.parametrize("name", CASES)
def test_a_case_refers_to_existing_rows(name: str) -> None:
    case = CASES[name]
    assert case.dataset in SYNTHETIC_SIZES
    assert case.added_loss in ADDED_LOSSES
    assert (case.baseline is None) == (case.added_loss == "none" and case.compiler == "plain")
    assert case.baseline is None or list(CASES).index(case.baseline) < list(CASES).index(name)


@pytest.mark.parametrize("name", COMPILER_SETTINGS)
def test_compiler_settings_exist_in_torch(name: str) -> None:
    compiler: Any = torch._inductor.config
    with compiler.patch(COMPILER_SETTINGS[name]):
        assert compiler.combo_kernels == (name == "combo")
        assert compiler.triton.cooperative_reductions == (name == "cooperative")


def test_compile_keys_are_equal_for_equal_steps() -> None:
    assert CASES["resnet20"].compile_key == CASES["resnet20-four"].compile_key
    assert len({CASES[name].compile_key for name in ("resnet20", "resnet20-latent", "resnet20-combo")}) == 3


def test_baselines_are_added_before_their_cases() -> None:
    assert _add_baselines(["resnet18-teacher", "resnet20"]) == ["resnet18", "resnet18-teacher", "resnet20"]
    with pytest.raises(ValueError, match="no case is called 'resnet19'"):
        _add_baselines(["resnet19"])


def test_results_are_compared_with_targets() -> None:
    baseline = {"ms_per_step": 1.0, "memory_of_a_run_mb": 100.0}
    figures = {"ms_per_step": 1.1, "memory_of_a_run_mb": 120.0, "images_per_second": 1e5}
    compared = _compare_with_targets(CASES["resnet20-latent"], figures, baseline)
    assert compared["time_ratio"] == pytest.approx(1.1)
    assert {name: target["met"] for name, target in compared["targets"].items()} == {
        "time_ratio": True,
        "memory_ratio": False,
    }
    assert _compare_with_targets(CASES["resnet20"], figures, None)["targets"]["images_per_second"]["met"]
    assert _compare_with_targets(CASES["resnet20-latent"], figures, None)["targets"]["time_ratio"]["met"] is None


def test_a_data_set_is_registered_only_inside_the_context() -> None:
    split = make_noise_split("synthetic-32", 20)
    assert split.images.shape == (20, 3, 32, 32)
    with register_dataset("synthetic-32", split) as dataset:
        assert DATASETS["synthetic-32"] is dataset
        with register_dataset("synthetic-32", make_noise_split("synthetic-32", 4)):
            assert len(DATASETS["synthetic-32"].load(Path()).train.labels) == 4
        assert DATASETS["synthetic-32"] is dataset
    assert "synthetic-32" not in DATASETS


def test_enlarged_digits_keep_their_pixels() -> None:
    small, large = make_enlarged_digits("synthetic-8", 5), make_enlarged_digits("synthetic-32", 5)
    assert large.images.shape == (5, 3, 32, 32)
    assert large.images.max() == 255
    assert (large.images[:, :, ::4, ::4] == small.images).all()


def test_a_teacher_trained_on_noise_is_usable(tmp_path: Path) -> None:
    case = CASES["resnet20-teacher"]
    path = train_teacher_on_noise(case.make_spec(), tmp_path / "teacher")
    assert train_teacher_on_noise(case.make_spec(), path) == path
    with register_dataset(case.dataset, make_noise_split(case.dataset, 4)):
        parts = build_training_parts(case.make_spec(str(path)), torch.device("cpu"))
    assert parts.teacher is not None
    assert parts.retention is not None
