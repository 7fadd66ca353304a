"""What `binarize` does with activations because of which binary layers would have constant signs."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from lcrbnn.errors import InputError
from lcrbnn.nn.model_hooks import iter_binary_layers
from tests.nn.relu_networks import (
    MobileNet,
    PreActivationBlock,
    ReluResNet,
    SqueezeExcite,
    UNet,
    UntraceableResNet,
    ViT,
    make_vgg,
)


def make_pre_activation_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), PreActivationBlock(), PreActivationBlock(), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2)
    )


def find_constant_layers(model: nn.Module, images: Tensor) -> list[str]:
    """Return the binary layers whose input has only one binary value in a forward pass: the slow reference."""
    constant_layers = []

    def make_hook(name: str) -> Callable[..., None]:
        def check(module: nn.Module, args: tuple[Tensor, ...], output: object) -> None:
            levels = output.dequantize()
            if bool((levels == levels.flatten()[0]).all()):
                constant_layers.append(name)

        return check

    hooks = [layer.input_binarizer.register_forward_hook(make_hook(n)) for n, layer in iter_binary_layers(model)]
    model(images)
    for hook in hooks:
        hook.remove()
    return constant_layers


def list_activations(model: nn.Module) -> dict[str, str]:
    kinds = (nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.GELU, nn.Sigmoid, nn.Softmax)
    return {name: type(m).__name__ for name, m in model.named_modules() if isinstance(m, kinds)}


NETWORKS = {
    "resnet": ReluResNet,
    "resnet, run": UntraceableResNet,
    "mobilenet": MobileNet,
    "vgg": make_vgg,
    "vit": ViT,
    "pre-activation": make_pre_activation_net,
    "unet": lambda: UNet(nn.ReLU()),
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_no_binary_layer_has_constant_signs_after_the_replacement(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = lcrbnn.binarize(make(), "irnet", example=(1, 3, 8, 8))
    assert find_constant_layers(model, torch.randn(4, 3, 8, 8)) == []


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_keep_warns_of_exactly_the_layers_with_constant_signs(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    original = make()
    activations = list_activations(original)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = lcrbnn.binarize(original, "irnet", example=(1, 3, 8, 8), activation="keep")
    assert list_activations(model) == activations
    constant_layers = find_constant_layers(model, torch.randn(4, 3, 8, 8))
    assert len(caught) == bool(constant_layers)
    named_layers = [n for n, _ in iter_binary_layers(model) if any(f"'{n}' (fed by" in str(w.message) for w in caught)]
    if make is MobileNet:  # its first block has a constant output, so the sum with this output is constant, too
        constant_layers.remove("features.2.conv.0.0")
    assert sorted(named_layers) == sorted(constant_layers)
    assert all(w.filename == __file__ for w in caught)


def test_only_activations_before_binary_layers_are_replaced() -> None:
    resnet = list_activations(lcrbnn.binarize(ReluResNet(), "irnet"))
    assert resnet == {"relu": "Hardtanh", "layer1.relu": "Hardtanh", "layer2.relu": "Hardtanh"}
    vgg = list_activations(lcrbnn.binarize(make_vgg(), "irnet"))
    assert vgg == {"1": "Hardtanh", "5": "Hardtanh", "9": "ReLU"}  # the last layer is real
    pre_activation = list_activations(lcrbnn.binarize(make_pre_activation_net(), "irnet"))
    assert pre_activation == {"1.act": "Hardtanh", "2.act": "Hardtanh", "3": "ReLU"}
    assert list_activations(lcrbnn.binarize(ViT(), "irnet")) == {"mlp.1": "GELU"}
    mobilenet = list_activations(lcrbnn.binarize(MobileNet(), "irnet"))
    assert set(mobilenet.values()) == {"Hardtanh"}
    unused = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3))
    assert list_activations(lcrbnn.binarize(unused, "irnet")) == {"1": "ReLU"}


def test_the_replacement_keeps_inplace_and_mode() -> None:
    model = lcrbnn.binarize(ReluResNet().eval(), "irnet")
    assert model.relu.inplace
    assert not model.relu.training
    shared = make_vgg()
    shared[5] = shared[1]
    lcrbnn.binarize(shared, "irnet")
    assert isinstance(shared[5], nn.Hardtanh)
    assert shared[5] is shared[1]


@pytest.mark.parametrize("example", [None, (1, 3, 8, 8)])
def test_a_function_call_raises_an_error_that_names_place_and_fix(example: tuple[int, ...] | None) -> None:
    model = UNet()
    modules = dict(model.named_modules())
    with pytest.raises(InputError, match=r"'down' \(and 1 more\).*relu\(\) in the forward method of UNet.*F\.hardtanh"):
        lcrbnn.binarize(model, "irnet", example=example)
    assert dict(model.named_modules()) == modules
    assert find_constant_layers(lcrbnn.binarize(UNet(F.hardtanh), "irnet"), torch.randn(2, 3, 8, 8)) == []
    with pytest.warns(UserWarning, match=r"'down' \(fed by relu\(\).*'up' \(fed by relu\(\)"):
        lcrbnn.binarize(model, "irnet", activation="keep")


def test_an_untraceable_network_without_an_example_gives_a_warning() -> None:
    with pytest.warns(UserWarning, match="cannot trace UntraceableResNet.*pass an example") as caught:
        model = lcrbnn.binarize(UntraceableResNet(), "irnet")
    assert isinstance(model.relu, nn.ReLU)
    assert caught[0].filename == __file__


LEARNED_OR_OTHER_THRESHOLDS = [
    *("reactnet", "rbnn", "siman", "dorefa", "abc-net", "hwgq", "horq", "adabin", "ie-net", "recu-shift")
]


@pytest.mark.parametrize("method", LEARNED_OR_OTHER_THRESHOLDS)
def test_methods_with_other_thresholds_keep_the_activation(method: str) -> None:
    options = {"shift": True} if method == "recu-shift" else {}
    torch.manual_seed(0)
    model = lcrbnn.binarize(make_vgg(), method.removesuffix("-shift"), **options)
    assert isinstance(model[1], nn.ReLU)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    images = torch.randn(8, 3, 8, 8)
    for _ in range(50):  # a learned threshold starts at 0
        optimizer.zero_grad()
        model(images).square().sum().backward()
        optimizer.step()
    assert find_constant_layers(model, images) == []


@pytest.mark.parametrize(
    "method", ["bnn", "xnor", "bireal", "recu", "dsq", "bnn+", "reste", "proxybnn", "slb", "rad", "lns"]
)
def test_methods_with_threshold_0_get_a_hardtanh(method: str) -> None:
    assert isinstance(lcrbnn.binarize(make_vgg(), method)[1], nn.Hardtanh)


def test_real_activations_are_not_inspected() -> None:
    assert isinstance(lcrbnn.binarize(make_vgg(), "irnet", bits="1/32")[1], nn.ReLU)
    lcrbnn.binarize(UNet(), "irnet", bits="1/32")


def test_a_gate_is_kept_and_the_map_before_it_is_replaced() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), SqueezeExcite(nn.Sigmoid()), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 1)
    )
    lcrbnn.binarize(model, "irnet")
    assert list_activations(model) == {"1": "Hardtanh", "2.relu": "Hardtanh", "2.gate": "Sigmoid"}
    assert find_constant_layers(model, torch.randn(2, 3, 8, 8)) == []


class GatedTwice(nn.Module):
    """A sigmoid that weights a map and also feeds a binary layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.gate = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(self.a(x))
        return self.c(x * gate + self.b(gate))


