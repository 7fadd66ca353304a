"""All exportable methods, and networks with randomized parameters and few channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lcrbnn.deploy.export.export_model import ModelInput, explain_unexportable_method
from lcrbnn.nn.layers import BinaryConv2d
from lcrbnn.nn.methods.abcnet import AbcActivation
from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.methods.biper import BiperWeight
from lcrbnn.nn.methods.bnnplus import BnnPlusWeight
from lcrbnn.nn.methods.dsq import SoftSign
from lcrbnn.nn.methods.ienet import IenetWeight
from lcrbnn.nn.methods.lns import LnsWeight
from lcrbnn.nn.methods.method_registry import METHODS, get_method
from lcrbnn.nn.methods.proxybnn import ProxyWeight
from lcrbnn.nn.methods.rbnn import RbnnWeight
from lcrbnn.nn.methods.reactnet import ReactActivation
from lcrbnn.nn.methods.recu import RecuActivation, RecuWeight
from lcrbnn.nn.methods.siman import SimanWeight
from lcrbnn.nn.methods.xnorpp import XnorPlusWeight
from lcrbnn.nn.model_hooks import iter_binary_layers
from lcrbnn.nn.models import model_registry as table
from lcrbnn.nn.models import network, vgg
from lcrbnn.nn.models import reactnet_a as mobile
from lcrbnn.nn.models.blocks import Maxout, RPReLU
from lcrbnn.nn.models.model_registry import create_model
from lcrbnn.nn.models.network import Network
from lcrbnn.nn.models.resnet import ResNetConfig, build_resnet

# Methods with more than two opposite levels, which are exported as sums of several binary products.
MULTI_LEVEL_METHODS: list[Method] = [
    *(get_method("adabin", bits) for bits in ("1/1", "1/32")),
    get_method("abc-net", weight_bases=3, activation_bases=2),
    get_method("abc-net", "1/32", weight_bases=2),
    get_method("ie-net"),
    *(get_method("horq", bits) for bits in ("1/1", "1/2", "1/3")),
    *(get_method("dorefa", bits) for bits in ("1/2", "1/3")),
    get_method("hwgq"),
    get_method("sq-twn"),
    get_method("irnet/adabin"),
]
# All methods that are exported as one binary product per layer, with activations of 1 bit and with real activations.
EXPORTABLE_METHODS: list[Method] = [
    chosen
    for name, row in METHODS.items()
    for chosen in (get_method(name, f"1/{b}") for b in row.supported_activation_bits if b in (1, 32))
    if (name, chosen.activation_bits) not in {(m.name, m.activation_bits) for m in MULTI_LEVEL_METHODS if not m.options}
    if (name, chosen.activation_bits) != ("ie-net", 1)
    if not explain_unexportable_method(chosen)
]
METHOD_IDS = [f"{m.name}-{m.activation_bits}" for m in EXPORTABLE_METHODS]
# Methods whose files differ from those of all others, in scales, thresholds or padding: every test uses them. The other
# methods differ only in how they compute their signs, so some tests skip them.
DISTINCT_METHOD_NAMES = ("bnn", "xnor", "bwn", "xnor++", "dorefa", "bireal", "irnet", "rbnn", "reactnet", "abc-net")
DISTINCT_METHODS: list[Method] = [m for m in EXPORTABLE_METHODS if m.name in DISTINCT_METHOD_NAMES]


@torch.no_grad()
def randomize_parameters(net: nn.Module, images: Tensor, seed: int = 0) -> nn.Module:
    """Randomize weights, shifts, slopes and scales; set batch norms near the statistics of the images."""
    torch.manual_seed(seed)
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.weight.normal_(0, module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                module.bias.normal_(0, 0.3)
        if isinstance(module, ReactActivation | RecuActivation) and module.shift is not None:
            module.shift.normal_(0, 0.3)
        if isinstance(module, RbnnWeight):
            module.theta.uniform_(0.2, 1.4)
            module.alpha.uniform_(0.05, 0.2)
        if isinstance(module, XnorPlusWeight):
            for factor in module.factors:
                factor.uniform_(0.5, 1.5)
        if isinstance(module, RPReLU):
            module.front.normal_(0, 0.3)
            module.back.normal_(0, 0.3)
        if isinstance(module, Maxout):
            module.above.uniform_(0.4, 1.6)
            module.below.uniform_(-0.2, 0.6)
        if isinstance(module, nn.PReLU):
            module.weight.uniform_(-0.2, 0.6)
        if isinstance(module, AbcActivation | SoftSign):
            for parameter in module.parameters():
                parameter.mul_(torch.empty(parameter.shape).uniform_(0.8, 1.2))
        if isinstance(module, BiperWeight | BnnPlusWeight | RecuWeight | SimanWeight | IenetWeight):
            module.alpha.uniform_(0.05, 0.2)
        if isinstance(module, ProxyWeight):
            module.basis.add_(0.1 * torch.randn(module.basis.shape))
        if isinstance(module, LnsWeight):
            module.leave.normal_(0, 0.2)
    for _, layer in iter_binary_layers(net):
        layer.weight_binarizer.project(layer.weight)
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
        norm.weight.uniform_(0.5, 1.5).mul_(torch.where(torch.rand(norm.num_features) < 0.1, -1, 1))
        norm.bias.normal_(0, 0.3)
    net.train()
    for _, layer in iter_binary_layers(net):
        layer.weight_binarizer.eval()  # some methods use softer weights in training
    net(images)
    for norm in norms:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.add_(0.1 * norm.running_var.sqrt() * torch.randn(norm.num_features))
        min_variance = max(norm.running_var.mean().item() / 4, 0.5)  # a sign after a ReLU can have variance 0
        norm.running_var.clamp_(min_variance).mul_(torch.empty(norm.num_features).uniform_(0.7, 1.4))
    return net.eval()


def describe_input(images: Tensor, classes: int) -> ModelInput:
    return ModelInput((*images.shape[2:], images.shape[1]), tuple(map(str, range(classes))))


def create_narrow_network(name: str, methods: Sequence[Method], image_size: int, classes: int) -> Network:
    """Return a network of MODELS with few channels; its binary convolutions use the methods in turn."""

    def build_thin_resnet(plan: ResNetConfig, *args: Any) -> Network:
        return build_resnet(replace(plan, widths=tuple(6 + 5 * i for i in range(len(plan.widths)))), *args)

    next_method = cycle(methods)

    def make_binary_conv(*args: Any, method: Method) -> BinaryConv2d:
        return BinaryConv2d(*args, method=next(next_method))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "BinaryConv2d", make_binary_conv)
        patch.setattr(table, "build_resnet", build_thin_resnet)
        patch.setattr(vgg, "STAGES", tuple(tuple((cout // 16, pool) for cout, pool in part) for part in vgg.STAGES))
        patch.setattr(mobile, "STEM_CHANNELS", 5)
        patch.setattr(mobile, "STAGES", tuple((5 * 2 ** (i + 1), d, s) for i, (_, d, s) in enumerate(mobile.STAGES)))
        return create_model(name, methods[0], image_size=image_size, num_classes=classes)
