"""Published CIFAR-10-C and ImageNet-C folders are read unchanged; damaged folders raise one-line errors."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lcrbnn.data.datasets import DATASETS
from lcrbnn.errors import InputError
from lcrbnn.evaluation.corruptions.corruption_registry import CORRUPTIONS
from lcrbnn.evaluation.robustness.corrupted_sets import CorruptedSet, open_corrupted_folder
from tests.evaluation.corruptions.helpers import DATASET_NAME, NUM_TEST, load_enlarged_digits, register_enlarged_digits

CORRUPTION_NAMES = ("fog", "snow")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _registered_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    register_enlarged_digits(monkeypatch)


def write_cifar_c(folder: Path, names: tuple[str, ...] = CORRUPTION_NAMES) -> Path:
    """Write a folder like CIFAR-10-C; the channels of a pixel are corruption, severity and image."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        stack = np.zeros((5 * NUM_TEST, 32, 32, 3), np.uint8)
        stack[..., 0] = i
        stack[..., 1] = np.repeat(np.arange(1, 6), NUM_TEST)[:, None, None]
        stack[..., 2] = np.tile(np.arange(NUM_TEST), 5)[:, None, None]
        np.save(folder / f"{name}.npy", stack)
    np.save(folder / "labels.npy", np.tile(load_enlarged_digits().test.labels, 5).astype(np.uint8))
    return folder


def write_imagenet_c(
    folder: Path, names: tuple[str, ...] = CORRUPTION_NAMES, images_per_class: int = 2, subfolder: str = ""
) -> Path:
    """Write a folder like ImageNet-C; the channels of a pixel are class, severity and image."""
    for name in names:
        for severity in range(1, 6):
            for label in range(10):
                class_folder = folder / subfolder / name / str(severity) / f"n{label:08d}"
                class_folder.mkdir(parents=True)
                for i in range(images_per_class):
                    pixels = np.full((32, 32, 3), (label * 20, severity * 40, i * 100), np.uint8)
                    Image.fromarray(pixels).save(class_folder / f"ILSVRC2012_val_{i:08d}.png")
    return folder


def open_corrupted_set(folder: Path, max_images: int | None = None) -> CorruptedSet:
    return open_corrupted_folder(
        folder, CORRUPTION_NAMES, DATASETS[DATASET_NAME], load_enlarged_digits().test, max_images, CPU
    )


def read_all_batches(folder: Path) -> None:
    corrupted_set = open_corrupted_set(folder)
    for name in CORRUPTION_NAMES:
        for severity in range(1, 6):
            list(corrupted_set.iter_batches(name, severity))


def read_error_message(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_all_batches(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_cifar_c_yields_the_images_of_a_severity_with_test_labels(tmp_path: Path) -> None:
    corrupted_set = open_corrupted_set(write_cifar_c(tmp_path), 7)
    assert corrupted_set.num_images == 7
    (batch,) = corrupted_set.iter_batches("snow", 4)
    assert batch.images.shape == (7, 3, 32, 32)
    assert batch.images[:, :, 0, 0].tolist() == [[1, 4, i] for i in range(7)]
    assert batch.labels.tolist() == load_enlarged_digits().test.labels[:7].tolist()
    assert open_corrupted_set(tmp_path).num_images == NUM_TEST


@pytest.mark.parametrize("subfolder", ["", "weather"])
def test_imagenet_c_yields_evenly_spaced_images(tmp_path: Path, subfolder: str) -> None:
    corrupted_set = open_corrupted_set(write_imagenet_c(tmp_path, subfolder=subfolder), 10)
    (batch,) = corrupted_set.iter_batches("fog", 3)
    assert batch.labels.tolist() == list(range(10))
    assert batch.images[:, :, 5, 5].tolist() == [[20 * label, 120, 0] for label in range(10)]
    assert open_corrupted_set(tmp_path).num_images == 20


def drop_last_row(folder: Path) -> None:
    np.save(folder / "fog.npy", np.load(folder / "fog.npy")[:-1])


def change_dtype(folder: Path) -> None:
    np.save(folder / "fog.npy", np.load(folder / "fog.npy").astype(np.float32))


def change_one_label(folder: Path) -> None:
    labels = np.load(folder / "labels.npy")
    labels[NUM_TEST + 3] = (labels[NUM_TEST + 3] + 1) % 10
    np.save(folder / "labels.npy", labels)


def write_pickle(folder: Path) -> None:
    (folder / "fog.npy").write_bytes(pickle.dumps([1, 2, 3]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f: (f / "snow.npy").unlink(),
            "snow.npy is missing; CIFAR-10-C has labels.npy and one file per corruption",
        ),
        (lambda f: (f / "labels.npy").unlink(), "labels.npy is missing"),
        (drop_last_row, "fog.npy contains uint8 (299, 32, 32, 3); CIFAR-10-C has uint8 (300, 32, 32, 3)"),
        (change_dtype, "fog.npy contains float32"),
        (change_one_label, "labels.npy must repeat the labels of the test images once per severity"),
        (
            lambda f: np.save(f / "labels.npy", np.zeros(60, np.uint8)),
            "labels.npy has labels of shape (60,); CIFAR-10-C has 300 labels",
        ),
        (write_pickle, "fog.npy is not a readable array"),
        (lambda f: (f / "fog.npy").write_bytes(b""), "fog.npy is not a readable array"),
    ],
)
def test_a_damaged_cifar_c_folder_is_rejected(damage, message: str, tmp_path: Path) -> None:
    damage(write_cifar_c(tmp_path))
    assert message in read_error_message(tmp_path)


def damaged_image_path(folder: Path) -> Path:
    return folder / "snow" / "2" / "n00000003" / "ILSVRC2012_val_00000000.png"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: damaged_image_path(f).write_bytes(b"x"), "ILSVRC2012_val_00000000.png is not a readable image"),
        (
            lambda f: damaged_image_path(f).unlink(),
            "snow/2 and fog/1 differ in the number of images per class (19 and 20 images in total)",
        ),
        (lambda f: Image.new("RGB", (9, 32)).save(damaged_image_path(f)), "has 9 x 32 pixels; digits-32 has 32"),
        (
            lambda f: (f / "snow").rename(f / "rain"),
            "is neither CIFAR-10-C nor ImageNet-C: it has no labels.npy and no folder snow",
        ),
        (lambda f: (f / "snow" / "2").rename(f / "snow" / "6"), "snow/2 has 0 class folders; digits-32 has 10"),
        (lambda f: (f / "fog/1/n00000001").rename(f / "old"), "fog/1 has 9 class folders; digits-32 has 10"),
    ],
)
def test_a_damaged_imagenet_c_folder_is_rejected(damage, message: str, tmp_path: Path) -> None:
    damage(write_imagenet_c(tmp_path))
    assert message in read_error_message(tmp_path)


def test_a_missing_or_empty_folder_is_rejected(tmp_path: Path) -> None:
    assert read_error_message(tmp_path / "nope") == f"there is no folder {tmp_path / 'nope'}"
    (tmp_path / "empty").mkdir()
    assert "is neither CIFAR-10-C nor ImageNet-C" in read_error_message(tmp_path / "empty")


def test_corruption_names_are_the_published_file_names() -> None:
    assert {"elastic_transform", "jpeg_compression", "gaussian_blur", "zoom_blur"} <= set(CORRUPTIONS)
