"""Architectures written for plain PyTorch: the check before training agrees with the export, the engine with PyTorch.

`python -m tools.architectures` compares all of them, with four methods. Here are a few.
"""

from __future__ import annotations

import warnings

import pytest
import torch

import lcrbnn
from lcrbnn.deploy.export.export_model import ModelInput, export_model
from lcrbnn.errors import InputError
from tests.deploy.export.architectures import ARCHITECTURES
from tools.architectures import EQUAL, check_architecture, list_available_kernels

COMPARED_ARCHITECTURES = (
    "autoencoder_convolutional",
    "fcn",
    "googlenet",
    "mlp",
    "mobilenet_v3",
    "resnet_basic",
    "se_resnet",
    "unet_pixel_shuffle",
    "yolo",
)


def test_there_are_at_least_60_architectures() -> None:
    assert len(ARCHITECTURES) >= 60


@pytest.mark.parametrize("name", COMPARED_ARCHITECTURES)
def test_the_engine_computes_what_pytorch_computes_after_two_steps_with_lcr(name: str) -> None:
    with warnings.catch_warnings(action="ignore"):  # constant signs behind a ReLU
        row = check_architecture(ARCHITECTURES[name], "irnet", list_available_kernels())
    assert row["result"] == EQUAL, row


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_check_export_foresees_whether_a_network_can_be_exported(name: str) -> None:
    make, shape = ARCHITECTURES[name]
    torch.manual_seed(0)
    net = make().eval()
    check = lcrbnn.check_export(net, (1, *shape))
    assert all(len(row.alternatives) <= 3 for row in check.problems)
    if check.is_exportable:
        export_model(net, ModelInput((*shape[1:], shape[0]), ()), "x")
    elif len(shape) == 3:
        with pytest.raises(InputError):
            export_model(net, ModelInput((*shape[1:], shape[0]), ()), "x")
