"""Compare layers of seven methods with outputs and gradients of their released code (tests/golden/methods-2.npz)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lcrbnn.nn.layers import BinaryConv2d
from lcrbnn.nn.methods.method_registry import get_method

GOLDEN = Path(__file__).parents[2] / "golden" / "methods-2.npz"
TOLERANCES = {"float64": 1e-12, "float32": 2e-7}  # relative to the largest entry; the layers run in float64
CASES = {"3x3": (3, 1, 1), "3x3-stride2": (3, 2, 1), "1x1": (1, 1, 0)}  # kernel, stride, padding

Arrays = dict[str, Tensor]


with np.load(GOLDEN) as stored_arrays:
    ARRAYS = dict(stored_arrays)


@dataclass(frozen=True)
class Release:
    """A released layer: the points of its schedule, and how to set the parameters and schedule of our layer."""

    runs: tuple[str, ...]
    set_state: Callable[[BinaryConv2d, Arrays], None]
    learned: dict[str, str] = field(default_factory=dict)  # name in the file -> parameter of the layer
    method: str = ""
    bits: str | None = None


def set_temperature(layer: BinaryConv2d, arrays: Arrays) -> None:
    for module in layer.modules():
        if hasattr(module, "t") and hasattr(module, "k"):
            module.t.fill_(float(arrays["t"]))
            module.k.fill_(float(arrays["k"]))


def set_weight_temperature(layer: BinaryConv2d, arrays: Arrays) -> None:
    set_temperature(layer.weight_binarizer, arrays)


def set_tau(layer: BinaryConv2d, arrays: Arrays) -> None:
    layer.weight_binarizer.tau.value.fill_(float(arrays["tau"]))


def project_weight(layer: BinaryConv2d, arrays: Arrays) -> None:
    layer.weight_binarizer.cut.value.fill_(float(arrays["percent"]) / 100)
    layer.weight_binarizer.project(layer.weight.data)
    assert_close(layer.weight.detach(), arrays, "projected_weight")


def set_stage(layer: BinaryConv2d, arrays: Arrays) -> None:
    layer.weight_binarizer.penalty_weight = float(arrays["penalty_weighting"])
    penalty = layer.weight_binarizer.extra_loss(layer.weight)
    (gradient,) = torch.autograd.grad(penalty, layer.weight)
    assert_close(penalty.detach(), arrays, "penalty")
    assert_close(gradient, arrays, "penalty_grad_weight")


def set_power(layer: BinaryConv2d, arrays: Arrays) -> None:
    for binarizer in (layer.weight_binarizer, layer.input_binarizer):
        binarizer.power.value.fill_(float(arrays["o"]))


def set_rotation(layer: BinaryConv2d, arrays: Arrays) -> None:
    set_temperature(layer, arrays)
    layer.weight_binarizer.left.copy_(arrays["rotation_left"])
    layer.weight_binarizer.right.copy_(arrays["rotation_right"])


SCALE = {"alpha": "weight_binarizer.alpha"}
SHIFTS = {"shift1": "input_binarizer.first", "shift2": "input_binarizer.second", "factor": "input_binarizer.factor"}
LEVELS = {"scale": "input_binarizer.scale", "center": "input_binarizer.center"}
BOTH_MODES = ("train", "eval")
RELEASES = {
    "adabin": Release(("",), set_weight_temperature, LEVELS),
    "rbnn-a32": Release(
        ("p30", "p80"), set_rotation, {**SCALE, "angle": "weight_binarizer.theta"}, method="rbnn", bits="1/32"
    ),
    "recu": Release(tuple(f"{p}.{mode}" for p in ("p00", "p60") for mode in BOTH_MODES), set_tau, SCALE),
    "siman": Release(("p00", "p40"), project_weight, SCALE),
    # There is no "stage1.eval", because in evaluation our first stage already has signs.
    "biper": Release(("stage1.train", "stage2.train", "stage2.eval"), set_stage, SCALE),
    "reste": Release(("p30", "p80"), set_power),
    "ie-net": Release(
        tuple(f"{p}.{mode}" for p in ("p30", "p80") for mode in BOTH_MODES), set_temperature, {**SCALE, **SHIFTS}
    ),
}
# The released schedules are computed in float32.
SCHEDULES = {"adabin": ("t", "k"), "rbnn-a32": ("t", "k"), "ie-net": ("t", "k"), "recu": ("tau",), "reste": ("o",)}


def select_arrays(case: str, run: str) -> Arrays:
    """Return the arrays of a case, overridden by those of the run's schedule point and mode."""
    arrays: Arrays = {}
    levels = run.split(".") if run else []
    for depth in range(len(levels) + 1):
        prefix = ".".join([case, *levels[:depth]]) + "."
        entries = {k.removeprefix(prefix): v for k, v in ARRAYS.items() if k.startswith(prefix)}
        arrays |= {name: torch.from_numpy(np.asarray(v)) for name, v in entries.items() if "." not in name}
    return arrays


