"""Random in-place operations on views of any kind: exported as PyTorch computes them, or rejected."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.errors import InputError
from tests.deploy.export.torch_comparison import assert_export_equals_torch


def add_in_place(x: Tensor, number: float) -> Tensor:
    x += number
    return x


VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.chunk(2, 1)[0] if x.shape[1] > 1 else x,
    lambda x: x.chunk(2, 1)[-1],
    lambda x: x[:, :1],
    lambda x: x.transpose(1, -1),
    lambda x: x.unsqueeze(1),
    lambda x: x.squeeze(1),
    lambda x: x[:, 0] if x.dim() > 2 else x,
    lambda x: x.reshape(x.shape[0], -1),
    lambda x: x.flatten(1),
    lambda x: x.unflatten(1, (1, -1)),
    lambda x: x.expand(*x.shape),
    lambda x: x.contiguous(),
    lambda x: x.float().detach(),
    lambda x: F.pixel_shuffle(x, 1) if x.dim() == 4 else x.narrow(1, 0, 1),
    lambda x: x.split(1, -1)[0],
]
COPIES: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.flip(1),
    lambda x: x.roll(1, -1),
    lambda x: x.clone(),
    lambda x: x.repeat(*(1,) * x.dim()),
    lambda x: torch.cat([x], 1),
    lambda x: F.pad(x, (0, 0)),
    lambda x: x.clamp(-100, 100),
    lambda x: F.hardtanh(x, -np.inf, np.inf),
    lambda x: x * 0.5,
    lambda x: x.mean(1, keepdim=True),
    lambda x: x.softmax(1),
    lambda x: x + x.mean(-1, keepdim=True),
    lambda x: x[:, [0]],
]
WRITES: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.mul_(-0.5),
    lambda x: add_in_place(x, 0.25),
    lambda x: F.relu(x, inplace=True),
    lambda x: x.sigmoid_(),
    lambda x: F.leaky_relu_(x, 0.1),
    lambda x: x.sub_(x.mean(1, keepdim=True)),
]


class RandomWrites(nn.Module):
    """Random views, copies and in-place operations. The output is made of three of the tensors."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, x: Tensor) -> Tensor:
        draw = np.random.default_rng(self.seed)
        tensors = [x * 1.5]
        for _ in range(draw.integers(3, 9)):
            functions = (VIEWS, VIEWS, COPIES, WRITES)[int(draw.integers(4))]
            tensor = tensors[int(draw.integers(len(tensors)))]
            tensors.append(functions[int(draw.integers(len(functions)))](tensor))
        outputs = [tensors[int(draw.integers(len(tensors)))].flatten(1) for _ in range(3)]
        return torch.cat([torch.tanh(output) for output in outputs], 1)


def test_random_writes_to_views_equal_pytorch_or_are_rejected() -> None:
    num_equal = num_rejected = 0
    for seed in range(400):
        images = torch.randn(2, 4, 3, 2, generator=torch.Generator().manual_seed(seed))
        net = RandomWrites(seed)
        try:
            net(images.clone())
        except RuntimeError:  # PyTorch cannot write to this view either
            continue
        try:
            assert_export_equals_torch(net, images, runs_engine=False)
        except InputError as error:
            assert "overwritten" in str(error), (seed, str(error))  # noqa: PT017  # the other half of the test
            num_rejected += 1
            continue
        num_equal += 1
    assert num_equal > 100
    assert num_rejected > 50
