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

from lcrbnn.data import DATASETS, Images, Split
from lcrbnn.data.digits import read_digits
from lcrbnn.errors import Stopped
from lcrbnn.layers import evaluating
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train import noise
from lcrbnn.train.batches import Batch, Batches
from lcrbnn.train.build import load_network
from lcrbnn.train.captured import Answers
from lcrbnn.train.noise import DEVIATIONS, noisy, noisy_accuracy
from lcrbnn.train.options import Options
from lcrbnn.train.ranks import Ranks
from lcrbnn.train.run import train_together
from tests.train.helpers import SMALL, quiet, small_run

CPU = torch.device("cpu")


def plain_split(value: int, count: int, data: str) -> Batches:
    row = DATASETS[data]
    images = np.full((count, row.channels, row.image, row.image), value, np.uint8)
    return Batches(Split(images, np.zeros(count, np.int64)), row, CPU)


def pixels(batches: Batches, deviation: float, data: str) -> Tensor:
    """What was shown, where black is 0 and white 1."""
    row = DATASETS[data]
    shown = torch.cat([batch.images for batch in noisy(batches, deviation, row.top)])
    return shown * torch.tensor(row.std).reshape(-1, 1, 1) + torch.tensor(row.mean).reshape(-1, 1, 1)


@pytest.mark.parametrize(("data", "grey"), [("digits", 8), ("cifar10", 128)])
def test_noise_is_of_its_deviation_where_black_is_0_and_white_1(data: str, grey: int) -> None:
    top = DATASETS[data].top
    for deviation in DEVIATIONS:
        added = pixels(plain_split(grey, 1200, data), deviation, data) - grey / top
        assert added.std().item() == pytest.approx(deviation, rel=0.01)
        assert abs(added.mean().item()) < 0.01 * deviation
        inside = (added.abs() < deviation).float().mean().item()
        assert inside == pytest.approx(0.6827, abs=0.01)  # as a normal distribution has it


@pytest.mark.parametrize("data", ["digits", "cifar10"])
def test_a_pixel_stays_one(data: str) -> None:
    top = DATASETS[data].top
    black, white = (pixels(plain_split(value, 20, data), 0.12, data) for value in (0, top))
    for shown, bound in ((black, 0.0), (white, 1.0)):
        assert shown.min() > -1e-6
        assert shown.max() < 1 + 1e-6
        assert ((shown - bound).abs() < 1e-6).float().mean().item() == pytest.approx(0.5, abs=0.03)


def test_without_noise_the_images_are_shown_as_ever() -> None:
    batches = Batches(read_digits().test, DATASETS["digits"], CPU)
    shown = list(noisy(batches, 0.0, 16))
    plain = next(batches.plain())
    assert torch.equal(torch.cat([batch.images for batch in shown]), plain.images)
    assert torch.equal(torch.cat([batch.labels for batch in shown]), plain.labels)
    assert torch.equal(torch.cat([batch.rows for batch in shown]), plain.rows)


def test_the_noise_of_an_image_is_its_own_and_always_the_same() -> None:
    whole = pixels(plain_split(8, 1100, "digits"), 0.08, "digits")
    torch.manual_seed(123)
    assert torch.equal(whole, pixels(plain_split(8, 1100, "digits"), 0.08, "digits"))
    assert torch.equal(whole[:700], pixels(plain_split(8, 700, "digits"), 0.08, "digits"))
    odd = [
        Batches(Split(np.full((n, 1, 3, 3), 8, np.uint8), np.zeros(n, np.int64)), DATASETS["digits"], CPU)
        for n in (5, 7)
    ]
    few, more = (pixels(batches, 0.08, "digits") for batches in odd)  # generators fill whole blocks of numbers
    assert torch.equal(few, more[:5])
    assert len({image.numpy().tobytes() for image in whole}) == 1100
    other = pixels(plain_split(8, 1100, "digits"), 0.04, "digits")
    assert not torch.allclose((whole - 0.5) / 2, other - 0.5, atol=0.02)
    # these very numbers: figures of different days are compared
    drawn = (whole[[0, 999, 1000, 1099], 0, 0, 0] - 0.5) / 0.08
    assert drawn.tolist() == pytest.approx([0.534511, -0.201816, -0.851710, 2.007001], abs=1e-4)


def test_the_record_has_what_the_finished_network_makes_of_noisy_validation_images(straight: Path) -> None:
    found = json.loads((straight / "record.json").read_text())["figures"]["noise"]
    spec, model, _ = load_network(RunFolder(straight))
    held = read_digits().divided(297)[1]
    assert list(found) == ["0.04", "0.08", "0.12"]
    for deviation, noted in zip(DEVIATIONS, found.values(), strict=True):
        right = 0
        with torch.no_grad(), evaluating(model):
            for batch in noisy(Batches(held, DATASETS["digits"], CPU), deviation, 16):
                right += int((model(batch.images).argmax(1) == batch.labels).sum())
        assert noted == round(100 * right / 297, 4)
    assert found == noisy_accuracy(Answers(model, spec), Batches(held, DATASETS["digits"], CPU))


def test_no_test_image_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = read_digits()
    shown: list[Tensor] = []
    whole = noise.noisy

    def watched(batches: Batches, *more: Any) -> Iterator[Batch]:
        shown.append(batches.images)
        return whole(batches, *more)

    absent = Split(np.zeros(0), np.zeros(0))
    row = replace(DATASETS["digits"], load=lambda folder: Images(digits.train, absent))
    monkeypatch.setitem(DATASETS, "digits", row)
    monkeypatch.setattr(noise, "noisy", watched)
    small_run(tmp_path / "run", SMALL.but(epochs=1))
    assert len(shown) == 3
    assert all(np.array_equal(images.numpy(), digits.divided(297)[1].images) for images in shown)


def test_a_run_without_validation_images_has_none(tmp_path: Path) -> None:
    small_run(tmp_path / "run", SMALL.but(images="all", epochs=1))
    figures = json.loads((tmp_path / "run" / "record.json").read_text())["figures"]
    assert "noise" not in figures
    assert figures["over_training"]


def test_side_by_side_with_others_it_is_the_same(straight: Path, tmp_path: Path) -> None:
    jobs = {tmp_path / "a": SMALL, tmp_path / "b": SMALL.but(method="real")}
    train_together(jobs, Options(device="cpu"), progress=quiet)
    alone, together, other = (
        json.loads((path / "record.json").read_text())["figures"]["noise"] for path in (straight, *jobs)
    )
    assert alone == together
    assert other != alone


def test_stopped_there_a_run_goes_on_to_the_same_figures(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = noise.noisy
    begun: list[float] = []

    def signalled(batches: Batches, deviation: float, top: int, ranks: Ranks) -> Iterator[Batch]:
        begun.append(deviation)
        if len(begun) == 2:
            signal.raise_signal(signal.SIGTERM)
        return whole(batches, deviation, top, ranks)

    with monkeypatch.context() as broken:
        broken.setattr(noise, "noisy", signalled)
        with pytest.raises(Stopped, match="stopped by SIGTERM"):
            small_run(tmp_path / "run")
    assert begun == [0.04, 0.08]  # whoever wants to stop is asked after each batch
    assert not (tmp_path / "run" / "record.json").exists()
    small_run(tmp_path / "run", resume=True)
    mine, theirs = (json.loads((path / "record.json").read_text())["figures"] for path in (tmp_path / "run", straight))
    assert mine["noise"] == theirs["noise"]
    assert mine["over_training"] == theirs["over_training"]
