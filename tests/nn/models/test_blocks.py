"""Residual blocks, activation functions and shortcuts compute the published formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lcrbnn
from lcrbnn.nn.layers import BinaryConv2d
from lcrbnn.nn.models.blocks import BLOCKS, Maxout, RPReLU
from lcrbnn.nn.models.reactnet_a import MobileBlock


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_equals_the_published_formula(kind: str) -> None:
    block = BLOCKS[kind](4, 8, 2, None, "hardtanh", "subsample").eval()
    x = torch.randn(2, 4, 6, 6)
    ht = torch.nn.functional.hardtanh
    skip = torch.zeros(2, 8, 3, 3)
    skip[:, 2:6] = x[:, :, ::2, ::2]  # planes // 4 zero channels on each side
    first = block.bn1(block.conv1(x))
    if kind == "plain":
        expected = ht(block.bn2(block.conv2(ht(first))) + skip)
    elif kind == "double":
        middle = ht(first + skip)
        expected = ht(block.bn2(block.conv2(middle)) + middle)
    else:
        expected = ht(first + skip)
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize(("cout", "stride"), [(4, 1), (8, 1), (8, 2)])
def test_a_mobile_block_equals_the_published_formula(cout: int, stride: int) -> None:
    """Where channels double, the formula has two 1x1 convolutions, each with its batch norm and the same skip."""
    block = MobileBlock(4, cout, stride, lcrbnn.get_method("reactnet")).eval()
    with torch.no_grad():
        for module in block.modules():
            if isinstance(module, BinaryConv2d):
                module.weight.normal_()
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.weight.uniform_(0.5, 2)
    x = torch.randn(2, 4, 6, 6)
    y = block.act1(block.bn1(block.conv1(x)) + (x if stride == 1 else F.avg_pool2d(x, 2)))
    parts = []
    for rows in [slice(i, i + 4) for i in range(0, cout, 4)]:
        half = BinaryConv2d(4, 4, 1, method="reactnet")
        half.weight.data = block.conv2.weight[rows].data
        norm = block.bn2
        z = half(y)
        z = F.batch_norm(z, norm.running_mean[rows], norm.running_var[rows], norm.weight[rows], norm.bias[rows])
        parts.append(z + y)
    torch.testing.assert_close(block(x), block.act2(torch.cat(parts, 1)))


def test_rprelu_shifts_before_and_after_the_prelu() -> None:
    act = RPReLU(1)
    act.front.data.fill_(-1.0)
    act.back.data.fill_(10.0)
    x = torch.tensor([0.0, 3.0]).reshape(1, 1, 1, 2)
    assert act(x).flatten().tolist() == [10 - 0.25, 12.0]


def test_maxout_is_the_larger_of_two_lines() -> None:
    act = Maxout(2)
    assert torch.equal(
        act(torch.tensor([-4.0, 4.0]).reshape(1, 1, 1, 2)[:, [0, 0]])[0, 1, 0], torch.tensor([-1.0, 4.0])
    )
    act.above.data.copy_(torch.tensor([2.0, 0.5]))
    act.below.data.copy_(torch.tensor([-3.0, 0.1]))
    x = torch.randn(3, 2, 5, 5)
    lines = (x * slope[:, None, None] for slope in (act.above, act.below))
    assert torch.equal(act(x), torch.maximum(*lines))  # above >= below


def test_every_shortcut_supports_odd_image_sizes() -> None:
    for name in ("resnet20", "resnet18", "resnet18-pool-shortcut", "react18"):
        assert lcrbnn.create_model(name, "irnet", image_size=35)(
            torch.randn(1, 3, 35, 35).repeat(2, 1, 1, 1)
        ).shape == (
            2,
            10,
        )
