"""Copies of a network together with its `Retention`, with copy.deepcopy and pickle."""

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
from lcrbnn.nn.model_hooks import iter_binary_layers
from tests.lcr.helpers import IMAGES, count_hooks, make_small_model

COPY_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
}


@pytest.mark.parametrize("copy_method", COPY_FUNCTIONS)
@pytest.mark.parametrize("retention_first", [False, True])
@pytest.mark.parametrize("call_before", [False, True])
def test_model_and_retention_are_copied_together(copy_method: str, retention_first: bool, call_before: bool) -> None:
    model = make_small_model()
    retention = Retention(model, lcr_weight=10.0)
    if call_before:  # captured maps are not copied
        model(IMAGES[:16])
    pair = COPY_FUNCTIONS[copy_method]((retention, model) if retention_first else (model, retention))
    model_copy, retention_copy = reversed(pair) if retention_first else pair
    assert retention_copy.model is model_copy
    model_copy(IMAGES[:16])
    model(IMAGES[:16])
    copied_loss, original_loss = retention_copy.loss(), retention.loss()
    torch.testing.assert_close(copied_loss, original_loss)
    copied_loss.backward()
    assert all(p.grad is None for p in model.parameters())
    assert any(p.grad is not None for p in model_copy.parameters())
    marks = {layer.capture_marks for _, layer in iter_binary_layers(model_copy)}
    assert marks == {layer.capture_marks for _, layer in iter_binary_layers(model)}
    assert count_hooks(model_copy) == count_hooks(model)
    retention_copy.close()
    assert count_hooks(model_copy) == 0
    assert {layer.capture_marks for _, layer in iter_binary_layers(model_copy)} == {""}
    model(IMAGES[:16])
    torch.testing.assert_close(retention.loss(), original_loss)  # the copy had no effect on the original


@pytest.mark.parametrize("copy_method", COPY_FUNCTIONS)
def test_teacher_is_copied_with_the_retention(copy_method: str) -> None:
    model, teacher = make_small_model(), make_small_model(None)
    retention = Retention(model, "official", teacher=teacher)
    model_copy, retention_copy = COPY_FUNCTIONS[copy_method]((model, retention))
    model(IMAGES[:16])
    model_copy(IMAGES[:16])
    torch.testing.assert_close(retention_copy.loss(), retention.loss())
    retention_copy.close()
    model(IMAGES[:16])
    assert torch.isfinite(retention.loss())


def test_retention_copied_alone_has_its_hooks_on_its_own_model() -> None:
    model = make_small_model()
    retention = Retention(model)
    model(IMAGES[:16])
    retention_copy = copy.deepcopy(retention)
    model(IMAGES[:16])
    with pytest.raises(InputError, match=r"is a copy.*hooks are on a copy of the network.*copy both together"):
        retention_copy.loss()
    retention_copy.model(IMAGES[:16])
    assert retention_copy.loss() > 0
    assert retention.loss() > 0


def test_two_retentions_of_one_model_can_be_copied_twice() -> None:
    model = make_small_model()
    retentions = Retention(model), Retention(model, "paper")
    for _ in range(2):
        model, retentions = copy.deepcopy((model, retentions))
    model(IMAGES[:16])
    assert all(retention.loss() > 0 for retention in retentions)
    for retention in retentions:
        retention.close()
    assert count_hooks(model) == 0
    assert {layer.capture_marks for _, layer in iter_binary_layers(model)} == {""}


def test_copies_of_retentions_without_hooks_have_no_hooks() -> None:
    model = make_small_model()
    closed = Retention(model)
    closed.close()
    model_copy, closed_copy, copy_without_hooks = copy.deepcopy((model, closed, Retention(model, lcr_weight=0.0)))
    assert count_hooks(model_copy) == 0
    assert copy_without_hooks.loss() == 0
    copy_without_hooks.close()
    assert copy_without_hooks.loss() == 0
    with pytest.raises(InputError, match="this Retention is closed"):
        closed_copy.loss()


class ModelWithRetention(nn.Module):
    """A network with its own Retention as a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_small_model()
        self.retention = Retention(self, blocks=["net.layer1", "net.layer2"])

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@pytest.mark.parametrize("copy_method", COPY_FUNCTIONS)
def test_retention_copied_as_submodule_of_its_model_is_rejected(copy_method: str) -> None:
    model = ModelWithRetention()
    model_copy = COPY_FUNCTIONS[copy_method](model)
    model_copy(IMAGES[:16])
    with pytest.raises(InputError, match=r"copied as a part of its own network.*create another one"):
        model_copy.retention.loss()
    model_copy.retention = Retention(model_copy, blocks=["net.layer1", "net.layer2"])
    model_copy(IMAGES[:16])
    assert model_copy.retention.loss() > 0


def test_shallow_copy_is_rejected() -> None:
    with pytest.raises(InputError, match=r"copy\.deepcopy"):
        copy.copy(Retention(make_small_model()))


def test_learned_factors_are_copied() -> None:
    model, teacher = make_small_model(), make_small_model(None)
    retention = Retention(model, "official", teacher=teacher)
    assert retention.factors is not None
    retention.factors.data.fill_(2.0)
    _, retention_copy = copy.deepcopy((model, retention))
    assert retention_copy.factors.tolist() == [2.0, 2.0, 2.0]
    assert retention_copy.factors is not retention.factors
    assert torch.equal(retention_copy.start_vector, retention.start_vector)
