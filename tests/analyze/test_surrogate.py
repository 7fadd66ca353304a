from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from lcrbnn.analyze.surrogate import bounds, layer_norm
from lcrbnn.errors import InputError
from lcrbnn.methods import ActivationBinarizer, Binary
from lcrbnn.models import Network
from lcrbnn.models.resnet import ResNetPlan, build_resnet


def settled(name: str, method: str | None, **more) -> Network:
    """A network whose batch norms have seen something, so that they amplify each channel differently."""
    net = lcrbnn.network(name, method, in_channels=1, image=8, **more)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.weight, -1.5, 1.5)
    net.train()
    for _ in range(3):
        net(torch.randn(16, 1, 8, 8))
    return net.eval()


PLAN = ResNetPlan((1, 1), (4, 8), "plain", "hardtanh", "conv", "conv3-act", head="norm", kaiming=False)


class Soft(ActivationBinarizer):
    """What the surrogate has in place of a sign."""

    def forward(self, x: Tensor) -> Binary:
        return Binary(F.hardtanh(x))


def surrogate(net: Network) -> Network:
    for module in net.modules():
        if getattr(module, "input_binarizer", None) is not None:
            module.input_binarizer = Soft(1)
    return net


def reached(net: Network, steps: int = 30) -> float:
    """The largest |f(x) - f(y)| / |x - y| that gradient ascent finds over pairs of images."""
    x = torch.randn(8, 1, 8, 8)
    away = (0.1 * torch.randn_like(x)).requires_grad_()
    best = 0.0
    for _ in range(steps):
        ratios = (net(x + away) - net(x)).flatten(1).norm(dim=1) / away.flatten(1).norm(dim=1)
        best = max(best, ratios.max().item())
        (slope,) = torch.autograd.grad(ratios.sum(), away)
        away = (away + 0.1 * slope / slope.flatten(1).norm(dim=1)[:, None, None, None].clamp_min(1e-9)).detach()
        away.requires_grad_()
    return best


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("resnet8-double", "irnet"),
        ("resnet8-double", "xnor++"),
        ("resnet8-double", None),
        ("resnet20-relu", None),
    ],
)
def test_no_pair_of_images_beats_the_bound_of_the_surrogate(name: str, method: str | None) -> None:
    net = settled(name, method)
    bound = 10 ** bounds(net, torch.zeros(1, 1, 8, 8)).surrogate_log10
    found = reached(surrogate(net))
    assert 0 < found <= bound


def test_one_layer_reaches_its_bound() -> None:
    stem = nn.Sequential(nn.Conv2d(1, 3, 1, bias=False), nn.BatchNorm2d(3, affine=False))
    net = Network(stem, [nn.Sequential(nn.Identity())], nn.Flatten(), nn.Identity()).eval()
    bound = bounds(net, torch.zeros(1, 1, 4, 4))
    exact = stem[0].weight.flatten(1).norm().item() / math.sqrt(1 + 1e-5)
    assert 10**bound.surrogate_log10 == pytest.approx(exact, rel=1e-6)
    assert bound.eq5_log10[0] == pytest.approx(math.log10(exact), abs=1e-6)
    assert reached(net) == pytest.approx(exact, rel=1e-3)


def test_a_block_whose_branch_is_silent_is_its_skip() -> None:
    net = build_resnet(replace(PLAN, depths=(2,), widths=(4,), head="linear"), lcrbnn.method("irnet"), 10, 1).eval()
    for i in (0, 1):
        nn.init.zeros_(net.get_submodule(f"layer1.{i}.bn2").weight)
    found = bounds(net, torch.zeros(1, 1, 8, 8))
    ends = found.layers["stem.0"].high * found.layers["head"].high
    assert 10**found.surrogate_log10 == pytest.approx(ends / 8)  # the mean of 64 pixels shrinks by their root
    nn.init.constant_(net.get_submodule("layer1.0.bn2").weight, 3.0)
    branch = [bounds(net, torch.zeros(1, 1, 8, 8)).layers[f"layer1.0.conv{i}"].high for i in (1, 2)]
    louder = 10 ** bounds(net, torch.zeros(1, 1, 8, 8)).surrogate_log10
    assert louder == pytest.approx(ends / 8 * (1 + branch[0] * branch[1]))


