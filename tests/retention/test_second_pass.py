"""The pass that makes the reference maps: the same draws, no trace in the network, the teacher's own type."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lcrbnn
from lcrbnn import Retention
from lcrbnn.retention.frozen import frozen_statistics
from tests.retention.helpers import IMAGES, small


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.drop = nn.Conv2d(3, 8, 3, padding=1), nn.Dropout(0.5)
        self.b = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.fc = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.b(self.drop(self.a(x))).mean((2, 3)))


def dropped() -> Dropped:
    """A network whose latent weights are signs already: with the same draws both passes have the same maps."""
    torch.manual_seed(0)
    model = Dropped()
    lcrbnn.binarize(model, "bnn", bits="1/32", skip=["a", "fc"])
    model.b.weight.data = model.b.weight.data.sign()
    return model


X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_the_weights_reference_is_read_under_the_same_dropout_mask() -> None:
    model = dropped()
    retention = Retention(model, reference="weights", blocks=["b"])
    for _ in range(2):
        model(X)
        torch.rand(7)  # somebody draws between the pass and the loss
        retention.loss()
        assert retention.ratios is not None
        assert retention.ratios.tolist() == [1.0]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_the_second_pass_leaves_the_generator_where_it_was(compiled: bool) -> None:
    torch._dynamo.reset()
    model = dropped()
    called: Any = torch.compile(model, backend="aot_eager") if compiled else model
    retention = Retention(called, reference="weights", blocks=["b"])
    called(X)
    before = torch.get_rng_state()
    retention.loss()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_second_pass_that_fails_leaves_the_generator_where_it_was() -> None:
    model = dropped()
    retention = Retention(model, reference="weights", blocks=["b"])
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
def test_running_statistics_move_once_a_step(norm: nn.Module, compiled: bool) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 2)).train()
    lcrbnn.binarize(model, "bnn")
    twin = copy.deepcopy(model)
    retention = Retention(model, reference="weights", blocks=["2"])

    def step(x: Tensor) -> Tensor:
        model(x)
        return retention.loss()

    (torch.compile(step, fullgraph=True, backend="aot_eager") if compiled else step)(X)
    twin(X)
    assert norm.track_running_stats
    for now, once in zip(norm.buffers(), twin[1].buffers(), strict=True):
        torch.testing.assert_close(now, once)


def test_frozen_instance_norms_are_given_back_as_they_were() -> None:
    norm = nn.InstanceNorm2d(3, track_running_stats=True)
    mean = norm.running_mean
    plain = norm(X)
    before = {k: v.clone() for k, v in norm.state_dict().items()}
    with frozen_statistics(norm):
        torch.testing.assert_close(norm(X), plain)
        norm(torch.full_like(X, float("nan")))
    assert norm.running_mean is mean
    assert all(torch.equal(v, norm.state_dict()[k]) for k, v in before.items())


@pytest.mark.parametrize(("ours", "theirs"), [(torch.float16, torch.float32), (torch.float32, torch.float64)])
def test_a_teacher_of_another_type_sees_the_images_in_its_own(ours: torch.dtype, theirs: torch.dtype) -> None:
    model, teacher = small().to(ours), small(None).to(theirs)
    retention = Retention(model, reference="teacher", teacher=teacher)
    model(IMAGES[:16].to(ours))
    loss = retention.loss()
    assert torch.isfinite(loss)
    loss.backward()
    assert model.get_submodule("layer1.0.conv1").weight.grad is not None
