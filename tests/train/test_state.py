from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError
from lcrbnn.nn.models.model_registry import MODELS
from lcrbnn.nn.models.resnet import ResNetConfig, build_resnet
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from lcrbnn.runs.record import read_record
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train import state
from lcrbnn.train.setup.load import load_network
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.zoo.zoo_file import read_zoo_file, write_zoo_file
from tests.train.helpers import train_small_run

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda net: torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4),
    "nesterov": lambda net: torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True),
    "adam": lambda net: torch.optim.Adam(net.parameters(), 0.01, betas=(0.9, 0.999), weight_decay=1e-4),
}


def make_tiny_network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def train_steps(net: nn.Module, optimizer: torch.optim.Optimizer, first: int, steps: int) -> None:
    for step in range(first, first + steps):
        images = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        net(images).square().sum().backward()
        optimizer.step()


def name_parameters(net: nn.Module) -> dict[Tensor, str]:
    return {parameter: f"model/{name}" for name, parameter in net.named_parameters()}


def all_arrays(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, np.ndarray]:
    return state.module_to_arrays(net, "model") | state.optimizer_to_arrays(optimizer, name_parameters(net))


def assert_same_arrays(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    assert list(first) == list(second)
    for name, a in first.items():
        assert (a.dtype, a.shape) == (second[name].dtype, second[name].shape), name
        assert a.tobytes() == second[name].tobytes(), name


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_network_and_optimizer_continue_with_the_same_bits_after_a_checkpoint(tmp_path: Path, kind: str) -> None:
    net = make_tiny_network()
    optimizer = OPTIMIZERS[kind](net)
    train_steps(net, optimizer, 0, 2)
    taken = all_arrays(net, optimizer)
    write_checkpoint(tmp_path / "a", Checkpoint(taken, {}))
    train_steps(net, optimizer, 2, 3)

    other_net = make_tiny_network()  # with other initial weights
    other_optimizer = OPTIMIZERS[kind](other_net)
    arrays = read_checkpoint(tmp_path / "a").arrays
    state.restore_module(other_net, "model", arrays, "it")
    state.restore_optimizer(other_optimizer, name_parameters(other_net), arrays)
    assert_same_arrays(all_arrays(other_net, other_optimizer), taken)
    train_steps(other_net, other_optimizer, 2, 3)
    assert_same_arrays(all_arrays(other_net, other_optimizer), all_arrays(net, optimizer))


def test_arrays_are_copies_in_both_directions() -> None:
    net = make_tiny_network()
    optimizer = OPTIMIZERS["sgd"](net)
    train_steps(net, optimizer, 0, 1)
    taken = all_arrays(net, optimizer)
    before = {name: a.copy() for name, a in taken.items()}
    train_steps(net, optimizer, 1, 1)
    assert_same_arrays(taken, before)
    state.restore_module(net, "model", taken, "it")
    state.restore_optimizer(optimizer, name_parameters(net), taken)
    train_steps(net, optimizer, 1, 1)
    assert_same_arrays(taken, before)


def test_an_optimizer_without_state_has_no_arrays() -> None:
    net = make_tiny_network()
    optimizer = OPTIMIZERS["adam"](net)
    assert state.optimizer_to_arrays(optimizer, name_parameters(net)) == {}
    state.restore_optimizer(optimizer, name_parameters(net), state.module_to_arrays(net, "model"))
    assert not optimizer.state


def test_only_arrays_with_the_prefix_are_restored() -> None:
    net, other_net = make_tiny_network(), make_tiny_network()
    arrays = state.module_to_arrays(net, "model")
    strangers = {"model2/0.weight": np.zeros(1), "optimizer/model/0.weight/step": np.zeros(1), "sums": np.zeros(3)}
    state.restore_module(other_net, "model", arrays | strangers, "it")
    assert_same_arrays(state.module_to_arrays(other_net, "model"), arrays)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_zero_optimizer_state_trains_like_state_created_by_the_first_step(kind: str) -> None:
    net, filled = make_tiny_network(), make_tiny_network()
    state.restore_module(filled, "model", state.module_to_arrays(net, "model"), "it")
    optimizer, filled_optimizer = OPTIMIZERS[kind](net), OPTIMIZERS[kind](filled)
    state.initialize_optimizer_state(filled_optimizer)
    empty = state.optimizer_to_arrays(filled_optimizer, name_parameters(filled))
    assert not any(a.any() for a in empty.values())
    train_steps(net, optimizer, 0, 3)
    train_steps(filled, filled_optimizer, 0, 3)
    expected, got = all_arrays(net, optimizer), all_arrays(filled, filled_optimizer)
    assert set(state.optimizer_to_arrays(optimizer, name_parameters(net))) == set(empty)
    assert {name: (a.dtype, a.shape) for name, a in got.items()} == {n: (a.dtype, a.shape) for n, a in expected.items()}
    for name, a in expected.items():
        np.testing.assert_array_equal(got[name], a, err_msg=name)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_existing_optimizer_state_is_not_initialized_again(kind: str) -> None:
    net = make_tiny_network()
    optimizer = OPTIMIZERS[kind](net)
    train_steps(net, optimizer, 0, 2)
    before = all_arrays(net, optimizer)
    state.initialize_optimizer_state(optimizer)
    assert_same_arrays(all_arrays(net, optimizer), before)


def test_an_optimizer_without_momentum_gets_no_state() -> None:
    net = make_tiny_network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    state.initialize_optimizer_state(optimizer)
    assert state.optimizer_to_arrays(optimizer, name_parameters(net)) == {}


@pytest.mark.parametrize(
    ("lacking", "besides", "sentence"),
    [
        (["0.bias"], {}, "it lacks 0.bias"),
        ([], {"3.weight": np.zeros(1, np.float32)}, "it has the extra array 3.weight"),
        ([], {"0.weight": np.zeros((4, 5), np.float32)}, "0.weight is float32 (4, 5) instead of float32 (4, 3)"),
        ([], {"2.bias": np.zeros((1, 2), np.float32)}, "2.bias is float32 (1, 2) instead of float32 (2,)"),
        ([], {"0.weight": np.zeros((4, 3))}, "0.weight is float64 (4, 3) instead of float32 (4, 3)"),
        (
            ["1.num_batches_tracked"],
            {"more": np.zeros(1), "0.bias": np.zeros(9, np.float32)},
            "it lacks 1.num_batches_tracked; it has the extra array more; "
            "0.bias is float32 (9,) instead of float32 (4,)",
        ),
        (
            ["0.weight", "0.bias", "2.weight", "2.bias"],
            {"more": np.zeros(1)},
            "it lacks 0.weight; it lacks 0.bias; it lacks 2.weight, and 2 more",
        ),
    ],
)
def test_arrays_of_another_network_are_rejected_with_the_differences(
    lacking: list[str], besides: dict[str, np.ndarray], sentence: str
) -> None:
    net = make_tiny_network()
    before = state.module_to_arrays(net, "model")
    arrays = state.module_to_arrays(make_tiny_network(), "model") | {f"model/{name}": a for name, a in besides.items()}
    for name in lacking:
        del arrays[f"model/{name}"]
    with pytest.raises(InputError, match=f"^the file belongs to another network: {re.escape(sentence)}$"):
        state.restore_module(net, "model", arrays, "the file")
    assert_same_arrays(state.module_to_arrays(net, "model"), before)


def test_a_checkpoint_with_the_earlier_siman_stem_is_rejected_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "resnet20-double-prelu"
    plan = ResNetConfig(
        (3, 3, 3), (16, 32, 64), "double", "prelu", "subsample", "conv3-act", head="norm", use_kaiming_init=True
    )
    spec, run = TrainSpec(model=name, method="siman", epochs=1, batch_size=1000), tmp_path / "run"
    with monkeypatch.context() as before:
        old = replace(
            MODELS[name], build=lambda method, classes, channels, _: build_resnet(plan, method, classes, channels)
        )
        before.setitem(MODELS, name, old)
        train_small_run(run, spec)
        write_zoo_file(tmp_path / "small.safetensors", spec, load_network(RunFolder(run))[1], "0" * 64)
    (run / "record.json").rename(tmp_path / "record.json")
    sentence = r"belongs to resnet20-double-prelu with a PReLU in the stem, as before 2026-11-19; [^.]*: train it again"
    with pytest.raises(InputError, match=f"{sentence}$"):
        load_network(RunFolder(run))
    with pytest.raises(InputError, match=f"{sentence}$"):
        read_zoo_file(tmp_path / "small.safetensors")
    with pytest.raises(InputError, match=sentence):
        train_small_run(run, spec, resume=True)
    assert (
        TrainSpec.from_dict(read_record(tmp_path / "record.json")["settings"]) == spec
    )  # its record can still be read


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_first_array_with_a_non_finite_value_is_named(bad: float, dtype: type) -> None:
    arrays = {"count": np.array(3), "flags": np.array([True]), "none": np.zeros(0), "good": np.full(3, 6e4, dtype)}
    assert state.find_non_finite(arrays) is None
    spoilt = np.zeros((2, 3), dtype)
    spoilt[1, 2] = bad
    assert state.find_non_finite(arrays | {"spoilt": spoilt, "too": spoilt}) == "spoilt"
    assert state.find_non_finite(arrays | {"single": np.array(bad, dtype)}) == "single"


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), lambda p: torch.optim.Adam(p, 0.1)])
def test_restored_optimizer_state_has_the_memory_format_of_its_parameter(make: Callable) -> None:
    """A fused update reads parameter and state in memory order, so another layout would mix up the values."""
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    names = {p: n for n, p in conv.named_parameters()}
    optimizer = make(conv.parameters())
    conv(torch.randn(2, 3, 5, 5)).square().sum().backward()
    optimizer.step()
    arrays = state.optimizer_to_arrays(optimizer, names)
    again = make(conv.parameters())
    state.restore_optimizer(again, names, arrays)
    for key, value in again.state[conv.weight].items():
        assert torch.equal(value, optimizer.state[conv.weight][key])
        assert value.dim() == 0 or value.stride() == conv.weight.stride()
