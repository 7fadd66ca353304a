"""Custom networks: their forward is traced, and the engine agrees with PyTorch."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn import InputError, Retention, binarize
from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.deploy.engine.runtime import Engine
from lcrbnn.deploy.export.export_model import ModelInput, export_model
from lcrbnn.deploy.export.graph.torch_activations import to_channels_last
from lcrbnn.deploy.export.rules.function_rules import FUNCTIONS
from tests.deploy.export.random_networks import randomize_parameters


class ShortcutBlock(nn.Module):
    """The block of the README."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.hardtanh(self.norm(self.conv(x)) + self.skip(x))


class PaddedShortcutBlock(nn.Module):
    """A block with a shortcut without weights, as in many CIFAR networks, and with its own scale and shift."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.more = (cout - cin) // 2
        self.conv1 = nn.Conv2d(cin, cout, 3, 2, 1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(cout), nn.BatchNorm2d(cout)
        self.scale = nn.Parameter(torch.rand(cout, 1, 1) + 0.5)
        self.move = nn.Parameter(torch.randn(1, cout, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm1(self.conv1(x)).clamp(-1, 1)
        out = self.norm2(self.conv2(out)) * self.scale
        out += F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.more, self.more), "constant", 0)
        return torch.relu(out - self.move) * 0.5 + 0.125


class DenseBlock(nn.Module):
    """Concatenated maps, and a layer that is called twice."""

    def __init__(self, cin: int, grow: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(cin, grow, 3, padding=1, bias=False)
        self.again = nn.Conv2d(grow, grow, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(grow)

    def forward(self, x: Tensor) -> Tensor:
        a = F.hardtanh(self.norm(self.first(x)))
        b = self.again(a)
        return torch.cat([x, a, b, self.again(b)], dim=1)


class WeightedSum(nn.Module):
    """A module with two inputs."""

    def forward(self, x: Tensor, y: Tensor, factor: float = 2.0) -> Tensor:
        return torch.add(x, y * factor)


class NetworkWithLists(nn.Module):
    """A network with module lists, functional pools, and a view before its head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.parts = nn.ModuleList([DenseBlock(8, 4), PaddedShortcutBlock(20, 24)])
        self.join = WeightedSum()
        self.last = nn.Conv2d(24, 24, 3, padding=1, bias=False)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1, ceil_mode=True)
        x.mean()  # the result is not used
        for part in self.parts:
            x = part(x)
        x = F.avg_pool2d(self.join(x, self.last(x)), 2)
        x = F.dropout(x, 0.5, training=self.training)
        return self.head(x.view(x.size(0), x.shape[1] * x.shape[2] * x.shape[3]))


class NetworkWithTwoHeads(nn.Module):
    """A network with the method `mean` and a sum of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Linear(6, 5)
        self.other = nn.Linear(6 * 64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.head(x.mean([2, 3])) + self.other(torch.flatten(x, 1))


class FlattenedMapOutput(nn.Module):
    """The output is a flattened map: five classes at four positions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).flatten(1)


class InplaceNetwork(nn.Module):
    """In-place operations on tensors that are read later under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.act, self.same = nn.ReLU(inplace=True), nn.Identity()
        self.inner = nn.Sequential(nn.Hardtanh(inplace=True), nn.Conv2d(4, 4, 1))
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        alias = self.same(y)
        y += 1.0
        self.act(y)
        z = self.inner(alias)
        z.sub_(0.5).mul_(2.0)
        alias = alias + z
        z += alias
        answer = self.head(F.adaptive_avg_pool2d(F.relu(alias, inplace=True) + z, 1).flatten(1))
        self.act(answer + 3)
        return answer


class ArithmeticNetwork(nn.Module):
    """Arithmetic of maps and vectors with numbers and with per-channel parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.next = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.scale, self.many = nn.Parameter(torch.tensor([1.5])), nn.Parameter(torch.rand(8, 1, 1) + 0.5)
        self.wide = nn.Parameter(torch.rand(8) + 0.5)
        self.middle, self.head = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x) * self.scale
        x = self.next(1 - x / 3) / self.many
        x = torch.neg(self.many - x).div_(2)
        x = self.middle(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1) * self.wide)
        return -self.head(x / self.wide - self.scale)


def make_readme_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Hardtanh(), ShortcutBlock(16, 32), ShortcutBlock(32, 64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def make_network_with_repeated_modules() -> nn.Module:
    act, conv = nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), act, conv, nn.BatchNorm2d(8), act, conv, act, nn.Flatten(),
        nn.Linear(512, 5),
    )  # fmt: skip


