from __future__ import annotations

import pytest

from tests.kernels.interpreted import check_interpreted, run_interpreted
from tools import gpu


def few_launches() -> dict[str, bool]:
    return {name: gpu.gives_same_bits(launch, times=1) for name, launch in gpu.repeated_launches(images=2).items()}


def test_kernels_give_the_same_bits_again() -> None:
    same = run_interpreted(few_launches)
    assert tuple(same) == gpu.REPEATED
    assert all(same.values())


def test_mixed_matrices_agree_with_float64() -> None:
    check_interpreted(gpu.mixed_matrices)


def test_different_bits_are_noticed() -> None:
    results = iter([0.0, 0.0, 1.0])
    assert not gpu.gives_same_bits(lambda: gpu.torch.tensor(next(results)), times=2)


def test_every_case_is_a_task_of_its_own() -> None:
    tasks = [task for task in gpu.all_tasks() if not task.repeats]
    assert len(set(tasks)) == len(tasks) == sum(len(check.cases) or 1 for check in gpu.CHECKS.values())


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["gpu", "--device", "cpu"])
    assert gpu.main() == 2
    assert "they need an NVIDIA GPU" in capsys.readouterr().err


def test_a_kernel_that_is_off_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["gpu", "--device", "cpu", "--processes", "1"])
    monkeypatch.setattr(gpu, "usable", lambda *_: True)
    monkeypatch.setattr(gpu, "repeated_launches", lambda: {name: lambda: gpu.torch.zeros(1) for name in gpu.REPEATED})
    good, bad = gpu.Finding("a case", 3e-6, 1e-6), gpu.Finding("another", float("nan"), 1e-6)
    for findings, code in (([good], 0), ([good, bad], 1)):
        monkeypatch.setattr(gpu, "CHECKS", {"matrices": gpu.Check(lambda found=findings: iter(found))})
        assert gpu.main() == code
    assert "off: matrices, another: nan" in capsys.readouterr().out
