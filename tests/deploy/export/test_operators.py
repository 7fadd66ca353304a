"""Every module and function that can be exported: a small network of it equals PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.deploy.export.torch_comparison import FunctionModule, assert_export_equals_torch

RUNS_ENGINE = True


def make_images(*shape: int) -> Tensor:
    return 2 * torch.randn(shape or (3, 4, 6, 8), generator=torch.Generator().manual_seed(1))


def randomize(net: nn.Module) -> nn.Module:
    """Give all affine parameters and running statistics random numbers."""
    generator = torch.Generator().manual_seed(2)
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        if tensor.is_floating_point():
            noise = torch.rand(tensor.shape, generator=generator)
            tensor.data.copy_(noise + 0.5 if "var" in name else noise - 0.4)
    return net


ACTIVATIONS: list[nn.Module] = [
    nn.ReLU6(), nn.Hardtanh(-0.3, 2.5), nn.Hardtanh(0, 1), nn.LeakyReLU(), nn.LeakyReLU(0.3), nn.ELU(), nn.ELU(0.7),
    nn.CELU(), nn.CELU(0.6), nn.SELU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Sigmoid(), nn.Tanh(),
    nn.Hardsigmoid(), nn.Hardswish(), nn.Softmax(1), nn.Softmax(-1), nn.Softmax(2), nn.Softmax2d(), nn.GLU(1),
    nn.GLU(2), nn.PReLU(4), nn.PReLU(),
]  # fmt: skip
SHAPES: list[nn.Module] = [
    nn.ZeroPad2d((1, 2, 0, 3)), nn.ZeroPad2d(-1), nn.ConstantPad2d((2, 0, 1, 1), 0.7), nn.ReflectionPad2d((1, 2, 3, 0)),
    nn.ReplicationPad2d((3, 1, 0, 2)), nn.CircularPad2d((2, 1, 1, 3)), nn.PixelShuffle(2), nn.PixelUnshuffle(2),
    nn.ChannelShuffle(2), nn.Flatten(2), nn.Flatten(1, 2), nn.Flatten(), nn.Unfold(3, padding=1),
    nn.Upsample(scale_factor=2), nn.Upsample((9, 5)), nn.Upsample(scale_factor=1.7, mode="nearest-exact"),
    nn.Upsample(scale_factor=2, mode="bilinear"), nn.Upsample((11, 5), mode="bilinear"),
    nn.Upsample((11, 5), mode="bilinear", align_corners=True), nn.UpsamplingBilinear2d(scale_factor=2),
    nn.UpsamplingNearest2d(scale_factor=3), nn.Upsample(scale_factor=0.5, mode="bilinear"),
]  # fmt: skip
LAYERS: list[nn.Module] = [
    nn.ConvTranspose2d(4, 6, 3), nn.ConvTranspose2d(4, 6, 2, 2), nn.ConvTranspose2d(4, 6, 4, 2, 1, bias=False),
    nn.ConvTranspose2d(4, 6, 3, (2, 3), 1, output_padding=1, groups=2, dilation=(1, 2)),
    nn.ConvTranspose2d(4, 2, 3, 2, 2, 1), nn.ConvTranspose2d(4, 4, 1, 2, output_padding=1),
    nn.Conv2d(4, 6, 3, padding="same", dilation=2), nn.Conv2d(4, 6, 4, padding="same", padding_mode="reflect"),
    nn.Conv2d(4, 6, 3, padding=1, padding_mode="replicate"),
    nn.Conv2d(4, 6, 3, padding=(2, 1), padding_mode="circular"),
    nn.AvgPool2d(3, 2, 1), nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.AvgPool2d(3, 1, (0, 1)),
    nn.AvgPool2d(2, divisor_override=3), nn.AvgPool2d(3, 2, 1, divisor_override=5), nn.AdaptiveAvgPool2d(3),
    nn.AdaptiveAvgPool2d((4, 5)), nn.AdaptiveAvgPool2d((None, 3)), nn.AdaptiveMaxPool2d(1),
    nn.AdaptiveMaxPool2d((3, 2)),
    nn.GroupNorm(2, 4), nn.GroupNorm(1, 4, affine=False), nn.GroupNorm(4, 4, 1e-2), nn.LayerNorm(8),
    nn.LayerNorm((6, 8)), nn.LayerNorm((4, 6, 8), 1e-3), nn.LayerNorm(8, bias=False),
    nn.LayerNorm(8, elementwise_affine=False),
    nn.InstanceNorm2d(4), nn.InstanceNorm2d(4, affine=True), nn.InstanceNorm2d(4, track_running_stats=True),
    nn.RMSNorm(8), nn.RMSNorm((6, 8), 1e-3), nn.Linear(8, 5), nn.BatchNorm2d(4),
]  # fmt: skip


@pytest.mark.parametrize("module", [*ACTIVATIONS, *SHAPES, *LAYERS], ids=str)
def test_modules_equal_pytorch(module: nn.Module) -> None:
    randomize(module)
    assert_export_equals_torch(nn.Sequential(module), make_images(), runs_engine=RUNS_ENGINE)
    head = nn.Sequential(module, nn.Flatten(), nn.LazyLinear(5))
    head(make_images())
    assert_export_equals_torch(head, make_images(), runs_engine=RUNS_ENGINE)


CONSTANT = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(3))
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "clamp": lambda x: x.clamp(-0.5, 2),
    "clamp low": lambda x: x.clamp(min=0.25),
    "clamp high": lambda x: torch.clamp(x, max=0.25),
    "clamp_min": lambda x: x.clamp_min(-1),
    "relu6": lambda x: F.relu6(x),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 0.5),
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "silu": lambda x: F.silu(x),
    "sigmoid": lambda x: x.sigmoid(),
    "tanh": lambda x: torch.tanh(x),
    "hardswish": lambda x: F.hardswish(x),
    "hardsigmoid": lambda x: F.hardsigmoid(x),
    "softmax": lambda x: x.softmax(dim=-2),
    "product": lambda x: x * x.tanh(),
    "squeeze and excite": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "spatial gate": lambda x: torch.sigmoid(x.mean(1, keepdim=True)) * x,
    "outer product": lambda x: x.mean(1, keepdim=True) * x.mean((2, 3), keepdim=True),
    "difference": lambda x: x - x.flip(1),
    "alpha": lambda x: torch.add(x, x.tanh(), alpha=0.5),
    "constant map": lambda x: x + CONSTANT,
    "constant rows": lambda x: x * CONSTANT[:1, :, :1],
    "constant columns": lambda x: CONSTANT[0, 0] - x,
    "quotient by a map": lambda x: x / (CONSTANT.abs() + 0.5),
    "addcmul": lambda x: torch.addcmul(x, x, CONSTANT, value=0.5),
    "normalize": lambda x: F.normalize(x) + F.normalize(x, dim=-1),
    "power": lambda x: x**2 + x.pow(3) - x.square(),
    "absolute": lambda x: x.abs(),
    "chunk": lambda x: torch.cat([p.tanh() for p in x.chunk(2, 1)][::-1], 1),
    "split": lambda x: [p.tanh() for p in x.split([1, 3], dim=1)],
    "unbind": lambda x: torch.stack([p * (i + 1) for i, p in enumerate(x.unbind(1))], 1),
    "unbind last": lambda x: torch.stack(x.unbind(-1)[:3], -1),
    "permute": lambda x: x.permute(0, 2, 3, 1),
    "tokens": lambda x: x.flatten(2).transpose(1, 2),
    "batch second": lambda x: (x.flatten(2).permute(2, 0, 1) * 2).transpose(0, 1),
    "slices": lambda x: x[:, 1:3, ::2, 2:-1],
    "select": lambda x: x[:, 2],
    "ellipsis": lambda x: x[..., 1::2],
    "list index": lambda x: x[:, [2, 0, 1, 1]],
    "flip": lambda x: x.flip(2, 3).tanh(),
    "roll": lambda x: torch.roll(x, (2, -1), (2, 3)),
    "roll tokens": lambda x: x.flatten(2).transpose(1, 2).roll(3, 1),
    "expand": lambda x: x[:, :1].expand(-1, 5, -1, -1) + 0.5,
    "repeat": lambda x: x.repeat(1, 2, 1, 3),
    "windows": lambda x: (
        x.view(x.size(0), 4, 3, 2, 4, 2).permute(0, 2, 4, 3, 5, 1).reshape(-1, 4, 4).softmax(-1).view(x.shape[0], -1)
    ),
    "shuffle": lambda x: x.view(x.shape[0], 2, 2, *x.shape[2:]).transpose(1, 2).contiguous().view(x.size(0), -1, 6, 8),
    "pad": lambda x: F.pad(x, (1, 0, 2, 3), value=-1.5),
    "pad negative": lambda x: F.pad(x, (-1, 2, 0, -2)),
    "pad twice": lambda x: F.pad(F.pad(x, (1, 1), value=2.0), (0, 0, 1, 1), value=3.0),
    "pad reflect": lambda x: F.pad(x, (1, 2, 0, 1), mode="reflect"),
    "pad channels": lambda x: F.pad(x, (0, 0, 0, 0, 1, 2)) + 1,
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
    "interpolate to size": lambda x: F.interpolate(x[:, :, ::2, ::2], size=x.shape[2:]) + x,
    "cat rows": lambda x: torch.cat([x, x.tanh()], dim=2),
    "cat columns": lambda x: torch.cat([x, x.tanh(), x], dim=-1),
    "cat tokens": lambda x: torch.cat([x.flatten(2)[:, :, 1:5], x.flatten(2)], 2),
    "stack": lambda x: torch.stack([x.mean(2), x.amax(2)], 1),
    "stack vectors": lambda x: torch.stack([x.mean((2, 3)), x.amax((2, 3))], 2),
    "mean": lambda x: x.mean(1),
    "mean of a row": lambda x: x.mean(dim=3, keepdim=True),
    "mean of three": lambda x: x.mean((1, 2, 3)),
    "sum": lambda x: x.sum(dim=(1, 3)),
    "amax": lambda x: x.amax((1, 2)),
    "amin": lambda x: x.amin(1),
    "max": lambda x: x.max(dim=1, keepdim=True)[0] + x.max(2).values.sum(-1)[:, :, None, None],
    "matmul": lambda x: x @ x.transpose(-1, -2),
    "matmul with a constant": lambda x: torch.matmul(x, CONSTANT[0].T),
    "constant times map": lambda x: CONSTANT[0].T @ x,
    "batched constant": lambda x: x @ CONSTANT.transpose(1, 2),
    "bmm": lambda x: torch.bmm(x.flatten(2), x.flatten(2).transpose(1, 2)),
    "merged bmm": lambda x: torch.bmm(x.flatten(0, 1), x.flatten(0, 1).mT).view(x.size(0), 4, 6, 6),
    "attention": lambda x: F.scaled_dot_product_attention(x, x.tanh(), x + 1),
    "causal attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "masked attention": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=CONSTANT[:, :, :6] > -1, scale=0.3),
    "einsum": lambda x: torch.einsum("bchw,bcgw->bhg", x, x.tanh()),
    "einsum heads": lambda x: torch.einsum("bhid,bhjd->bhij", x, x.flip(1)),
    "einsum constant": lambda x: torch.einsum("nchw,cd->nhwd", x, CONSTANT[:, 0]),
    "linear": lambda x: F.linear(x, CONSTANT[0], CONSTANT[0, :, 0]),
    "group_norm": lambda x: F.group_norm(x, 2),
    "layer_norm": lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (4,)),
    "dict": lambda x: {"a": x.tanh(), "b": [x.mean((2, 3)), x]},
    "same output twice": lambda x: (x.tanh(),) * 2,
    "shape arithmetic": lambda x: x * (x.shape[2] ** -0.5) if x.dim() == 4 and x.size(1) > 2 else -x,
    "loop over channels": lambda x: sum(x[:, i] * i for i in range(x.shape[1])),
    "numel": lambda x: x.reshape(x.shape[0], x.numel() // x.shape[0]).tanh(),
    "cat of token rows": lambda x: torch.cat([x.flatten(2).mT[:, :1], x.flatten(2).mT], 1),
    "narrow": lambda x: x.narrow(3, 2, 3).unsqueeze(1).squeeze(1).movedim(1, 3),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_equal_pytorch(name: str) -> None:
    net = FunctionModule(lambda module, x: FUNCTIONS[name](module.conv(x)), conv=nn.Conv2d(4, 4, 3, padding=1))
    randomize(net)
    assert_export_equals_torch(net, make_images(), runs_engine=RUNS_ENGINE)
