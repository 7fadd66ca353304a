"""Image folders that are read into arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.image_files.image_folder import find_image_folder
from lcrbnn.data.image_files.read_arrays import decode_and_center_crop, read_image_arrays
from lcrbnn.errors import InputError
from tests.data.image_folders import FILES, make_image_files, write_folder


def test_an_image_folder_can_be_loaded_as_arrays(tmp_path: Path) -> None:
    images = DATASETS["folder"].with_options(16, 3).load(write_folder(FILES, tmp_path))
    assert images.train.images.shape == (12, 3, 16, 16)
    class_means = [images.train.images[images.train.labels == c].mean() for c in range(3)]
    assert class_means == sorted(class_means)
    write_folder({"train/ant/000.JPEG": b"html"}, tmp_path)
    broken = DATASETS["folder"].with_options(16, 3).load(tmp_path)
    assert len(broken.test.labels) == len(images.test.labels)  # the broken training image was not read
    with pytest.raises(InputError, match=r"000.JPEG is broken: it is not an image that Pillow can read"):
        _ = broken.train


def test_too_many_images_are_not_loaded_as_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = DATASETS["folder"].with_options(16, 3).load(write_folder(FILES, tmp_path))
    monkeypatch.setattr(
        "lcrbnn.data.image_files.read_arrays.MAX_ARRAY_BYTES", 11 * 3 * 16**2
    )  # enough for the test images, but not for the training images
    assert len(images.test.labels) < 12
    with pytest.raises(InputError, match=r"12 images in .* \(lcrbnn train and eval read them in batches\)$"):
        _ = images.train


def test_skip_broken_leaves_out_broken_images_and_their_labels(tmp_path: Path) -> None:
    files = make_image_files(train=2, val=2)
    files["train/bee/000.JPEG"] = b"no picture"
    images = read_image_arrays(
        find_image_folder, write_folder(files, tmp_path), image_size=8, resize_ratio=1.0, skip_broken=True
    )
    assert images.train.labels.tolist() == [0, 0, 1, 2, 2]
    for row, name in enumerate(("ant/000", "ant/001", "bee/001", "cat/000", "cat/001")):
        expected = decode_and_center_crop(files[f"train/{name}.JPEG"], 8, 1.0)
        assert np.array_equal(images.train.images[row], expected.transpose(2, 0, 1)), name
    assert images.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