def test_a_gate_that_feeds_a_binary_layer_gives_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"'b' \(fed by Sigmoid 'gate'\)"):
        model = lcrbnn.binarize(GatedTwice(), "irnet")
    assert isinstance(model.gate, nn.Sigmoid)


def test_images_without_negative_values_give_a_warning() -> None:
    images = torch.rand(2, 3, 8, 8)
    with pytest.warns(UserWarning, match=r"'conv1' \(fed by the input of the network"):
        lcrbnn.binarize(ReluResNet(), "irnet", skip=["fc"], example=images)
    lcrbnn.binarize(ReluResNet(), "irnet", skip=["fc"], example=images - 0.5)
    lcrbnn.binarize(ReluResNet(), "dorefa", skip=["fc"], example=images)
    lcrbnn.binarize(ReluResNet(), "irnet", skip=["fc"], example=(1, 3, 8, 8))


def test_an_activation_with_hooks_is_not_replaced() -> None:
    model = make_vgg()
    model[1].register_forward_hook(lambda *a: None)
    with pytest.raises(InputError, match="activation '1' has hooks"):
        lcrbnn.binarize(model, "irnet")
    with pytest.raises(InputError, match="no activation choice of binarize is called 'x'"):
        lcrbnn.binarize(make_vgg(), "irnet", activation="x")


def test_a_failed_example_restores_the_activations() -> None:
    model = make_vgg()
    modules = dict(model.named_modules())
    with pytest.raises(InputError, match="does not accept an example"):
        lcrbnn.binarize(model, "xnor++", example=(1, 4, 8, 8))
    assert dict(model.named_modules()) == modules


def test_the_inspection_draws_no_random_numbers_and_keeps_statistics() -> None:
    class Noisy(ReluResNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.randn(1))

    for make in (Noisy, UntraceableResNet):
        model = make()
        torch.manual_seed(3)
        lcrbnn.binarize(model, "irnet", example=(1, 3, 8, 8))
        after = torch.randn(3)
        torch.manual_seed(3)
        if make is Noisy:
            torch.randn(1)  # the example itself draws, as before
        assert torch.equal(after, torch.randn(3))
        assert model.bn1.num_batches_tracked == 0
        assert model.training
