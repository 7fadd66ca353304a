"""Networks on tokens: attention and multilayer perceptrons over patches."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(b, n, c)
        return self.proj(x)


class FeedForward(nn.Sequential):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__(nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(0.1), nn.Linear(hidden, dim))


class EncoderBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim)
        self.mlp = FeedForward(dim, 2 * dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEmbedding(nn.Module):
    def __init__(self, dim: int, patch: int = 4) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class ViT(nn.Module):
    def __init__(self, dim: int = 16, depth: int = 2) -> None:
        super().__init__()
        self.patch_embed = PatchEmbedding(dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, 17, dim) * 0.02)
        self.blocks = nn.Sequential(*[EncoderBlock(dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        cls = self.cls_token.expand(x.shape[0], -1, -1)
        x = torch.cat((cls, x), dim=1) + self.pos_embed
        x = self.norm(self.blocks(x))
        return self.head(x[:, 0])


class AttentionModuleBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.mlp = FeedForward(dim, 2 * dim)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        y, _ = self.attn(y, y, y, need_weights=False)
        x = x + y
        return x + self.mlp(self.norm2(x))


class PooledTokens(nn.Module):
    """Patch embedding, blocks on tokens, mean over the tokens, linear head."""

    def __init__(self, blocks: nn.Module, dim: int = 16, patch: int = 4) -> None:
        super().__init__()
        self.embed = PatchEmbedding(dim, patch)
        self.blocks = blocks
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.embed(x))
        return self.head(self.norm(x).mean(dim=1))


class ScaledDotProductBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.mlp = FeedForward(dim, 2 * dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), attn_mask=mask)
        return x + self.mlp(x)


class WindowBlock(nn.Module):
    """Attention inside windows of a map, with an optional cyclic shift."""

    def __init__(self, dim: int, window: int = 4, shift: int = 0) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim)
        self.mlp = FeedForward(dim, 2 * dim)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        ws = self.window
        shortcut = x
        x = self.norm1(x)
        if self.shift > 0:
            x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        x = x.view(b, h // ws, ws, w // ws, ws, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, ws * ws, c)
        x = self.attn(x)
        x = x.view(b, h // ws, w // ws, ws, ws, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(b, h, w, c)
        if self.shift > 0:
            x = torch.roll(x, shifts=(self.shift, self.shift), dims=(1, 2))
        x = shortcut + x
        return x + self.mlp(self.norm2(x))


class Swin(nn.Module):
    def __init__(self, dim: int = 16, shift: int = 0) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, dim, 2, stride=2)
        self.blocks = nn.Sequential(WindowBlock(dim), WindowBlock(dim, shift=shift))
        self.head = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.embed(x).permute(0, 2, 3, 1))
        return self.head(x.mean((1, 2)))


class MixerBlock(nn.Module):
    def __init__(self, dim: int, tokens: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token_mix = FeedForward(tokens, 24)
        self.channel_mix = FeedForward(dim, 32)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x).transpose(1, 2)
        x = x + self.token_mix(y).transpose(1, 2)
        return x + self.channel_mix(self.norm2(x))


class SpatialGatingBlock(nn.Module):
    def __init__(self, dim: int, tokens: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.proj_in, self.proj_out = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.gate_norm = nn.LayerNorm(dim)
        self.spatial = nn.Conv1d(tokens, tokens, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        u, v = F.gelu(self.proj_in(self.norm(x))).chunk(2, dim=-1)
        return x + self.proj_out(u * self.spatial(self.gate_norm(v)))


class Affine(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, 1, dim))
        self.beta = nn.Parameter(torch.zeros(1, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.beta, self.alpha, x)


class ResMLPBlock(nn.Module):
    def __init__(self, dim: int, tokens: int) -> None:
        super().__init__()
        self.affine1, self.affine2 = Affine(dim), Affine(dim)
        self.linear_tokens = nn.Linear(tokens, tokens)
        self.ff = FeedForward(dim, 2 * dim)
        self.gamma = nn.Parameter(0.1 * torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gamma * self.linear_tokens(self.affine1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.gamma * self.ff(self.affine2(x))


class PoolFormerBlock(nn.Module):
    def __init__(self, dim: int, pool_size: int = 3) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(1, dim), nn.GroupNorm(1, dim)
        self.pool = nn.AvgPool2d(pool_size, stride=1, padding=pool_size // 2, count_include_pad=False)
        self.mlp = nn.Sequential(nn.Conv2d(dim, 2 * dim, 1), nn.GELU(), nn.Conv2d(2 * dim, dim, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + (self.pool(y) - y)
        return x + self.mlp(self.norm2(x))


class NonLocal(nn.Module):
    """Convolutional network with one self-attention block over pixels."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, dim, 3, 2, 1), nn.BatchNorm2d(dim), nn.ReLU())
        self.theta, self.phi, self.g = (nn.Conv2d(dim, dim // 2, 1) for _ in range(3))
        self.out = nn.Conv2d(dim // 2, dim, 1)
        self.head = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        n, c, h, w = x.shape
        q, k, v = (f(x).view(n, c // 2, h * w) for f in (self.theta, self.phi, self.g))
        weights = torch.softmax(torch.bmm(q.transpose(1, 2), k) / math.sqrt(c // 2), dim=2)
        y = torch.bmm(v, weights.transpose(1, 2)).view(n, c // 2, h, w)
        x = x + self.out(y)
        return self.head(F.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1))


def make_encoder(norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first, activation="gelu")
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


TOKENS = {
    "vit": (ViT, (3, 16, 16)),
    "vit_multihead_attention": (
        lambda: PooledTokens(nn.Sequential(AttentionModuleBlock(16), AttentionModuleBlock(16))),
        (3, 16, 16),
    ),
    "vit_transformer_encoder": (lambda: PooledTokens(make_encoder(norm_first=False)), (3, 16, 16)),
    "vit_transformer_encoder_prenorm": (lambda: PooledTokens(make_encoder(norm_first=True)), (3, 16, 16)),
    "vit_scaled_dot_product": (lambda: PooledTokens(ScaledDotProductBlock(16)), (3, 16, 16)),
    "swin_windows": (Swin, (3, 16, 16)),
    "swin_shifted_windows": (lambda: Swin(shift=2), (3, 16, 16)),
    "mlp_mixer": (lambda: PooledTokens(nn.Sequential(MixerBlock(16, 16), MixerBlock(16, 16))), (3, 16, 16)),
    "gmlp": (lambda: PooledTokens(nn.Sequential(SpatialGatingBlock(16, 16), SpatialGatingBlock(16, 16))), (3, 16, 16)),
    "resmlp": (lambda: PooledTokens(nn.Sequential(ResMLPBlock(16, 16), ResMLPBlock(16, 16))), (3, 16, 16)),
    "poolformer": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 4, 4), PoolFormerBlock(16), PoolFormerBlock(16),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
        ),
        (3, 16, 16),
    ),
    "non_local": (NonLocal, (3, 16, 16)),
}  # fmt: skip
