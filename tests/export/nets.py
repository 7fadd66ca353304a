"""Every method with its bits, networks with nothing at its trivial start, and narrow ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lcrbnn.export import Input
from lcrbnn.export.refusal import refusal
from lcrbnn.layers import binary_layers
from lcrbnn.methods import METHODS, Method, method
from lcrbnn.methods.abcnet import AbcActivation
from lcrbnn.methods.biper import BiperWeight
from lcrbnn.methods.bnnplus import BnnPlusWeight
from lcrbnn.methods.dsq import SoftSign
from lcrbnn.methods.ienet import IenetWeight
from lcrbnn.methods.lns import LnsWeight
from lcrbnn.methods.proxybnn import ProxyWeight
from lcrbnn.methods.rbnn import RbnnWeight
from lcrbnn.methods.reactnet import ReactActivation
from lcrbnn.methods.recu import RecuActivation, RecuWeight
from lcrbnn.methods.siman import SimanWeight
from lcrbnn.methods.xnorpp import XnorPlusWeight
from lcrbnn.models import Network, mobile, network, table, vgg
from lcrbnn.models.blocks import Maxout, RPReLU
from lcrbnn.models.resnet import ResNetPlan, build_resnet

# Every method with one bit for activations, and with real ones, where it has them and can be exported.
CHOICES: list[Method] = [
    chosen
    for name, row in METHODS.items()
    for chosen in (method(name, f"1/{b}") for b in row.activation_bits if b in (1, 32))
    if not refusal(chosen)
]
IDS = [f"{m.name}-{m.chosen_bits}" for m in CHOICES]
# Those that bring something to a file that no other does (a scale, a threshold, a border of their own) are tried with
# everything. The others differ in how they come to their signs, and are tried with a part of it.
FIRST = ("bnn", "xnor", "bwn", "xnor++", "dorefa", "bireal", "irnet", "rbnn", "reactnet", "abc-net")
TELLING: list[Method] = [m for m in CHOICES if m.name in FIRST]


@torch.no_grad()
def stirred(net: nn.Module, images: Tensor, seed: int = 0) -> nn.Module:
    """Draw weights, shifts, slopes and scales; batch norms learn the images' statistics and are then moved."""
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
    for _, layer in binary_layers(net):
        layer.weight_binarizer.project(layer.weight)
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
        norm.weight.uniform_(0.5, 1.5).mul_(torch.where(torch.rand(norm.num_features) < 0.1, -1, 1))
        norm.bias.normal_(0, 0.3)
    net.train()
    for _, layer in binary_layers(net):
        layer.weight_binarizer.eval()  # statistics of what is exported, not of a softer start
    net(images)
    for norm in norms:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.add_(0.1 * norm.running_var.sqrt() * torch.randn(norm.num_features))
        low = max(norm.running_var.mean().item() / 4, 0.5)  # a ReLU before a sign leaves no variance at all
        norm.running_var.clamp_(low).mul_(torch.empty(norm.num_features).uniform_(0.7, 1.4))
    return net.eval()


def input_of(images: Tensor, classes: int) -> Input:
    return Input((*images.shape[2:], images.shape[1]), tuple(map(str, range(classes))))


def narrow(name: str, chosen: Method, side: int, classes: int) -> Network:
    """A network of MODELS with as many layers as it has, and few channels."""

    def thin(plan: ResNetPlan, *more: Any) -> Network:
        return build_resnet(replace(plan, widths=tuple(6 + 5 * i for i in range(len(plan.widths)))), *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "build_resnet", thin)
        patch.setattr(vgg, "PLAN", tuple(tuple((cout // 16, pool) for cout, pool in part) for part in vgg.PLAN))
        patch.setattr(mobile, "FIRST", 5)
        patch.setattr(mobile, "STAGES", tuple((5 * 2 ** (i + 1), d, s) for i, (_, d, s) in enumerate(mobile.STAGES)))
        return network(name, chosen, image=side, classes=classes)
