from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import lcrbnn
from lcrbnn.errors import InputError
from lcrbnn.nn.layers import BinaryConv2d, BinaryLinear
from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.methods.method_registry import METHODS
from lcrbnn.nn.model_hooks import iter_binary_layers


def make_small_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.Flatten()),
        nn.Hardtanh(),
        nn.Linear(8 * 16, 32),
        nn.BatchNorm1d(32),
        nn.Linear(32, 2),
    )


def list_binary_layer_names(model: nn.Module) -> list[str]:
    return [name for name, _ in iter_binary_layers(model)]


@pytest.mark.parametrize("row", METHODS.values(), ids=lambda m: m.name)
def test_a_converted_network_learns_with_every_method(row: Method) -> None:
    model = lcrbnn.binarize(make_small_model(), row, example=(2, 3, 8, 8))
    assert list_binary_layer_names(model) == ["2.0", "4"]
    images, labels = torch.randn(32, 3, 8, 8), torch.randint(0, 2, (32,))
    # The slope of bnn+ is five times as steep as others and negative far from 0, so its weights oscillate at 1e-2.
    optimizer = torch.optim.Adam(model.parameters(), 3e-3 if row.name == "bnn+" else 1e-2)
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lcrbnn.project_weights(model)
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_binary_layers_keep_the_parameters_of_the_replaced_layers() -> None:
    model = make_small_model()
    original_parameters = dict(model.named_parameters())
    lcrbnn.binarize(model, "irnet")
    new_parameters = dict(model.named_parameters())
    assert all(new_parameters[name] is parameter for name, parameter in original_parameters.items())
    assert model[2][0].stride == (2, 2)
    assert model[2][0].bias is None
    assert model[4].bias is original_parameters["4.bias"]


def test_first_and_last_layer_stay_real_unless_skip_is_given() -> None:
    assert list_binary_layer_names(lcrbnn.binarize(make_small_model())) == ["2.0", "4"]
    assert list_binary_layer_names(lcrbnn.binarize(make_small_model(), skip=())) == ["0", "2.0", "4", "6"]
    assert list_binary_layer_names(lcrbnn.binarize(make_small_model(), skip=["0", "2.*"])) == ["4", "6"]


def test_a_layer_with_two_names_is_converted_once() -> None:
    conv = nn.Conv2d(4, 4, 3, padding=1)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), conv, nn.ReLU(), conv, nn.Flatten(), nn.Linear(64, 2))
    lcrbnn.binarize(model, "irnet")
    assert isinstance(model[1], BinaryConv2d)
    assert model[3] is model[1]


def test_conversion_keeps_training_mode_and_dtype() -> None:
    model = make_small_model().double().eval()
    lcrbnn.binarize(model, "rbnn")
    assert not model[4].training
    assert isinstance(model[4], BinaryLinear)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert {b.dtype for name, b in model.named_buffers() if name.endswith(("left", "right", "t", "k"))} == {
        torch.float64
    }


def test_bits_and_options_reach_the_layers() -> None:
    model = lcrbnn.binarize(make_small_model(), "irnet", bits="1/32", t_min=0.5)
    layer = model[2][0]
    assert layer.input_binarizer is None
    assert float(layer.weight_binarizer.annealing.t) == 0.5


def test_a_deep_copy_has_its_own_annealing_state() -> None:
    model = lcrbnn.binarize(make_small_model(), "irnet")
    copied_model = copy.deepcopy(model)
    lcrbnn.set_progress(copied_model, 0.9)
    assert float(model[4].weight_binarizer.annealing.t) == pytest.approx(1e-3)


