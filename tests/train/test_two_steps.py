"""ReActNet's two training stages: first binary activations with real weights, then both binary, with a teacher."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from lcrbnn.deploy.export.export_model import ModelInput, export_model
from lcrbnn.errors import InputError
from lcrbnn.evaluation.analysis.cost import count_cost
from lcrbnn.nn.layers import BinaryConv2d
from lcrbnn.nn.methods.reactnet import ReactActivation
from lcrbnn.nn.model_hooks import iter_binary_layers
from lcrbnn.nn.models.blocks import RPReLU
from lcrbnn.train.objective import compute_task_loss
from lcrbnn.train.schedule import compute_learning_rate
from lcrbnn.train.setup.build import TrainingParts, build_training_parts
from lcrbnn.train.setup.build_network import build_network
from lcrbnn.train.setup.optimizers import WEIGHT_DECAY_GROUPS
from tests.train.helpers import SMALL, read_newest_arrays, train_small_run

CPU = torch.device("cpu")
FIRST = SMALL.replace(
    method="reactnet",
    bits="32/1",
    epochs=1,
    optimizer="adam",
    lr=1e-3,
    weight_decay_parameters="reactnet",
    weight_decay=1e-5,
)


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return train_small_run(tmp_path_factory.mktemp("steps") / "first", FIRST)


def test_the_first_stage_multiplies_signs_by_real_weights() -> None:
    layer = BinaryConv2d(3, 4, 3, padding=1, method=lcrbnn.get_method("reactnet", "32/1"))
    layer.input_binarizer.shift.data.normal_()
    x = torch.randn(2, 3, 5, 5)
    signs = torch.where(x + layer.input_binarizer.shift.reshape(-1, 1, 1) >= 0, 1.0, -1.0)
    y = layer(x)
    torch.testing.assert_close(y, F.conv2d(signs, layer.weight, padding=1))
    y.square().sum().backward()
    assert layer.weight.grad.abs().min() > 0  # neither clipped nor scaled
    assert layer.weight.min() < 0  # torch's initialization, not that of the second stage
    assert "reactnet 32/1" in repr(layer)
    with pytest.raises(
        InputError, match=r"^irnet has no bit width '32/1' \(weights/activations\); there are 1/1, 1/32$"
    ):
        lcrbnn.get_method("irnet", "32/1")


def test_the_first_stage_is_counted_as_mixed_and_not_exported() -> None:
    net = lcrbnn.create_model("react18", "reactnet", bits="32/1", image_size=32)
    cost = count_cost(net, (3, 32, 32))
    assert (cost.binary_weights, cost.binary_macs) == (0, 0)
    assert cost.mixed_macs == count_cost(lcrbnn.create_model("react18", "reactnet"), (3, 32, 32)).binary_macs
    with pytest.raises(InputError, match=r"layer1\.0\.conv1.*real \(32/1, the first of two training steps\)"):
        export_model(net.eval(), ModelInput((32, 32, 3), tuple(map(str, range(10)))), "first")


def test_the_second_stage_starts_from_the_first(first_run: Path) -> None:
    spec = FIRST.replace(bits="1/1", init_from=str(first_run), weight_decay=0.0)
    before, parts = read_newest_arrays(first_run), build_training_parts(spec, CPU)
    for name, tensor in parts.model.state_dict().items():
        assert np.array_equal(tensor.numpy(), before[f"model/{name}"]), name
    assert all(not layer.method.has_real_weights for _, layer in iter_binary_layers(parts.model))
    fresh = build_network(spec)
    partly = build_training_parts(spec.replace(init_parameters="non-latent"), CPU).model
    latent = {f"{name}.weight" for name, _ in iter_binary_layers(partly)}
    assert len(latent) == 6
    for name, tensor in partly.state_dict().items():
        expected = fresh.state_dict()[name].numpy() if name in latent else before[f"model/{name}"]
        assert np.array_equal(tensor.numpy(), expected), name


def test_the_second_stage_resumes_as_a_run_of_its_own(first_run: Path, tmp_path: Path) -> None:
    spec = FIRST.replace(bits="1/1", init_from=str(first_run), weight_decay=0.0, lcr_weight=1.0)  # and with LCR
    train_small_run(tmp_path / "second", spec)
    assert train_small_run(tmp_path / "second", spec, resume=True)
    moved = (
        read_newest_arrays(tmp_path / "second")["model/layer1.0.conv1.weight"]
        - read_newest_arrays(first_run)["model/layer1.0.conv1.weight"]
    )
    assert 0 < np.abs(moved).max() < 0.1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"init_from": "nowhere"}, "^init_from needs a finished run, and .*nowhere has no record.json$"),
        ({"model": "resnet20"}, "trains resnet8-double on digits, and this run trains resnet20 on digits$"),
        (
            {"method": "irnet", "bits": "1/1"},
            "belongs to another network: it lacks layer1.0.conv1.weight_binarizer.annealing.t; ",
        ),
    ],
)
def test_an_init_from_run_that_does_not_fit_is_rejected(
    first_run: Path, changes: dict[str, str], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        build_training_parts(FIRST.replace(**{"init_from": str(first_run), **changes}), CPU)


def test_convolution_weights_and_shifts_decay_in_the_first_stage() -> None:
    """The released code decays parameters with four axes or "conv" in their name; its learned shifts have four axes."""
    net = lcrbnn.create_model("react18", "reactnet")
    decaying = WEIGHT_DECAY_GROUPS["reactnet"](net)
    for module in net.modules():
        for name, p in module.named_parameters(recurse=False):
            shift = isinstance(module, ReactActivation) or (isinstance(module, RPReLU) and name in ("front", "back"))
            assert (p in decaying) == (isinstance(module, nn.Conv2d) or shift)


def test_the_learning_rate_is_zero_in_the_last_epoch() -> None:
    spec = SMALL.replace(epochs=4, lr=1.0, lr_schedule="linear-last-epoch-zero")
    assert [compute_learning_rate(spec, epoch, 0, 10) for epoch in range(4)] == [0.75, 0.5, 0.25, 0.0]


def test_the_distributional_loss_is_the_cross_entropy_with_the_teacher_outputs() -> None:
    """At alpha 1 and temperature 1 the loss only differs by the teacher's entropy, which is constant."""
    answers, logits = torch.randn(6, 10), torch.randn(6, 10, requires_grad=True)

    class Teacher(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return answers

    parts = TrainingParts(nn.Identity(), Teacher(), None, None, None, {})  # type: ignore[arg-type]  # all that is asked of it
    spec = SMALL.replace(teacher="somewhere", distillation_alpha=1.0)
    [gradient] = torch.autograd.grad(
        compute_task_loss(spec, parts, torch.empty(0), torch.zeros(6).long(), logits), logits
    )
    published = -(answers.softmax(1) * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(gradient, torch.autograd.grad(published, logits)[0])


def test_a_teacher_for_lcr_has_the_precision_of_the_network(tmp_path: Path) -> None:
    teacher = train_small_run(
        tmp_path / "teacher", SMALL.replace(method="real", lcr_weight=0.0, lcr_gradient_ratio=0.0, epochs=1)
    )
    spec = SMALL.replace(epochs=1, lcr_weight=1.0, teacher=str(teacher), lcr_options=("reference=teacher",))
    for precision in ("float64", "float32"):
        run = train_small_run(tmp_path / precision, spec.replace(precision=precision))
        assert (run / "record.json").exists()
