"""A network of a user: it is not defined by this package and has a stride-2 block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        return torch.where(x < 0, -1.0, 1.0)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        return grad


class UserBinaryConv(nn.Conv2d):
    """A binary convolution that this package does not know."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(Sign.apply(x), Sign.apply(self.weight), None, self.stride, self.padding)


class Block(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int, conv: type[nn.Conv2d]) -> None:
        super().__init__()
        self.conv = conv(cin, cout, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.hardtanh(self.norm(self.conv(x)) + self.skip(x))


class UserNetwork(nn.Module):
    def __init__(self, conv: type[nn.Conv2d] = UserBinaryConv) -> None:
        super().__init__()
        self.begin = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Hardtanh())
        self.flat = Block(8, 8, 1, conv)
        self.down = Block(8, 16, 2, conv)
        self.end = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.end(self.down(self.flat(self.begin(images))).mean((2, 3)))


BLOCKS = ["flat", "down"]
