"""Other runtimes give our answers, and are timed in turns."""

from __future__ import annotations

import numpy as np
import torch

from lcrbnn.engine import reference
from lcrbnn.export import Input, export_model
from lcrbnn.models import network
from lcrbnn.peers import PEERS
from lcrbnn.peers.timing import WARM, in_turns
from tests.export.test_onnx import lively
from tests.kernels.interpreted import run_interpreted


def differences() -> dict[str, float]:
    """Of each peer's answers from the reference's, over the largest of these."""
    torch.manual_seed(0)
    found = {}
    nets = {"": ("bireal18-imagenet", "bireal", 64, tuple(PEERS)), " small": ("resnet8-double", "irnet", 8, ())}
    for suffix, (name, method, side, peers) in nets.items():
        net = lively(network(name, method, classes=10, image=side))
        model = export_model(net, Input((side, side, 3), tuple("0123456789")), name)
        images = np.random.default_rng(1).standard_normal((2, side, side, 3)).astype(np.float32)
        wanted = reference.run(model, images)
        for peer in peers or ("openvino binary", "onnxruntime"):
            apart = np.abs(PEERS[peer].make(model, 1, 2)(images) - wanted).max()
            found[peer + suffix] = float(apart / np.abs(wanted).max())
    return found


def test_peers_answer_as_the_reference_does() -> None:
    """In a process of its own: once OpenVINO has been loaded and left, a signal may end the process that did."""
    found = run_interpreted(differences)
    assert {name.removesuffix(" small") for name in found} == set(PEERS)
    for name, apart in found.items():
        assert apart < (1 if "int8" in name else 1e-3), name  # eight bits are no exact peer


def test_all_packages_of_the_peers_are_here() -> None:
    assert [name for name, peer in PEERS.items() if peer.missing()] == []


def test_calls_take_turns() -> None:
    seen: list[str] = []
    found = in_turns({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 4)
    assert "".join(seen) == "a" * WARM + "b" * WARM + "ab" * 4
    assert found["a"].calls == 4
    assert found["a"].best <= found["a"].median
