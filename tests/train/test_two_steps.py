"""ReActNet's training: binary activations under real weights first, then both, taught by a full-precision network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from lcrbnn.analyze.cost import count
from lcrbnn.errors import InputError
from lcrbnn.export import Input, export_model
from lcrbnn.layers import BinaryConv2d, binary_layers
from lcrbnn.methods.reactnet import ReactActivation
from lcrbnn.models.blocks import RPReLU
from lcrbnn.train.build import DECAYING, Parts, build, build_network
from lcrbnn.train.objective import task_loss
from lcrbnn.train.schedule import learning_rate
from tests.train.helpers import SMALL, arrays, small_run

CPU = torch.device("cpu")
FIRST = SMALL.but(
    method="reactnet", bits="32/1", epochs=1, optimizer="adam", lr=1e-3, decay="reactnet", weight_decay=1e-5
)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return small_run(tmp_path_factory.mktemp("steps") / "first", FIRST)


def test_the_first_step_multiplies_signs_by_real_weights() -> None:
    layer = BinaryConv2d(3, 4, 3, padding=1, method=lcrbnn.method("reactnet", "32/1"))
    layer.input_binarizer.shift.data.normal_()
    x = torch.randn(2, 3, 5, 5)
    signs = torch.where(x + layer.input_binarizer.shift.reshape(-1, 1, 1) >= 0, 1.0, -1.0)
    y = layer(x)
    torch.testing.assert_close(y, F.conv2d(signs, layer.weight, padding=1))
    y.square().sum().backward()
    assert layer.weight.grad.abs().min() > 0  # no clip, no scale
    assert layer.weight.min() < 0  # torch's start, not the second step's
    assert "reactnet 32/1" in repr(layer)
    with pytest.raises(
        InputError, match=r"^irnet has no bit width '32/1' \(weights/activations\); there are 1/1, 1/32$"
    ):
        lcrbnn.method("irnet", "32/1")


def test_the_first_step_costs_what_it_is_and_is_not_exported() -> None:
    net = lcrbnn.network("react18", "reactnet", bits="32/1", image=32)
    cost = count(net, (3, 32, 32))
    assert (cost.binary_weights, cost.binary_macs) == (0, 0)
    assert cost.mixed_macs == count(lcrbnn.network("react18", "reactnet"), (3, 32, 32)).binary_macs
    with pytest.raises(InputError, match=r"layer1\.0\.conv1.*real \(32/1, the first of two steps\)"):
        export_model(net.eval(), Input((32, 32, 3), tuple(map(str, range(10)))), "first")


def test_the_second_step_starts_from_the_first(first: Path) -> None:
    spec = FIRST.but(bits="1/1", start=str(first), weight_decay=0.0)
    before, parts = arrays(first), build(spec, CPU)
    for name, tensor in parts.model.state_dict().items():
        assert np.array_equal(tensor.numpy(), before[f"model/{name}"]), name
    assert all(not layer.method.real_weights for _, layer in binary_layers(parts.model))
    fresh = build_network(spec)
    partly = build(spec.but(start_with="real"), CPU).model
    latent = {f"{name}.weight" for name, _ in binary_layers(partly)}
    assert len(latent) == 6
    for name, tensor in partly.state_dict().items():
        wanted = fresh.state_dict()[name].numpy() if name in latent else before[f"model/{name}"]
        assert np.array_equal(tensor.numpy(), wanted), name


def test_the_second_step_resumes_and_is_its_own_run(first: Path, tmp_path: Path) -> None:
    spec = FIRST.but(bits="1/1", start=str(first), weight_decay=0.0, weight=1.0)  # with retention on top
    small_run(tmp_path / "second", spec)
    assert small_run(tmp_path / "second", spec, resume=True)
    moved = arrays(tmp_path / "second")["model/layer1.0.conv1.weight"] - arrays(first)["model/layer1.0.conv1.weight"]
    assert 0 < np.abs(moved).max() < 0.1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"start": "nowhere"}, "^a run starts from a finished one, and .*nowhere has no record.json$"),
        ({"model": "resnet20"}, "is of resnet8-double on digits, this one of resnet20 on digits$"),
        (
            {"method": "irnet", "bits": "1/1"},
            "is of another network: it lacks layer1.0.conv1.weight_binarizer.annealing.t; ",
        ),
    ],
)
def test_a_start_that_does_not_fit_is_refused(first: Path, changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build(FIRST.but(**{"start": str(first), **changes}), CPU)


def test_weights_of_convolutions_and_shifts_decay_in_the_first_step() -> None:
    """The released code decays what has four axes, or "conv" in its name: its learned shifts have four axes."""
    net = lcrbnn.network("react18", "reactnet")
    decaying = DECAYING["reactnet"](net)
    for module in net.modules():
        for name, p in module.named_parameters(recurse=False):
            shift = isinstance(module, ReactActivation) or (isinstance(module, RPReLU) and name in ("front", "back"))
            assert (p in decaying) == (isinstance(module, nn.Conv2d) or shift)


def test_the_learning_rate_falls_an_epoch_ahead() -> None:
    spec = SMALL.but(epochs=4, lr=1.0, schedule="linear-ahead")
    assert [learning_rate(spec, epoch, 0, 10) for epoch in range(4)] == [0.75, 0.5, 0.25, 0.0]


def test_the_distributional_loss_is_the_cross_entropy_with_the_teachers_answers() -> None:
    """Of distill 1 and temperature 1; the value lacks the teacher's entropy, which no weight can change."""
    answers, logits = torch.randn(6, 10), torch.randn(6, 10, requires_grad=True)

    class Teacher(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return answers

    parts = Parts(nn.Identity(), Teacher(), None, None, None, {})  # type: ignore[arg-type]  # all that is asked of it
    spec = SMALL.but(teacher="somewhere", distill=1.0)
    [mine] = torch.autograd.grad(task_loss(spec, parts, torch.empty(0), torch.zeros(6).long(), logits), logits)
    published = -(answers.softmax(1) * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(mine, torch.autograd.grad(published, logits)[0])


def test_a_teacher_whose_maps_are_compared_is_as_precise_as_the_network(tmp_path: Path) -> None:
    teacher = small_run(tmp_path / "teacher", SMALL.but(method="real", weight=0.0, share=0.0, epochs=1))
    spec = SMALL.but(epochs=1, weight=1.0, teacher=str(teacher), form_options=("reference=teacher",))
    for precision in ("float64", "float32"):
        made = small_run(tmp_path / precision, spec.but(precision=precision))
        assert (made / "record.json").exists()
