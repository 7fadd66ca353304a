"""Mistakes and habits of users: each is answered with a sentence, or does no harm."""

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
from lcrbnn import Retention, ops
from lcrbnn.errors import InputError
from lcrbnn.retention.capture import Capture, Point
from tests.retention.foreign import BLOCKS, Foreign
from tests.retention.helpers import IMAGES, hooks, small


# ---------------------------------------------------------------------------------------------------------------
# Mistakes.
class Pairs(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.used, self.unused = Pairs(), nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.used(self.inner(x)[0])


class Inplace(nn.Module):
    """A pre-activation that overwrites the map before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act = nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.first(x))


def closed() -> Retention:
    retention = Retention(small())
    retention.close()
    return retention


def call_then_loss(model: nn.Module, **settings: Any) -> Tensor:
    retention = Retention(model, **settings)
    model(torch.randn(2, 1, 8, 8))
    return retention.loss()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Retention("net"), "Retention takes a torch.nn.Module; got str"),
        (
            lambda: Retention(small(), "offical"),
            "no preset of the retention loss is called 'offical'.*did you mean 'official'",
        ),
        (lambda: Retention(small(), blocks=["layer9"]), "no module of Network is called 'layer9'; there are"),
        (
            lambda: Retention(small(), blocks="layer1"),
            "blocks is a list of names; got 'layer1'",
        ),
        (lambda: Retention(small(), blocks=[]), "retention needs at least one block"),
        (lambda: Retention(small(), layers=["layer1"]), "retention needs at least two layers"),
        (lambda: Retention(small(), blocks=["layer1"], layers=["layer1", "layer2"]), "name blocks or layers, not both"),
        (lambda: Retention(Foreign()), "Foreign is not a network of this package: name its blocks"),
        (
            lambda: Retention(small(), wieght=1.0),
            "no setting of the retention loss is called 'wieght'.*did you mean 'weight'",
        ),
        (lambda: Retention(small(), maps="real"), "with maps 'real' the loss is exactly 0"),
        (lambda: Retention(Foreign(), blocks=BLOCKS, reference="weights"), "it has no binary layer of this package"),
        (lambda: Retention(Foreign(), blocks=BLOCKS, quantization=1.0), "needs binary layers of this package"),
        (lambda: Retention(small(), "official"), "reference 'teacher' needs a teacher, a full-precision network"),
        (lambda: Retention(small(), teacher_blocks=["x"]), "teacher_blocks go with a teacher"),
        (lambda: Retention(small(), blocks=["layer9"], weight=0.0), "no module of Network is called 'layer9'"),
        (lambda: Retention(small(), blocks=5), "blocks is a list of names; got 5"),
        (lambda: Retention(m := small(), reference="teacher", teacher=m), "the teacher is the model itself"),
        (
            lambda: Retention(
                small(), layers=["layer1.0", "pool"], reference="teacher", teacher=small(None), teacher_blocks=["x"]
            ),
            "teacher_blocks go with a teacher and with blocks",
        ),
        (lambda: Retention(nn.DataParallel(small())), "use DistributedDataParallel"),
        (lambda: Retention(small()).loss(-1.0), "weight given to loss.. must be a number of at least 0; got -1.0"),
        (lambda: Retention(small(), scale="yes"), "scale is True or False; got 'yes'"),
        (lambda: closed().loss(), "this Retention is closed"),
        (lambda: call_then_loss(Inplace(), blocks=["first"]), "the map at 'first' was changed in place"),
        (lambda: Retention(small(), teacher=small(None)), "a teacher is given, and the form's reference is 'latent'"),
        (lambda: Retention(small(), seed=-1), "seed must be a whole number of at least 0"),
        (lambda: Retention(small()).loss(), "no maps to compare: call the model before each loss"),
        (lambda: call_then_loss(Two(), blocks=["inner"]), "retention needs a tensor at 'inner', which returns tuple"),
        (
            lambda: call_then_loss(Two(), blocks=["used", "unused"]),
            "no map at 'unused': that module was not called",
        ),
        (lambda: Retention(small(), weight=0.0).loss(1.0), "made with weight 0 and hooks nothing"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call()


def test_a_second_loss_of_the_same_pass_is_refused() -> None:
    model = small()
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
def test_a_failed_construction_leaves_no_hook(settings: dict[str, Any]) -> None:
    model, teacher = small(), Foreign()
    if "reference" in settings:
        settings = {**settings, "teacher": teacher}
    with pytest.raises(InputError):
        Retention(model, **settings)
    assert hooks(model) == hooks(teacher) == 0


# ---------------------------------------------------------------------------------------------------------------
# Other people's habits.
def test_a_pass_of_a_copy_does_not_reach_the_originals_maps() -> None:
    model = small()
    retention = Retention(model, matrix="batch")  # the form that reads both ends of a block
    model(IMAGES[:16])
    expected = retention.loss()
    model(IMAGES[:16])
    average = copy.deepcopy(model)  # as a running average of the weights does
    with torch.no_grad():
        average(IMAGES[16:32])
    assert torch.equal(retention.loss(), expected)


def test_two_of_them_on_one_model_do_not_disturb_each_other() -> None:
    model = small()
    alone = Retention(model)
    model(IMAGES[:16])
    expected = alone.loss()
    other = Retention(model, reference="weights")
    model(IMAGES[:16])
    other.loss()
    loss = alone.loss()
    assert loss.requires_grad
    assert torch.equal(loss, expected)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = lcrbnn.BinaryConv2d(4, 4, 3, padding=1, method="bnn")

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.block(x) - 1)


def test_a_block_that_is_called_twice_keeps_its_latest_call_whole() -> None:
    model = Twice()
    capture = Capture(model, [Point("block", "in")], signs=True)
    model(torch.randn(2, 4, 5, 5))
    maps, point = capture.take(), Point("block", "in")
    assert torch.equal(maps.binary[point].signs, ops.sign(maps.real[point]))


def test_a_model_that_takes_keywords_is_read_at_its_first_tensor() -> None:
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
    capture = Capture(model, [Point("inner", "in")], signs=False)
    image = torch.randn(2, 3)
    model(image=image)
    assert capture.take().real[Point("inner", "in")] is image


def test_a_part_of_the_teacher_left_in_training_mode_is_put_right() -> None:
    model, teacher = small(), small(None)
    retention = Retention(model, reference="teacher", teacher=teacher)
    teacher.layer1.train()
    before = copy.deepcopy(teacher.state_dict())
    model(IMAGES[:16])
    retention.loss()
    assert all(torch.equal(v, teacher.state_dict()[k]) for k, v in before.items())


def test_the_quantisation_error_stands_without_retention_too() -> None:
    model = small("bnn")
    loss = Retention(model, weight=0.0, quantization=0.5).loss()
    assert loss > 0
    loss.backward()
    assert model.get_submodule("layer1.0.conv1").weight.grad is not None


def test_a_reference_that_is_not_a_number_does_not_look_retained() -> None:
    model = small()
    retention = Retention(model)
    model.stem[0].weight.data.fill_(float("nan"))
    model(IMAGES[:16])
    assert not torch.isfinite(retention.loss())


def test_another_seed_is_another_start() -> None:
    assert not torch.equal(Retention(small(), seed=0).start, Retention(small(), seed=1).start)


# ---------------------------------------------------------------------------------------------------------------
# Passes without gradients, copies, tokens.
class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.net, self.reentrant = lcrbnn.binarize(Foreign(nn.Conv2d), "irnet"), reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.net.begin(x)
        for name in BLOCKS:
            part = self.net.get_submodule(name)
            x = part(x) if self.reentrant is None else checkpoint(part, x, use_reentrant=self.reentrant)
        return self.net.end(x.mean((2, 3)))


def checkpointed(reentrant: bool | None) -> list[Tensor]:
    torch.manual_seed(0)
    model = Checkpointed(reentrant)
    retention = Retention(model, blocks=[f"net.{name}" for name in BLOCKS], weight=10.0)
    model(torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(1)))
    retention.loss().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_gradients_through_checkpoints_are_whole_or_refused() -> None:
    plain = checkpointed(None)
    assert len(plain) > 2
    for got, want in zip(checkpointed(False), plain, strict=True):
        torch.testing.assert_close(got, want)
    with pytest.raises(InputError, match=r"has no gradient, though 'net\..*' is trained: .*use_reentrant=True"):
        checkpointed(True)


def test_a_pass_without_gradients_before_the_loss_is_refused_in_training_and_read_in_evaluation() -> None:
    model = small()
    retention = Retention(model)
    model(IMAGES)
    with torch.no_grad():
        model.eval()(IMAGES)
    assert not retention.loss().requires_grad  # somebody looks at ratios
    with torch.no_grad():
        model(IMAGES)
    model.train()
    with pytest.raises(InputError, match="the latest pass was made under no_grad"):
        retention.loss()
    model.requires_grad_(False)
    model(IMAGES)
    retention.loss()  # nothing is trained


def test_copies_of_a_watched_model_can_be_saved() -> None:
    model = small()
    retention = Retention(model)
    twin = copy.deepcopy(model)
    average = torch.optim.swa_utils.AveragedModel(model)
    for one in (model, twin, average):
        file = io.BytesIO()
        torch.save(one, file)
        file.seek(0)
        back = torch.load(file, weights_only=False)
        torch.testing.assert_close(back.eval()(IMAGES), one.eval()(IMAGES))
    model.train()(IMAGES)
    twin(IMAGES)
    assert retention.loss() > 0
    retention.close()
    assert hooks(model) == 0


@pytest.mark.parametrize("form", ["default", "paper"])
def test_tokens_and_other_maps_of_one_shape_are_compared_as_they_are(form: str) -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = (lcrbnn.BinaryLinear(32, 32, method="irnet") for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x + self.second(x + self.first(x)))

    model = Tokens()
    retention = Retention(model, form, layers=["first", "second", "head"], weight=1.0)
    model(torch.randn(8, 5, 32))
    loss = retention.loss()
    loss.backward()
    assert loss > 0
    assert model.first.weight.grad.abs().sum() > 0


def test_a_second_derivative_is_refused() -> None:
    model = small()
    retention = Retention(model, weight=10.0)
    model(IMAGES)
    with pytest.raises(InputError, match="the retention loss has no second derivative"):
        torch.autograd.grad(retention.loss(), [model.layer1[0].conv1.weight], create_graph=True)
