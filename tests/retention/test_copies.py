"""A copy of a network together with its `Retention`: by copy.deepcopy, by pickle, inside one another."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lcrbnn import Retention
from lcrbnn.errors import InputError
from lcrbnn.layers import binary_layers
from tests.retention.helpers import IMAGES, hooks, small

WAYS: dict[str, Callable[[Any], Any]] = {"deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("called", [False, True])
def test_a_pair_is_copied_into_a_pair_that_works(way: str, turned: bool, called: bool) -> None:
    model = small()
    retention = Retention(model, weight=10.0)
    if called:  # maps of a pass are no part of a copy
        model(IMAGES[:16])
    pair = WAYS[way]((retention, model) if turned else (model, retention))
    twin, other = reversed(pair) if turned else pair
    assert other.model is twin
    twin(IMAGES[:16])
    model(IMAGES[:16])
    loss, own = other.loss(), retention.loss()
    torch.testing.assert_close(loss, own)
    loss.backward()
    assert all(p.grad is None for p in model.parameters())
    assert any(p.grad is not None for p in twin.parameters())
    marks = {layer.watched for _, layer in binary_layers(twin)}
    assert marks == {layer.watched for _, layer in binary_layers(model)}
    assert hooks(twin) == hooks(model)
    other.close()
    assert hooks(twin) == 0
    assert {layer.watched for _, layer in binary_layers(twin)} == {""}
    model(IMAGES[:16])
    torch.testing.assert_close(retention.loss(), own)  # the first pair never noticed


@pytest.mark.parametrize("way", WAYS)
def test_a_teacher_is_copied_along_and_heard(way: str) -> None:
    model, teacher = small(), small(None)
    retention = Retention(model, "official", teacher=teacher)
    twin, other = WAYS[way]((model, retention))
    model(IMAGES[:16])
    twin(IMAGES[:16])
    torch.testing.assert_close(other.loss(), retention.loss())
    other.close()
    model(IMAGES[:16])
    assert torch.isfinite(retention.loss())


def test_a_copy_alone_says_which_network_it_watches() -> None:
    model = small()
    retention = Retention(model)
    model(IMAGES[:16])
    other = copy.deepcopy(retention)
    model(IMAGES[:16])
    with pytest.raises(InputError, match=r"is a copy.*watches a copy of the network.*copy both together"):
        other.loss()
    other.model(IMAGES[:16])
    assert other.loss() > 0
    assert retention.loss() > 0


def test_copies_of_copies_of_several_on_one_network_work() -> None:
    model = small()
    both = Retention(model), Retention(model, "paper")
    for _ in range(2):
        model, both = copy.deepcopy((model, both))
    model(IMAGES[:16])
    assert all(one.loss() > 0 for one in both)
    for one in both:
        one.close()
    assert hooks(model) == 0
    assert {layer.watched for _, layer in binary_layers(model)} == {""}


def test_copies_of_what_hooks_nothing_hook_nothing() -> None:
    model = small()
    closed = Retention(model)
    closed.close()
    twin, one, none = copy.deepcopy((model, closed, Retention(model, weight=0.0)))
    assert hooks(twin) == 0
    assert none.loss() == 0
    none.close()
    assert none.loss() == 0
    with pytest.raises(InputError, match="this Retention is closed"):
        one.loss()


class Keeper(nn.Module):
    """A network that keeps the loss that watches it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small()
        self.retention = Retention(self, blocks=["net.layer1", "net.layer2"])

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_inside_the_network_that_it_watches_is_answered_with_a_sentence(way: str) -> None:
    model = Keeper()
    twin = WAYS[way](model)
    twin(IMAGES[:16])
    with pytest.raises(InputError, match=r"copied inside the network that it watches.*make another"):
        twin.retention.loss()
    twin.retention = Retention(twin, blocks=["net.layer1", "net.layer2"])
    twin(IMAGES[:16])
    assert twin.retention.loss() > 0


def test_a_shallow_copy_is_refused() -> None:
    with pytest.raises(InputError, match=r"copy\.deepcopy"):
        copy.copy(Retention(small()))


def test_learned_factors_are_copied() -> None:
    model, teacher = small(), small(None)
    retention = Retention(model, "official", teacher=teacher)
    assert retention.factors is not None
    retention.factors.data.fill_(2.0)
    _, other = copy.deepcopy((model, retention))
    assert other.factors.tolist() == [2.0, 2.0, 2.0]
    assert other.factors is not retention.factors
    assert torch.equal(other.start, retention.start)
