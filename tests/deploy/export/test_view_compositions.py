"""Random compositions of views, copies, joins and layers equal PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lcrbnn.deploy.export.graph.layouts import Layout, find_reorderings
from lcrbnn.errors import InputError
from tests.deploy.export.torch_comparison import assert_export_equals_torch


def apply_random_view(x: Tensor, draw: np.random.Generator) -> Tensor:
    """Return a random view or copy of a tensor, whose images stay on the first axis."""
    axes, kind = list(range(1, x.dim())), int(draw.integers(10))
    axis = int(draw.choice(axes))
    size = x.shape[axis]
    if kind == 0:
        return x.permute(0, *(int(a) for a in draw.permutation(axes)))
    if kind == 1 and x.dim() < 6:
        factor = int(draw.choice([f for f in range(1, size + 1) if size % f == 0]))
        return x.unflatten(axis, (factor, -1))
    if kind == 2 and x.dim() > 2 and axis + 1 < x.dim():
        return x.flatten(axis, axis + 1)
    if kind == 3 and size > 2:
        return x.narrow(axis, 1, size - 2)
    if kind == 4 and np.prod(x.shape[1:]) < 5000:
        return torch.cat([x, x.flip(axis)], axis)
    if kind == 5 and size > 1:
        parts = x.chunk(2, axis)
        return parts[int(draw.integers(2))]
    if kind == 6:
        return x.roll(int(draw.integers(5)), axis)
    if kind == 7:
        return x.flip(axis).transpose(axis, axes[-1])
    if kind == 8:
        return x[(slice(None),) * axis + (slice(None, None, 2),)]
    return x.reshape(x.shape[0], -1, size) if x.dim() > 2 else x.unsqueeze(-1).expand(-1, -1, 2)


def apply_random_layer(x: Tensor, draw: np.random.Generator) -> Tensor:
    """Return x after an operation that needs the elements in a certain order."""
    axis, kind = int(draw.integers(1, x.dim())), int(draw.integers(8))
    functions = (
        lambda: x.softmax(axis),
        lambda: x - x.mean(axis, keepdim=True),
        lambda: x * x.amax(axis, keepdim=True).tanh(),
        lambda: nn.functional.layer_norm(x, x.shape[-1:]),
        lambda: x + x.flip(axis),
        lambda: x @ x.transpose(-1, -2) if x.dim() > 2 and x.shape[-2] < 100 else x,
        lambda: x * torch.linspace(-1, 1, x.shape[axis]).reshape(-1, *(1,) * (x.dim() - 1 - axis)),
        lambda: torch.tanh(x),
    )
    return functions[kind]()


class RandomViews(nn.Module):
    """Random views with layers between them. The forward depends on shapes alone, so its choices do not change."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, x: Tensor) -> Tensor:
        draw = np.random.default_rng(self.seed)
        for _ in range(draw.integers(2, 8)):
            x = apply_random_view(x, draw)
            if draw.random() < 0.4:
                x = apply_random_layer(x, draw)
        return torch.tanh(x.flatten(1))


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_random_compositions_equal_pytorch(start: int) -> None:
    for seed in range(start, start + 50):
        images = torch.randn(2, 4, 6, 3, generator=torch.Generator().manual_seed(seed))
        assert_export_equals_torch(RandomViews(seed), images, runs_engine=seed % 5 == 0)


def test_views_that_mix_images_are_rejected() -> None:
    for seed in range(20):
        net = nn.Sequential(RandomViews(seed), nn.Flatten(0), nn.Unflatten(0, (2, -1)))
        with pytest.raises(InputError, match="mixes the images of a batch"):
            assert_export_equals_torch(net, torch.randn(2, 4, 6, 3))


def test_reorderings_select_the_indices() -> None:
    """Apply the nodes to the numbers of the elements, which gives the indices themselves."""
    generator = np.random.default_rng(0)
    for _ in range(300):
        source = tuple(int(n) for n in generator.integers(1, 5, 3))
        numbers = np.arange(np.prod(source))
        target = generator.choice(numbers, generator.integers(1, 5, 3))
        if generator.random() < 0.5:
            target = numbers.reshape(source).transpose(generator.permutation(3))[:: generator.choice([-1, 1, 2])]
        value = numbers.reshape(source)
        reorderings = find_reorderings(source, target, 0.0)
        assert reorderings is not None
        for op, attributes, shape in reorderings:
            if op == "strided":
                places = np.indices(attributes["lengths"]).reshape(len(attributes["lengths"]), -1)
                flat = attributes["offset"] + np.array(attributes["strides"]) @ places
                value = value.reshape(-1)[flat].reshape(shape)
            else:
                axes = [
                    attributes.get(key, np.arange(n))
                    for key, n in zip(("rows", "columns", "channels"), value.shape, strict=True)
                ]
                value = value[np.ix_(*axes)]
        assert np.array_equal(value, target)


def test_layouts_of_maps_are_channels_last() -> None:
    layout = Layout((1, 3, 2, 2))
    assert layout.standard_shape == (2, 2, 3)
    assert np.array_equal(layout.indices[0, :, 0, 0], [0, 1, 2])
    assert np.array_equal(layout.arrange_standard().reshape(-1), np.arange(12))