@pytest.mark.parametrize("method", ["irnet", "xnor", "xnor++", "dorefa"])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_layer_counts_its_signs_its_scale_and_its_batch_norm(method: str, stride: int) -> None:
    conv = lcrbnn.BinaryConv2d(4, 6, 3, stride, 1, method=method)
    if conv.weight_binarizer.needs_fit:
        lcrbnn.fit(conv, (1, 4, 5, 5))
    norm = nn.BatchNorm2d(6).eval()
    nn.init.uniform_(norm.weight, -2, 2)
    norm.running_var.uniform_(0.1, 5)
    norm.running_mean.normal_()
    conv.input_binarizer = Linear(4)  # what multiplies, without the sign before it
    with torch.no_grad():
        at_zero = norm(conv(torch.zeros(1, 4, 5, 5)))
        columns = norm(conv(torch.eye(100).reshape(-1, 4, 5, 5))) - at_zero
    exact = torch.linalg.svdvals(columns.flatten(1).double())[0].item()
    found = layer_norm(conv, norm, (1, 4, 5, 5))
    assert found.low == pytest.approx(exact, rel=1e-4)  # the layer computes in float32
    assert exact <= found.high * (1 + 1e-4)


class Linear(ActivationBinarizer):
    def forward(self, x: Tensor) -> Binary:
        return Binary(x)


def test_the_product_of_eq_5_is_that_of_the_main_path() -> None:
    net = build_resnet(replace(PLAN, shortcut="binary-conv"), lcrbnn.method("irnet"), 10, 1)
    found = bounds(net, torch.zeros(1, 1, 8, 8))
    assert any("shortcut" in name for name in found.layers)
    main = [v for name, v in found.layers.items() if "shortcut" not in name]
    assert found.eq5_log10[0] == pytest.approx(sum(math.log10(v.low) for v in main))
    assert found.eq5_log10[1] == pytest.approx(sum(math.log10(v.high) for v in main))
    assert set(net.chain) - {"pool"} <= set(found.layers)


@pytest.mark.parametrize(
    "changes",
    [
        {"shortcut": "pool", "block": "double"},
        {"shortcut": "pool-conv", "block": "single", "activation": "rprelu", "head": "linear"},
        {"stem": "conv7-act-pool", "activation": "relu", "head": "norm-relu"},
    ],
)
def test_every_part_of_a_network_has_a_rule_and_no_pair_beats_it(changes: dict[str, str]) -> None:
    net = build_resnet(replace(PLAN, **changes), lcrbnn.method("irnet"), 10, 1)
    net.train()
    net(torch.randn(16, 1, 8, 8))
    net.eval()
    found = bounds(net, torch.zeros(1, 1, 8, 8))
    assert set(net.chain) - {"pool"} <= set(found.layers)
    assert all(0 < v.low <= v.high for v in found.layers.values())
    assert 0 < reached(surrogate(net), steps=10) <= 10**found.surrogate_log10


def test_a_batch_norm_behind_a_pool_is_taken_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lcrbnn.models.vgg.PLAN", (((8, True),), ((8, True),)))
    net = lcrbnn.network("vgg-small", "irnet", in_channels=1, image=8).eval()
    net.get_submodule("layer2.0.bn1").running_var.fill_(4 - 1e-5)
    plain = layer_norm(net.get_submodule("layer2.0.conv1"), None, (1, 8, 4, 4))
    found = bounds(net, torch.zeros(1, 1, 8, 8))
    assert found.layers["layer2.0.conv1"].high == pytest.approx(plain.high / 2)
    assert "layer2.0.bn1" not in found.layers


def test_a_module_without_a_rule_is_named() -> None:
    net = lcrbnn.network("resnet8-double", "irnet", in_channels=1, image=8)
    net.head = nn.Sequential(nn.Softmax(1))
    with pytest.raises(InputError, match=r"no rule bounds Softmax \(head.0\)"):
        bounds(net, torch.zeros(1, 1, 8, 8))


def test_measuring_leaves_the_network_as_it_was() -> None:
    net = lcrbnn.network("resnet8-double", "irnet", in_channels=1, image=8)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    bounds(net, torch.zeros(1, 1, 8, 8))
    assert net.training
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in before.items())
    assert not any(m._forward_pre_hooks for m in net.modules())
