"""Mistakes in the use of `Retention` raise an InputError. Unusual uses work."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lcrbnn
from lcrbnn import Retention
from lcrbnn.errors import InputError
from lcrbnn.lcr.capture import FeatureMapCapture, ModulePort
from lcrbnn.nn import functional as ops
from tests.lcr.helpers import IMAGES, count_hooks, make_small_model
from tests.lcr.user_network import BLOCKS, UserNetwork


# ---------------------------------------------------------------------------------------------------------------
# Mistakes.
class TupleModule(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class ModelWithTuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.used, self.unused = TupleModule(), nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.used(self.inner(x)[0])


class ModelWithInplaceRelu(nn.Module):
    """A ReLU that overwrites its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act = nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.first(x))


def make_closed_retention() -> Retention:
    retention = Retention(make_small_model())
    retention.close()
    return retention


def compute_loss_of_random_images(model: nn.Module, **settings: Any) -> Tensor:
    retention = Retention(model, **settings)
    model(torch.randn(2, 1, 8, 8))
    return retention.loss()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Retention("net"), "Retention takes a torch.nn.Module; got str"),
        (
            lambda: Retention(make_small_model(), "offical"),
            "no variant of the LCR loss is called 'offical'.*official",
        ),
        (
            lambda: Retention(make_small_model(), blocks=["layer9"]),
            "no module of Network is called 'layer9'; the closest are layer",
        ),
        (
            lambda: Retention(make_small_model(), blocks="layer1"),
            "blocks must be a list of names; got 'layer1'",
        ),
        (lambda: Retention(make_small_model(), blocks=[]), "Retention needs at least one block"),
        (lambda: Retention(make_small_model(), layers=["layer1"]), "Retention needs at least two layers"),
        (
            lambda: Retention(make_small_model(), blocks=["layer1"], layers=["layer1", "layer2"]),
            "Retention takes blocks or layers; got both",
        ),
        (lambda: Retention(UserNetwork()), "UserNetwork is not a network of this package: name its blocks"),
        (
            lambda: Retention(make_small_model(), wieght=1.0),
            "no argument of Retention is called 'wieght'.*lcr_weight",
        ),
        (
            lambda: Retention(make_small_model(), activations="real"),
            "with activations='real' the loss would be exactly 0",
        ),
        (
            lambda: Retention(UserNetwork(), blocks=BLOCKS, reference="latent-weights"),
            "needs binary layers of this package, but the network has none",
        ),
        (
            lambda: Retention(UserNetwork(), blocks=BLOCKS, quantization_error_weight=1.0),
            "needs binary layers of this package",
        ),
        (
            lambda: Retention(make_small_model(), "official"),
            "reference 'teacher' needs the argument teacher, a full-precision network",
        ),
        (lambda: Retention(make_small_model(), teacher_blocks=["x"]), "teacher_blocks needs a teacher"),
        (
            lambda: Retention(make_small_model(), blocks=["layer9"], lcr_weight=0.0),
            "no module of Network is called 'layer9'",
        ),
        (lambda: Retention(make_small_model(), blocks=5), "blocks must be a list of names; got 5"),
        (
            lambda: Retention(m := make_small_model(), reference="teacher", teacher=m),
            "the teacher must be another network than the model",
        ),
        (
            lambda: Retention(
                make_small_model(),
                layers=["layer1.0", "pool"],
                reference="teacher",
                teacher=make_small_model(None),
                teacher_blocks=["x"],
            ),
            "teacher_blocks needs a teacher and cannot be combined with layers",
        ),
        (lambda: Retention(nn.DataParallel(make_small_model())), "use DistributedDataParallel"),
        (
            lambda: Retention(make_small_model()).loss(-1.0),
            "the lcr_weight of loss.. must be a number of at least 0; got -1.0",
        ),
        (
            lambda: Retention(make_small_model(), learnable_scale="yes"),
            "learnable_scale must be True or False; got 'yes'",
        ),
        (lambda: make_closed_retention().loss(), "this Retention is closed"),
        (
            lambda: compute_loss_of_random_images(ModelWithInplaceRelu(), blocks=["first"]),
            "the feature map at 'first' was changed in place",
        ),
        (
            lambda: Retention(make_small_model(), teacher=make_small_model(None)),
            "the argument teacher needs reference='teacher'; the reference is 'pre-binarization'",
        ),
        (lambda: Retention(make_small_model(), seed=-1), "seed must be a whole number of at least 0"),
        (lambda: Retention(make_small_model()).loss(), "no feature maps to compare: call the model before each loss"),
        (
            lambda: compute_loss_of_random_images(ModelWithTuple(), blocks=["inner"]),
            "Retention needs a tensor at 'inner', which returns tuple",
        ),
        (
            lambda: compute_loss_of_random_images(ModelWithTuple(), blocks=["used", "unused"]),
            "no feature map at 'unused': that module was not called",
        ),
        (lambda: Retention(make_small_model(), lcr_weight=0.0).loss(1.0), "created with lcr_weight 0 and has no hooks"),
        (lambda: Retention(make_small_model(), lcr_weight=-1), "lcr_weight must be a number of at least 0; got -1"),
        (lambda: Retention(make_small_model(), weight=1.0), "no argument 'weight'; it is called 'lcr_weight' now"),
        (lambda: Retention(make_small_model(), form="paper"), "no argument 'form'; it is called 'variant' now"),
    ],
)
def test_mistake_raises_an_input_error(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call()


def test_second_loss_of_one_forward_pass_is_rejected() -> None:
    model = make_small_model()
    retention = Retention(model)
    model(IMAGES[:4])
    retention.loss()
    with pytest.raises(InputError, match="call the model before each loss"):
        retention.loss()


@pytest.mark.parametrize(
    "settings",
    [
        {"blocks": ["layer1.0", "nope"]},
        {"reference": "teacher"},
        {"blocks": ["nope"], "reference": "teacher", "teacher_blocks": ["flat"]},
    ],
)
def test_failed_construction_leaves_no_hooks(settings: dict[str, Any]) -> None:
    model, teacher = make_small_model(), UserNetwork()
    if "reference" in settings:
        settings = {**settings, "teacher": teacher}
    with pytest.raises(InputError):
        Retention(model, **settings)
    assert count_hooks(model) == count_hooks(teacher) == 0


# ---------------------------------------------------------------------------------------------------------------
# Unusual uses.
def test_forward_pass_of_a_model_copy_is_not_captured() -> None:
    model = make_small_model()
    retention = Retention(model, matrix="cross-gram")  # this matrix uses the maps before and after a block
    model(IMAGES[:16])
    expected = retention.loss()
    model(IMAGES[:16])
    average = copy.deepcopy(model)  # like a running average of the weights
    with torch.no_grad():
        average(IMAGES[16:32])
    assert torch.equal(retention.loss(), expected)


def test_two_retentions_on_one_model_are_independent() -> None:
    model = make_small_model()
    first = Retention(model)
    model(IMAGES[:16])
    expected = first.loss()
    second = Retention(model, reference="latent-weights")
    model(IMAGES[:16])
    second.loss()
    loss = first.loss()
    assert loss.requires_grad
    assert torch.equal(loss, expected)


class ModelThatCallsABlockTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = lcrbnn.BinaryConv2d(4, 4, 3, padding=1, method="bnn")

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.block(x) - 1)


