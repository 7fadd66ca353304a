"""Other runtimes agree with the reference, and the timer alternates between them."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest
import torch

from lcrbnn.deploy.benchmark.onnxruntime_backend import quantize_int8
from lcrbnn.deploy.benchmark.runtimes import RUNTIMES, WARMUP_CALLS, time_alternately
from lcrbnn.deploy.engine import reference
from lcrbnn.deploy.export.export_model import ModelInput, export_model
from lcrbnn.nn.models.model_registry import create_model
from tests.deploy.export.test_onnx import randomize_batch_norms
from tests.nn.kernels.interpreted import run_interpreted


def measure_differences() -> dict[str, float]:
    """Return for each runtime the largest logit difference from the reference, relative to the largest logit."""
    torch.manual_seed(0)
    differences = {}
    nets = {"": ("bireal18-imagenet", "bireal", 64, tuple(RUNTIMES)), " small": ("resnet8-double", "irnet", 8, ())}
    for suffix, (name, method, side, runtimes) in nets.items():
        net = randomize_batch_norms(create_model(name, method, num_classes=10, image_size=side))
        model = export_model(net, ModelInput((side, side, 3), tuple("0123456789")), name)
        images = np.random.default_rng(1).standard_normal((2, side, side, 3)).astype(np.float32)
        expected = reference.run_reference(model, images)
        for runtime in runtimes or ("openvino binary", "onnxruntime"):
            max_difference = np.abs(RUNTIMES[runtime].make_call(model, 1, 2)(images) - expected).max()
            differences[runtime + suffix] = float(max_difference / np.abs(expected).max())
    return differences


def measure_padded_shortcut_differences() -> dict[str, float]:
    """Return the differences of 8-bit OpenVINO models from the reference, for two kinds of padded shortcuts."""
    torch.manual_seed(0)
    differences = {}
    for name in ("resnet8-double", "resnet20-double-pool"):
        model = export_model(
            randomize_batch_norms(create_model(name, "irnet", num_classes=10, image_size=16)),
            ModelInput((16, 16, 3), tuple("0123456789")),
            name,
        )
        images = np.random.default_rng(1).standard_normal((2, 16, 16, 3)).astype(np.float32)
        expected = reference.run_reference(model, images)
        logits = RUNTIMES["openvino int8"].make_call(model, 1, 2)(images)
        differences[name] = float(np.abs(logits - expected).max() / np.abs(expected).max())
    return differences


def test_openvino_runs_padded_shortcuts_in_8_bits() -> None:
    """Run in another process, see below."""
    assert all(difference < 1 for difference in run_interpreted(measure_padded_shortcut_differences).values())


def test_runtimes_agree_with_the_reference() -> None:
    """Run in another process: OpenVINO can end the process that loaded it with a signal at exit."""
    differences = run_interpreted(measure_differences)
    assert {name.removesuffix(" small") for name in differences} == set(RUNTIMES)
    for name, difference in differences.items():
        assert difference < (1 if "int8" in name else 1e-3), name  # 8-bit models are inexact


def test_bench_names_the_network_of_each_row_without_quantiser_warnings() -> None:
    """Run in another process, see above."""
    command = [sys.executable, "-m", "lcrbnn", "bench", "zoo:resnet20-irnet", "--calls", "1"]
    process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    assert process.stderr == ""
    lines = process.stdout.splitlines()
    rows = {line[:18].rstrip(): line for line in lines if line.endswith("x lcrbnn's")}
    assert {"lcrbnn", "onnxruntime", "onnxruntime int8", "openvino", "openvino int8", "openvino binary"} <= set(rows)
    for name, row in rows.items():
        assert (RUNTIMES[name].description if name in RUNTIMES else "this network, 1 bit per binary weight") in row
    assert lines[-1].startswith("All rows run this binary network. A row with 8 bits is not the full-precision network")


def test_logging_is_enabled_again_after_quantising(caplog: pytest.LogCaptureFixture) -> None:
    net = randomize_batch_norms(create_model("resnet8-double", "irnet", num_classes=10, image_size=8))
    quantize_int8(export_model(net, ModelInput((8, 8, 3), tuple("0123456789")), "small"))
    assert caplog.text == ""
    logging.getLogger("other").warning("heard")
    assert "heard" in caplog.text


def test_packages_of_all_runtimes_are_installed() -> None:
    assert [name for name, runtime in RUNTIMES.items() if runtime.find_missing_package()] == []


def test_timed_calls_alternate() -> None:
    calls: list[str] = []
    timings = time_alternately({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 4)
    assert "".join(calls) == "a" * WARMUP_CALLS + "b" * WARMUP_CALLS + "ab" * 4
    assert timings["a"].calls == 4
    assert timings["a"].best <= timings["a"].median
