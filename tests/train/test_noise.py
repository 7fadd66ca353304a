from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.digits import read_digits
from lcrbnn.data.loading.batches import Batch, InMemoryBatches
from lcrbnn.data.split import ImageArrays, Split
from lcrbnn.errors import StopSignal
from lcrbnn.nn.model_hooks import eval_mode
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train import validation as noise
from lcrbnn.train.cuda_graph import GraphPredictor
from lcrbnn.train.distributed.ranks import Ranks
from lcrbnn.train.setup.load import load_network
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.train import train_parallel
from lcrbnn.train.validation import NOISE_DEVIATIONS, compute_noisy_accuracy, iter_noisy_batches
from tests.train.helpers import SMALL, make_silent_progress, train_small_run

CPU = torch.device("cpu")


def make_batches(value: int, count: int, data: str) -> InMemoryBatches:
    row = DATASETS[data]
    images = np.full((count, row.channels, row.image_size, row.image_size), value, np.uint8)
    return InMemoryBatches(Split(images, np.zeros(count, np.int64)), row, CPU)


def read_noisy_pixels(batches: InMemoryBatches, deviation: float, data: str) -> Tensor:
    """Return the noisy pixels, where black is 0 and white is 1."""
    row = DATASETS[data]
    noisy_images = torch.cat([batch.images for batch in iter_noisy_batches(batches, deviation, row.max_pixel_value)])
    return noisy_images * torch.tensor(row.std).reshape(-1, 1, 1) + torch.tensor(row.mean).reshape(-1, 1, 1)


@pytest.mark.parametrize(("data", "grey"), [("digits", 8), ("cifar10", 128)])
def test_noise_has_the_given_standard_deviation_between_black_0_and_white_1(data: str, grey: int) -> None:
    top = DATASETS[data].max_pixel_value
    for deviation in NOISE_DEVIATIONS:
        added = read_noisy_pixels(make_batches(grey, 1200, data), deviation, data) - grey / top
        assert added.std().item() == pytest.approx(deviation, rel=0.01)
        assert abs(added.mean().item()) < 0.01 * deviation
        inside = (added.abs() < deviation).float().mean().item()
        assert inside == pytest.approx(0.6827, abs=0.01)  # within one standard deviation of a normal distribution


@pytest.mark.parametrize("data", ["digits", "cifar10"])
def test_noisy_pixels_stay_between_black_and_white(data: str) -> None:
    top = DATASETS[data].max_pixel_value
    black, white = (read_noisy_pixels(make_batches(value, 20, data), 0.12, data) for value in (0, top))
    for pixel_values, bound in ((black, 0.0), (white, 1.0)):
        assert pixel_values.min() > -1e-6
        assert pixel_values.max() < 1 + 1e-6
        assert ((pixel_values - bound).abs() < 1e-6).float().mean().item() == pytest.approx(0.5, abs=0.03)


def test_zero_noise_gives_the_normal_validation_batches() -> None:
    batches = InMemoryBatches(read_digits().test, DATASETS["digits"], CPU)
    noisy_batches = list(iter_noisy_batches(batches, 0.0, 16))
    plain = next(batches.evaluation_batches())
    assert torch.equal(torch.cat([batch.images for batch in noisy_batches]), plain.images)
    assert torch.equal(torch.cat([batch.labels for batch in noisy_batches]), plain.labels)
    assert torch.equal(torch.cat([batch.rows for batch in noisy_batches]), plain.rows)


def test_noise_depends_on_the_image_position_only() -> None:
    all_pixels = read_noisy_pixels(make_batches(8, 1100, "digits"), 0.08, "digits")
    torch.manual_seed(123)
    assert torch.equal(all_pixels, read_noisy_pixels(make_batches(8, 1100, "digits"), 0.08, "digits"))
    assert torch.equal(all_pixels[:700], read_noisy_pixels(make_batches(8, 700, "digits"), 0.08, "digits"))
    odd = [
        InMemoryBatches(Split(np.full((n, 1, 3, 3), 8, np.uint8), np.zeros(n, np.int64)), DATASETS["digits"], CPU)
        for n in (5, 7)
    ]
    few, many_pixels = (
        read_noisy_pixels(batches, 0.08, "digits") for batches in odd
    )  # generators draw numbers in blocks
    assert torch.equal(few, many_pixels[:5])
    assert len({image.numpy().tobytes() for image in all_pixels}) == 1100
    other_pixels = read_noisy_pixels(make_batches(8, 1100, "digits"), 0.04, "digits")
    assert not torch.allclose((all_pixels - 0.5) / 2, other_pixels - 0.5, atol=0.02)
    # exact values, because records of different versions are compared
    drawn = (all_pixels[[0, 999, 1000, 1099], 0, 0, 0] - 0.5) / 0.08
    assert drawn.tolist() == pytest.approx([0.534511, -0.201816, -0.851710, 2.007001], abs=1e-4)