def make_model_with_hook() -> nn.Module:
    model = make_small_model()
    model[4].register_forward_hook(lambda *a: None)
    return model


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lcrbnn.binarize("net"), "binarize takes a torch.nn.Module; got str"),
        (lambda: lcrbnn.binarize(make_small_model(), "nope"), "no binarization method is called 'nope'"),
        (
            lambda: lcrbnn.binarize(make_small_model(), skip=["7"]),
            "skip pattern '7' matches none of the 4 convolutions and linear layers; the closest names are",
        ),
        (lambda: lcrbnn.binarize(make_small_model(), skip="0"), "skip must be a list of names; got '0'"),
        (lambda: lcrbnn.binarize(nn.Sequential(nn.ReLU())), "nothing to binarize"),
        (lambda: lcrbnn.binarize(nn.Linear(2, 2)), "the model is a single layer"),
        (lambda: lcrbnn.binarize(make_small_model(), skip=5), "skip must be a list of names; got 5"),
        (lambda: lcrbnn.binarize(make_model_with_hook()), "layer '4' has hooks"),
        (
            lambda: lcrbnn.binarize(nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Linear(2, 2)), "xnor", skip=()),
            "layer '0' cannot be made binary: xnor and bwn center weights",
        ),
        (
            lambda: lcrbnn.binarize(make_small_model(), "xnor++"),
            r"xnor\+\+ learns a scale per output position of layer '2.0'.*: pass an example .*, or choose case=1",
        ),
        (
            lambda: lcrbnn.binarize(make_small_model(), "xnor++", example=(1, 3, 16)),
            r"the network does not accept an example of shape \(1, 3, 16\).*such as \(1, 3, 32, 32\)",
        ),
        (
            lambda: lcrbnn.binarize(make_small_model(), example=(1, 4, 8, 8)),
            r"does not accept an example of shape \(1, 4, 8, 8\)",
        ),
        (
            lambda: lcrbnn.binarize(make_small_model(), example=torch.zeros(1, 3, 5, 5)),
            "does not accept an example of shape",
        ),
        (
            lambda: lcrbnn.binarize(make_small_model(), "xnor++", example="x"),
            "the example must be a batch of images or its shape",
        ),
    ],
)
def test_invalid_arguments_raise_an_input_error(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("settings", [{}, {"example": (1, 3, 16)}, {"example": "x"}])
def test_a_failed_conversion_changes_nothing(settings: dict[str, object]) -> None:
    model = make_small_model() if settings else make_model_with_hook()
    original_modules = dict(model.named_modules())
    with pytest.raises(InputError):
        lcrbnn.binarize(model, "xnor++", **settings)
    assert list_binary_layer_names(model) == []
    assert dict(model.named_modules()) == original_modules


def test_xnor_plus_needs_no_example_for_case_1_and_linear_layers() -> None:
    lcrbnn.binarize(make_small_model(), "xnor++", case=1)(torch.randn(2, 3, 8, 8))
    linear = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    lcrbnn.binarize(linear, "xnor++")(torch.randn(2, 4))


def test_parametrized_layers_are_not_converted() -> None:
    model = make_small_model()
    parametrizations.spectral_norm(model[4])
    assert list_binary_layer_names(lcrbnn.binarize(model)) == ["2.0"]


@pytest.mark.parametrize("batch_first", [True, False])
def test_encoder_layers_use_binary_weights_in_evaluation_mode(batch_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = lcrbnn.binarize(nn.Sequential(nn.Linear(8, 8), encoder, nn.Linear(8, 2)))
    x = torch.randn(3, 5, 8)
    in_training = model(x)
    model.eval()
    with torch.no_grad():  # PyTorch takes its fast path only without gradients
        torch.testing.assert_close(model(x), in_training)
        assert not torch.equal(model(x), nn.Sequential(*copy_real_model(model))(x))


def copy_real_model(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a copy whose binary linear layers are real again."""
    real_model = copy.deepcopy(model)
    for parent in list(real_model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, lcrbnn.BinaryLinear):
                linear = nn.Linear(child.in_features, child.out_features, child.bias is not None)
                linear.weight, linear.bias = child.weight, child.bias
                setattr(parent, name, linear)
    return list(real_model.children())
