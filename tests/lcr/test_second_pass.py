"""The forward pass of the reference: same random numbers, no change of the model, dtype of the teacher."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lcrbnn
from lcrbnn import Retention
from lcrbnn.lcr.second_pass import freeze_running_statistics
from tests.lcr.helpers import IMAGES, make_small_model


class ModelWithDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.drop = nn.Conv2d(3, 8, 3, padding=1), nn.Dropout(0.5)
        self.b = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.fc = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.b(self.drop(self.a(x))).mean((2, 3)))


def make_model_with_dropout() -> ModelWithDropout:
    """Return a model whose latent weights equal their signs, so that both passes with one dropout mask are equal."""
    torch.manual_seed(0)
    model = ModelWithDropout()
    lcrbnn.binarize(model, "bnn", bits="1/32", skip=["a", "fc"])
    model.b.weight.data = model.b.weight.data.sign()
    return model


X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_latent_weights_pass_uses_the_same_dropout_mask() -> None:
    model = make_model_with_dropout()
    retention = Retention(model, reference="latent-weights", blocks=["b"])
    for _ in range(2):
        model(X)
        torch.rand(7)  # other code draws between the forward pass and the loss
        retention.loss()
        assert retention.sigma_ratios is not None
        assert retention.sigma_ratios.tolist() == [1.0]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_second_pass_restores_the_rng_state(compiled: bool) -> None:
    torch._dynamo.reset()
    model = make_model_with_dropout()
    called: Any = torch.compile(model, backend="aot_eager") if compiled else model
    retention = Retention(called, reference="latent-weights", blocks=["b"])
    called(X)
    before = torch.get_rng_state()
    retention.loss()
    assert torch.equal(torch.get_rng_state(), before)


def test_failed_second_pass_restores_the_rng_state() -> None:
    model = make_model_with_dropout()
    retention = Retention(model, reference="latent-weights", blocks=["b"])
    model(X)
    model.fc.register_forward_pre_hook(lambda *_: 1 / 0)
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        retention.loss()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "norm",
    [
        nn.InstanceNorm2d(8, track_running_stats=True),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True, momentum=0.3),
        nn.BatchNorm2d(8),
    ],
    ids=["instance", "affine", "batch"],
)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_running_statistics_are_updated_once_per_step(norm: nn.Module, compiled: bool) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 2)).train()
    lcrbnn.binarize(model, "bnn")
    model_copy = copy.deepcopy(model)
    retention = Retention(model, reference="latent-weights", blocks=["2"])

    def step(x: Tensor) -> Tensor:
        model(x)
        return retention.loss()

    (torch.compile(step, fullgraph=True, backend="aot_eager") if compiled else step)(X)
    model_copy(X)
    assert norm.track_running_stats
    for statistic, expected in zip(norm.buffers(), model_copy[1].buffers(), strict=True):
        torch.testing.assert_close(statistic, expected)


def test_frozen_instance_norm_keeps_its_statistics() -> None:
    norm = nn.InstanceNorm2d(3, track_running_stats=True)
    mean = norm.running_mean
    plain = norm(X)
    before = {k: v.clone() for k, v in norm.state_dict().items()}
    with freeze_running_statistics(norm):
        torch.testing.assert_close(norm(X), plain)
        norm(torch.full_like(X, float("nan")))
    assert norm.running_mean is mean
    assert all(torch.equal(v, norm.state_dict()[k]) for k, v in before.items())


@pytest.mark.parametrize(
    ("model_dtype", "teacher_dtype"), [(torch.float16, torch.float32), (torch.float32, torch.float64)]
)
def test_teacher_gets_the_images_in_its_own_dtype(model_dtype: torch.dtype, teacher_dtype: torch.dtype) -> None:
    model, teacher = make_small_model().to(model_dtype), make_small_model(None).to(teacher_dtype)
    retention = Retention(model, reference="teacher", teacher=teacher)
    model(IMAGES[:16].to(model_dtype))
    loss = retention.loss()
    assert torch.isfinite(loss)
    loss.backward()
    assert model.get_submodule("layer1.0.conv1").weight.grad is not None