def test_the_record_contains_the_noisy_validation_accuracy_of_the_final_network(straight: Path) -> None:
    actual = json.loads((straight / "record.json").read_text())["figures"]["noise_top1"]
    spec, model, _ = load_network(RunFolder(straight))
    valid_split = read_digits().split_validation(297)[1]
    assert list(actual) == ["0.04", "0.08", "0.12"]
    for deviation, noted in zip(NOISE_DEVIATIONS, actual.values(), strict=True):
        right = 0
        with torch.no_grad(), eval_mode(model):
            for batch in iter_noisy_batches(InMemoryBatches(valid_split, DATASETS["digits"], CPU), deviation, 16):
                right += int((model(batch.images).argmax(1) == batch.labels).sum())
        assert noted == round(100 * right / 297, 4)
    assert actual == compute_noisy_accuracy(
        GraphPredictor(model, spec), InMemoryBatches(valid_split, DATASETS["digits"], CPU)
    )


def test_the_noisy_evaluation_reads_no_test_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = read_digits()
    seen_images: list[Tensor] = []
    original = noise.iter_noisy_batches

    def record_images(batches: InMemoryBatches, *more: Any) -> Iterator[Batch]:
        seen_images.append(batches.images)
        return original(batches, *more)

    absent = Split(np.zeros(0), np.zeros(0))
    row = replace(DATASETS["digits"], load=lambda folder: ImageArrays(digits.train, absent))
    monkeypatch.setitem(DATASETS, "digits", row)
    monkeypatch.setattr(noise, "iter_noisy_batches", record_images)
    train_small_run(tmp_path / "run", SMALL.replace(epochs=1))
    assert len(seen_images) == 3
    assert all(np.array_equal(images.numpy(), digits.split_validation(297)[1].images) for images in seen_images)


def test_a_run_without_validation_images_has_no_noisy_accuracy(tmp_path: Path) -> None:
    train_small_run(tmp_path / "run", SMALL.replace(train_split="train+valid", epochs=1))
    figures = json.loads((tmp_path / "run" / "record.json").read_text())["figures"]
    assert "noise_top1" not in figures
    assert figures["history"]


def test_a_parallel_run_has_the_same_noisy_accuracy(straight: Path, tmp_path: Path) -> None:
    jobs = {tmp_path / "a": SMALL, tmp_path / "b": SMALL.replace(method="real")}
    train_parallel(jobs, RunOptions(device="cpu"), progress=make_silent_progress)
    single, together, other_figures = (
        json.loads((path / "record.json").read_text())["figures"]["noise_top1"] for path in (straight, *jobs)
    )
    assert single == together
    assert other_figures != single


def test_a_run_stopped_during_the_noisy_evaluation_resumes_to_the_same_figures(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = noise.iter_noisy_batches
    begun: list[float] = []

    def stop_with_signal(batches: InMemoryBatches, deviation: float, top: int, ranks: Ranks) -> Iterator[Batch]:
        begun.append(deviation)
        if len(begun) == 2:
            signal.raise_signal(signal.SIGTERM)
        return original(batches, deviation, top, ranks)

    with monkeypatch.context() as broken:
        broken.setattr(noise, "iter_noisy_batches", stop_with_signal)
        with pytest.raises(StopSignal, match="stopped by SIGTERM"):
            train_small_run(tmp_path / "run")
    assert begun == [0.04, 0.08]  # the stop is checked after each batch
    assert not (tmp_path / "run" / "record.json").exists()
    train_small_run(tmp_path / "run", resume=True)
    figures, straight_figures = (
        json.loads((path / "record.json").read_text())["figures"] for path in (tmp_path / "run", straight)
    )
    assert figures["noise_top1"] == straight_figures["noise_top1"]
    assert figures["history"] == straight_figures["history"]
