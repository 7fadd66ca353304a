"""Other runtimes give our answers, and are timed in turns."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest
import torch

from lcrbnn.engine import reference
from lcrbnn.export import Input, export_model
from lcrbnn.models import network
from lcrbnn.peers import PEERS
from lcrbnn.peers.onnx_runtime import quantized
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


def padded_shortcuts() -> dict[str, float]:
    """The differences of OpenVINO in 8 bits from the reference, for two kinds of padded shortcuts."""
    torch.manual_seed(0)
    found = {}
    for name in ("resnet8-double", "resnet20-double-pool"):
        model = export_model(
            lively(network(name, "irnet", classes=10, image=16)), Input((16, 16, 3), tuple("0123456789")), name
        )
        images = np.random.default_rng(1).standard_normal((2, 16, 16, 3)).astype(np.float32)
        wanted = reference.run(model, images)
        answers = PEERS["openvino int8"].make(model, 1, 2)(images)
        found[name] = float(np.abs(answers - wanted).max() / np.abs(wanted).max())
    return found


def test_openvino_runs_padded_shortcuts_in_8_bits() -> None:
    """In a process of its own, as below."""
    assert all(apart < 1 for apart in run_interpreted(padded_shortcuts).values())


def test_peers_answer_as_the_reference_does() -> None:
    """In a process of its own: once OpenVINO has been loaded and left, a signal may end the process that did."""
    found = run_interpreted(differences)
    assert {name.removesuffix(" small") for name in found} == set(PEERS)
    for name, apart in found.items():
        assert apart < (1 if "int8" in name else 1e-3), name  # eight bits are no exact peer


def test_bench_says_what_network_each_line_is_of_and_nothing_of_the_quantiser() -> None:
    """In a process of its own, as above."""
    words = [sys.executable, "-m", "lcrbnn", "bench", "zoo:resnet20-irnet", "--calls", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=240)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    rows = {line[:18].rstrip(): line for line in lines if line.endswith("x lcrbnn's")}
    assert {"lcrbnn", "onnxruntime", "onnxruntime int8", "openvino", "openvino int8", "openvino binary"} <= set(rows)
    for name, row in rows.items():
        assert (PEERS[name].about if name in PEERS else "this network, one bit a binary weight") in row
    assert lines[-1] == (
        "every line is of this binary network; 8 bits of it are not its full-precision twin in 8 bits, which "
        "docs/engine.md has"
    )


def test_what_others_log_is_shown_again_after_quantising(caplog: pytest.LogCaptureFixture) -> None:
    net = lively(network("resnet8-double", "irnet", classes=10, image=8))
    quantized(export_model(net, Input((8, 8, 3), tuple("0123456789")), "small"))
    assert caplog.text == ""
    logging.getLogger("other").warning("heard")
    assert "heard" in caplog.text


def test_all_packages_of_the_peers_are_here() -> None:
    assert [name for name, peer in PEERS.items() if peer.missing()] == []


def test_calls_take_turns() -> None:
    seen: list[str] = []
    found = in_turns({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 4)
    assert "".join(seen) == "a" * WARM + "b" * WARM + "ab" * 4
    assert found["a"].calls == 4
    assert found["a"].best <= found["a"].median
