"""What a caller may get wrong is said in one sentence; numbers of NumPy and PyTorch are taken as numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lcrbnn.engine import Model
from lcrbnn.engine.format import read_model, to_bytes, write_model
from lcrbnn.errors import InputError
from lcrbnn.export import Input, export_model
from lcrbnn.export.onnx import write_onnx

NET = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
WRITERS: list[Callable[..., None]] = [write_model, write_onnx]


def made(shape: Any = (8, 8, 3), **more: Any) -> Model:
    return export_model(NET, Input(shape, ("a", "b"), **more), "x")


def test_numbers_of_any_kind() -> None:
    half = (0.5, 0.5, 0.5)
    plain = to_bytes(made(top=255.0, mean=half, std=half, margin=1.5))
    wide = np.full(3, 0.5)
    kinds = [wide, wide.astype(np.float32), torch.tensor(half), list(half), tuple(np.float32(v) for v in half)]
    for numbers in kinds:
        assert to_bytes(made(top=np.float32(255), mean=numbers, std=numbers, margin=torch.tensor(1.5))) == plain
    for shape in (np.array([8, 8, 3]), [8, 8, 3], torch.Size((8, 8, 3)), (np.int64(8), 8, 3)):
        assert to_bytes(made(shape)) == to_bytes(made())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"shape": (8, 8)}, r"the input's shape must be a list of 3 whole numbers from 1 to 1048576; got \(8, 8\)"),
        ({"shape": (8.0, 8, 3)}, "the input's shape must be a list of 3 whole numbers"),
        ({"shape": 8}, "the input's shape must be a list of 3 whole numbers from 1 to 1048576; got 8"),
        ({"mean": np.zeros(2)}, r"the input's mean is a list of 3, one a channel; got \(0.0, 0.0\)"),
        ({"mean": np.zeros((3, 1))}, "the input's mean must be a number that float32 can hold"),
        ({"std": 0}, "the input's std is a list of 3, one a channel; got 0"),
        ({"top": "255"}, "the input's top must be a positive number that float32 can hold; got '255'"),
        ({"top": 10**400}, "the input's top must be a positive number that float32 can hold"),
        ({"margin": None}, "the input's margin must be a positive number that float32 can hold; got None"),
    ],
)
def test_an_input_that_is_wrong(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=f"^{sentence}"):
        made(**given)


@pytest.mark.parametrize("images", [None, (8, 8, 3), {"shape": (8, 8, 3)}])
def test_images_that_are_no_input(images: Any) -> None:
    with pytest.raises(InputError, match=r"^images are a DataSet or an lcrbnn\.export\.Input; got \w+$"):
        export_model(NET, images, "x")


@pytest.mark.parametrize("write", WRITERS)
def test_a_folder_is_made_and_no_file_written_over_it(write: Callable[..., None], tmp_path: Path) -> None:
    model, path = made(), tmp_path / "new" / "folder" / "x"
    write(str(path), model)
    assert [p.name for p in path.parent.iterdir()] == ["x"]
    with pytest.raises(InputError, match=f"^a model cannot be written to {tmp_path}: it is there and is no file$"):
        write(tmp_path, model)
    with pytest.raises(InputError, match=f"^a model cannot be written to {path}/y: "):
        write(path / "y", model)


@pytest.mark.parametrize("write", WRITERS)
def test_a_path_or_a_model_that_is_none(write: Callable[..., None], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^a model is what export_model or read_model gives; got a Sequential$"):
        write(tmp_path / "new" / "x", NET)
    assert not (tmp_path / "new").exists()
    for wrong in (None, 3, made(), "a\0b"):
        with pytest.raises(InputError, match=r"^the path of a file is a text or a pathlib\.Path; got "):
            write(wrong, made())
    with pytest.raises(InputError, match=r"^the path of a file is a text or a pathlib\.Path; got None$"):
        read_model(None)  # type: ignore[arg-type]  # what is tested