def make_network_with_flat_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.Flatten(), nn.BatchNorm1d(20))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "the README's": (make_readme_network, 10),
    "lists, joins, pools": (NetworkWithLists, 5),
    "vectors": (NetworkWithTwoHeads, 5),
    "numbers written over others": (InplaceNetwork, 5),
    "quotients and differences": (ArithmeticNetwork, 5),
    "what occurs twice": (make_network_with_repeated_modules, 5),
    "a flattened map": (FlattenedMapOutput, 20),
    "a flattened map, normalised": (make_network_with_flat_norm, 20),
}


def make_randomized_network(name: str) -> nn.Module:
    torch.manual_seed(0)
    net = NETWORKS[name][0]()
    if len(list(net.modules())) > 5:
        with warnings.catch_warnings(action="ignore"):  # some networks call F.relu before binary layers
            binarize(net, "irnet", activation="keep")
    return randomize_parameters(net, torch.randn(20, 3, 8, 8)).eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_exported_custom_networks_equal_pytorch(name: str) -> None:
    net = make_randomized_network(name)
    model = export_model(net, ModelInput((8, 8, 3), tuple(map(str, range(NETWORKS[name][1])))), name)
    images = torch.randn(40, 3, 8, 8)
    with torch.no_grad():
        torch_logits = net(images).numpy()
    with Engine(to_bytes(model)) as engine:
        engine_logits = engine.run(to_channels_last(images))
    is_close = np.abs(engine_logits - torch_logits).max(1) <= 1e-4 * np.abs(torch_logits).max()
    assert is_close.mean() >= 0.9  # a float sum near a threshold can change a sign
    assert np.abs(torch_logits).max() > 0.1


def test_forwards_that_depend_on_tensor_values_are_rejected() -> None:
    class Chooses(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    assert_export_rejected(Chooses(), "the forward of Chooses cannot be traced")


REJECTED_FORWARDS: list[tuple[Callable[[Tensor], object], str]] = [
    (lambda x: F.softplus(x), "the function 'softplus' has no export rule"),
    (lambda x: x.exp(), "the function 'exp' has no export rule"),
    (lambda x: x + torch.ones(2, 3, 1, 1), r"the constant must have the size 1 where the tensor has the images"),
    (lambda x: F.hardtanh(x, 6, 0), "min_val|above"),
    (lambda x: x.reshape(2, -1), "mixes the images of a batch"),
    (lambda x: x[:2], "mixes the images of a batch, or does not depend on the images"),
    (lambda x: x.flip(0), "mixes the images of a batch"),
    (lambda x: x.mean(), "it reduces over all axes, also that of the images"),
    (lambda x: x.mean(0), "it works along the axis 0, which has the images of a batch"),
    (lambda x: x.softmax(0), "it works along the axis 0, which has the images of a batch"),
    (lambda x: torch.cat([x, x]), "it works along the axis 0, which has the images of a batch"),
    (lambda x: torch.cat([x, x[:, :, 1:]], 1), r"it joins tensors of the shapes \(n, 3, 8, 8\), \(n, 3, 7, 8\)"),
    (lambda x: F.dropout(x, 0.5), "training=True would also drop elements in evaluation"),
    (lambda x: x + torch.randn(1), "the forward of Own draws random numbers"),
    (lambda x: x * torch.rand(3, 1, 1), "the forward of Own draws random numbers"),
    (lambda x: x * torch.ones(1, 1, 3, 1, 1), r"it combines a constant of the shape \(1, 1, 3, 1, 1\)"),
    (lambda x: x.flatten(1) + torch.ones(1, 1, 192), r"it combines a constant of the shape \(1, 1, 192\)"),
    (lambda x: x.flatten(1) + x, "whose axes of the images .* do not match"),
    (lambda x: x.flatten(1) @ x.flatten(1).T, r"it multiplies tensors of the shapes \(n, 192\) and \(192, n\)"),
    (lambda x: 2 / x, "the function 'truediv' .*it divides by a map"),
    (lambda x: x / 0, "the function 'truediv' .*it divides by 0"),
    (lambda x: torch.div(x, 2, rounding_mode="floor"), "the function 'div' .*rounding_mode"),
    (lambda x: x * x.size(0), "the number of images is not a number"),
    (lambda x: x if x.size(0) > 1 else -x, "the forward of Own cannot be traced"),
    (lambda x: x if x.size(0) == 1 else -x, "the number of images is compared with a number"),
    (lambda x: torch.zeros(x.shape), "the forward of Own cannot be traced"),
    (lambda x: F.interpolate(x, scale_factor=1.3, mode="bilinear"), "which is not a whole number of pixels"),
    (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), "it resizes with the mode 'bicubic'"),
    (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.1), "dropout_p"),
    (lambda x: F.scaled_dot_product_attention(x, x, x, torch.zeros(8, 8, dtype=torch.bool)), "hides all keys"),
    (lambda x: torch.einsum("nchw,nchw->c", x, x), "the sum includes them"),
    (lambda x: x.float().double(), "the function 'double' has no export rule"),
    (lambda x: x.to(torch.float64), "a conversion to another type or device"),
    (lambda x: x.max(1)[1] + x, "NoneType|not a number"),
]


