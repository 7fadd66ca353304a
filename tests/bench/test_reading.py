"""The two benches of reading images, on next to nothing: what they say adds up, and their records can be read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import data_wait, loader
from lcrbnn.runs.record import read_record


def test_the_loader_is_timed_against_plain_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "r.json"
    monkeypatch.setattr(loader, "SIZES", {"500x375": (500, 375)})
    monkeypatch.setattr(sys, "argv", ["bench.loader", "--images", "16", "--rounds", "1", "--record", str(record)])
    loader.main()
    figures = read_record(record)["figures"]["500x375"]
    rates = figures["images_per_core_second"]
    assert figures["ratio"] == pytest.approx(rates["loader"] / rates["pillow"])
    assert figures["ratio_pixels"] == pytest.approx(rates["loader"] / rates["pillow, pixels"])
    assert 80_000 < figures["bytes"] < 140_000  # as ImageNet's files are


def test_streamed_and_cached_steps_are_timed_against_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "r.json"
    words = ["--rehearsal", "--rounds", "1", "--workers", "0", "--steps", "2", "--record", str(record)]
    monkeypatch.setattr(sys, "argv", ["bench.data_wait", *words])
    data_wait.main()
    figures = read_record(record)["figures"]
    assert [name for name in figures if name != "goal"] == ["noise", "cached", "streamed"]
    assert figures["noise"]["of_noise"] == 1
    for found in (figures["cached"], figures["streamed"]):
        assert found["of_noise"] == pytest.approx(found["images_per_second"] / figures["noise"]["images_per_second"])
    assert figures["cached"]["waited"] == 0 < figures["streamed"]["waited"] < 1


def test_the_documents_have_the_rates_of_a_gpu() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "data.md").read_text()
    for how in ("zoom-flip", "resized-crop"):
        figures = read_record(root / "results" / "bench" / f"data-wait-{how}.json")["figures"]
        for name, found in figures.items():
            if name != "goal":
                share = "1" if name == "noise" else f"{found['of_noise']:.3f}"
                title = "noise on the device" if name == "noise" else name
                assert f"| {title} | `{how}` | {found['images_per_second']:,.0f} | {share} |" in text
                assert name == "noise" or share in (root / "docs" / "LOG.md").read_text()
    streamed = read_record(root / "results" / "bench" / "data-wait-resized-crop.json")
    each = streamed["figures"]["streamed"]["images_per_second"] / streamed["settings"]["workers"]
    assert f"{round(each, -2):,.0f} images a process and second" in text
    loader_on_cpu = read_record(root / "results" / "bench" / "loader-cpu.json")["figures"]["500x375"]
    rate = loader_on_cpu["images_per_core_second"]["loader"]
    ratios = [f"{loader_on_cpu[name]:.2f} times" for name in ("ratio", "ratio_pixels")]
    assert "{} a Pillow loop that also normalises with NumPy, as is usual, and {} one".format(*ratios) in text
    assert text.count(f"{rate:.0f}") == 2
    assert f"16 cores give {round(16 * rate, -2):,.0f}" in (root / "docs" / "scaling.md").read_text()
