from __future__ import annotations

import torch
from torch import nn

import lcrbnn
from lcrbnn.analyze.cost import count


def test_a_network_counted_by_hand() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),  # 36 weights at 6 x 6 places
        lcrbnn.BinaryConv2d(4, 8, 3, stride=2, padding=1, groups=2, method="bnn"),  # 8 * 2 * 9 weights at 3 x 3
        lcrbnn.BinaryConv2d(8, 8, 1, method=lcrbnn.method("bnn", "1/32")),  # 64 at 3 x 3
        nn.Flatten(),
        nn.Linear(72, 5),  # 360 weights, 5 biases
    )
    cost = count(net, (1, 6, 6))
    assert cost.real_macs == 36 * 36 + 360
    assert cost.binary_macs == 144 * 9
    assert cost.mixed_macs == 64 * 9
    assert cost.binary_weights == 144 + 64
    assert cost.parameters == 36 + 144 + 64 + 365


def test_counting_leaves_the_network_as_it_was() -> None:
    net = lcrbnn.network("resnet8-double", "irnet")
    net.layer1.eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    count(net, (3, 8, 8))
    assert net.training
    assert not net.layer1.training
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in before.items())
    assert not any(m._forward_hooks for m in net.modules())
