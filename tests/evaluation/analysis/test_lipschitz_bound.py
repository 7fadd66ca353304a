from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from lcrbnn.errors import InputError
from lcrbnn.evaluation.analysis.lipschitz_bound import bound_layer_norm, bound_lipschitz
from lcrbnn.nn.methods.binarizer import ActivationBinarizer, BinaryTensor
from lcrbnn.nn.models.network import Network
from lcrbnn.nn.models.resnet import ResNetConfig, build_resnet


def make_net_with_batch_norm_statistics(name: str, method: str | None, **options) -> Network:
    """Return a network whose batch norms have random weights and statistics, so that channel factors differ."""
    net = lcrbnn.create_model(name, method, in_channels=1, image_size=8, **options)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.weight, -1.5, 1.5)
    net.train()
    for _ in range(3):
        net(torch.randn(16, 1, 8, 8))
    return net.eval()


PLAN = ResNetConfig((1, 1), (4, 8), "plain", "hardtanh", "conv", "conv3-act", head="norm", use_kaiming_init=False)


class HardtanhBinarizer(ActivationBinarizer):
    """Hardtanh, which replaces sign in the surrogate network."""

    def forward(self, x: Tensor) -> BinaryTensor:
        return BinaryTensor(F.hardtanh(x))


def use_hardtanh(net: Network) -> Network:
    for module in net.modules():
        if getattr(module, "input_binarizer", None) is not None:
            module.input_binarizer = HardtanhBinarizer(1)
    return net


def search_largest_ratio(net: Network, steps: int = 30) -> float:
    """Return the largest |f(x) - f(y)| / |x - y| that gradient ascent over pairs of images finds."""
    x = torch.randn(8, 1, 8, 8)
    difference = (0.1 * torch.randn_like(x)).requires_grad_()
    best = 0.0
    for _ in range(steps):
        ratios = (net(x + difference) - net(x)).flatten(1).norm(dim=1) / difference.flatten(1).norm(dim=1)
        best = max(best, ratios.max().item())
        (gradient,) = torch.autograd.grad(ratios.sum(), difference)
        difference = (
            difference + 0.1 * gradient / gradient.flatten(1).norm(dim=1)[:, None, None, None].clamp_min(1e-9)
        ).detach()
        difference.requires_grad_()
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
def test_no_pair_of_images_exceeds_the_bound_of_the_surrogate(name: str, method: str | None) -> None:
    net = make_net_with_batch_norm_statistics(name, method)
    bound = 10 ** bound_lipschitz(net, torch.zeros(1, 1, 8, 8)).surrogate_log10
    largest_ratio = search_largest_ratio(use_hardtanh(net))
    assert 0 < largest_ratio <= bound


def test_the_bound_of_one_layer_is_exact() -> None:
    stem = nn.Sequential(nn.Conv2d(1, 3, 1, bias=False), nn.BatchNorm2d(3, affine=False))
    net = Network(stem, [nn.Sequential(nn.Identity())], nn.Flatten(), nn.Identity()).eval()
    bound = bound_lipschitz(net, torch.zeros(1, 1, 4, 4))
    exact = stem[0].weight.flatten(1).norm().item() / math.sqrt(1 + 1e-5)
    assert 10**bound.surrogate_log10 == pytest.approx(exact, rel=1e-6)
    assert bound.eq5_log10[0] == pytest.approx(math.log10(exact), abs=1e-6)
    assert search_largest_ratio(net) == pytest.approx(exact, rel=1e-3)


def test_the_bound_of_a_block_is_skip_plus_branch() -> None:
    net = build_resnet(replace(PLAN, depths=(2,), widths=(4,), head="linear"), lcrbnn.get_method("irnet"), 10, 1).eval()
    for i in (0, 1):
        nn.init.zeros_(net.get_submodule(f"layer1.{i}.bn2").weight)
    bounds = bound_lipschitz(net, torch.zeros(1, 1, 8, 8))
    outer_layers = bounds.layers["stem.0"].high * bounds.layers["head"].high
    assert 10**bounds.surrogate_log10 == pytest.approx(outer_layers / 8)  # the mean of 64 pixels has norm 1 / sqrt(64)
    nn.init.constant_(net.get_submodule("layer1.0.bn2").weight, 3.0)
    branch_norms = [bound_lipschitz(net, torch.zeros(1, 1, 8, 8)).layers[f"layer1.0.conv{i}"].high for i in (1, 2)]
    bound_with_branch = 10 ** bound_lipschitz(net, torch.zeros(1, 1, 8, 8)).surrogate_log10
    assert bound_with_branch == pytest.approx(outer_layers / 8 * (1 + branch_norms[0] * branch_norms[1]))


