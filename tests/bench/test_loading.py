"""The benchmarks of loading images run on small inputs, and their records are consistent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.loading import loader_throughput as loader
from bench.loading import loading_wait as data_wait
from lcrbnn.runs.record import read_record


def test_the_loader_is_timed_against_plain_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "r.json"
    monkeypatch.setattr(loader, "PHOTO_SIZES", {"500x375": (500, 375)})
    monkeypatch.setattr(
        sys, "argv", ["bench.loading.loader_throughput", "--images", "16", "--rounds", "1", "--record", str(record)]
    )
    loader.main()
    figures = read_record(record)["figures"]["500x375"]
    rates = figures["images_per_core_second"]
    assert figures["ratio"] == pytest.approx(rates["loader"] / rates["pillow"])
    assert figures["ratio_pixels"] == pytest.approx(rates["loader"] / rates["pillow, pixels"])
    assert 80_000 < figures["bytes"] < 140_000  # like ImageNet files


def test_streamed_and_cached_steps_are_timed_against_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "r.json"
    arguments = ["--rehearsal", "--rounds", "1", "--workers", "0", "--steps", "2", "--record", str(record)]
    monkeypatch.setattr(sys, "argv", ["bench.loading.loading_wait", *arguments])
    data_wait.main()
    figures = read_record(record)["figures"]
    assert [name for name in figures if name != "goal"] == ["noise", "cached", "streamed"]
    assert figures["noise"]["of_noise"] == 1
    for result in (figures["cached"], figures["streamed"]):
        assert result["of_noise"] == pytest.approx(result["images_per_second"] / figures["noise"]["images_per_second"])
    assert figures["cached"]["waited"] == 0 < figures["streamed"]["waited"] < 1
