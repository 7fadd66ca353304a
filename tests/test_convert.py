from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import lcrbnn
from lcrbnn.errors import InputError
from lcrbnn.layers import BinaryConv2d, BinaryLinear, binary_layers
from lcrbnn.methods import METHODS, Method


def small() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.Flatten()),
        nn.Hardtanh(),
        nn.Linear(8 * 16, 32),
        nn.BatchNorm1d(32),
        nn.Linear(32, 2),
    )


def names(model: nn.Module) -> list[str]:
    return [name for name, _ in binary_layers(model)]


@pytest.mark.parametrize("row", METHODS.values(), ids=lambda m: m.name)
def test_every_method_converts_a_network_that_then_learns(row: Method) -> None:
    model = lcrbnn.binarize(small(), row, example=(2, 3, 8, 8))
    assert names(model) == ["2.0", "4"]
    images, labels = torch.randn(32, 3, 8, 8), torch.randint(0, 2, (32,))
    # bnn+'s slope is five times as steep as others, and negative far out: its weights flip to and fro at 1e-2.
    optimizer = torch.optim.Adam(model.parameters(), 3e-3 if row.name == "bnn+" else 1e-2)
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lcrbnn.project(model)
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_weights_are_the_given_parameters_so_an_optimizer_made_before_goes_on() -> None:
    model = small()
    given = dict(model.named_parameters())
    lcrbnn.binarize(model, "irnet")
    now = dict(model.named_parameters())
    assert all(now[name] is parameter for name, parameter in given.items())
    assert model[2][0].stride == (2, 2)
    assert model[2][0].bias is None
    assert model[4].bias is given["4.bias"]


def test_first_and_last_stay_real_by_default_and_skip_replaces_that() -> None:
    assert names(lcrbnn.binarize(small())) == ["2.0", "4"]
    assert names(lcrbnn.binarize(small(), skip=())) == ["0", "2.0", "4", "6"]
    assert names(lcrbnn.binarize(small(), skip=["0", "2.*"])) == ["4", "6"]


def test_a_layer_that_is_used_under_two_names_stays_one_layer() -> None:
    conv = nn.Conv2d(4, 4, 3, padding=1)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), conv, nn.ReLU(), conv, nn.Flatten(), nn.Linear(64, 2))
    lcrbnn.binarize(model, "irnet")
    assert isinstance(model[1], BinaryConv2d)
    assert model[3] is model[1]


def test_mode_device_and_dtype_are_kept() -> None:
    model = small().double().eval()
    lcrbnn.binarize(model, "rbnn")
    assert not model[4].training
    assert isinstance(model[4], BinaryLinear)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert {b.dtype for name, b in model.named_buffers() if name.endswith(("left", "right", "t", "k"))} == {
        torch.float64
    }


def test_bits_and_options_reach_the_layers() -> None:
    model = lcrbnn.binarize(small(), "irnet", bits="1/32", t_min=0.5)
    layer = model[2][0]
    assert layer.input_binarizer is None
    assert float(layer.weight_binarizer.annealing.t) == 0.5


def test_a_copy_is_independent() -> None:
    model = lcrbnn.binarize(small(), "irnet")
    twin = copy.deepcopy(model)
    lcrbnn.advance(twin, 0.9)
    assert float(model[4].weight_binarizer.annealing.t) == pytest.approx(1e-3)


def hooked() -> nn.Module:
    model = small()
    model[4].register_forward_hook(lambda *a: None)
    return model


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: lcrbnn.binarize("net"), "binarize takes a torch.nn.Module; got str"),
        (lambda: lcrbnn.binarize(small(), "nope"), "no binarisation method is called 'nope'"),
        (
            lambda: lcrbnn.binarize(small(), skip=["7"]),
            "skip names '7', which is no convolution or linear layer.*there are 0, 2.0, 4, 6",
        ),
        (lambda: lcrbnn.binarize(small(), skip="0"), "skip is a list of names; got '0'"),
        (lambda: lcrbnn.binarize(nn.Sequential(nn.ReLU())), "nothing to binarise"),
        (lambda: lcrbnn.binarize(nn.Linear(2, 2)), "the model is a single layer"),
        (lambda: lcrbnn.binarize(small(), skip=5), "skip is a list of names; got 5"),
        (
            lambda: lcrbnn.binarize(
                nn.Sequential(nn.Linear(4, 4), nn.TransformerEncoderLayer(4, 2, 8), nn.Linear(4, 2))
            ),
            "layer '1.linear1' belongs to a TransformerEncoderLayer",
        ),
        (lambda: lcrbnn.binarize(hooked()), "layer '4' carries hooks"),
        (
            lambda: lcrbnn.binarize(nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Linear(2, 2)), "xnor", skip=()),
            "layer '0' cannot be made binary: xnor and bwn centre weights",
        ),
        (
            lambda: lcrbnn.binarize(small(), "xnor++"),
            r"xnor\+\+ learns a scale for each output position of layer '2.0'.*: give an example, .*, or choose case=1",
        ),
        (
            lambda: lcrbnn.binarize(small(), "xnor++", example=(1, 3, 16)),
            r"the network does not take an example of shape \(1, 3, 16\).*such as \(1, 3, 32, 32\)",
        ),
        (lambda: lcrbnn.binarize(small(), example=(1, 4, 8, 8)), r"does not take an example of shape \(1, 4, 8, 8\)"),
        (lambda: lcrbnn.binarize(small(), example=torch.zeros(1, 3, 5, 5)), "does not take an example of shape"),
        (lambda: lcrbnn.binarize(small(), "xnor++", example="x"), "an example is a batch of images or its shape"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(call: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call()


@pytest.mark.parametrize("settings", [{}, {"example": (1, 3, 16)}, {"example": "x"}])
def test_a_failed_conversion_changes_nothing(settings: dict[str, object]) -> None:
    model = small() if settings else hooked()
    given = dict(model.named_modules())
    with pytest.raises(InputError):
        lcrbnn.binarize(model, "xnor++", **settings)
    assert names(model) == []
    assert dict(model.named_modules()) == given


def test_xnor_plus_without_positions_needs_no_example() -> None:
    lcrbnn.binarize(small(), "xnor++", case=1)(torch.randn(2, 3, 8, 8))
    linear = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    lcrbnn.binarize(linear, "xnor++")(torch.randn(2, 4))


def test_parametrized_layers_are_left_alone() -> None:
    model = small()
    parametrizations.spectral_norm(model[4])
    assert names(lcrbnn.binarize(model)) == ["2.0"]
