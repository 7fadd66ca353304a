"""Other runtimes give our answers, and are timed in turns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lcrbnn.engine import Model, reference
from lcrbnn.export import Input, export_model
from lcrbnn.models import network
from lcrbnn.peers import PEERS
from lcrbnn.peers.timing import WARM, in_turns
from tests.export.test_onnx import lively


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    net = network("bireal18-imagenet", "bireal", classes=10, image=64)
    return export_model(lively(net), Input((64, 64, 3), tuple("0123456789")), "bireal18")


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_answers_as_the_reference_does(name: str, model: Model) -> None:
    assert PEERS[name].missing() is None
    images = np.random.default_rng(1).standard_normal((2, 64, 64, 3)).astype(np.float32)
    wanted = reference.run(model, images)
    found = PEERS[name].make(model, 1, 2)(images)
    assert found.shape == wanted.shape
    if "int8" not in name:  # eight bits are no exact peer
        assert np.abs(found - wanted).max() < 1e-3 * np.abs(wanted).max()


def test_binary_convolutions_of_openvino_take_our_other_networks_too() -> None:
    torch.manual_seed(0)
    small = export_model(lively(network("resnet8-double", "irnet")), Input((8, 8, 3), tuple("0123456789")), "small")
    images = np.random.default_rng(1).standard_normal((2, 8, 8, 3)).astype(np.float32)
    found = PEERS["openvino binary"].make(small, 1, 2)(images)
    assert np.abs(found - reference.run(small, images)).max() < 1e-3


def test_calls_take_turns() -> None:
    seen: list[str] = []
    found = in_turns({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 4)
    assert "".join(seen) == "a" * WARM + "b" * WARM + "ab" * 4
    assert found["a"].calls == 4
    assert found["a"].best <= found["a"].median
