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
from lcrbnn.models import MODELS
from lcrbnn.models.resnet import ResNetPlan, build_resnet
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.record import read_record
from lcrbnn.train import Spec, state
from lcrbnn.train.build import load_network
from lcrbnn.zoo.file import read_small, write_small
from tests.train.helpers import small_run

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda net: torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4),
    "nesterov": lambda net: torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True),
    "adam": lambda net: torch.optim.Adam(net.parameters(), 0.01, betas=(0.9, 0.999), weight_decay=1e-4),
}


def tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def learn(net: nn.Module, optimizer: torch.optim.Optimizer, first: int, steps: int) -> None:
    for step in range(first, first + steps):
        images = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        net(images).square().sum().backward()
        optimizer.step()


def names_of(net: nn.Module) -> dict[Tensor, str]:
    return {parameter: f"model/{name}" for name, parameter in net.named_parameters()}


def all_arrays(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, np.ndarray]:
    return state.module_arrays(net, "model") | state.optimizer_arrays(optimizer, names_of(net))


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert list(one) == list(other)
    for name, a in one.items():
        assert (a.dtype, a.shape) == (other[name].dtype, other[name].shape), name
        assert a.tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_network_and_its_optimiser_go_on_with_the_same_bits_after_a_file(tmp_path: Path, kind: str) -> None:
    net = tiny()
    optimizer = OPTIMIZERS[kind](net)
    learn(net, optimizer, 0, 2)
    taken = all_arrays(net, optimizer)
    write_checkpoint(tmp_path / "a", Checkpoint(taken, {}))
    learn(net, optimizer, 2, 3)

    other = tiny()  # with another start
    other_optimizer = OPTIMIZERS[kind](other)
    arrays = read_checkpoint(tmp_path / "a").arrays
    state.restore_module(other, "model", arrays, "it")
    state.restore_optimizer(other_optimizer, names_of(other), arrays)
    same(all_arrays(other, other_optimizer), taken)
    learn(other, other_optimizer, 2, 3)
    same(all_arrays(other, other_optimizer), all_arrays(net, optimizer))


def test_arrays_are_copies_in_both_directions() -> None:
    net = tiny()
    optimizer = OPTIMIZERS["sgd"](net)
    learn(net, optimizer, 0, 1)
    taken = all_arrays(net, optimizer)
    before = {name: a.copy() for name, a in taken.items()}
    learn(net, optimizer, 1, 1)
    same(taken, before)
    state.restore_module(net, "model", taken, "it")
    state.restore_optimizer(optimizer, names_of(net), taken)
    learn(net, optimizer, 1, 1)
    same(taken, before)


def test_an_optimiser_that_remembers_nothing_yet_has_no_arrays_and_takes_none() -> None:
    net = tiny()
    optimizer = OPTIMIZERS["adam"](net)
    assert state.optimizer_arrays(optimizer, names_of(net)) == {}
    state.restore_optimizer(optimizer, names_of(net), state.module_arrays(net, "model"))
    assert not optimizer.state


def test_only_the_arrays_under_the_prefix_are_looked_at() -> None:
    net, other = tiny(), tiny()
    arrays = state.module_arrays(net, "model")
    strangers = {"model2/0.weight": np.zeros(1), "optimizer/model/0.weight/step": np.zeros(1), "sums": np.zeros(3)}
    state.restore_module(other, "model", arrays | strangers, "it")
    same(state.module_arrays(other, "model"), arrays)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_memory_filled_with_nothing_learns_like_one_that_is_made_at_the_first_step(kind: str) -> None:
    net, filled = tiny(), tiny()
    state.restore_module(filled, "model", state.module_arrays(net, "model"), "it")
    optimizer, filled_optimizer = OPTIMIZERS[kind](net), OPTIMIZERS[kind](filled)
    state.fill_memory(filled_optimizer)
    empty = state.optimizer_arrays(filled_optimizer, names_of(filled))
    assert not any(a.any() for a in empty.values())
    learn(net, optimizer, 0, 3)
    learn(filled, filled_optimizer, 0, 3)
    wanted, got = all_arrays(net, optimizer), all_arrays(filled, filled_optimizer)
    assert set(state.optimizer_arrays(optimizer, names_of(net))) == set(empty)
    assert {name: (a.dtype, a.shape) for name, a in got.items()} == {n: (a.dtype, a.shape) for n, a in wanted.items()}
    for name, a in wanted.items():
        np.testing.assert_array_equal(got[name], a, err_msg=name)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_memory_that_is_there_is_not_filled_again(kind: str) -> None:
    net = tiny()
    optimizer = OPTIMIZERS[kind](net)
    learn(net, optimizer, 0, 2)
    before = all_arrays(net, optimizer)
    state.fill_memory(optimizer)
    same(all_arrays(net, optimizer), before)