def assert_close(value: Tensor, arrays: Arrays, name: str) -> None:
    expected = arrays[name]
    tolerance = TOLERANCES[str(expected.dtype).removeprefix("torch.")]
    expected = expected.double().sum() if name == "grad_factor" else expected.double().reshape(value.shape)
    size = expected.abs().max().item()
    error = (value.double() - expected).abs().max().item()
    # The gradient to RBNN's angle is a difference of nearly equal numbers where |sin| is flat.
    assert error <= tolerance * max(size, 1e-2), f"{name}: off by {error:.2e}, largest entry {size:.2e}"


def make_layer(name: str, case: str, arrays: Arrays) -> BinaryConv2d:
    release = RELEASES[name]
    kernel, stride, padding = CASES[case]
    method = get_method(release.method or name, release.bits)
    layer = BinaryConv2d(5, 6, kernel, stride, padding, method=method).double()
    layer.weight.data = arrays["weight"].double()
    for stored, parameter in release.learned.items():
        numbers = arrays[stored].double().flatten()
        target = layer.get_parameter(parameter)
        target.data = (numbers if target.dim() else numbers[0]).reshape(target.shape).clone()
    return layer


def list_runs() -> list[str]:
    """Return the names of all stored runs of RELEASES."""
    names = [
        ".".join(filter(None, (name, case, run)))
        for name, release in RELEASES.items()
        for case in CASES
        for run in release.runs
    ]
    return [name for name in names if f"{name}.output" in ARRAYS]


def test_every_release_has_two_cases() -> None:
    stored = {tuple(run.split(".")[:2]) for run in list_runs()}
    assert stored >= {(name, case) for name in RELEASES for case in ("1x1", "3x3-stride2")}


@pytest.mark.parametrize("full_name", list_runs())
def test_layer_equals_its_release(full_name: str) -> None:
    name, case, *parts = full_name.split(".")
    run = ".".join(parts)
    arrays = select_arrays(f"{name}.{case}", run)
    layer = make_layer(name, case, arrays)
    layer.weight_binarizer.set_progress(1.0 if "stage2" in run else 0.0)
    RELEASES[name].set_state(layer, arrays)
    layer.train("eval" not in run)
    x = arrays["input"].double().requires_grad_()
    y = layer(x)
    assert_close(y.detach(), arrays, "output")
    (y * arrays["grad_output"].double()).sum().backward()
    leaves = {"input": x, "weight": layer.weight}
    leaves |= {stored: layer.get_parameter(parameter) for stored, parameter in RELEASES[name].learned.items()}
    for stored, leaf in leaves.items():
        assert leaf.grad is not None, stored
        assert_close(leaf.grad, arrays, f"grad_{stored}")


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_equals_its_release(name: str) -> None:
    for run in {run.split(".")[0] for run in RELEASES[name].runs}:
        arrays = select_arrays(f"{name}.1x1", run)
        binarizer = make_layer(name, "1x1", arrays).weight_binarizer
        binarizer.set_progress(float(arrays["progress"]))
        (schedule,) = binarizer.children()
        for key in SCHEDULES[name]:
            assert float(getattr(schedule, key, getattr(schedule, "value", None))) == pytest.approx(
                float(arrays[key]), rel=2e-6
            )
