"""LCR and torch.compile on foreign networks: compiled model, compiled blocks, compiled step, copies and validation."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lcrbnn import Retention
from lcrbnn.errors import InputError
from tests.lcr.foreign_networks import FOREIGN_NETWORKS, IMAGES, LABELS, make_foreign_network
from tests.lcr.plain_loop import (
    assert_same_gradients,
    compute_plain_gradients,
    make_network_and_retention,
    take_gradients,
)
from tests.lcr.user_network import BLOCKS, UserNetwork

# torch.compile itself uses deprecated parts of PyTorch.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


@pytest.fixture(autouse=True)
def _reset_compiler() -> None:
    torch._dynamo.reset()


def compile_model(model: nn.Module, blocks: list[str]) -> nn.Module:
    return torch.compile(model, fullgraph=True, backend="aot_eager")


def compile_in_place(model: nn.Module, blocks: list[str]) -> nn.Module:
    model.compile(fullgraph=True, backend="aot_eager")
    return model


def compile_blocks(model: nn.Module, blocks: list[str]) -> nn.Module:
    for name in blocks:
        model.get_submodule(name).compile(fullgraph=True, backend="aot_eager")
    return model


@pytest.mark.parametrize(
    ("name", "compile_function"),
    [*((name, compile_model) for name in FOREIGN_NETWORKS), ("unet", compile_in_place), ("resnet", compile_blocks)],
)
def test_compiled_network_has_the_gradients_of_a_plain_loop(
    name: str, compile_function: Callable[[nn.Module, list[str]], nn.Module]
) -> None:
    model, retention = make_network_and_retention(name)
    called = compile_function(model, FOREIGN_NETWORKS[name].blocks)
    expected, expected_loss = compute_plain_gradients(name)
    for _ in range(2):
        logits = called(IMAGES)
        model.eval()
        with torch.no_grad():
            called(IMAGES[:5])  # a validation pass between the forward pass and the loss
        model.train()
        loss = F.cross_entropy(logits, LABELS) + retention.loss()
        loss.backward()
        assert loss.item() == pytest.approx(expected_loss, rel=1e-4)
        assert_same_gradients(take_gradients(model), expected)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("resnet", "aot_eager"),
        ("vit", "aot_eager"),
        pytest.param("vit", "inductor", marks=pytest.mark.slow),  # the C++ backend compiles every fused kernel
    ],
)
def test_compiled_step_has_the_gradients_of_an_eager_step(name: str, backend: str) -> None:
    # The default number of iterations: the graph contains each of them.
    model, retention = make_network_and_retention(name, power_iterations=5)

    def step(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images), labels) + retention.loss()

    expected_loss = step(IMAGES, LABELS)
    expected_loss.backward()
    expected = take_gradients(model)
    loss = torch.compile(step, fullgraph=True, backend=backend)(IMAGES, LABELS)
    loss.backward()
    torch.testing.assert_close(loss, expected_loss, rtol=1e-4, atol=1e-5)
    assert_same_gradients(take_gradients(model), expected)


@pytest.mark.parametrize("uses_package_layers", [False, True])
def test_compiled_copy_does_not_reuse_the_graph_with_the_hooks_of_the_original(uses_package_layers: bool) -> None:
    torch.manual_seed(0)
    model = make_foreign_network("resnet") if uses_package_layers else UserNetwork()
    images = IMAGES if uses_package_layers else IMAGES[:, :1]
    retention = Retention(model, blocks=FOREIGN_NETWORKS["resnet"].blocks if uses_package_layers else BLOCKS)
    model(images)
    expected = retention.loss().item()
    average = copy.deepcopy(model)
    compiled_model, compiled_average = (torch.compile(x, backend="aot_eager") for x in (model, average))
    for _ in range(2):
        compiled_model(images)
        compiled_average(images.flip(0) * 2)
        assert retention.loss().item() == pytest.approx(expected, rel=1e-4)
    compiled_average(images)
    with pytest.raises(InputError, match="call the model before each loss"):
        retention.loss()


class CheckpointedResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = make_foreign_network("resnet")

    def forward(self, images: Tensor) -> Tensor:
        x = self.net.stem(images)
        for block in (self.net.layer1, self.net.layer2):
            x = checkpoint(block, x, use_reentrant=False)
        return self.net.fc(x.mean((2, 3)))


def test_compiled_network_with_checkpoints_has_the_gradients_of_a_plain_loop() -> None:
    model = CheckpointedResNet()
    _, settings = make_network_and_retention("resnet")
    retention = Retention(model, settings.variant, blocks=["net.layer1", "net.layer2"])
    logits = torch.compile(model, backend="aot_eager")(IMAGES)
    (F.cross_entropy(logits, LABELS) + retention.loss()).backward()
    assert_same_gradients(take_gradients(model), compute_plain_gradients("resnet")[0])
    with pytest.raises(InputError, match="call the model before each loss"):
        retention.loss()
