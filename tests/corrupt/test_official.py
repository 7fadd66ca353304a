"""A user's own CIFAR-10-C or ImageNet-C is taken as it is; whatever is wrong with it is one sentence."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lcrbnn.corrupt.official import Corrupted, open_folder
from lcrbnn.corrupt.table import CORRUPTIONS
from lcrbnn.data import DATASETS
from lcrbnn.errors import InputError
from tests.corrupt.helpers import NAME, TEST, digits, know_digits

NAMES = ("fog", "snow")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    know_digits(monkeypatch)


def arrays(folder: Path, names: tuple[str, ...] = NAMES) -> Path:
    """A folder as CIFAR-10-C is: the value of a pixel says corruption, severity and image."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        stack = np.zeros((5 * TEST, 32, 32, 3), np.uint8)
        stack[..., 0] = i
        stack[..., 1] = np.repeat(np.arange(1, 6), TEST)[:, None, None]
        stack[..., 2] = np.tile(np.arange(TEST), 5)[:, None, None]
        np.save(folder / f"{name}.npy", stack)
    np.save(folder / "labels.npy", np.tile(digits().test.labels, 5).astype(np.uint8))
    return folder


def pictures(folder: Path, names: tuple[str, ...] = NAMES, each: int = 2, inside: str = "") -> Path:
    """A folder as ImageNet-C is."""
    for name in names:
        for severity in range(1, 6):
            for label in range(10):
                place = folder / inside / name / str(severity) / f"n{label:08d}"
                place.mkdir(parents=True)
                for i in range(each):
                    pixels = np.full((32, 32, 3), (label * 20, severity * 40, i * 100), np.uint8)
                    Image.fromarray(pixels).save(place / f"ILSVRC2012_val_{i:08d}.png")
    return folder


def opened(folder: Path, count: int | None = None) -> Corrupted:
    return open_folder(folder, NAMES, DATASETS[NAME], digits().test, count, CPU)


def read_all(folder: Path) -> None:
    shown = opened(folder)
    for name in NAMES:
        for severity in range(1, 6):
            list(shown.batches(name, severity))


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_all(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_arrays_are_read_by_severity_with_the_labels_of_the_test_split(tmp_path: Path) -> None:
    shown = opened(arrays(tmp_path), 7)
    assert shown.images == 7
    (batch,) = shown.batches("snow", 4)
    assert batch.images.shape == (7, 3, 32, 32)
    assert batch.images[:, :, 0, 0].tolist() == [[1, 4, i] for i in range(7)]
    assert batch.labels.tolist() == digits().test.labels[:7].tolist()
    assert opened(tmp_path).images == TEST


@pytest.mark.parametrize("inside", ["", "weather"])
def test_pictures_are_read_by_class_evenly(tmp_path: Path, inside: str) -> None:
    shown = opened(pictures(tmp_path, inside=inside), 10)
    (batch,) = shown.batches("fog", 3)
    assert batch.labels.tolist() == list(range(10))
    assert batch.images[:, :, 5, 5].tolist() == [[20 * label, 120, 0] for label in range(10)]
    assert opened(tmp_path).images == 20


def spoil_rows(folder: Path) -> None:
    np.save(folder / "fog.npy", np.load(folder / "fog.npy")[:-1])


def spoil_type(folder: Path) -> None:
    np.save(folder / "fog.npy", np.load(folder / "fog.npy").astype(np.float32))


def spoil_labels(folder: Path) -> None:
    labels = np.load(folder / "labels.npy")
    labels[TEST + 3] = (labels[TEST + 3] + 1) % 10
    np.save(folder / "labels.npy", labels)


def pickled(folder: Path) -> None:
    (folder / "fog.npy").write_bytes(pickle.dumps([1, 2, 3]))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda f: (f / "snow.npy").unlink(), "snow.npy is missing: CIFAR-10-C is a file for each corruption"),
        (lambda f: (f / "labels.npy").unlink(), "labels.npy is missing"),
        (spoil_rows, "fog.npy holds uint8 (299, 32, 32, 3); CIFAR-10-C has uint8 (300, 32, 32, 3)"),
        (spoil_type, "fog.npy holds float32"),
        (spoil_labels, "labels.npy does not hold the labels of the test images, once a severity"),
        (
            lambda f: np.save(f / "labels.npy", np.zeros(60, np.uint8)),
            "labels.npy holds (60,) labels; CIFAR-10-C has 300",
        ),
        (pickled, "fog.npy is no array that can be read"),
        (lambda f: (f / "fog.npy").write_bytes(b""), "fog.npy is no array that can be read"),
    ],
)
def test_a_bad_folder_of_arrays_is_one_sentence(spoil, sentence: str, tmp_path: Path) -> None:
    spoil(arrays(tmp_path))
    assert sentence in refusal(tmp_path)


def first_picture(folder: Path) -> Path:
    return folder / "snow" / "2" / "n00000003" / "ILSVRC2012_val_00000000.png"


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda f: first_picture(f).write_bytes(b"x"), "ILSVRC2012_val_00000000.png is no picture that can be read"),
        (
            lambda f: first_picture(f).unlink(),
            "snow/2 does not hold the same pictures a class as fog/1 (19 and 20 in all)",
        ),
        (lambda f: Image.new("RGB", (9, 32)).save(first_picture(f)), "has 9 x 32 pixels; digits-32 has 32"),
        (lambda f: (f / "snow").rename(f / "rain"), "holds neither labels.npy nor a folder snow"),
        (lambda f: (f / "snow" / "2").rename(f / "snow" / "6"), "snow/2 holds 0 folders of classes; digits-32 has 10"),
        (lambda f: (f / "fog/1/n00000001").rename(f / "old"), "fog/1 holds 9 folders of classes; digits-32 has 10"),
    ],
)
def test_a_bad_folder_of_pictures_is_one_sentence(spoil, sentence: str, tmp_path: Path) -> None:
    spoil(pictures(tmp_path))
    assert sentence in refusal(tmp_path)


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nope") == f"there is no folder {tmp_path / 'nope'}"
    (tmp_path / "empty").mkdir()
    assert "is no CIFAR-10-C and no ImageNet-C" in refusal(tmp_path / "empty")


def test_the_names_of_files_are_those_of_the_published_sets() -> None:
    assert {"elastic_transform", "jpeg_compression", "gaussian_blur", "zoom_blur"} <= set(CORRUPTIONS)