def test_latest_call_of_a_block_is_captured() -> None:
    model = ModelThatCallsABlockTwice()
    capture = FeatureMapCapture(model, [ModulePort("block", "in")], capture_binary=True)
    model(torch.randn(2, 4, 5, 5))
    maps, port = capture.take_maps(), ModulePort("block", "in")
    assert torch.equal(maps.binary[port].signs, ops.sign(maps.real[port]))


def test_first_tensor_among_keyword_inputs_is_captured() -> None:
    class Keyed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Loud()

        def forward(self, image: Tensor) -> Tensor:
            return self.inner(loud=True, image=image)

    class Loud(nn.Module):
        def forward(self, loud: bool, image: Tensor) -> Tensor:
            return image + loud

    model = Keyed()
    capture = FeatureMapCapture(model, [ModulePort("inner", "in")], capture_binary=False)
    image = torch.randn(2, 3)
    model(image=image)
    assert capture.take_maps().real[ModulePort("inner", "in")] is image


def test_submodule_of_teacher_in_training_mode_is_set_to_evaluation_mode() -> None:
    model, teacher = make_small_model(), make_small_model(None)
    retention = Retention(model, reference="teacher", teacher=teacher)
    teacher.layer1.train()
    before = copy.deepcopy(teacher.state_dict())
    model(IMAGES[:16])
    retention.loss()
    assert all(torch.equal(v, teacher.state_dict()[k]) for k, v in before.items())