@pytest.mark.parametrize("method", ["irnet", "xnor", "xnor++", "dorefa"])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_norm_of_a_layer_includes_scale_and_batch_norm(method: str, stride: int) -> None:
    conv = lcrbnn.BinaryConv2d(4, 6, 3, stride, 1, method=method)
    if conv.weight_binarizer.needs_output_shape:
        lcrbnn.fit_output_shapes(conv, (1, 4, 5, 5))
    batch_norm = nn.BatchNorm2d(6).eval()
    nn.init.uniform_(batch_norm.weight, -2, 2)
    batch_norm.running_var.uniform_(0.1, 5)
    batch_norm.running_mean.normal_()
    conv.input_binarizer = IdentityBinarizer(4)  # only the linear part, without sign
    with torch.no_grad():
        at_zero = batch_norm(conv(torch.zeros(1, 4, 5, 5)))
        columns = batch_norm(conv(torch.eye(100).reshape(-1, 4, 5, 5))) - at_zero
    exact = torch.linalg.svdvals(columns.flatten(1).double())[0].item()
    interval = bound_layer_norm(conv, batch_norm, (1, 4, 5, 5))
    assert interval.low == pytest.approx(exact, rel=1e-4)  # the layer computes in float32
    assert exact <= interval.high * (1 + 1e-4)


class IdentityBinarizer(ActivationBinarizer):
    def forward(self, x: Tensor) -> BinaryTensor:
        return BinaryTensor(x)


def test_eq_5_is_the_product_along_the_main_path() -> None:
    net = build_resnet(replace(PLAN, shortcut="binary-conv"), lcrbnn.get_method("irnet"), 10, 1)
    bounds = bound_lipschitz(net, torch.zeros(1, 1, 8, 8))
    assert any("shortcut" in name for name in bounds.layers)
    main_path = [v for name, v in bounds.layers.items() if "shortcut" not in name]
    assert bounds.eq5_log10[0] == pytest.approx(sum(math.log10(v.low) for v in main_path))
    assert bounds.eq5_log10[1] == pytest.approx(sum(math.log10(v.high) for v in main_path))
    assert set(net.main_path) - {"pool"} <= set(bounds.layers)


@pytest.mark.parametrize(
    "changes",
    [
        {"shortcut": "pool", "block": "double"},
        {"shortcut": "pool-conv", "block": "single", "activation": "rprelu", "head": "linear"},
        {"stem": "conv7-act-pool", "activation": "relu", "head": "norm-relu"},
    ],
)
def test_every_module_has_a_rule_and_no_pair_of_images_exceeds_the_bound(changes: dict[str, str]) -> None:
    net = build_resnet(replace(PLAN, **changes), lcrbnn.get_method("irnet"), 10, 1)
    net.train()
    net(torch.randn(16, 1, 8, 8))
    net.eval()
    bounds = bound_lipschitz(net, torch.zeros(1, 1, 8, 8))
    assert set(net.main_path) - {"pool"} <= set(bounds.layers)
    assert all(0 < v.low <= v.high for v in bounds.layers.values())
    assert 0 < search_largest_ratio(use_hardtanh(net), steps=10) <= 10**bounds.surrogate_log10


def test_a_batch_norm_behind_a_max_pool_is_merged_into_the_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lcrbnn.nn.models.vgg.STAGES", (((8, True),), ((8, True),)))
    net = lcrbnn.create_model("vgg-small", "irnet", in_channels=1, image_size=8).eval()
    net.get_submodule("layer2.0.bn1").running_var.fill_(4 - 1e-5)
    without_batch_norm = bound_layer_norm(net.get_submodule("layer2.0.conv1"), None, (1, 8, 4, 4))
    bounds = bound_lipschitz(net, torch.zeros(1, 1, 8, 8))
    assert bounds.layers["layer2.0.conv1"].high == pytest.approx(without_batch_norm.high / 2)
    assert "layer2.0.bn1" not in bounds.layers


def test_a_module_without_a_rule_is_named_in_the_error() -> None:
    net = lcrbnn.create_model("resnet8-double", "irnet", in_channels=1, image_size=8)
    net.head = nn.Sequential(nn.Softmax(1))
    with pytest.raises(InputError, match=r"there is no Lipschitz bound for modules of type Softmax \(head.0\)"):
        bound_lipschitz(net, torch.zeros(1, 1, 8, 8))


def test_bounding_does_not_change_the_network() -> None:
    net = lcrbnn.create_model("resnet8-double", "irnet", in_channels=1, image_size=8)
    state_before = {k: v.clone() for k, v in net.state_dict().items()}
    bound_lipschitz(net, torch.zeros(1, 1, 8, 8))
    assert net.training
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in state_before.items())
    assert not any(m._forward_pre_hooks for m in net.modules())