@pytest.mark.parametrize(("function", "reason"), REJECTED_FORWARDS)
def test_unsupported_calls_in_a_forward_are_rejected(function: Callable[[Tensor], object], reason: str) -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> object:
            return function(x)

    assert_export_rejected(Own(), reason)


def assert_export_rejected(module: nn.Module, reason: str) -> None:
    net = nn.Sequential(nn.Identity(), module, nn.Flatten()).eval()
    with pytest.raises(InputError, match=rf"^layer '1\.?\w*' cannot be exported: .*{reason}"):
        export_model(net, ModelInput((8, 8, 3), tuple(map(str, range(192)))), "x")


def test_hooks_and_parametrizations_are_rejected() -> None:
    net = nn.Sequential(nn.utils.spectral_norm(nn.Conv2d(3, 5, 8)), nn.Flatten())
    described = ModelInput((8, 8, 3), tuple("abcde"))
    with pytest.raises(InputError, match="layer '0' cannot be exported: its hook SpectralNorm may change"):
        export_model(net, described, "x")
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 5, 8)), nn.Flatten())
    with pytest.raises(InputError, match="layer '0' cannot be exported: it is parametrized"):
        export_model(net, described, "x")
    net = nn.Sequential(nn.Conv2d(3, 5, 8), nn.Flatten())
    net[1].register_forward_hook(lambda module, args, output: output + 1)
    with pytest.raises(InputError, match=r"layer '1' cannot be exported: its hook .*lambda"):
        export_model(net, described, "x")


def test_replaced_forwards_are_rejected() -> None:
    net = nn.Sequential(nn.Conv2d(3, 5, 8), nn.Flatten())
    net[0].forward = lambda x: x * 2
    with pytest.raises(InputError, match="layer '0' cannot be exported: its forward is not that of its class"):
        export_model(net, ModelInput((8, 8, 3), tuple("abcde")), "x")
    net_with_two_heads = NetworkWithTwoHeads().eval()
    net_with_two_heads.forward = lambda x: x * 2  # type: ignore[method-assign]  # tested here
    with pytest.raises(InputError, match="the network cannot be exported: its forward is not that of its class"):
        export_model(net_with_two_heads, ModelInput((8, 8, 3), tuple("abcde")), "x")


def test_pool_output_sizes_may_be_lists() -> None:
    net = nn.Sequential(nn.Conv2d(3, 5, 8), nn.AdaptiveAvgPool2d([1, 1]), nn.Flatten())
    plain = nn.Sequential(net[0], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    files = [to_bytes(export_model(network, ModelInput((8, 8, 3), tuple("abcde")), "x")) for network in (net, plain)]
    assert files[0] == files[1]


def test_networks_with_retention_hooks_are_exported() -> None:
    net = make_randomized_network("the README's")
    described = ModelInput((8, 8, 3), tuple("abcdefghij"))
    plain = to_bytes(export_model(net, described, "x"))
    retention = Retention(net, blocks=["3", "4"], lcr_weight=1.0)
    assert to_bytes(export_model(net, described, "x")) == plain
    retention.close()


def test_prelu_slopes_must_fit_the_channels() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.PReLU(5), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(InputError, match="layer '1' cannot be exported: it has 5 slopes, but gets 8 channels"):
        export_model(net, ModelInput((8, 8, 3), tuple("abcdefgh")), "x")


def test_the_docs_name_every_function() -> None:
    text = (Path(__file__).parents[3] / "docs" / "engine.md").read_text()
    section = text[text.index("## Export a network of your own") :]
    for target in FUNCTIONS:
        name = target if isinstance(target, str) else target.__name__
        if name not in ("iadd", "isub", "imul", "truediv", "itruediv", "getattr", "getitem"):
            assert re.search(rf"\b{name.rstrip('_')}\b", section), name
