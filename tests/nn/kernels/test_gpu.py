from __future__ import annotations

import pytest

from tests.nn.kernels.interpreted import assert_interpreted_within_bounds, run_interpreted
from tools import gpu_kernels as gpu


def repeat_small_launches() -> dict[str, bool]:
    return {
        name: gpu.gives_same_bits(launch, num_repeats=1)
        for name, launch in gpu.make_repeated_launches(images=2).items()
    }


def test_kernels_are_deterministic() -> None:
    same = run_interpreted(repeat_small_launches)
    assert tuple(same) == gpu.REPEATED_KERNELS
    assert all(same.values())


def test_mixed_matrices_agree_with_float64() -> None:
    assert_interpreted_within_bounds(gpu.check_mixed_matrices)


def test_gives_same_bits_detects_a_difference() -> None:
    results = iter([0.0, 0.0, 1.0])
    assert not gpu.gives_same_bits(lambda: gpu.torch.tensor(next(results)), num_repeats=2)


def test_every_case_is_a_separate_task() -> None:
    tasks = [task for task in gpu.list_tasks() if not task.is_repeated]
    assert len(set(tasks)) == len(tasks) == sum(len(check.cases) or 1 for check in gpu.CHECKS.values())


def test_main_reports_a_missing_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["gpu", "--device", "cpu"])
    assert gpu.main() == 2
    assert "they need an NVIDIA GPU" in capsys.readouterr().err


def test_main_names_a_kernel_beyond_its_bound(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu", "--device", "cpu", "--processes", "1"])
    monkeypatch.setattr(gpu, "can_run_triton", lambda *_: True)
    monkeypatch.setattr(
        gpu, "make_repeated_launches", lambda: {name: lambda: gpu.torch.zeros(1) for name in gpu.REPEATED_KERNELS}
    )
    good, bad = gpu.Finding("a case", 3e-6, 1e-6), gpu.Finding("another", float("nan"), 1e-6)
    for findings, code in (([good], 0), ([good, bad], 1)):
        monkeypatch.setattr(gpu, "CHECKS", {"matrices": gpu.Check(lambda findings=findings: iter(findings))})
        assert gpu.main() == code
    assert "off: matrices, another: nan" in capsys.readouterr().out