def test_an_optimiser_without_momentum_has_no_memory_to_fill() -> None:
    net = tiny()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    state.fill_memory(optimizer)
    assert state.optimizer_arrays(optimizer, names_of(net)) == {}


@pytest.mark.parametrize(
    ("lacking", "besides", "sentence"),
    [
        (["0.bias"], {}, "it lacks 0.bias"),
        ([], {"3.weight": np.zeros(1, np.float32)}, "it has 3.weight besides"),
        ([], {"0.weight": np.zeros((4, 5), np.float32)}, "0.weight is float32 (4, 5) instead of float32 (4, 3)"),
        ([], {"2.bias": np.zeros((1, 2), np.float32)}, "2.bias is float32 (1, 2) instead of float32 (2,)"),
        ([], {"0.weight": np.zeros((4, 3))}, "0.weight is float64 (4, 3) instead of float32 (4, 3)"),
        (
            ["1.num_batches_tracked"],
            {"more": np.zeros(1), "0.bias": np.zeros(9, np.float32)},
            "it lacks 1.num_batches_tracked; it has more besides; 0.bias is float32 (9,) instead of float32 (4,)",
        ),
        (
            ["0.weight", "0.bias", "2.weight", "2.bias"],
            {"more": np.zeros(1)},
            "it lacks 0.weight; it lacks 0.bias; it lacks 2.weight, and 2 more",
        ),
    ],
)
def test_arrays_of_another_network_are_refused_with_the_differences_and_change_nothing(
    lacking: list[str], besides: dict[str, np.ndarray], sentence: str
) -> None:
    net = tiny()
    before = state.module_arrays(net, "model")
    arrays = state.module_arrays(tiny(), "model") | {f"model/{name}": a for name, a in besides.items()}
    for name in lacking:
        del arrays[f"model/{name}"]
    with pytest.raises(InputError, match=f"^the file is of another network: {re.escape(sentence)}$"):
        state.restore_module(net, "model", arrays, "the file")
    same(state.module_arrays(net, "model"), before)


def test_a_network_of_before_siman_s_stem_became_that_of_its_release_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "resnet20-double-prelu"
    plan = ResNetPlan((3, 3, 3), (16, 32, 64), "double", "prelu", "subsample", "conv3-act", head="norm", kaiming=True)
    spec, run = Spec(model=name, method="siman", epochs=1, batch=1000), tmp_path / "run"
    with monkeypatch.context() as before:
        old = replace(
            MODELS[name], build=lambda method, classes, channels, _: build_resnet(plan, method, classes, channels)
        )
        before.setitem(MODELS, name, old)
        small_run(run, spec)
        write_small(tmp_path / "small.safetensors", spec, load_network(RunFolder(run))[1], "0" * 64)
    (run / "record.json").rename(tmp_path / "record.json")
    sentence = r"is of resnet20-double-prelu with a PReLU in the stem, as before 2026-11-19; [^.]*: train it again"
    with pytest.raises(InputError, match=f"{sentence}$"):
        load_network(RunFolder(run))
    with pytest.raises(InputError, match=f"{sentence}$"):
        read_small(tmp_path / "small.safetensors")
    with pytest.raises(InputError, match=sentence):
        small_run(run, spec, resume=True)
    assert Spec.of(read_record(tmp_path / "record.json")["settings"]) == spec  # its figures can still be read


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_first_array_with_a_number_that_is_none_is_named(bad: float, dtype: type) -> None:
    arrays = {"count": np.array(3), "flags": np.array([True]), "none": np.zeros(0), "good": np.full(3, 6e4, dtype)}
    assert state.first_bad(arrays) is None
    spoilt = np.zeros((2, 3), dtype)
    spoilt[1, 2] = bad
    assert state.first_bad(arrays | {"spoilt": spoilt, "too": spoilt}) == "spoilt"
    assert state.first_bad(arrays | {"single": np.array(bad, dtype)}) == "single"


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), lambda p: torch.optim.Adam(p, 0.1)])
def test_what_the_optimiser_remembers_lies_in_memory_as_its_parameter_does(make: Callable) -> None:
    """A fused update walks parameter and memory side by side: another layout would mix up the numbers."""
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    names = {p: n for n, p in conv.named_parameters()}
    optimizer = make(conv.parameters())
    conv(torch.randn(2, 3, 5, 5)).square().sum().backward()
    optimizer.step()
    arrays = state.optimizer_arrays(optimizer, names)
    again = make(conv.parameters())
    state.restore_optimizer(again, names, arrays)
    for key, value in again.state[conv.weight].items():
        assert torch.equal(value, optimizer.state[conv.weight][key])
        assert value.dim() == 0 or value.stride() == conv.weight.stride()
