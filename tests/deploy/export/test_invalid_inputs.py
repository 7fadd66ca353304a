"""Invalid arguments of export and of the writers raise InputError; numbers of NumPy and PyTorch are accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lcrbnn.deploy.engine.bnn_file import read_model, to_bytes, write_model
from lcrbnn.deploy.engine.graph import BnnModel
from lcrbnn.deploy.export.export_model import ModelInput, export_model
from lcrbnn.deploy.export.onnx_writer import write_onnx
from lcrbnn.errors import InputError

NET = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
WRITERS: list[Callable[..., None]] = [write_model, write_onnx]


def export_network(shape: Any = (8, 8, 3), **options: Any) -> BnnModel:
    return export_model(NET, ModelInput(shape, ("a", "b"), **options), "x")


def test_numbers_of_numpy_and_torch_are_accepted() -> None:
    half = (0.5, 0.5, 0.5)
    plain = to_bytes(export_network(top=255.0, mean=half, std=half, margin=1.5))
    float64_array = np.full(3, 0.5)
    kinds = [
        float64_array,
        float64_array.astype(np.float32),
        torch.tensor(half),
        list(half),
        tuple(np.float32(v) for v in half),
    ]
    for numbers in kinds:
        assert (
            to_bytes(export_network(top=np.float32(255), mean=numbers, std=numbers, margin=torch.tensor(1.5))) == plain
        )
    for shape in (np.array([8, 8, 3]), [8, 8, 3], torch.Size((8, 8, 3)), (np.int64(8), 8, 3)):
        assert to_bytes(export_network(shape)) == to_bytes(export_network())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": (8, 8)}, r"the input's shape must be a list of 3 whole numbers from 1 to 1048576; got \(8, 8\)"),
        ({"shape": (8.0, 8, 3)}, "the input's shape must be a list of 3 whole numbers"),
        ({"shape": 8}, "the input's shape must be a list of 3 whole numbers from 1 to 1048576; got 8"),
        ({"mean": np.zeros(2)}, r"the input's mean must be a list of 3 numbers, one per channel; got \(0.0, 0.0\)"),
        ({"mean": np.zeros((3, 1))}, "the input's mean must be a number that float32 can represent"),
        ({"std": 0}, "the input's std must be a list of 3 numbers, one per channel; got 0"),
        ({"top": "255"}, "the input's top must be a positive number that float32 can represent; got '255'"),
        ({"top": 10**400}, "the input's top must be a positive number that float32 can represent"),
        ({"margin": None}, "the input's margin must be a positive number that float32 can represent; got None"),
    ],
)
def test_invalid_model_inputs_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        export_network(**options)


@pytest.mark.parametrize("images", [None, (8, 8, 3), {"shape": (8, 8, 3)}])
def test_other_types_than_model_inputs_are_rejected(images: Any) -> None:
    with pytest.raises(
        InputError, match=r"^images must be a DataSet or an lcrbnn\.deploy\.export\.ModelInput; got \w+$"
    ):
        export_model(NET, images, "x")


@pytest.mark.parametrize("write", WRITERS)
def test_writers_create_the_folder_and_never_replace_a_folder(write: Callable[..., None], tmp_path: Path) -> None:
    model, path = export_network(), tmp_path / "new" / "folder" / "x"
    write(str(path), model)
    assert [p.name for p in path.parent.iterdir()] == ["x"]
    with pytest.raises(
        InputError, match=f"^a model cannot be written to {tmp_path}: it exists and is not a regular file$"
    ):
        write(tmp_path, model)
    with pytest.raises(InputError, match=f"^a model cannot be written to {path}/y: "):
        write(path / "y", model)


@pytest.mark.parametrize("write", WRITERS)
def test_writers_reject_invalid_paths_and_models(write: Callable[..., None], tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"^a model must be a BnnModel, as export_model and read_model return; got Sequential$"
    ):
        write(tmp_path / "new" / "x", NET)
    assert not (tmp_path / "new").exists()
    for wrong in (None, 3, export_network(), "a\0b"):
        with pytest.raises(InputError, match=r"^the path of a file must be a text or a pathlib\.Path; got "):
            write(wrong, export_network())
    with pytest.raises(InputError, match=r"^the path of a file must be a text or a pathlib\.Path; got None$"):
        read_model(None)  # type: ignore[arg-type]  # tested here
