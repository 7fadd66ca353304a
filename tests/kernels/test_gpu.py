from __future__ import annotations

import pytest

from tests.kernels.interpreted import run_interpreted
from tools import gpu


def few_launches() -> dict[str, bool]:
    return gpu.again(times=1, images=2)


def test_kernels_give_the_same_bits_again() -> None:
    found = run_interpreted(few_launches)
    assert len(found) == 6
    assert all(found.values())


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["gpu", "--device", "cpu"])
    assert gpu.main() == 2
    assert "they need an NVIDIA GPU" in capsys.readouterr().err


def test_a_kernel_that_is_off_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["gpu", "--device", "cpu"])
    monkeypatch.setattr(gpu, "usable", lambda *_: True)
    monkeypatch.setattr(gpu, "again", lambda: {"matrices": True})
    good, bad = gpu.Finding("a case", 3e-6, 1e-6), gpu.Finding("another", float("nan"), 1e-6)
    for findings, code in (([good], 0), ([good, bad], 1)):
        monkeypatch.setattr(gpu, "CHECKS", {"matrices": lambda found=findings: iter(found)})
        assert gpu.main() == code
    assert "off: matrices, another: nan" in capsys.readouterr().out