def test_quantization_error_works_with_lcr_weight_0() -> None:
    model = make_small_model("bnn")
    loss = Retention(model, lcr_weight=0.0, quantization_error_weight=0.5).loss()
    assert loss > 0
    loss.backward()
    assert model.get_submodule("layer1.0.conv1").weight.grad is not None


def test_nan_in_reference_gives_a_non_finite_loss() -> None:
    model = make_small_model()
    retention = Retention(model)
    model.stem[0].weight.data.fill_(float("nan"))
    model(IMAGES[:16])
    assert not torch.isfinite(retention.loss())


def test_seed_changes_the_start_vector() -> None:
    assert not torch.equal(
        Retention(make_small_model(), seed=0).start_vector, Retention(make_small_model(), seed=1).start_vector
    )


# ---------------------------------------------------------------------------------------------------------------
# Forward passes without gradients, copies, token sequences.
class CheckpointedModel(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.net, self.reentrant = lcrbnn.binarize(UserNetwork(nn.Conv2d), "irnet"), reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.net.begin(x)
        for name in BLOCKS:
            part = self.net.get_submodule(name)
            x = part(x) if self.reentrant is None else checkpoint(part, x, use_reentrant=self.reentrant)
        return self.net.end(x.mean((2, 3)))


def compute_checkpointed_gradients(reentrant: bool | None) -> list[Tensor]:
    torch.manual_seed(0)
    model = CheckpointedModel(reentrant)
    retention = Retention(model, blocks=[f"net.{name}" for name in BLOCKS], lcr_weight=10.0)
    model(torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(1)))
    retention.loss().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_checkpointing_keeps_gradients_or_is_rejected() -> None:
    expected_gradients = compute_checkpointed_gradients(None)
    assert len(expected_gradients) > 2
    for got, want in zip(compute_checkpointed_gradients(False), expected_gradients, strict=True):
        torch.testing.assert_close(got, want)
    with pytest.raises(InputError, match=r"has no gradient, although 'net\..*' is trained: .*use_reentrant=True"):
        compute_checkpointed_gradients(True)


def test_forward_pass_without_gradients_is_rejected_in_training_mode_only() -> None:
    model = make_small_model()
    retention = Retention(model)
    model(IMAGES)
    with torch.no_grad():
        model.eval()(IMAGES)
    assert not retention.loss().requires_grad  # a measurement of sigma ratios
    model.train()
    assert retention.loss().requires_grad  # of the first pass
    model.eval()
    with torch.no_grad():
        model(IMAGES)
    model.train()
    with pytest.raises(InputError, match="the latest forward pass ran under no_grad"):
        retention.loss()
    model.requires_grad_(False)
    model(IMAGES)
    retention.loss()  # no parameter is trained


def test_hooked_model_and_its_copies_can_be_saved() -> None:
    model = make_small_model()
    retention = Retention(model)
    model_copy = copy.deepcopy(model)
    average = torch.optim.swa_utils.AveragedModel(model)
    for saved_model in (model, model_copy, average):
        file = io.BytesIO()
        torch.save(saved_model, file)
        file.seek(0)
        loaded_model = torch.load(file, weights_only=False)
        torch.testing.assert_close(loaded_model.eval()(IMAGES), saved_model.eval()(IMAGES))
    model.train()(IMAGES)
    model_copy(IMAGES)
    assert retention.loss() > 0
    retention.close()
    assert count_hooks(model) == 0


@pytest.mark.parametrize("form", ["default", "paper"])
def test_maps_of_one_shape_are_compared_without_pooling(form: str) -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = (lcrbnn.BinaryLinear(32, 32, method="irnet") for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x + self.second(x + self.first(x)))

    model = Tokens()
    retention = Retention(model, form, layers=["first", "second", "head"], lcr_weight=1.0)
    model(torch.randn(8, 5, 32))
    loss = retention.loss()
    loss.backward()
    assert loss > 0
    assert model.first.weight.grad.abs().sum() > 0


def test_second_derivative_is_rejected() -> None:
    model = make_small_model()
    retention = Retention(model, lcr_weight=10.0)
    model(IMAGES)
    with pytest.raises(InputError, match="the LCR loss has no second derivative"):
        torch.autograd.grad(retention.loss(), [model.layer1[0].conv1.weight], create_graph=True)
